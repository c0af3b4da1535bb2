//! `oncekey config show`: what holds, and where it comes from.

use serde_json::{Map, Value as Json, json};

use super::Config;
use super::flat::{Flat, Leaf};

/// Every setting on a line of its own, as it could stand in a file.
pub(super) fn text(config: &Config) -> String {
    let mut out = lines(&config.values().globals, |path| !path.starts_with("defaults."));
    for (route, flat) in config.routes.iter().zip(&config.values().routes) {
        out += &format!("\n[[route]] # {}\n", route.name);
        out += &lines(flat, |_| true);
    }
    out
}

/// The same for programs.
pub(super) fn json(config: &Config) -> Json {
    let routes =
        config.routes.iter().zip(&config.values().routes).map(
            |(route, flat)| json!({ "name": &*route.name, "settings": members(flat, |_| true) }),
        );
    let globals = members(&config.values().globals, |path| !path.starts_with("defaults."));
    json!({ "settings": globals, "routes": routes.collect::<Vec<_>>() })
}

/// What `[defaults]` says is shown where it holds: in the routes.
pub(super) fn lines(flat: &Flat, wanted: impl Fn(&str) -> bool) -> String {
    let wanted: Vec<(String, &Leaf)> = flat
        .leaves()
        .filter(|(path, _)| wanted(path))
        .map(|(path, leaf)| (format!("{path} = {}", leaf.value), leaf))
        .collect();
    // Long values would push every origin out of sight.
    let width = wanted.iter().map(|(line, _)| line.chars().count()).filter(|width| *width <= 64);
    let width = width.max().unwrap_or_default();
    let line = |(line, leaf): &(String, &Leaf)| format!("{line:width$}  # {}\n", leaf.origin);
    wanted.iter().map(line).collect()
}

pub(super) fn members(flat: &Flat, wanted: impl Fn(&str) -> bool) -> Json {
    let member = |(path, leaf): (&str, &Leaf)| {
        let value = json!({ "value": leaf.value.to_json(), "origin": leaf.origin.to_string() });
        (path.to_owned(), value)
    };
    let wanted = flat.leaves().filter(|(path, _)| wanted(path)).map(member);
    Json::Object(wanted.collect::<Map<_, _>>())
}
