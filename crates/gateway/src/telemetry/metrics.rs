//! Every metric that the program has: its type, its unit and what it says.
//!
//! The numbers are counted elsewhere, in the engine, the layer and the proxy. This is what
//! Prometheus is told about them. A test compares it with the code and with
//! `docs/reference/metrics.md`.

use metrics::Unit;

/// A metric as it is described.
#[derive(Clone, Copy, Debug)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) unit: Unit,
    pub(super) labels: Labels,
    /// One sentence without a full stop: what Prometheus shows as help.
    pub(super) help: &'static str,
}

/// What kind of number it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    /// With the upper ends of its buckets.
    Histogram(&'static [f64]),
}

/// Whether a series can be made before anything happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Labels {
    /// It has none, so there is one series, and it can begin with zero.
    None,
    /// Its series are known when they are first counted.
    Some,
}

/// The buckets that OpenTelemetry advises for HTTP, so that our figures can be laid beside others.
const HTTP: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

/// A call to a store takes from a tenth of a millisecond, in memory or a local file, to a second, at
/// which it has gone wrong.
const STORE: &[f64] =
    &[0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];

/// All of them, in the order of the reference.
pub(super) const METRICS: &[Metric] = &[
    counted("oncekey_requests_total", "requests that a rule applied to, by how they ended"),
    timed("oncekey_request_duration_seconds", HTTP, "how long requests with a key took"),
    counted("oncekey_keys_presented_total", "keys that came in"),
    counted("oncekey_keyless_requests_total", "requests without a key"),
    level("oncekey_in_flight", Unit::Count, "attempts that hold a key on this node"),
    level("oncekey_in_flight_oldest_seconds", Unit::Seconds, "how long the oldest of them has run"),
    level("oncekey_waiters", Unit::Count, "requests that wait for another one's answer"),
    counted("oncekey_client_aborts_total", "answers that nobody waited for any more"),
    counted("oncekey_takeovers_total", "keys that were taken over from an attempt that is gone"),
    counted("oncekey_claims_lost_total", "attempts that lost their lease while they ran"),
    alone("oncekey_abandoned_total", "attempts whose task was dropped"),
    counted("oncekey_unprotected_requests_total", "work that ran without protection"),
    level("oncekey_unknown_outcomes", Unit::Count, "records in doubt, as the last sweep found"),
    alone("oncekey_journalled_total", "ends that went into the journal"),
    level("oncekey_journal_waiting", Unit::Count, "ends in the journal that wait for the store"),
    level("oncekey_journal_bytes", Unit::Bytes, "bytes of the journal that wait for the store"),
    alone("oncekey_sweep_deleted_total", "records that the reaper has forgotten"),
    alone("oncekey_store_regressions_total", "how often the store was found to have lost records"),
    level("oncekey_store_regressed", Unit::Count, "1 while grants are stopped because of that"),
    counted("oncekey_store_restored_total", "records that this node has put back after a loss"),
    alone("oncekey_ring_dropped_total", "notes that did not get into the ring"),
    counted("oncekey_outbox_delivered_total", "messages that have arrived"),
    counted("oncekey_outbox_failed_total", "deliveries that failed"),
    counted("oncekey_outbox_dead_total", "messages that have become dead letters"),
    counted("oncekey_outbox_unrouted_total", "looks at messages that no route fits"),
    counted("oncekey_outbox_refused_total", "settlements that came after the lease had lapsed"),
    level("oncekey_outbox_waiting", Unit::Count, "messages that are to be delivered"),
    level("oncekey_outbox_oldest_seconds", Unit::Seconds, "the age of the oldest of them"),
    level("oncekey_outbox_dead", Unit::Count, "dead letters"),
    timed("oncekey_store_operation_duration_seconds", STORE, "calls to the store"),
    counted("oncekey_store_errors_total", "calls to the store that failed"),
    counted("oncekey_upstream_failures_total", "requests that got no answer from the upstream"),
    counted("oncekey_requests_refused_total", "clients that were stopped for what they sent"),
    counted("oncekey_duplicates_observed_total", "requests that ran twice in observe mode"),
    alone("oncekey_observed_not_kept_total", "failed writes of what was observed"),
    counted("oncekey_probes_total", "questions about lost answers"),
    level("oncekey_completer_waiting", Unit::Count, "abandoned requests, as the last look found"),
    counted("oncekey_completer_attempts_total", "abandoned requests that were looked after"),
    counted("oncekey_completer_not_kept_total", "requests that were refused, being not kept"),
    counted("oncekey_spans_lost_total", "spans that did not reach the collector of traces"),
    level("oncekey_build_info", Unit::Count, "always 1: which program this is"),
];

