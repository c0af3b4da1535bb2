//! `redis-benchmark` with the script of the store: what the server can do at most.
//!
//! It sends the same script with arguments of the same sizes, as many at a time as there are
//! callers, over as many connections as the store has. It puts a random number into each command,
//! twelve digits instead of `__rand_int__`, so keys of that form are made here.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use oncekey::core::{Claim, KeyId, Store};
use oncekey_bench::stats::Sample;
use redis::aio::MultiplexedConnection;

use super::redis::CONNECTIONS;
use super::{REPLAYED, claimed, finish};
use crate::Result;
use crate::cells::{Setting, Verb};
use crate::work::Work;

/// The program, from the package `redis-tools`.
const PROGRAM: &str = "redis-benchmark";

/// The script of a claim, as the store puts it together.
const SCRIPT: &str = concat!(
    include_str!("../../../crates/oncekey/src/store/redis/lua/prelude.lua"),
    include_str!("../../../crates/oncekey/src/store/redis/lua/claim.lua")
);

/// What key ids begin with here: twenty bytes before the number. The first byte is the shard.
const HEAD: &str = "benchmark-of-claims-";
const RANDOM: &str = "__rand_int__";

/// The places in a stored record: see `layout.rs` of the store.
const FINGERPRINT: std::ops::Range<usize> = 2..35;
const TAIL: usize = 117;
const HEAD_SIZE: usize = 67;

/// Claims in the run that finds out how many it takes to fill the time.
const TRIAL: usize = 2_000;
/// As many as are drawn from for new keys: hardly any comes twice.
const NEW: usize = 2_000_000_000;

/// Everything that the program needs.
#[derive(Debug)]
pub(super) struct Benchmark {
    url: String,
    digest: String,
    /// With a number to come: record, mark, open, done, due.
    keys: Vec<Vec<u8>>,
    new: Vec<Vec<u8>>,
    replay: Vec<Vec<u8>>,
}

impl Benchmark {
    /// Finishes the keys that are replayed, and finds out what arguments look like.
    pub(super) async fn prepare(
        url: &str,
        prefix: &str,
        store: &Arc<dyn Store>,
        mut connection: MultiplexedConnection,
    ) -> Result<Self> {
        let found = Command::new(PROGRAM).arg("--version").stdout(Stdio::null()).status();
        found.map_err(|error| format!("{PROGRAM} cannot be run: {error}"))?;
        let work = Work::new(0);
        let claim = |number| Claim { id: id(number), ..work.claim(number, number) };
        let leases = claimed(store, (0..REPLAYED).map(claim).collect()).await?;
        finish(store, &leases).await;
        let mut load = redis::cmd("SCRIPT");
        let digest = load.arg("LOAD").arg(SCRIPT).query_async(&mut connection).await?;
        let shard = format!("{{{prefix}:{:02x}}}", id(0).as_bytes()[0]);
        let record = [format!("{shard}r").as_bytes(), id(0).as_bytes()].concat();
        let stored: Vec<u8> =
            redis::cmd("HGET").arg(record).arg("r").query_async(&mut connection).await?;
        let mark: Vec<u8> =
            redis::cmd("GET").arg(format!("{shard}m")).query_async(&mut connection).await?;
        let tail = stored.len().checked_sub(TAIL + 88).ok_or("a record is too short")?;
        let epoch = mark.get(..32).ok_or("a shard has no epoch")?;
        // An argument of a program cannot hold a zero, so what the script only stores is filled in.
        let mut head = vec![b'x'; HEAD_SIZE];
        let new = arguments(epoch, &head, tail);
        head[FINGERPRINT].copy_from_slice(&stored[FINGERPRINT]);
        let replay = arguments(epoch, &head, tail);
        let mut keys = vec![format!("{shard}r{HEAD}{RANDOM}").into_bytes()];
        keys.extend(["m", "o", "d", "x"].map(|kind| format!("{shard}{kind}").into_bytes()));
        if [&keys, &new, &replay].iter().any(|all| all.iter().flatten().any(|byte| *byte == 0)) {
            return Err("an argument holds a zero byte, which no program can be given".into());
        }
        Ok(Self { url: url.to_owned(), digest, keys, new, replay })
    }

