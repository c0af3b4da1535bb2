//! How known APIs do it, as settings that a route can begin with.

use super::node::{Table, read_document};
use super::source::{Source, SourceKind};

/// Name and settings. They are written as in a file, so that what is read from them is shown and
/// explained like everything else.
pub(crate) const PRESETS: [(&str, &str); 4] = [
    ("stripe-v1", include_str!("preset/stripe-v1.toml")),
    ("oasis", include_str!("preset/oasis.toml")),
    ("paypal", include_str!("preset/paypal.toml")),
    ("square", include_str!("preset/square.toml")),
];

/// The settings of a preset; nothing if there is none of that name.
pub(crate) fn preset(name: Option<&str>) -> Table {
    let found = PRESETS.iter().find(|(known, _)| Some(*known) == name);
    found.map_or_else(Table::new, |(name, text)| {
        let source = Source::new(*name, SourceKind::Preset, *text);
        read_document(&source).0
    })
}

#[cfg(test)]
mod tests {
    use super::super::kind::Kind;
    use super::super::settings::{MEMBERS, find};
    use super::*;

    #[test]
    fn every_preset_is_made_of_settings() {
        for (name, text) in PRESETS {
            let source = Source::new(name, SourceKind::Preset, text);
            let (table, problems) = read_document(&source);
            assert_eq!(problems, [], "{name}");
            for (member, node) in table {
                let setting = MEMBERS.iter().find(|setting| setting.name == member).unwrap();
                match (&setting.kind, node.as_table()) {
                    (Kind::Table(inner), Some(table)) => {
                        for (member, node) in table {
                            let setting = inner.iter().find(|setting| setting.name == member);
                            assert!(setting.unwrap().kind.read(node).is_ok(), "{name} {member}");
                        }
                    }
                    (kind, _) => assert!(kind.read(&node).is_ok(), "{name} {member}"),
                }
            }
        }
    }

    #[test]
    fn the_setting_knows_every_preset() {
        let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
        assert_eq!(find("route.preset").unwrap().kind.words(), names);
    }
}
