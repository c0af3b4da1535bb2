//! A configuration as it was written: values and where they stand, not yet checked.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::ConfigProblem;
use super::source::{Place, Source, masked};

/// A value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) data: Data,
    pub(crate) at: Place,
    /// Where its name stands.
    pub(crate) name_at: Place,
}

/// What a value is.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    Text(Text),
    /// `None` if it is too large for any setting.
    Integer(Option<i64>),
    Float,
    Flag(bool),
    Date,
    List(Vec<Node>),
    Table(Table),
}

/// A string.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) value: String,
    /// What stands in the file if `value` was made from it, such as `${env:NAME}`: that may be
    /// shown, the value may not.
    pub(crate) written: Option<String>,
}

/// Values by their names.
pub(crate) type Table = BTreeMap<String, Node>;

impl Text {
    /// What may be shown of it.
    pub(crate) fn shown(&self) -> String {
        masked(self.written.as_deref().unwrap_or(&self.value))
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown().fmt(out)
    }
}

impl Node {
    /// A string that stands in nothing but itself.
    pub(crate) fn text(value: &str, source: &Arc<Source>) -> Self {
        let at = Place { source: Arc::clone(source), span: 0..source.text.len() };
        let text = Text { value: value.to_owned(), written: None };
        Self { data: Data::Text(text), name_at: at.clone(), at }
    }

    /// The word for what it is.
    pub(crate) const fn label(&self) -> &'static str {
        match self.data {
            Data::Text(_) => "a string",
            Data::Integer(_) => "an integer",
            Data::Float => "a float",
            Data::Flag(_) => "a boolean",
            Data::Date => "a date",
            Data::List(_) => "a list",
            Data::Table(_) => "a table",
        }
    }

    pub(crate) const fn as_table(&self) -> Option<&Table> {
        match &self.data {
            Data::Table(table) => Some(table),
            Data::Text(_)
            | Data::Integer(_)
            | Data::Float
            | Data::Flag(_)
            | Data::Date
            | Data::List(_) => None,
        }
    }

    fn new(value: Spanned<DeValue<'_>>, name_at: Option<Place>, source: &Arc<Source>) -> Self {
        let at = Place { source: Arc::clone(source), span: value.span() };
        let data = match value.into_inner() {
            DeValue::String(text) => Data::Text(Text { value: text.into_owned(), written: None }),
            DeValue::Integer(integer) => {
                Data::Integer(i64::from_str_radix(integer.as_str(), integer.radix()).ok())
            }
            DeValue::Float(_) => Data::Float,
            DeValue::Boolean(flag) => Data::Flag(flag),
            DeValue::Datetime(_) => Data::Date,
            DeValue::Array(values) => {
                Data::List(values.into_iter().map(|value| Self::new(value, None, source)).collect())
            }
            DeValue::Table(table) => Data::Table(members(table, source)),
        };
        Self { data, name_at: name_at.unwrap_or_else(|| at.clone()), at }
    }
}

/// Reads a whole document. What cannot be read is reported; what can is returned.
pub(crate) fn read_document(source: &Arc<Source>) -> (Table, Vec<ConfigProblem>) {
    let (table, errors) = DeTable::parse_recoverable(&source.text);
    let problems = errors.iter().map(|error| syntax(error, source)).collect();
    (members(table.into_inner(), source), problems)
}

/// Reads a value, as it stands behind an equals sign.
pub(crate) fn read_value(source: &Arc<Source>) -> Result<Node, ConfigProblem> {
    match DeValue::parse(&source.text) {
        Ok(value) => Ok(Node::new(value, None, source)),
        Err(error) => Err(syntax(&error, source)),
    }
}

/// Puts the members of `from` into `into`. A value that is there in both is replaced if `clash`
/// says so.
pub(crate) fn merge(
    into: &mut Table,
    from: Table,
    clash: &mut dyn FnMut(&str, &Node, &Node) -> Clash,
) {
    for (name, node) in from {
        match (into.get_mut(&name), node) {
            (None, node) => {
                into.insert(name, node);
            }
            (Some(Node { data: Data::Table(old), .. }), Node { data: Data::Table(new), .. }) => {
                merge(old, new, clash);
            }
            (Some(old), node) => match clash(&name, old, &node) {
                Clash::Replace => *old = node,
                Clash::Append => append(old, node),
                Clash::Keep => {}
            },
        }
    }
}

/// What becomes of a value that is there twice.
pub(crate) enum Clash {
    Replace,
    /// Both are lists, and become one.
    Append,
    Keep,
}

fn append(old: &mut Node, new: Node) {
    if let (Data::List(old), Data::List(new)) = (&mut old.data, new.data) {
        old.extend(new);
    }
}

fn members(table: DeTable<'_>, source: &Arc<Source>) -> Table {
    let member = |(name, value): (Spanned<_>, _)| {
        let name_at = Place { source: Arc::clone(source), span: name.span() };
        let name: std::borrow::Cow<'_, str> = name.into_inner();
        (name.into_owned(), Node::new(value, Some(name_at), source))
    };
    table.into_iter().map(member).collect()
}

fn syntax(error: &toml::de::Error, source: &Arc<Source>) -> ConfigProblem {
    let span = error.span().unwrap_or(0..0);
    let place = Place { source: Arc::clone(source), span };
    let message = error.message().lines().next().unwrap_or_default();
    // The parser names a repeated setting in words of its own; it is the one mistake of grammar
    // after which the rest of the file still means what it says.
    if message.contains("duplicate key") {
        let name = source.text.get(place.span.clone()).unwrap_or("a setting");
        return ConfigProblem::error("set-twice", format!("`{name}` is set twice")).at(&place);
    }
    ConfigProblem::error("syntax", format!("this is not TOML: {message}")).at(&place)
}

#[cfg(test)]
mod tests {
    use super::super::source::SourceKind;
    use super::*;

    #[test]
    fn values_know_where_they_stand() {
        let source = Source::new("a", SourceKind::File, "[server]\nlisten = 'x'\n");
        let (table, problems) = read_document(&source);
        assert!(problems.is_empty());
        let server = table["server"].as_table().unwrap();
        assert_eq!(server["listen"].at.position(), (2, 10));
        assert_eq!(server["listen"].name_at.position(), (2, 1));
    }

    /// What the program relies on: the parser goes on after a mistake, and calls it so.
    #[test]
    fn every_mistake_of_grammar_is_found() {
        let source = Source::new("a", SourceKind::File, "a = 1\na = 2\nb = \nc = 'x\n");
        let (_, problems) = read_document(&source);
        let codes: Vec<&str> = problems.iter().map(|problem| problem.code).collect();
        assert_eq!(codes.iter().filter(|code| **code == "set-twice").count(), 1, "{codes:?}");
        assert!(codes.len() >= 3, "{codes:?}");
    }
}
