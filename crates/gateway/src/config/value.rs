//! A value that has been checked.

use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value as Json, json};

use super::node::Text;
use super::units::{show_size, show_time};

/// A value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// It is not set, and has no default.
    Nothing,
    Text(Text),
    /// One of the words that the setting knows.
    Word(&'static str),
    Flag(bool),
    Count(i64),
    Time(Duration),
    Size(u64),
    List(Vec<Value>),
    Pairs(Vec<(String, Value)>),
}

impl Value {
    /// The string, if it is one.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(&text.value),
            Self::Word(word) => Some(word),
            Self::Nothing
            | Self::Flag(_)
            | Self::Count(_)
            | Self::Time(_)
            | Self::Size(_)
            | Self::List(_)
            | Self::Pairs(_) => None,
        }
    }

    /// The strings in it, if it is a list.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        let values = if let Self::List(values) = self { values.as_slice() } else { &[] };
        values.iter().filter_map(Self::as_text)
    }

    /// For people and programs: without passwords, and without what came from elsewhere.
    pub(crate) fn to_json(&self) -> Json {
        match self {
            Self::Nothing => Json::Null,
            Self::Text(text) => json!(text.shown()),
            Self::Word(word) => json!(word),
            Self::Flag(flag) => json!(flag),
            Self::Count(count) => json!(count),
            Self::Time(time) => json!(show_time(*time)),
            Self::Size(size) => json!(show_size(*size)),
            Self::List(values) => values.iter().map(Self::to_json).collect(),
            Self::Pairs(pairs) => {
                let members = pairs.iter().map(|(name, value)| (name.clone(), value.to_json()));
                Json::Object(members.collect::<Map<_, _>>())
            }
        }
    }
}

/// As it would stand in a file.
impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => out.write_str("(not set)"),
            Self::Text(text) => write!(out, "{}", json!(text.shown())),
            Self::Word(word) => write!(out, "\"{word}\""),
            Self::Flag(flag) => write!(out, "{flag}"),
            Self::Count(count) => write!(out, "{count}"),
            Self::Time(time) => write!(out, "\"{}\"", show_time(*time)),
            Self::Size(size) => write!(out, "\"{}\"", show_size(*size)),
            Self::List(values) => {
                let values: Vec<String> = values.iter().map(ToString::to_string).collect();
                write!(out, "[{}]", values.join(", "))
            }
            Self::Pairs(pairs) => {
                let pair = |(name, value): &(String, Self)| format!("{} = {value}", json!(name));
                let pairs: Vec<String> = pairs.iter().map(pair).collect();
                write!(out, "{{ {} }}", pairs.join(", "))
            }
        }
    }
}
