//! `[[route]]` as typed data.

use std::str::FromStr;
use std::sync::Arc;

use oncekey::core::Class;
use oncekey::core::fingerprint::{FingerprintRules, JsonBodies, JsonPath};
use oncekey::core::policy::{InFlight, Keep, Limits, Mark, Policy, Retain, StoreDown, Verdict};
use oncekey::layer::WeakKeys;

use super::flat::Flat;
use super::sections::bytes;
use super::statuses::{Overlap, read_record};
use super::value::Value;
use crate::route::{
    Completer, Methods, Pattern, Rollout, RolloutBy, RouteMode, RouteSpec, key_source, method,
};

/// Makes a route of its settings. `None` if it has no pattern, which was reported already.
pub(crate) fn read_route(flat: &Flat, globals: &Flat) -> Option<RouteSpec> {
    let pattern = Pattern::parse(flat.text("match")?).ok()?;
    let methods = match pattern.methods() {
        Methods::Unsaid => {
            let named = flat.texts("methods").into_iter().filter_map(|name| method(name).ok());
            Methods::Only(named.collect())
        }
        said @ (Methods::Any | Methods::Only(_)) => said.clone(),
    };
    let name = flat.text("name").map_or_else(|| pattern.to_string(), str::to_owned);
    Some(RouteSpec {
        name: Arc::from(name),
        methods,
        pattern,
        mode: read_mode(flat.word("mode")),
        keys: texts_by(flat, "key.sources", key_source),
        quality: match flat.word("key.quality") {
            "off" => WeakKeys::Accept,
            "reject" => WeakKeys::Reject,
            _ => WeakKeys::Warn,
        },
        scope: parsed(flat, "scope"),
        policy: Arc::new(read_policy(flat, globals)),
        fingerprint: FingerprintRules {
            json: match flat.word("fingerprint.json") {
                "raw" => JsonBodies::Raw,
                _ => JsonBodies::Canonical,
            },
            ignore_json: parsed(flat, "fingerprint.ignore_json"),
            ..FingerprintRules::default()
        },
        counted: parsed(flat, "fingerprint.count_headers"),
        forward_key: flat.text("forward_key").and_then(|name| name.parse().ok()),
        probe: flat.text("probe").map(str::to_owned),
        rollout: Rollout {
            percent: flat.count("rollout.percent"),
            by: match flat.word("rollout.by") {
                "key" => RolloutBy::Key,
                _ => RolloutBy::Scope,
            },
            exempt: parsed(flat, "rollout.exempt"),
        },
        completer: match flat.flag("complete") {
            true => Completer::For(flat.time("complete_for")),
            false => Completer::Off,
        },
    })
}

fn read_policy(flat: &Flat, globals: &Flat) -> Policy {
    let unavailable =
        flat.text("on_unavailable").unwrap_or_else(|| globals.word("store.on_unavailable"));
    Policy {
        class: match flat.word("class") {
            "keyed" => Class::Keyed,
            "retry" => Class::Retry,
            _ => Class::Once,
        },
        keep: read_keep(flat).unwrap_or_default(),
        retention: flat.time("ttl"),
        linger: globals.time("store.linger"),
        lease: flat.time("in_flight.lease"),
        grace: flat.time("in_flight.grace"),
        in_flight: match flat.word("in_flight.on_duplicate") {
            "conflict" => InFlight::Conflict,
            "accepted" => InFlight::Accepted,
            _ => InFlight::Wait(flat.time("in_flight.wait")),
        },
        limits: Limits {
            request_body: bytes(flat.size("limits.max_request_body")),
            saved_body: bytes(flat.size("limits.max_stored_body")),
            waiters_per_key: flat.count("in_flight.max_waiters"),
            ..Limits::default()
        },
        store_down: match unavailable {
            "pass" => StoreDown::PassUnprotected,
            _ => StoreDown::Refuse,
        },
        mark: match flat.word("mark") {
            "with-claim" => Mark::WithClaim,
            "apart" => Mark::Apart,
            _ => Mark::ByClass,
        },
        retain: read_retain(&flat.leaf("retain").value),
        ..Policy::default()
    }
}

/// The rules of `record`, which may contradict each other.
pub(crate) fn read_keep(flat: &Flat) -> Result<Keep, Overlap> {
    let Value::Pairs(pairs) = &flat.leaf("record").value else { return Ok(Keep::default()) };
    let verdict = |value: &Value| match value.as_text() {
        Some("release") => Verdict::Release,
        Some("unknown") => Verdict::Unknown,
        _ => Verdict::Keep,
    };
    let rules: Vec<(String, Verdict)> =
        pairs.iter().map(|(statuses, value)| (statuses.clone(), verdict(value))).collect();
    read_record(&rules)
}

fn read_mode(word: &str) -> RouteMode {
    let mode = RouteMode::ALL.into_iter().find(|mode| mode.label() == word);
    mode.unwrap_or(RouteMode::Observe)
}

fn read_retain(value: &Value) -> Retain {
    if value.as_text() == Some("status-only") {
        return Retain::StatusOnly;
    }
    let Value::Pairs(pairs) = value else { return Retain::Whole };
    let paths = pairs.iter().flat_map(|(_, paths)| paths.texts());
    Retain::Redacted(paths.filter_map(|path| JsonPath::parse(path).ok()).collect())
}

/// The strings of a list, each read once more. They were read when they were checked.
pub(crate) fn parsed<T: FromStr>(flat: &Flat, path: &str) -> Vec<T> {
    texts_by(flat, path, str::parse)
}

fn texts_by<T, E>(flat: &Flat, path: &str, read: impl Fn(&str) -> Result<T, E>) -> Vec<T> {
    flat.texts(path).into_iter().filter_map(|text| read(text).ok()).collect()
}
