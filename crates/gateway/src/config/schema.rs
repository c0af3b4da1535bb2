//! The JSON Schema of a file, for editors: made from the table of settings.
//!
//! Whatever the program accepts is valid under the schema. The other way round it says less: it
//! knows types, names, words and forms, but no contradictions.

use serde_json::{Map, Value as Json, json};

use super::kind::Kind;
use super::node::{Data, Node, read_value};
use super::problem::{REFERENCE, anchor};
use super::settings::{ROOT, Setting, Unset};
use super::source::{Source, SourceKind};

/// The whole schema (draft 2020-12).
pub(super) fn schema() -> Json {
    let mut schema = object(&ROOT, "");
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("oncekey.toml");
    schema["description"] = json!(format!("The configuration of oncekey; see {REFERENCE}."));
    schema
}

fn object(settings: &'static [Setting], prefix: &str) -> Json {
    let property = |setting: &'static Setting| {
        let path = format!("{prefix}{}", setting.name);
        let mut property = of_kind(&setting.kind, &path);
        property["description"] = json!(format!("{} {REFERENCE}#{}", setting.about, anchor(&path)));
        let word = match setting.unset {
            Unset::Is(_) => "default",
            Unset::Nothing { .. } | Unset::Refused { .. } => "examples",
        };
        match value(setting.example()) {
            Some(value) if word == "examples" => property[word] = json!([value]),
            Some(value) => property[word] = value,
            None => {}
        }
        (setting.name.to_owned(), property)
    };
    let required = |setting: &&Setting| matches!(setting.unset, Unset::Refused { .. });
    let required: Vec<&str> =
        settings.iter().filter(required).map(|setting| setting.name).collect();
    let mut object = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": settings.iter().map(property).collect::<Map<_, _>>(),
    });
    // What a file lacks may come from the environment, so that only routes must be complete.
    if !required.is_empty() && prefix == "route." {
        object["required"] = json!(required);
    }
    object
}

fn of_kind(kind: &'static Kind, path: &str) -> Json {
    match kind {
        Kind::Text(form) => match form.pattern {
            // Anything may be made from `${…}`.
            Some(pattern) => json!({ "type": "string", "pattern": format!("{pattern}|\\$\\{{") }),
            None => json!({ "type": "string" }),
        },
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Off => json!({ "const": false }),
        Kind::Count { least, most } => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Kind::Time { .. } => {
            json!({ "type": "string", "pattern": "^([0-9]+(ms|w|d|h|m|s))+$|\\$\\{" })
        }
        Kind::Size { .. } => {
            json!({ "type": "string", "pattern": "^[0-9]+ *([KMG]iB|kB|[MG]B|B)$|\\$\\{" })
        }
        Kind::File(_) => json!({ "type": "string", "minLength": 1 }),
        Kind::List(kind) => {
            json!({ "type": "array", "uniqueItems": true, "items": of_kind(kind, path) })
        }
        Kind::Pairs { name, value } => json!({
            "type": "object",
            "propertyNames": { "pattern": name.pattern.unwrap_or_default() },
            "additionalProperties": of_kind(value, path),
        }),
        Kind::Either(kinds) => {
            json!({ "anyOf": kinds.iter().map(|kind| of_kind(kind, path)).collect::<Vec<_>>() })
        }
        Kind::Table(settings) => object(settings, &format!("{path}.")),
        Kind::Tables(settings) => {
            json!({ "type": "array", "items": object(settings, &format!("{path}.")) })
        }
    }
}

/// A value as it is written in a file.
fn value(text: &str) -> Option<Json> {
    fn of(node: &Node) -> Option<Json> {
        match &node.data {
            Data::Text(text) => Some(json!(text.value)),
            Data::Integer(integer) => integer.map(|integer| json!(integer)),
            Data::Flag(flag) => Some(json!(flag)),
            Data::List(nodes) => nodes.iter().map(of).collect(),
            Data::Table(_) | Data::Float | Data::Date => None,
        }
    }
    of(&read_value(&Source::new("default", SourceKind::Preset, text)).ok()?)
}
