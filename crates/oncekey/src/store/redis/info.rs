//! What a server says about itself.

use std::collections::HashMap;

use oncekey_core::Timestamp;
use oncekey_core::health::Tier;
use redis::{Cmd, Value};

/// The answer to `INFO`: one `name:value` per line.
#[derive(Clone, Debug)]
pub(super) struct Info(HashMap<String, String>);

/// The oldest version that is known to work: scripts replicate their effects, a clock that is read
/// in a script may be followed by a write, and `ZRANGE` takes scores.
const OLDEST: (u32, u32) = (7, 0);

/// The version that brought `WAITAOF`.
const WAITS_FOR_DISKS: (u32, u32) = (7, 2);

/// Whether a server throws records away when its memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eviction {
    /// It does not: it refuses writes.
    Never,
    /// It does, or does not say.
    Possible,
}

impl Info {
    pub(super) fn of(value: &Value) -> Self {
        let text = if let Value::BulkString(bytes) = value {
            String::from_utf8_lossy(bytes).into_owned()
        } else if let Value::VerbatimString { text, .. } = value {
            text.clone()
        } else {
            String::new()
        };
        let pair = |line: &str| {
            let (name, value) = line.trim_end().split_once(':')?;
            Some((name.to_owned(), value.to_owned()))
        };
        Self(text.lines().filter_map(pair).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The name of the program with its version.
    pub(super) fn program(&self) -> String {
        match (self.get("valkey_version"), self.get("redis_version")) {
            (Some(version), _) => format!("Valkey {version}"),
            (None, Some(version)) => format!("Redis {version}"),
            (None, None) => "a server that does not say what it is".to_owned(),
        }
    }

    /// Whether the version is new enough. Valkey says which Redis it is as good as.
    pub(super) fn is_new_enough(&self) -> bool {
        self.version() >= OLDEST
    }

    /// Whether the server can say what is on its disk.
    pub(super) fn can_wait_for_disks(&self) -> bool {
        self.version() >= WAITS_FOR_DISKS
    }

    /// Whether records may be thrown away.
    pub(super) fn eviction(&self) -> Eviction {
        match self.get("maxmemory_policy") {
            Some("noeviction") => Eviction::Never,
            Some(_) | None => Eviction::Possible,
        }
    }

    /// What an acknowledged write survives, given what `appendfsync` is if that is known.
    pub(super) fn tier(&self, fsync: Option<&str>) -> Tier {
        match (self.get("aof_enabled"), fsync) {
            (Some("1"), Some("always")) => Tier::Durable,
            (Some("1"), _) => Tier::Process,
            // Snapshots are minutes apart: a crash forgets what came since.
            _ => Tier::Volatile,
        }
    }

    fn version(&self) -> (u32, u32) {
        let version = self.get("redis_version").unwrap_or_default();
        let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }
}

/// Asks when the append-only file is synced.
pub(super) fn ask_fsync() -> Cmd {
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg("appendfsync");
    command
}

/// The answer to that.
pub(super) fn fsync(value: &Value) -> Option<String> {
    let Value::Array(parts) = value else { return None };
    let [_, Value::BulkString(value)] = parts.as_slice() else { return None };
    String::from_utf8(value.clone()).ok()
}

/// The answer to `TIME`.
pub(super) fn time(value: &Value) -> Option<Timestamp> {
    let Value::Array(parts) = value else { return None };
    let [Value::BulkString(seconds), Value::BulkString(micros)] = parts.as_slice() else {
        return None;
    };
    let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse::<i64>().ok();
    let micros = number(seconds)?.checked_mul(1_000_000)?.checked_add(number(micros)?)?;
    Some(Timestamp::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(text: &str) -> Info {
        Info::of(&Value::BulkString(text.as_bytes().to_vec()))
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for (version, is_good) in
            [("6.2.9", false), ("7.0.0", true), ("10.0.1", true), ("x", false)]
        {
            let info = info(&format!("# Server\r\nredis_version:{version}\r\nrun_id:ab\r\n"));
            assert_eq!(info.is_new_enough(), is_good, "{version}");
            assert_eq!(info.get("run_id"), Some("ab"));
        }
        let valkey = info("redis_version:7.2.4\r\nvalkey_version:8.0.1\r\n");
        assert_eq!((valkey.program(), valkey.is_new_enough()), ("Valkey 8.0.1".into(), true));
    }
}
