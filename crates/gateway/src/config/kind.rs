//! What a setting may hold, and how it is read.
//!
//! One description serves the reader, the JSON Schema and the reference for people.

use std::time::Duration;

use super::form::{Complaint, Form};
use super::node::{Data, Node, Text};
use super::settings::Setting;
use super::similar::closest;
use super::source::{Place, masked};
use super::units::{read_size, read_time, show_size, show_time};
use super::value::Value;

/// What a setting may hold.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A string of some form.
    Text(&'static Form),
    /// One of some words.
    Choice(&'static [&'static str]),
    Flag,
    /// An integer.
    Count {
        least: i64,
        most: i64,
    },
    /// A span of time.
    Time {
        least: Duration,
        most: Duration,
    },
    /// A number of bytes.
    Size {
        least: u64,
        most: u64,
    },
    /// The path of a file.
    File(Secrecy),
    List(&'static Kind),
    /// Names that the user chooses, with values.
    Pairs {
        name: &'static Form,
        value: &'static Kind,
    },
    /// One of several kinds.
    Either(&'static [Kind]),
    /// `false`, which switches something off.
    Off,
    /// Settings of its own.
    Table(&'static [Setting]),
    /// `[[name]]`, as often as wanted.
    Tables(&'static [Setting]),
}

/// Whether a file must be hidden from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secrecy {
    Public,
    Secret,
}

/// Why a value is not what its setting wants.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) at: Place,
    pub(crate) allowed: Vec<&'static str>,
    pub(crate) meant: Option<&'static str>,
}

impl Kind {
    /// Reads a value. Everything that is wrong with it is returned, not only the first.
    pub(crate) fn read(&self, node: &Node) -> Result<Value, Vec<Wrong>> {
        let read = self.read_plain(node);
        // What a value that came from elsewhere is must not be said.
        let Data::Text(Text { written: Some(written), .. }) = &node.data else { return read };
        read.map_err(|_| {
            let message = format!("`{written}` does not stand for {}", self.describe());
            vec![Wrong::value(node, message)]
        })
    }

    fn read_plain(&self, node: &Node) -> Result<Value, Vec<Wrong>> {
        match (self, &node.data) {
            (Self::Text(form), Data::Text(text)) => match (form.check)(&text.value) {
                Ok(()) => Ok(Value::Text(text.clone())),
                Err(Complaint { message, at }) => {
                    let place = at.map(|at| node.at.part(&at, &text.value));
                    let at = place.unwrap_or_else(|| node.at.clone());
                    Err(vec![Wrong { at, ..Wrong::value(node, masked(&message)) }])
                }
            },
            (Self::Choice(words), Data::Text(text)) => choose(words, &text.value, node),
            (Self::Flag, Data::Flag(flag)) => Ok(Value::Flag(*flag)),
            (Self::Off, Data::Flag(false)) => Ok(Value::Flag(false)),
            (Self::Count { least, most }, Data::Integer(count)) => {
                in_range(*count, least, most, node, |count| count.to_string()).map(Value::Count)
            }
            (Self::Time { least, most }, Data::Text(text)) => {
                let time =
                    read_time(&text.value).map_err(|message| vec![Wrong::value(node, message)])?;
                in_range(Some(time), least, most, node, |time| show_time(*time)).map(Value::Time)
            }
            (Self::Size { least, most }, Data::Text(text)) => {
                let size =
                    read_size(&text.value).map_err(|message| vec![Wrong::value(node, message)])?;
                in_range(Some(size), least, most, node, |size| show_size(*size)).map(Value::Size)
            }
            (Self::File(_), Data::Text(text)) if text.value.is_empty() => {
                Err(vec![Wrong::value(node, "the path of the file is empty".to_owned())])
            }
            (Self::File(_), Data::Text(text)) => Ok(Value::Text(text.clone())),
            (Self::List(kind), Data::List(nodes)) => read_list(kind, nodes),
            (Self::Pairs { name, value }, Data::Table(table)) => {
                let mut pairs = Vec::new();
                let mut wrong = Vec::new();
                for (key, node) in table {
                    if let Err(complaint) = (name.check)(key) {
                        let at = node.name_at.clone();
                        wrong.push(Wrong { at, ..Wrong::value(node, complaint.message) });
                    }
                    match value.read(node) {
                        Ok(value) => pairs.push((key.clone(), value)),
                        Err(more) => wrong.extend(more),
                    }
                }
                if wrong.is_empty() { Ok(Value::Pairs(pairs)) } else { Err(wrong) }
            }
            (Self::Either(kinds), _) => {
                let fitting = kinds.iter().find(|kind| kind.takes(node));
                fitting.map_or_else(|| Err(vec![self.other_type(node)]), |kind| kind.read(node))
            }
            (_, _) => Err(vec![self.other_type(node)]),
        }
    }

    /// What it may hold, in words.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Text(form) => form.what.to_owned(),
            Self::Choice(words) => format!("one of {}", quoted(words)),
            Self::Flag => "true or false".to_owned(),
            Self::Off => "false".to_owned(),
            Self::Count { least, most } if least == most => least.to_string(),
            Self::Count { least, most } => format!("an integer from {least} to {most}"),
            Self::Time { least, most } => {
                format!("a span of time from {} to {}", show_time(*least), show_time(*most))
            }
            Self::Size { least, most } => {
                format!("a size from {} to {}", show_size(*least), show_size(*most))
            }
            Self::File(Secrecy::Public) => "a file".to_owned(),
            Self::File(Secrecy::Secret) => "a file that others cannot read".to_owned(),
            Self::List(kind) => format!("a list, each {}", kind.describe()),
            Self::Pairs { name, value } => {
                format!("a table: {}, and for each {}", name.what, value.describe())
            }
            Self::Either(kinds) => {
                kinds.iter().map(Self::describe).collect::<Vec<_>>().join(", or ")
            }
            Self::Table(_) => "a table".to_owned(),
            Self::Tables(_) => "a list of tables".to_owned(),
        }
    }

    /// The settings inside, if it is a table or many.
    pub(crate) const fn inner(&self) -> Option<&'static [Setting]> {
        match self {
            Self::Table(inner) | Self::Tables(inner) => Some(inner),
            Self::Text(_)
            | Self::Choice(_)
            | Self::Flag
            | Self::Off
            | Self::Count { .. }
            | Self::Time { .. }
            | Self::Size { .. }
            | Self::File(_)
            | Self::List(_)
            | Self::Pairs { .. }
            | Self::Either(_) => None,
        }
    }

    /// The words that it knows, if it is one of some words.
    pub(crate) fn words(&self) -> &'static [&'static str] {
        match self {
            Self::Choice(words) => words,
            Self::List(kind) => kind.words(),
            Self::Either(kinds) => kinds.first().map_or(&[], Self::words),
            Self::Text(_)
            | Self::Flag
            | Self::Off
            | Self::Count { .. }
            | Self::Time { .. }
            | Self::Size { .. }
            | Self::File(_)
            | Self::Pairs { .. }
            | Self::Table(_)
            | Self::Tables(_) => &[],
        }
    }

    /// Whether a value is of the right type, whatever its value is.
    fn takes(&self, node: &Node) -> bool {
        match (self, &node.data) {
            (Self::Text(_) | Self::Choice(_) | Self::File(_), Data::Text(_))
            | (Self::Time { .. } | Self::Size { .. }, Data::Text(_))
            | (Self::Flag, Data::Flag(_))
            | (Self::Off, Data::Flag(false))
            | (Self::Count { .. }, Data::Integer(_))
            | (Self::List(_) | Self::Tables(_), Data::List(_))
            | (Self::Pairs { .. } | Self::Table(_), Data::Table(_)) => true,
            (_, _) => false,
        }
    }

    fn other_type(&self, node: &Node) -> Wrong {
        let message = format!("this is {}, and should be {}", node.label(), self.describe());
        Wrong { code: "wrong-type", ..Wrong::value(node, message) }
    }
}

