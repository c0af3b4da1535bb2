//! What observe mode has seen, on all nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use http::Uri;
use oncekey::core::Timestamp;
use oncekey::problem::moment::rfc3339_millis;
use serde::Deserialize;
use serde_json::{Value, json};

use super::page::{self, Answer};
use super::problem::Problem;
use super::span::span;
use super::state::Admin;
use crate::observe::{Caller, Counts, Row, Tally};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ObservedQuery {
    last: Option<String>,
    route: Option<String>,
    #[serde(default)]
    intervals: bool,
}

/// What is known of a route.
#[derive(Debug, Default)]
struct Seen {
    all: Counts,
    callers: BTreeMap<Caller, Counts>,
}

/// As much as is of interest in the morning.
const LAST: Duration = Duration::from_secs(24 * 60 * 60);
/// So many callers of a route are shown, those with the most requests; the others together.
const CALLERS: usize = 100;

pub(super) async fn observed(State(admin): State<Arc<Admin>>, uri: Uri) -> Answer {
    let query: ObservedQuery = page::query(&uri)?;
    let last = query.last.as_deref().map(span).transpose()?.unwrap_or(LAST);
    if last.is_zero() {
        return Err(Problem::invalid("`last` is a time such as 90s, 5m, 12h or 7d"));
    }
    let mut tallies = admin.ask(admin.ledger.read(last)).await?;
    if let Some(route) = &query.route {
        tallies.iter_mut().for_each(|tally| tally.rows.retain(|row| row.route == *route));
        tallies.retain(|tally| !tally.rows.is_empty());
    }
    let mut document = document(&tallies);
    document["interval_seconds"] = json!(admin.ledger.every().as_secs_f64());
    if query.intervals {
        document["intervals"] = tallies.iter().map(interval).collect();
    }
    page::json(&document)
}

fn document(tallies: &[Tally]) -> Value {
    let (total, routes) = sums(tallies.iter().flat_map(|tally| &tally.rows));
    let nodes: BTreeSet<&str> = tallies.iter().map(|tally| &*tally.instance).collect();
    json!({
        "from": tallies.iter().map(|tally| tally.from).min().map(moment),
        "to": tallies.iter().map(|tally| tally.to).max().map(moment),
        "nodes": nodes,
        "total": counts(&total),
        "routes": routes.iter().map(|(name, seen)| route(name, seen)).collect::<Vec<_>>(),
    })
}

fn sums<'t>(rows: impl Iterator<Item = &'t Row>) -> (Counts, BTreeMap<&'t str, Seen>) {
    let mut total = Counts::default();
    let mut routes: BTreeMap<&str, Seen> = BTreeMap::new();
    for Row { route, caller, counts } in rows {
        total += *counts;
        let seen = routes.entry(route).or_default();
        seen.all += *counts;
        *seen.callers.entry(*caller).or_default() += *counts;
    }
    (total, routes)
}

fn route(name: &str, seen: &Seen) -> Value {
    let mut callers: Vec<(Caller, Counts)> =
        seen.callers.iter().map(|(caller, counts)| (*caller, *counts)).collect();
    callers.sort_by_key(|(caller, counts)| (*caller == Caller::Others, u64::MAX - counts.requests));
    if callers.len() > CALLERS {
        let mut others = Counts::default();
        callers.drain(CALLERS..).for_each(|(_, counts)| others += counts);
        callers.push((Caller::Others, others));
    }
    let callers = callers.iter().map(|(caller, of_caller)| {
        let mut row = counts(of_caller);
        row["caller"] = json!(caller);
        row
    });
    let callers: Vec<Value> = callers.collect();
    let mut row = counts(&seen.all);
    row["route"] = json!(name);
    row["callers"] = json!(callers);
    row
}

/// What one node saw between two writes, by route.
fn interval(tally: &Tally) -> Value {
    let (_, routes) = sums(tally.rows.iter());
    let routes = routes.iter().map(|(name, seen)| {
        let mut row = counts(&seen.all);
        row["route"] = json!(name);
        row
    });
    json!({
        "from": moment(tally.from),
        "to": moment(tally.to),
        "node": tally.instance,
        "routes": routes.collect::<Vec<_>>(),
    })
}

/// The numbers, and how many of a thousand have a key.
fn counts(counts: &Counts) -> Value {
    let mut row = json!(counts);
    let share = counts.keyed.saturating_mul(1_000).checked_div(counts.requests);
    row["keyed_share"] = share
        .and_then(|share| u32::try_from(share).ok())
        .map_or(Value::Null, |share| json!(f64::from(share) / 1_000.0));
    row
}

fn moment(micros: i64) -> String {
    rfc3339_millis(Timestamp::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(route: &str, caller: Caller, requests: u64, keyed: u64) -> Row {
        Row { route: route.into(), caller, counts: Counts { requests, keyed, ..Counts::default() } }
    }

    #[test]
    fn rows_are_summed_by_route_and_by_caller() {
        let rows = [
            row("a", Caller::Known(1), 3, 3),
            row("a", Caller::Known(2), 5, 0),
            row("a", Caller::Known(1), 4, 4),
            row("b", Caller::Nobody, 1, 1),
        ];
        let (total, routes) = sums(rows.iter());
        assert_eq!((total.requests, total.keyed), (13, 8));
        let a = route("a", &routes["a"]);
        assert_eq!((&a["requests"], &a["keyed_share"]), (&json!(12), &json!(0.583)));
        assert_eq!(a["callers"][0]["caller"], "0000000000000001", "the busiest first");
        assert_eq!(a["callers"][0]["requests"], 7);
        assert_eq!(counts(&Counts::default())["keyed_share"], Value::Null);
    }

    #[test]
    fn callers_beyond_a_screenful_are_one() {
        let rows: Vec<Row> = (0..500).map(|n| row("a", Caller::Known(n), 1, 1)).collect();
        let (_, routes) = sums(rows.iter());
        let a = route("a", &routes["a"]);
        let callers = a["callers"].as_array().unwrap();
        assert_eq!(callers.len(), CALLERS + 1);
        assert_eq!(callers[CALLERS]["caller"], "others");
        assert_eq!(callers[CALLERS]["requests"], 400);
    }
}
