//! A file with a record in every state, a hand that damages it, and what must be true then.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oncekey::core::saved::NotKept;
use oncekey::core::{
    Answer, Claim, Claimed, Class, Clock, ErrorKind, Grant, Lease, ManualClock, Record, Refusal,
    Sent, State, StateKind, Store, StoreError, Timestamp, Tombstone, Write,
};
use oncekey::store::sqlite::{SqliteOptions, SqliteStore};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::common::{self, LARGE, file};

/// The tables that a damage may hit, and that are put right after it.
const TABLES: [&str; 6] = [
    "oncekey_records",
    "oncekey_answers",
    "oncekey_pieces",
    "oncekey_fresh",
    "oncekey_settled",
    "oncekey_clock",
];

/// A file whose records stand still, with a clock that stands still too.
pub(crate) struct Scene {
    pub(crate) store: SqliteStore,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) raw: Connection,
    pub(crate) subjects: Vec<Subject>,
    pub(crate) path: PathBuf,
    _folder: TempDir,
}

/// A record, as it was before anything was damaged.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) claim: Claim,
    pub(crate) lease: Lease,
    pub(crate) record: Record,
    /// Its row.
    pub(crate) row: i64,
}

/// What becomes of a subject before it is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Running,
    Sent,
    Unknown,
    Parked,
    Done(usize),
    Tombstone,
}

const FATES: [(&str, Fate); 7] = [
    ("running", Fate::Running),
    ("sent", Fate::Sent),
    ("unknown", Fate::Unknown),
    ("parked", Fate::Parked),
    ("done", Fate::Done(100)),
    ("done with a large body", Fate::Done(LARGE)),
    ("done without an answer", Fate::Tombstone),
];

impl Scene {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("oncekey.db");
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_763_000_000_000_000)));
        let options = SqliteOptions::new(&path).clock(clock.clone());
        let store = options.open().expect("a new file opens");
        let raw = file::open(&path);
        raw.execute_batch("PRAGMA synchronous = off").expect("a pragma");
        let mut subjects = Vec::new();
        for ((name, fate), key) in FATES.into_iter().zip(1..) {
            // Each at a moment of its own, so that no two have the same times.
            clock.advance(Duration::from_secs(1));
            subjects.push(make(&store, &raw, name, fate, key).await);
        }
        for table in TABLES {
            let keep = format!("CREATE TEMP TABLE kept_{table} AS SELECT * FROM main.{table}");
            raw.execute_batch(&keep).expect("a copy of the rows");
        }
        Self { store, clock, raw, subjects, path, _folder: folder }
    }

    pub(crate) fn subject(&self, name: &str) -> &Subject {
        self.subjects.iter().find(|subject| subject.name == name).expect("a subject of this name")
    }

    /// Puts every row back as it was.
    pub(crate) fn restore(&self) {
        self.restore_tables(|_| true);
    }

    /// Puts every row back but the pieces of large bodies, which takes a while.
    pub(crate) fn restore_all_but_pieces(&self) {
        self.restore_tables(|table| table != "oncekey_pieces");
    }

    fn restore_tables(&self, which: impl Fn(&str) -> bool) {
        let mut sql = "BEGIN;".to_owned();
        for table in TABLES.into_iter().filter(|table| which(table)) {
            sql += &format!("DELETE FROM {table}; INSERT INTO {table} SELECT * FROM kept_{table};");
        }
        self.raw.execute_batch(&(sql + "COMMIT")).expect("the rows are put back");
    }

    /// Damages rows by hand.
    pub(crate) fn damage(&self, sql: &str) {
        self.raw.execute_batch(sql).expect("a statement that damages");
    }

    /// What must be true of a subject after its rows were damaged: whatever is answered is true,
    /// and what is not true is an error that says so. Returns whether the damage was noticed.
    pub(crate) async fn check(&self, subject: &Subject, damage: &str) -> bool {
        let about = format!("{}, {damage}", subject.name);
        let got = self.store.get(&subject.record.id).await;
        let noticed = is_noticed(&got, &about);
        if let Ok(found) = got {
            let found = found.unwrap_or_else(|| panic!("{about}: the record is not found"));
            is_told(&found, &subject.record, &about);
        }
        self.check_owner(subject, &about).await;
        self.check_rival(subject, &about).await;
        noticed
    }

    /// Another owner wants the key.
    async fn check_rival(&self, subject: &Subject, about: &str) {
        let rival = Claim { owner: common::owner(999), ..subject.claim.clone() };
        let claimed = self.store.claim(&rival).await;
        is_noticed(&claimed, about);
        match claimed {
            // A wrong lease leads to a takeover, and the fence makes that safe.
            Ok(Claimed::Won { lease, grant, .. }) => {
                assert_eq!(grant, Grant::TakenOver, "{about}");
                assert_eq!(subject.name, "running", "{about}: granted to another");
                assert!(lease.fence > subject.lease.fence, "{about}: an old fence");
            }
            Ok(Claimed::Lost { refusal, record, .. }) => {
                assert_ne!(refusal, Refusal::Mismatch, "{about}");
                if refusal == Refusal::Replay {
                    is_told(&record, &subject.record, about);
                }
            }
            Err(_) => {}
        }
    }

    /// Its owner asks again, and wants to write what it must not.
    async fn check_owner(&self, subject: &Subject, about: &str) {
        let claimed = self.store.claim(&subject.claim).await;
        is_noticed(&claimed, about);
        if let Ok(Claimed::Won { grant, .. }) = claimed {
            assert_eq!(grant, Grant::Again, "{about}");
            let runs = subject.record.state.kind() == StateKind::Running;
            assert!(runs, "{about}: granted again, but it is over");
        }
        if subject.record.state.kind() == StateKind::Done {
            let other = common::completion(common::answer(999, 10));
            let completed = self.store.complete(&subject.lease, &other).await;
            is_noticed(&completed, about);
            assert!(!matches!(completed, Ok(Write::Applied)), "{about}: answered twice");
            let released = self.store.release(&subject.lease).await;
            is_noticed(&released, about);
            assert!(!matches!(released, Ok(Write::Applied)), "{about}: a done key was reopened");
        }
    }
}

