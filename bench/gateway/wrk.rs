//! Drives a server with wrk, and reads what wrk found.

use std::path::Path;
use std::process::Command;

use oncekey_bench::Result;
use oncekey_bench::stats::Sample;

use crate::operation::Operation;

/// How a server is driven.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) seconds: u32,
    /// How long a connection rests between two requests, in milliseconds on average.
    pub(crate) pause: u32,
}

/// Connections at the same time, each with one request under way. As many as callers in the other
/// benchmarks.
pub(crate) const CONNECTIONS: u32 = 64;
/// How many finished keys a replay chooses from.
pub(crate) const KEYS: usize = 1_000;

/// Drives the server at `port`. `name` is what the keys begin with.
pub(crate) fn drive(
    script: &Path,
    port: u16,
    operation: Operation,
    name: &str,
    load: Load,
) -> Result<Sample> {
    let wrk = std::env::var_os("ONCEKEY_BENCH_WRK").unwrap_or_else(|| "wrk".into());
    let mut command = Command::new(wrk);
    // One thread: the machine has two cores, and the servers need them more.
    command.args(["--threads", "1", "--connections", &CONNECTIONS.to_string()]);
    command.args(["--duration", &format!("{}s", load.seconds), "--latency"]);
    command.arg("--script").arg(script).arg(format!("http://127.0.0.1:{port}"));
    command.args(["--", operation.kind(), name, &KEYS.to_string(), &load.pause.to_string()]);
    let output = command.output().map_err(|error| format!("cannot run wrk: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("wrk failed: {text}{}", String::from_utf8_lossy(&output.stderr)).into());
    }
    read(&text)
}

/// Reads the report. One that tells of failures is none: whatever fails is fast.
fn read(text: &str) -> Result<Sample> {
    let wrong = || format!("this is no report of wrk, or one of failures:\n{text}");
    if text.contains("Non-2xx") || text.contains("Socket errors") {
        return Err(wrong().into());
    }
    let find =
        |start: &str| text.lines().find_map(|line| line.trim().strip_prefix(start)).map(str::trim);
    let rate = find("Requests/sec:").and_then(|figure| figure.parse().ok());
    let percentile = |start| find(start).and_then(micros);
    match (rate, percentile("50%"), percentile("99%")) {
        (Some(rate), Some(p50), Some(p99)) => Ok(Sample { rate, p50, p99 }),
        _ => Err(wrong().into()),
    }
}

/// Reads `250.00us`, `5.80ms` or `1.02s`.
fn micros(figure: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((figure.strip_suffix(unit)?, factor)))?;
    number.parse::<f64>().ok().map(|number| number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
Running 1s test @ http://127.0.0.1:1
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     2.10ms    1.00ms  20.00ms   90.00%
  Latency Distribution
     50%  950.00us
     75%    1.00ms
     90%    2.00ms
     99%    5.80ms
  30000 requests in 1.00s, 5.00MB read
Requests/sec:  30000.25
Transfer/sec:      5.00MB
";

    #[test]
    fn a_report_is_read_and_failures_are_refused() {
        let sample = read(REPORT).unwrap();
        assert_eq!(sample, Sample { rate: 30_000.25, p50: 950.0, p99: 5_800.0 });
        let failed = REPORT.replace("Requests/sec", "  Non-2xx or 3xx responses: 7\nRequests/sec");
        assert!(read(&failed).is_err());
        assert!(read("").is_err());
    }
}
