//! From many measurements to one figure.

use std::time::Duration;

use serde_json::{Value, json};

/// What one run of one cell found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Operations per second.
    pub rate: f64,
    /// Half of the calls took at most this long, in microseconds.
    pub p50: f64,
    /// All but one in a hundred took at most this long, in microseconds.
    pub p99: f64,
}

impl Sample {
    /// `count` operations in `elapsed`, whose calls took `latencies`.
    pub fn new(count: usize, elapsed: Duration, mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        Self {
            rate: count as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE),
            p50: micros(percentile(&latencies, 50)),
            p99: micros(percentile(&latencies, 99)),
        }
    }

    /// The median of each figure by itself.
    pub fn median(samples: &[Self]) -> Self {
        let each = |figure: fn(&Self) -> f64| median(samples.iter().map(figure));
        Self { rate: each(|s| s.rate), p50: each(|s| s.p50), p99: each(|s| s.p99) }
    }

    /// The figures for a program.
    #[must_use]
    pub fn to_json(self) -> Value {
        json!({ "per_second": self.rate, "p50_us": self.p50, "p99_us": self.p99 })
    }
}

/// The middle one, or the mean of the two in the middle; zero if there are none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// The median of what `left` is to `right`, round by round: a machine that is slow for a whole
/// round is slow for both.
pub fn median_ratio(
    left: impl IntoIterator<Item = f64>,
    right: impl IntoIterator<Item = f64>,
) -> f64 {
    median(left.into_iter().zip(right).map(|(left, right)| left / right.max(f64::MIN_POSITIVE)))
}

/// A span as microseconds.
#[must_use]
pub fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * percent / 100).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([]), 0.0);
        assert_eq!(median_ratio([2.0, 9.0, 4.0], [1.0, 3.0, 2.0]), 2.0);
    }

    #[test]
    fn a_sample_counts_per_second_and_sorts_its_latencies() {
        let latencies = (1..=100).rev().map(Duration::from_micros).collect();
        let sample = Sample::new(100, Duration::from_millis(500), latencies);
        assert_eq!(sample, Sample { rate: 200.0, p50: 50.0, p99: 99.0 });
    }
}
