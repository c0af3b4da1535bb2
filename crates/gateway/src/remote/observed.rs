//! `oncekey observed`: what observe mode has seen.

use serde_json::Value;

use super::args::ObservedArgs;
use super::table::table;
use super::text::{escaped, word};
use super::{Client, shown};
use crate::exit::Exit;

/// The columns behind the name of a route or caller: how people call them, and the API.
const COLUMNS: [(&str, &str); 8] = [
    ("requests", "requests"),
    ("keyed", "keyed_share"),
    ("duplicates", "duplicates"),
    ("mismatches", "mismatches"),
    ("hollow", "hollow_keys"),
    ("keyless", "keyless_repeats"),
    ("invalid", "invalid_keys"),
    ("aborts", "client_aborts"),
];

pub(super) async fn ask(args: &ObservedArgs) -> Result<String, Exit> {
    let mut path = format!("/api/v1/observed?last={}", escaped(&args.last));
    if let Some(route) = &args.route {
        path.push_str(&format!("&route={}", escaped(route)));
    }
    let seen = Client::new(&args.target)?.get(&path).await?.document()?;
    Ok(shown(args.json, &seen, || words(&seen, args.callers)))
}

fn words(seen: &Value, callers: bool) -> String {
    let mut rows = Vec::new();
    for route in list(&seen["routes"]) {
        if !callers {
            rows.push(row(&[&route["route"]], route));
            continue;
        }
        let of = |caller: &Value| row(&[&route["route"], &caller["caller"]], caller);
        rows.extend(list(&route["callers"]).map(of));
    }
    if rows.is_empty() {
        return "nothing was observed\n".to_owned();
    }
    let first: &[&str] = if callers { &["route", "caller"] } else { &["route"] };
    let names: Vec<&str> =
        first.iter().copied().chain(COLUMNS.iter().map(|(name, _)| *name)).collect();
    let nodes: Vec<String> = list(&seen["nodes"]).map(word).collect();
    let (from, to) = (word(&seen["from"]), word(&seen["to"]));
    format!("{}{from} to {to}, seen by {}\n", table(&names, &rows), nodes.join(", "))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn row(names: &[&Value], counts: &Value) -> Vec<String> {
    let numbers = COLUMNS.iter().map(|(_, member)| match (*member, counts[*member].as_f64()) {
        ("keyed_share", Some(share)) => format!("{:.1} %", share * 100.0),
        (_, _) => word(&counts[*member]),
    });
    names.iter().map(|name| word(name)).chain(numbers).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_route_or_a_caller_is_a_line() {
        let counts = json!({
            "requests": 12, "keyed_share": 0.583, "duplicates": 2, "mismatches": 0,
            "hollow_keys": 1, "keyless_repeats": 0, "invalid_keys": 0, "client_aborts": 3,
            "route": "pay", "caller": "00ff",
        });
        let mut route = counts.clone();
        route["callers"] = json!([counts]);
        let seen = json!({ "routes": [route], "nodes": ["a", "b"], "from": "F", "to": "T" });
        let text = words(&seen, false);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("ROUTE  REQUESTS  KEYED   DUPLICATES"), "{text}");
        assert!(lines[1].starts_with("pay    12        58.3 %  2"), "{text}");
        assert_eq!(lines[2], "F to T, seen by a, b");
        assert!(words(&seen, true).lines().nth(1).unwrap().starts_with("pay    00ff"));
        assert_eq!(words(&json!({}), false), "nothing was observed\n");
    }
}