/// What was read is what was written, but for the times and, while it runs, the fence.
pub(crate) fn is_told(found: &Record, record: &Record, about: &str) {
    let Record { id, owner, fingerprint, class, origin, places, .. } = record;
    assert_eq!(found.id, *id, "{about}");
    assert_eq!(found.owner, *owner, "{about}");
    assert_eq!(found.fingerprint, *fingerprint, "{about}");
    assert_eq!(found.class, *class, "{about}");
    assert_eq!(found.origin, *origin, "{about}");
    assert_eq!(found.places, *places, "{about}");
    match (&record.state, &found.state) {
        (State::Running { sent, .. }, State::Running { sent: told, .. }) => {
            assert_eq!(told, sent, "{about}");
        }
        (State::Done { outcome, answer, .. }, State::Done { outcome: told, answer: given, .. }) => {
            assert_eq!(found.fence, record.fence, "{about}");
            assert_eq!(told, outcome, "{about}");
            assert!(given == answer, "{about}: another answer");
        }
        (written, told) => assert_eq!(told.kind(), written.kind(), "{about}"),
    }
}

/// Whether a question was answered with "this is damaged". Any other error is wrong.
pub(crate) fn is_noticed<T>(answered: &Result<T, StoreError>, about: &str) -> bool {
    match answered {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{about}: {error} ({error:?})");
            true
        }
    }
}

async fn make(
    store: &SqliteStore,
    raw: &Connection,
    name: &'static str,
    fate: Fate,
    key: u64,
) -> Subject {
    let sent = if fate == Fate::Sent { Sent::Yes } else { Sent::No };
    let claim = Claim { sent, class: Class::Once, ..common::claim(key, key) };
    let (lease, _) = common::win(store, &claim).await;
    let row = file::number(raw, "SELECT max(id) FROM oncekey_records");
    let answer = match fate {
        Fate::Running | Fate::Sent => None,
        Fate::Unknown => {
            assert_eq!(store.unknown(&lease).await.expect("a write"), Write::Applied);
            None
        }
        Fate::Parked => {
            // Only flows park, and there are none yet.
            let parked = StateKind::Parked.code();
            raw.execute("UPDATE oncekey_records SET state = ?1 WHERE id = ?2", (parked, row))
                .expect("a state");
            None
        }
        Fate::Done(size) => Some(common::answer(key, size)),
        Fate::Tombstone => {
            Some(Answer::Tombstone(Tombstone { status: Some(200), reason: NotKept::Streamed }))
        }
    };
    if let Some(answer) = answer {
        let write = store.complete(&lease, &common::completion(answer)).await;
        assert_eq!(write.expect("a write"), Write::Applied);
    }
    let record = store.get(&claim.id).await.expect("it can be read").expect("it is there");
    Subject { name, claim, lease, record, row }
}

impl std::fmt::Debug for Scene {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Scene({:?} at {:?})", self.path, self.clock.now())
    }
}