    pub(super) async fn run(&self, verb: Verb, setting: &Setting) -> Result<Sample> {
        let trial = self.send(verb, setting.callers, TRIAL).await?;
        let count = trial.rate * setting.span.as_secs_f64();
        // A count of calls: whole, and far below what a double holds exactly.
        let count = format!("{count:.0}").parse::<usize>()?.max(TRIAL / 2);
        self.send(verb, setting.callers, count).await
    }

    async fn send(&self, verb: Verb, callers: usize, count: usize) -> Result<Sample> {
        let connections = CONNECTIONS.min(callers);
        let (values, range) = match verb {
            Verb::Replay => (&self.replay, REPLAYED),
            Verb::Claim | Verb::Complete | Verb::Pair | Verb::Contended => (&self.new, NEW),
        };
        let mut command = Command::new(PROGRAM);
        command.args(["-u", &self.url, "--csv", "-c", &connections.to_string()]);
        command.args(["-P", &(callers / connections).to_string()]);
        command.args(["-n", &count.to_string(), "-r", &range.to_string()]);
        command.args(["EVALSHA", &self.digest, &self.keys.len().to_string()]);
        command.args(self.keys.iter().chain(values).cloned().map(OsString::from_vec));
        command.stdin(Stdio::null());
        // Nobody else has anything to do meanwhile, but the runtime must not be held up.
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{PROGRAM} failed: {}", errors.trim()).into());
        }
        read(&String::from_utf8_lossy(&output.stdout))
    }
}

/// The key id with this number.
fn id(number: usize) -> KeyId {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(format!("{HEAD}{number:012}").as_bytes());
    KeyId::from_bytes(bytes)
}

/// Epoch, seen, head, tail, send mark, lease, grace, classes, key id.
fn arguments(epoch: &[u8], head: &[u8], tail: usize) -> Vec<Vec<u8>> {
    let texts = ["p", "30000000", "2000000", ""];
    let mut all = vec![epoch.to_vec(), vec![b'0'; 16], head.to_vec(), vec![b'x'; tail]];
    all.extend(texts.map(|text| text.as_bytes().to_vec()));
    all.push(format!("{HEAD}{RANDOM}").into_bytes());
    all
}

/// Reads the last line: the command, the rate, and latencies in milliseconds: mean, least, p50,
/// p95, p99, most. The command may hold anything, so it is read from the end.
fn read(text: &str) -> Result<Sample> {
    let numbers: Vec<f64> = text
        .trim_end()
        .rsplit(',')
        .map_while(|field| field.trim_matches('"').parse().ok())
        .take(7)
        .collect();
    let &[_, p99, _, p50, _, _, rate] = numbers.as_slice() else {
        return Err(format!("{PROGRAM} says something else than expected").into());
    };
    Ok(Sample { rate, p50: p50 * 1e3, p99: p99 * 1e3 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_whatever_the_command_is() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\"\n\"EVALSHA a\",\"1\n,\"2\",\
                    \"1234.50\",\"0.9\",\"0.1\",\"0.8\",\"1.0\",\"2.5\",\"3.0\"\n";
        let sample = read(text).unwrap();
        assert_eq!(sample, Sample { rate: 1234.5, p50: 800.0, p99: 2500.0 });
        assert!(read("\"test\",\"rps\"\n").is_err());
    }

    #[test]
    fn a_key_id_is_a_head_and_twelve_digits() {
        assert_eq!(id(42).as_bytes(), b"benchmark-of-claims-000000000042");
        assert_eq!(RANDOM.len(), 12);
    }
}
