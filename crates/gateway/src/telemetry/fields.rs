//! What spans and events say, as JSON.
//!
//! A protected request has a span of ten fields and a line that repeats them, and for a replay that
//! was a sixth of its cost, most of it allocations. So the buffers are used again, by each thread.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt::{self, Write as _};
use std::mem;
use std::ops::Range;

use serde::Serialize;
use tracing::field::{Field, Visit};

/// What a span or an event brought, in the order in which it came. Values are JSON already.
pub(super) struct Fields(Buffers);

#[derive(Default)]
struct Buffers {
    known: Vec<(&'static str, Range<usize>)>,
    text: Vec<u8>,
}

/// The longest text of a field. An error of a database can fill a screen; a log line should not.
pub(super) const MAX_TEXT: usize = 2_048;

/// The layer's span says `idempotency.route`; a line is about nothing else, so it says `route`.
pub(super) const PREFIX: &str = "idempotency.";

/// What tracing calls the words of an event.
const MESSAGE: &str = "message";

/// How many of them a thread keeps: as many as it usually has requests under way.
const STOCK: usize = 64;
/// Larger ones are not kept: a thread's stock takes a quarter of a megabyte at most.
const LARGEST: usize = 4_096;
/// What a span of the layer takes.
const USUAL: (usize, usize) = (16, 512);

thread_local! {
    static FREE: RefCell<Vec<Buffers>> = const { RefCell::new(Vec::new()) };
    static SCRATCH: Cell<String> = const { Cell::new(String::new()) };
}

impl Fields {
    /// No fields, in a buffer that was used before if there is one.
    pub(super) fn none() -> Self {
        let free = FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten();
        Self(free.unwrap_or_else(|| Buffers {
            known: Vec::with_capacity(USUAL.0),
            text: Vec::with_capacity(USUAL.1),
        }))
    }

    /// The words of an event, as JSON.
    pub(super) fn message(&self) -> Option<&[u8]> {
        self.get(MESSAGE)
    }

    /// Appends what was not said yet.
    pub(super) fn push_into(&self, line: &mut Vec<u8>, said: &mut Vec<&'static str>) {
        // Nothing is known twice in here, so only what others said is looked at.
        let others = said.len();
        for (name, place) in &self.0.known {
            if *name != MESSAGE && !said[..others].contains(name) {
                said.push(name);
                push_name(line, name);
                line.extend_from_slice(&self.0.text[place.clone()]);
            }
        }
    }

    fn get(&self, name: &str) -> Option<&[u8]> {
        let known = self.0.known.iter().find(|(known, _)| *known == name);
        known.map(|(_, place)| &self.0.text[place.clone()])
    }

    fn set(&mut self, field: &Field, push: impl FnOnce(&mut Vec<u8>)) {
        let name = name_of(field);
        let start = self.0.text.len();
        push(&mut self.0.text);
        let place = start..self.0.text.len();
        match self.0.known.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = place,
            None => self.0.known.push((name, place)),
        }
    }
}

impl Drop for Fields {
    fn drop(&mut self) {
        let mut buffers = mem::take(&mut self.0);
        if buffers.text.capacity() > LARGEST {
            return;
        }
        buffers.known.clear();
        buffers.text.clear();
        // A thread that ends has no stock any more.
        FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < STOCK {
                free.push(buffers);
            }
        })
        .ok();
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, |text| push_json(text, &value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, |text| push_json(text, &value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, |text| push_json(text, &value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, |text| push_json(text, &value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, |text| push_text(text, &bounded(value)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Taken and not borrowed: what is written may log something itself.
        let mut text = SCRATCH.try_with(Cell::take).unwrap_or_default();
        text.clear();
        // What cannot write itself is written as far as it went.
        write!(text, "{value:?}").ok();
        self.set(field, |out| push_text(out, &bounded(&text)));
        if text.capacity() <= LARGEST {
            SCRATCH.try_with(|scratch| scratch.set(text)).ok();
        }
    }
}

/// Nothing that a program logs may pass for what we say about the line itself.
fn name_of(field: &Field) -> &'static str {
    let name = field.name();
    match name.strip_prefix(PREFIX).unwrap_or(name) {
        "ts" => "field.ts",
        "level" => "field.level",
        "msg" => "field.msg",
        "instance" => "field.instance",
        "target" => "field.target",
        name => name,
    }
}

/// Appends the name of a member. Names stand in the source, where they are identifiers.
pub(super) fn push_name(line: &mut Vec<u8>, name: &'static str) {
    line.extend_from_slice(b",\"");
    line.extend_from_slice(name.as_bytes());
    line.extend_from_slice(b"\":");
}

/// Appends a text as JSON. Nearly all that is logged needs no escape, and to look at many letters at
/// once whether one does takes less than to look for the first, letter by letter.
pub(super) fn push_text(out: &mut Vec<u8>, text: &str) {
    let needs_escape = text.bytes().fold(false, |needs, byte| needs | is_escaped(byte));
    if needs_escape {
        return push_json(out, text);
    }
    out.reserve(text.len() + 2);
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// Whether a byte of a text stands as something else in JSON.
const fn is_escaped(byte: u8) -> bool {
    byte < b' ' || byte == b'"' || byte == b'\\'
}

fn push_json(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    // Texts and numbers are always JSON, and a vector takes everything.
    serde_json::to_writer(out, value).expect("a text or a number is JSON");
}

fn bounded(text: &str) -> Cow<'_, str> {
    // No character is shorter than a byte.
    if text.len() <= MAX_TEXT {
        return Cow::Borrowed(text);
    }
    match text.char_indices().nth(MAX_TEXT) {
        Some((at, _)) => Cow::Owned(format!("{}…", &text[..at])),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The short way writes what the long way would, whatever stands in a text and wherever.
    #[test]
    fn a_text_is_written_as_json_whether_it_needs_an_escape_or_not() {
        let letters = (0..=0x7f).chain([0xe9, 0x2028, 0x1_f600]).filter_map(char::from_u32);
        for letter in letters {
            for text in [format!("{letter}"), format!("a text of forty letters, and then {letter}")]
            {
                let mut line = Vec::new();
                push_text(&mut line, &text);
                assert_eq!(line, serde_json::to_vec(&text).unwrap(), "{text:?}");
            }
        }
        let mut line = Vec::new();
        push_text(&mut line, "");
        assert_eq!(line, b"\"\"");
    }
}
