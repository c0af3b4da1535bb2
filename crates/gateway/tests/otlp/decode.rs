//! Reads what a collector was sent. Knows protocol buffers, and of OTLP the numbers of the fields as
//! its `.proto` files have them; nothing is shared with whoever writes it.

use std::collections::BTreeMap;

/// A message: its fields in order.
struct Message<'b>(Vec<(u64, Field<'b>)>);

enum Field<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

/// A span and the program that it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) resource: BTreeMap<String, String>,
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) name: String,
    pub(crate) kind: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) attributes: BTreeMap<String, String>,
    /// Trace and span.
    pub(crate) links: Vec<(String, String)>,
    /// 0 unset, 1 good, 2 error.
    pub(crate) status: u64,
}

/// The spans of an `ExportTraceServiceRequest`.
pub(crate) fn spans(bytes: &[u8]) -> Vec<Span> {
    let mut found = Vec::new();
    for of_resource in Message::read(bytes).messages(1) {
        let resource = of_resource.messages(1).remove(0).attributes(1);
        for of_scope in of_resource.messages(2) {
            let scope = of_scope.messages(1).remove(0);
            assert_eq!(scope.text(1), "oncekey");
            for span in of_scope.messages(2) {
                found.push(Span {
                    resource: resource.clone(),
                    trace: span.hex(1),
                    id: span.hex(2),
                    parent: span.hex(4),
                    name: span.text(5),
                    kind: span.number(6),
                    start: span.number(7),
                    end: span.number(8),
                    attributes: span.attributes(9),
                    links: span.messages(13).iter().map(|to| (to.hex(1), to.hex(2))).collect(),
                    status: span.messages(15).first().map_or(0, |status| status.number(3)),
                });
            }
        }
    }
    found
}

impl<'b> Message<'b> {
    fn read(mut rest: &'b [u8]) -> Self {
        let mut fields = Vec::new();
        while !rest.is_empty() {
            let tag = varint(&mut rest);
            let field = match tag & 7 {
                0 => Field::Number(varint(&mut rest)),
                1 => Field::Number(little(take(&mut rest, 8))),
                2 => {
                    let length = usize::try_from(varint(&mut rest)).unwrap();
                    Field::Bytes(take(&mut rest, length))
                }
                5 => Field::Number(little(take(&mut rest, 4))),
                other => panic!("no field is written like {other}"),
            };
            fields.push((tag >> 3, field));
        }
        Self(fields)
    }

    fn all(&self, number: u64) -> impl Iterator<Item = &Field<'b>> {
        self.0.iter().filter(move |(field, _)| *field == number).map(|(_, field)| field)
    }

    fn bytes(&self, number: u64) -> Vec<&'b [u8]> {
        let bytes = self.all(number).map(|field| match field {
            Field::Bytes(bytes) => *bytes,
            Field::Number(_) => panic!("field {number} is a number"),
        });
        bytes.collect()
    }

    fn messages(&self, number: u64) -> Vec<Message<'b>> {
        self.bytes(number).into_iter().map(Message::read).collect()
    }

    fn text(&self, number: u64) -> String {
        String::from_utf8(self.bytes(number).concat()).unwrap()
    }

    fn hex(&self, number: u64) -> String {
        self.bytes(number).concat().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn number(&self, number: u64) -> u64 {
        match self.all(number).next() {
            None => 0,
            Some(Field::Number(value)) => *value,
            Some(Field::Bytes(_)) => panic!("field {number} is no number"),
        }
    }

    /// Names and values, whatever kind a value is of.
    fn attributes(&self, number: u64) -> BTreeMap<String, String> {
        let pairs = self.messages(number).into_iter().map(|pair| {
            let value = pair.messages(2).remove(0);
            let shown = match value.0.first() {
                Some((1, Field::Bytes(text))) => String::from_utf8_lossy(text).into_owned(),
                Some((2, Field::Number(flag))) => (*flag == 1).to_string(),
                Some((3, Field::Number(number))) => number.to_string(),
                Some(_) | None => panic!("a value of another kind"),
            };
            (pair.text(1), shown)
        });
        pairs.collect()
    }
}

fn varint(rest: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = take(rest, 1)[0];
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return value;
        }
    }
}

fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn take<'b>(rest: &mut &'b [u8], length: usize) -> &'b [u8] {
    let (taken, left) = rest.split_at(length);
    *rest = left;
    taken
}