impl Wrong {
    fn value(node: &Node, message: String) -> Self {
        let at = node.at.clone();
        Self { code: "wrong-value", message, at, allowed: Vec::new(), meant: None }
    }
}

fn choose(words: &'static [&'static str], word: &str, node: &Node) -> Result<Value, Vec<Wrong>> {
    if let Some(word) = words.iter().find(|known| **known == word) {
        return Ok(Value::Word(word));
    }
    let message = format!("`{}` is not known here", masked(word));
    let meant = closest(word, words.iter().copied());
    Err(vec![Wrong { allowed: words.to_vec(), meant, ..Wrong::value(node, message) }])
}

fn read_list(kind: &Kind, nodes: &[Node]) -> Result<Value, Vec<Wrong>> {
    let mut values = Vec::new();
    let mut wrong = Vec::new();
    for node in nodes {
        match kind.read(node) {
            Ok(value) if values.contains(&value) => {
                wrong.push(Wrong::value(node, format!("{value} is there twice")));
            }
            Ok(value) => values.push(value),
            Err(more) => wrong.extend(more),
        }
    }
    if wrong.is_empty() { Ok(Value::List(values)) } else { Err(wrong) }
}

fn in_range<T: PartialOrd>(
    value: Option<T>,
    least: &T,
    most: &T,
    node: &Node,
    show: impl Fn(&T) -> String,
) -> Result<T, Vec<Wrong>> {
    let wrong = |message| Err(vec![Wrong { code: "out-of-range", ..Wrong::value(node, message) }]);
    match value {
        Some(value) if value < *least => {
            wrong(format!("{} is too little: the least is {}", show(&value), show(least)))
        }
        Some(value) if value <= *most => Ok(value),
        Some(value) => wrong(format!("{} is too much: the most is {}", show(&value), show(most))),
        None => wrong(format!("this is too much: the most is {}", show(most))),
    }
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ")
}
