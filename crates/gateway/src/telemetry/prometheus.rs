//! Metrics for Prometheus, to be fetched from the admin listener.

use std::fmt;
use std::time::Duration;

use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use super::metrics::{Kind, Labels, METRICS};

/// Everything that was counted. Cheap to clone; all clones are one.
#[derive(Clone)]
pub(crate) struct Prometheus(PrometheusHandle);

/// How often samples of histograms are put into their buckets. Until then each is a number in a
/// list: at ten thousand requests a second, five seconds are half a megabyte.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// The content type of what [`Prometheus::render`] gives.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Counts for the whole process from here on. Call it before the engine is built: handles are made
/// once and kept.
pub(crate) fn install(store: &'static str) -> Result<Prometheus, BuildError> {
    let recorder = recorder()?;
    let prometheus = Prometheus(recorder.handle());
    metrics::set_global_recorder(recorder).map_err(BuildError::FailedToSetGlobalRecorder)?;
    describe(store);
    Ok(prometheus)
}

/// A recorder that counts only for whoever makes it theirs.
fn recorder() -> Result<PrometheusRecorder, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for metric in METRICS {
        if let Kind::Histogram(buckets) = metric.kind {
            let name = Matcher::Full(metric.name.to_owned());
            builder = builder.set_buckets_for_metric(name, buckets)?;
        }
    }
    Ok(builder.build_recorder())
}

/// Says what each metric means. A counter without labels begins with zero, so that an alert on its
/// rise sees the first one.
fn describe(store: &'static str) {
    for metric in METRICS {
        let (name, unit, help) = (metric.name, metric.unit, metric.help);
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(name, unit, help),
            Kind::Gauge => metrics::describe_gauge!(name, unit, help),
            Kind::Histogram(_) => metrics::describe_histogram!(name, unit, help),
        }
        if (metric.kind, metric.labels) == (Kind::Counter, Labels::None) {
            metrics::counter!(name).absolute(0);
        }
    }
    let version = env!("CARGO_PKG_VERSION");
    metrics::gauge!("oncekey_build_info", "version" => version, "store" => store).set(1.0);
}

impl Prometheus {
    /// A recorder of its own for a test, and what it has counted so far.
    #[cfg(test)]
    pub(crate) fn apart() -> Self {
        let recorder = recorder().expect("the buckets are good");
        metrics::with_local_recorder(&recorder, || describe("test"));
        Self(recorder.handle())
    }

    /// Everything that was counted, as text in [`CONTENT_TYPE`].
    pub(crate) fn render(&self) -> String {
        self.0.render()
    }

    /// Keeps what is counted small. Runs for ever; spawn it once.
    pub(crate) async fn upkeep(self) {
        let mut every = tokio::time::interval(UPKEEP_EVERY);
        loop {
            every.tick().await;
            self.0.run_upkeep();
        }
    }
}

impl fmt::Debug for Prometheus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Prometheus")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_has_a_help_and_a_type() {
        let recorder = recorder().expect("the buckets are good");
        metrics::with_local_recorder(&recorder, || {
            describe("sqlite");
            metrics::histogram!("oncekey_request_duration_seconds", "route" => "a").record(0.02);
            metrics::counter!("oncekey_takeovers_total", "route" => "<b>\"\n").increment(2);
        });
        let text = recorder.handle().render();
        for expected in [
            "# HELP oncekey_takeovers_total keys that were taken over",
            "# TYPE oncekey_takeovers_total counter",
            "# TYPE oncekey_request_duration_seconds histogram",
            "oncekey_request_duration_seconds_bucket{route=\"a\",le=\"0.025\"} 1",
            "oncekey_abandoned_total 0",
            "oncekey_takeovers_total{route=\"<b>\\\"\\n\"} 2",
            "store=\"sqlite\"",
        ] {
            assert!(text.contains(expected), "no {expected} in:\n{text}");
        }
    }
}
