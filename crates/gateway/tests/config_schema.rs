//! The JSON Schema that editors use says the same as the program.
//!
//! Whatever the program accepts is valid under the schema, and every misspelt name and every wrong
//! type is not. The schema knows nothing about contradictions, so the other way round it may say
//! less.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex_lite::Regex;
use serde_json::Value;

fn schema() -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    let output = command.args(["config", "schema"]).output().expect("the program runs");
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn files(name: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config").join(name);
    let paths = fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("one").path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect()
}

/// A file as JSON, if it is TOML at all.
fn document(path: &Path) -> Option<Value> {
    let text = fs::read_to_string(path).ok()?;
    serde_json::to_value(text.parse::<toml::Table>().ok()?).ok()
}

/// What is wrong with a value, by the part of JSON Schema 2020-12 that the schema uses. An unknown
/// word is a failure of the test: it would be ignored silently.
fn wrong(schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (word, rule) in schema.as_object().expect("a schema is an object") {
        let fits = match word.as_str() {
            "$schema" | "title" | "description" | "default" | "examples" => true,
            "type" => match rule.as_str().expect("a type") {
                "object" => value.is_object(),
                "array" => value.is_array(),
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "integer" => value.is_i64(),
                other => panic!("type {other}"),
            },
            "enum" => rule.as_array().expect("words").contains(value),
            "const" => rule == value,
            "minimum" => value.as_i64().is_none_or(|value| value >= rule.as_i64().expect("i64")),
            "maximum" => value.as_i64().is_none_or(|value| value <= rule.as_i64().expect("i64")),
            "minLength" => value.as_str().is_none_or(|text| !text.is_empty()),
            "pattern" => {
                let pattern = Regex::new(rule.as_str().expect("a pattern")).expect("a regex");
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            "anyOf" => rule
                .as_array()
                .expect("schemas")
                .iter()
                .any(|rule| wrong(rule, value, at).is_empty()),
            "uniqueItems" => value.as_array().is_none_or(|items| {
                items.iter().map(ToString::to_string).collect::<BTreeSet<_>>().len() == items.len()
            }),
            "required" => {
                let names = rule.as_array().expect("names").iter().filter_map(Value::as_str);
                value
                    .as_object()
                    .is_none_or(|object| names.into_iter().all(|name| object.contains_key(name)))
            }
            "items" => {
                let items = value.as_array().into_iter().flatten().enumerate();
                found.extend(items.flat_map(|(n, item)| wrong(rule, item, &format!("{at}/{n}"))));
                true
            }
            "properties" | "additionalProperties" | "propertyNames" => true,
            other => panic!("the schema says {other}"),
        };
        if !fits {
            found.push(format!("{at}: {word}"));
        }
    }
    for (name, member) in value.as_object().into_iter().flatten() {
        let at = format!("{at}/{name}");
        if let Some(rule) = schema.get("propertyNames") {
            found.extend(wrong(rule, &Value::from(name.as_str()), &at));
        }
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(rule), _) => found.extend(wrong(rule, member, &at)),
            (None, Value::Bool(false)) => found.push(format!("{at}: additionalProperties")),
            (None, Value::Null) => {}
            (None, rule) => found.extend(wrong(rule, member, &at)),
        }
    }
    found
}

#[test]
fn what_the_program_accepts_is_valid() {
    let schema = schema();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    for file in files("good") {
        let document = document(&file).expect("TOML");
        assert_eq!(wrong(&schema, &document, ""), [] as [&str; 0], "{}", file.display());
    }
}

#[test]
fn misspelt_names_and_wrong_types_are_not_valid() {
    let schema = schema();
    let mut seen = 0;
    for file in files("bad") {
        let Some(document) = document(&file) else { continue };
        let said = fs::read_to_string(file.with_extension("txt")).unwrap_or_default();
        let of_file = said.split("\n\n").filter(|problem| problem.contains(".toml:"));
        let codes = ["error[unknown-field]", "error[wrong-type]"];
        let plain =
            of_file.filter(|problem| codes.iter().any(|code| problem.contains(code))).count();
        if plain > 0 {
            let found = wrong(&schema, &document, "");
            assert!(found.len() >= plain, "{}: {plain} but {found:?}", file.display());
            seen += 1;
        }
    }
    assert!(seen >= 5, "{seen} files");
}

/// Every part of the schema has to mean something to this test, those of unused settings too.
#[test]
fn the_schema_has_a_description_and_a_kind_for_every_setting() {
    fn look(schema: &Value, at: &str) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let at = format!("{at}/{name}");
            assert!(property["description"].is_string(), "{at}");
            let kinds = ["type", "enum", "anyOf"];
            assert!(kinds.iter().any(|kind| property.get(kind).is_some()), "{at}");
            if let Some(default) = property.get("default") {
                assert_eq!(wrong(property, default, &at), [] as [&str; 0]);
            }
            look(property, &at);
            look(&property["items"], &at);
        }
    }
    look(&schema(), "");
}
