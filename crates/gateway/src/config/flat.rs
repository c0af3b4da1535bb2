//! What holds: the value of every setting, and where it comes from.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::kind::Kind;
use super::node::{Table, read_value};
use super::settings::{Setting, Unset};
use super::source::{Place, Source, SourceKind};
use super::value::Value;

/// Values by their paths, such as `server.timeouts.connect`. All settings of a table are there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flat(BTreeMap<String, Leaf>);

/// A value and where it comes from.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub(crate) value: Value,
    pub(crate) origin: Origin,
    /// Which of the layers it comes from; the first one is nearest.
    layer: Option<usize>,
}

/// A table and its number among the layers.
type Layer<'t> = (usize, &'t Table);

/// Where a value comes from.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// Nobody set it.
    Default,
    /// Somebody did, here.
    Place(Place),
}

impl Flat {
    /// Looks up each setting in the layers, the first one first, and takes the default if it is in
    /// none of them, or if it cannot be read, which was reported before.
    pub(crate) fn new(settings: &'static [Setting], layers: &[&Table]) -> Self {
        let mut flat = Self::default();
        let layers: Vec<Layer<'_>> = layers.iter().copied().enumerate().collect();
        flat.add(settings, &layers, "");
        flat
    }

    fn add(&mut self, settings: &'static [Setting], layers: &[Layer<'_>], prefix: &str) {
        for setting in settings {
            let path = format!("{prefix}{}", setting.name);
            match (&setting.kind, setting.kind.inner()) {
                // Each of them is a table of its own, with layers of its own.
                (Kind::Tables(_), _) => {}
                (_, Some(inner)) => {
                    let tables = layers.iter().copied().filter_map(|(layer, table)| {
                        Some((layer, table.get(setting.name)?.as_table()?))
                    });
                    let tables: Vec<Layer<'_>> = tables.collect();
                    self.add(inner, &tables, &format!("{path}."));
                }
                (_, None) => {
                    self.0.insert(path, Leaf::new(setting, layers));
                }
            }
        }
    }

    /// Everything, by path.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = (&str, &Leaf)> {
        self.0.iter().map(|(path, leaf)| (path.as_str(), leaf))
    }

    /// The value at a path.
    ///
    /// # Panics
    /// If there is no such setting: paths are written in the program, not by users.
    pub(crate) fn leaf(&self, path: &str) -> &Leaf {
        self.0.get(path).unwrap_or_else(|| panic!("`{path}` is a setting of the table"))
    }

    /// Where a value was set, if somebody did.
    pub(crate) fn place(&self, path: &str) -> Option<&Place> {
        match &self.leaf(path).origin {
            Origin::Default => None,
            Origin::Place(place) => Some(place),
        }
    }

    /// Whether a value was set in the nearest layer, and not inherited.
    pub(crate) fn is_own(&self, path: &str) -> bool {
        self.leaf(path).layer == Some(0)
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.leaf(path).value.as_text()
    }

    /// A string that has a default.
    pub(crate) fn word(&self, path: &str) -> &str {
        self.text(path).unwrap_or_default()
    }

    pub(crate) fn texts(&self, path: &str) -> Vec<&str> {
        self.leaf(path).value.texts().collect()
    }

    pub(crate) fn flag(&self, path: &str) -> bool {
        matches!(self.leaf(path).value, Value::Flag(true))
    }

    pub(crate) fn time(&self, path: &str) -> Duration {
        let Value::Time(time) = self.leaf(path).value else { return Duration::ZERO };
        time
    }

    pub(crate) fn size(&self, path: &str) -> u64 {
        let Value::Size(size) = self.leaf(path).value else { return 0 };
        size
    }

    /// An integer within the bounds of its setting.
    pub(crate) fn count<T: TryFrom<i64> + Default>(&self, path: &str) -> T {
        let Value::Count(count) = self.leaf(path).value else { return T::default() };
        T::try_from(count).unwrap_or_default()
    }
}

impl Leaf {
    fn new(setting: &'static Setting, layers: &[Layer<'_>]) -> Self {
        let set = layers.iter().find_map(|(layer, table)| Some((*layer, table.get(setting.name)?)));
        let value = || match setting.unset {
            Unset::Is(text) => written(setting, text),
            Unset::Nothing { .. } | Unset::Refused { .. } => Value::Nothing,
        };
        match set {
            // What cannot be read was reported; that it is there still counts.
            Some((layer, node)) => Self {
                value: setting.kind.read(node).unwrap_or_else(|_| value()),
                origin: Origin::Place(node.at.clone()),
                layer: Some(layer),
            },
            None => Self { value: value(), origin: Origin::Default, layer: None },
        }
    }
}

/// A default, which is written as in a file. A test reads all of them.
fn written(setting: &'static Setting, text: &str) -> Value {
    let source = Source::new(setting.name, SourceKind::Preset, text);
    let node = read_value(&source).ok();
    node.and_then(|node| setting.kind.read(&node).ok()).unwrap_or(Value::Nothing)
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => out.write_str("default"),
            Self::Place(place) => place.fmt(out),
        }
    }
}