/// A counter with labels.
const fn counted(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, unit: Unit::Count, labels: Labels::Some, help }
}

/// A counter without labels.
const fn alone(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, unit: Unit::Count, labels: Labels::None, help }
}

const fn level(name: &'static str, unit: Unit, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, unit, labels: Labels::Some, help }
}

const fn timed(name: &'static str, buckets: &'static [f64], help: &'static str) -> Metric {
    let kind = Kind::Histogram(buckets);
    Metric { name, kind, unit: Unit::Seconds, labels: Labels::Some, help }
}

impl Kind {
    /// The word for it in the reference.
    #[cfg(test)]
    const fn label(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    /// Name and type of every metric that the sources below a folder count.
    fn counted_in(folder: &str) -> BTreeSet<(String, String)> {
        let mut folders = vec![root().join(folder)];
        let mut found = BTreeSet::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = fs::read_to_string(path).unwrap();
                let code = text.split("#[cfg(test)]").next().unwrap_or_default();
                for kind in ["counter", "gauge", "histogram"] {
                    for call in code.split(&format!("{kind}!(")).skip(1) {
                        // A name that is not written down here is one of this table.
                        let name = call.trim_start().strip_prefix('"');
                        let name = name.and_then(|rest| rest.split('"').next());
                        found.extend(name.map(|name| (name.to_owned(), kind.to_owned())));
                    }
                }
            }
        }
        found
    }

    #[test]
    fn every_metric_of_the_program_is_described_and_no_other() {
        let mut counted = counted_in("crates/oncekey/src");
        assert!(counted.len() > 20, "{counted:?}");
        counted.extend(counted_in("crates/gateway/src"));
        let described: BTreeSet<(String, String)> = METRICS
            .iter()
            .map(|metric| (metric.name.to_owned(), metric.kind.label().to_owned()))
            .collect();
        assert_eq!(described, counted);
        assert_eq!(described.len(), METRICS.len(), "each once");
    }

    #[test]
    fn the_reference_lists_every_metric_in_this_order() {
        let page = fs::read_to_string(root().join("docs/reference/metrics.md")).unwrap();
        let rows = page.lines().filter(|line| line.starts_with("| `oncekey_"));
        // The tables have four columns; the list of what to look at has two.
        let rows = rows.filter(|line| line.split(" | ").count() == 4);
        let shown: Vec<String> =
            rows.map(|line| line.split(" | ").take(2).collect::<Vec<_>>().join(" | ")).collect();
        let expected: Vec<String> = METRICS
            .iter()
            .map(|metric| format!("| `{}` | {}", metric.name, metric.kind.label()))
            .collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn buckets_rise_and_names_tell_their_unit() {
        for metric in METRICS {
            if let Kind::Histogram(buckets) = metric.kind {
                assert!(buckets.is_sorted_by(|a, b| a < b), "{}", metric.name);
            }
            let in_seconds = metric.name.ends_with("_seconds");
            assert_eq!(metric.unit == Unit::Seconds, in_seconds, "{}", metric.name);
            let total = metric.name.ends_with("_total");
            assert_eq!(metric.kind == Kind::Counter, total, "{}", metric.name);
        }
    }
}
