//! A look at the file and its settings: what an operator wants to know before there is trouble.
//!
//! Everything here is cheap. Whether every page is sound is a question for `PRAGMA integrity_check`,
//! which reads the whole file.

use std::path::Path;
use std::time::Duration;

use oncekey_core::Timestamp;
use oncekey_core::health::{Finding, StoreHealth, Tier};
use rusqlite::{Connection, OptionalExtension};

use super::error::Failure;
use super::network::{self, Keeps};
use super::reader::Readers;
use super::schema::{self, CHECKPOINT_AT, NEWEST};
use super::settle;

/// The fence of the record that was written last. Records come in the order of their rows.
const NEWEST_FENCE: &str = "SELECT fence FROM oncekey_records ORDER BY id DESC LIMIT 1";
const VERSION: &str = "SELECT coalesce(max(version), 0) FROM oncekey_migrations";

/// A log of this size was not written back for a while, though the writer tried four times over:
/// somebody has been reading an old state of the file.
const LONG_LOG: u64 = 4 * 4_096 * CHECKPOINT_AT.unsigned_abs();

/// Less room than this is used up by an hour of traffic, or by one log that cannot be written back.
const LITTLE_ROOM: u64 = 512 * 1024 * 1024;

/// A fence this far ahead of the clock is no jitter between two processes.
const FAR_AHEAD: Duration = Duration::from_secs(60);

/// How the writer's connection is set up, and what it reads first.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    journal_mode: String,
    synchronous: String,
    secure_delete: String,
    /// Of the tables.
    version: i64,
    /// The highest fence ever granted.
    highest: i64,
    /// The fence of the newest row.
    newest: Option<i64>,
}

/// Asks the writer's connection, inside a transaction: so it is known to have got the write lock.
pub(super) fn settings(connection: &Connection) -> Result<Settings, Failure> {
    Ok(Settings {
        journal_mode: schema::setting(connection, "journal_mode")?,
        synchronous: schema::setting(connection, "synchronous")?,
        secure_delete: schema::setting(connection, "secure_delete")?,
        version: connection.query_row(VERSION, [], |row| row.get(0))?,
        highest: settle::read_ledger(connection)?.fence,
        newest: connection.query_row(NEWEST_FENCE, [], |row| row.get(0)).optional()?,
    })
}

/// Puts the findings together, in a fixed order.
pub(super) fn health(readers: &Readers, settings: &Settings, now: Timestamp) -> StoreHealth {
    let (path, log) = (readers.path(), readers.log());
    let (tier, file_system) = file_system(path);
    let mut findings = vec![
        Finding::good("version", format!("SQLite {}, built in", rusqlite::version())),
        expected("journal-mode", &settings.journal_mode, "wal"),
        expected("synchronous", &settings.synchronous, "2"),
        expected("secure-delete", &settings.secure_delete, "1"),
        schema_version(settings.version),
        ledger(settings),
        clock(settings, now),
        file_system,
        log_size(log),
    ];
    findings.extend(room(path));
    findings.extend(processes(log));
    let name = format!("SQLite {}", rusqlite::version());
    // The store judges time by this machine's clock, so there is no other to compare it with.
    StoreHealth { name, tier, findings, skew: None }
}

fn expected(check: &'static str, found: &str, wanted: &str) -> Finding {
    if found == wanted {
        return Finding::good(check, format!("{check} is {found}"));
    }
    Finding::refused(check, format!("{check} is {found} and must be {wanted}: open the file again"))
}

fn schema_version(version: i64) -> Finding {
    let text = match version {
        NEWEST => format!("the tables are of version {version}, the newest that is known here"),
        _ => format!(
            "the tables are of version {version}, which serves this version of oncekey, too; it \
             knows {NEWEST}"
        ),
    };
    Finding::good("schema-version", text)
}

fn ledger(settings: &Settings) -> Finding {
    match settings.newest {
        Some(newest) if newest > settings.highest => Finding::refused(
            "ledger",
            "the newest record has a higher fence than was ever granted: the file was put together \
             from two; restore a whole backup",
        ),
        Some(_) | None => Finding::good("ledger", "no record has a higher fence than was granted"),
    }
}

fn clock(settings: &Settings, now: Timestamp) -> Finding {
    let ahead = Timestamp::from_micros(settings.highest).since(now);
    if ahead < FAR_AHEAD {
        return Finding::good("clock", "the clock of this machine is not behind the fences");
    }
    let text = format!(
        "the clock of this machine is {} s behind the highest fence: it stepped back, or records \
         came from a machine that is ahead; fences still rise, leases and retention are judged by \
         this clock",
        ahead.as_secs()
    );
    Finding::degraded("clock", text)
}

fn file_system(path: &Path) -> (Tier, Finding) {
    match network::keeps(path) {
        Keeps::Synced(name) => {
            let text = format!("the file is on {name}, which keeps what was synced");
            (Tier::Durable, Finding::good("file-system", text))
        }
        Keeps::Nothing(name) => {
            let text = format!(
                "the file is on {name}, in memory: it is gone when the machine stops; move it to a \
                 disk"
            );
            (Tier::Process, Finding::degraded("file-system", text))
        }
        Keeps::Perhaps => {
            let text = "the file is on no network file system; what this one keeps is not known";
            (Tier::Durable, Finding::good("file-system", text))
        }
    }
}

fn log_size(log: &Path) -> Finding {
    let size = std::fs::metadata(log).map_or(0, |about| about.len());
    let mebibytes = size / (1024 * 1024);
    if size <= LONG_LOG {
        return Finding::good("log", format!("the write-ahead log has {mebibytes} MiB"));
    }
    let text = format!(
        "the write-ahead log has {mebibytes} MiB: somebody has been reading an old state of the \
         file for long; look for a forgotten sqlite3 program or a backup under way"
    );
    Finding::degraded("log", text)
}

/// How much room the disk has left, where that can be asked.
fn room(path: &Path) -> Option<Finding> {
    let about = rustix::fs::statvfs(path).ok()?;
    let free = about.f_bavail.saturating_mul(about.f_frsize);
    let mebibytes = free / (1024 * 1024);
    let text = format!("the disk has {mebibytes} MiB left");
    Some(match free < LITTLE_ROOM {
        false => Finding::good("room", text),
        true => Finding::degraded(
            "room",
            format!("{text}: free some, nothing is granted on a full one"),
        ),
    })
}

/// How many other processes have the file open. The kernel lists who holds a lock on its index,
/// and whoever has the file open holds one.
#[cfg(target_os = "linux")]
fn processes(log: &Path) -> Option<Finding> {
    use std::collections::BTreeSet;
    use std::os::unix::fs::MetadataExt as _;

    let name = log.to_str()?.strip_suffix("-wal")?;
    let index = std::fs::metadata(format!("{name}-shm")).ok()?.ino().to_string();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let ours = std::process::id().to_string();
    let holders: BTreeSet<&str> = locks
        .lines()
        .filter_map(|line| {
            // 1: POSIX  ADVISORY  READ 4711 fe:01:1234567 128 128
            let words: Vec<&str> = line.split_whitespace().collect();
            let (pid, place) = (words.get(4)?, words.get(5)?);
            (place.rsplit(':').next()? == index && *pid != ours).then_some(*pid)
        })
        .collect();
    let text = match holders.len() {
        0 => "no other process has the file open".to_owned(),
        1 => "another process has the file open".to_owned(),
        many => format!("{many} other processes have the file open"),
    };
    Some(Finding::good("processes", text))
}

/// Other systems do not list their locks.
#[cfg(not(target_os = "linux"))]
fn processes(_log: &Path) -> Option<Finding> {
    None
}
