//! What a failed commit does, in each way in which a commit can fail. F33.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use oncekey_core::saved::{Headers, Saved};
use oncekey_core::{
    Answer, Claim, Claimed, Class, Completion, Fingerprint, Grant, KeyId, Lease, ManualClock,
    Origin, Owner, Places, Sent, StateKind, Timestamp, Write,
};
use rusqlite::ffi;

use super::super::verbs::{self, PreparedClaim};
use super::*;
use crate::store::parts::CompletionParts;

/// A writer whose commits go through `commit`.
fn writer(path: &Path, commit: fn(&Connection) -> rusqlite::Result<()>) -> Writer {
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_000_000)));
    let connection = schema::open_writer(path, Placement::Own, clock.now()).unwrap();
    Writer::spawn(Thread {
        path: path.to_owned(),
        placement: Placement::Own,
        clock,
        hub: Arc::new(Hub::default()),
        place: Place::of(path),
        connection: Some(connection),
        sweep: Sweep::default(),
        running: Running::default(),
        scribe: Scribe::start(path),
        unlooked: 0,
        unclear: Vec::new(),
        tried: None,
        commit,
    })
    .unwrap()
}

/// The disk says that the commit failed, although everything is there.
fn fails_after_effect(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("COMMIT")?;
    Err(disk_error())
}

/// The disk says that the commit failed, and nothing is there. The transaction is left open, as
/// SQLite may leave it.
fn fails_without_effect(_: &Connection) -> rusqlite::Result<()> {
    Err(disk_error())
}

fn disk_error() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR), None)
}

fn claim(number: u8) -> Op {
    let claim = Claim {
        id: KeyId::from_bytes([number; 32]),
        owner: Owner::from_bytes([number; 16]),
        fingerprint: Fingerprint::from_parts(1, [number; 32]),
        class: Class::Once,
        lease: Duration::from_secs(30),
        grace: Duration::ZERO,
        sent: Sent::No,
        origin: Origin::default(),
        places: Places::default(),
    };
    Op::Claim(Box::new(PreparedClaim::new(&claim)))
}

fn complete(lease: Lease) -> Op {
    let saved = Saved { status: 201, headers: Headers::new(), body: bytes::Bytes::from("ok") };
    let completion = Completion {
        answer: Answer::Kept(saved),
        retention: Duration::from_secs(60),
        linger: Duration::ZERO,
    };
    Op::Complete(lease, Box::new(CompletionParts::new(&lease, &completion, 0)))
}

/// Five keys, each owned, made by a writer that works.
async fn five_leases(path: &Path) -> Vec<Lease> {
    let writer = writer(path, commit);
    let mut leases = Vec::new();
    for number in 1..=5 {
        leases.push(won(writer.ask(claim(number)).await));
    }
    leases
}

/// One operation of each kind, on its own key.
fn one_of_each(leases: &[Lease]) -> Vec<Op> {
    vec![
        claim(9),
        Op::Send(leases[0]),
        complete(leases[1]),
        Op::Release(leases[2]),
        Op::Unknown(leases[3]),
        Op::Renew(vec![leases[4]], Duration::from_secs(60)),
    ]
}

fn states(path: &Path) -> Vec<(u8, Option<u8>, Option<u8>)> {
    let connection = schema::open_reader(path).unwrap();
    let look = |number: u8| {
        let id = KeyId::from_bytes([number; 32]);
        let found = verbs::find(&Statements::of(&connection), &id).unwrap();
        let kind = found.as_ref().map(|found| found.record().state.kind().code());
        let sent = found.and_then(|found| match found.record().state {
            oncekey_core::State::Running { sent, .. } => Some(sent.code()),
            oncekey_core::State::Done { .. }
            | oncekey_core::State::Unknown { .. }
            | oncekey_core::State::Parked { .. } => None,
        });
        (number, kind, sent)
    };
    [1, 2, 3, 4, 5, 9].map(look).to_vec()
}

#[tokio::test]
async fn a_commit_that_failed_but_took_effect_is_recognised_by_the_owner_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let leases = five_leases(&path).await;
    let writer = writer(&path, fails_after_effect);
    let mut replies = Vec::new();
    for op in one_of_each(&leases) {
        replies.push(writer.ask(op).await);
    }
    let renewal = replies.pop().unwrap().unwrap_err();
    assert_eq!(renewal.kind(), ErrorKind::Ambiguous, "a failed renewal is no lost lease");
    match replies.remove(0).unwrap() {
        Reply::Claimed(Claimed::Won { grant: Grant::Fresh, .. }) => {}
        other @ (Reply::Claimed(_)
        | Reply::Renewed(_)
        | Reply::Wrote(_)
        | Reply::PiecesGone
        | Reply::Purged(_)
        | Reply::Erased(_)
        | Reply::Restored(_)
        | Reply::Inspected(_)) => panic!("the claim is there and must be recognised: {other:?}"),
    }
    for reply in replies {
        assert!(matches!(reply, Ok(Reply::Wrote(Write::Applied))), "{reply:?}");
    }
    let running = Some(StateKind::Running.code());
    let expected = vec![
        (1, running, Some(Sent::Yes.code())),
        (2, Some(StateKind::Done.code()), None),
        (3, None, None),
        (4, Some(StateKind::Unknown.code()), None),
        (5, running, Some(Sent::No.code())),
        (9, running, Some(Sent::No.code())),
    ];
    assert_eq!(states(&path), expected);
}

#[tokio::test]
async fn a_commit_that_failed_without_effect_is_reported_as_such_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let leases = five_leases(&path).await;
    let before = states(&path);
    let writer = writer(&path, fails_without_effect);
    for op in one_of_each(&leases) {
        let is_renewal = matches!(op, Op::Renew(..));
        let error = writer.ask(op).await.unwrap_err();
        if is_renewal {
            assert_eq!(error.kind(), ErrorKind::Ambiguous, "no owner token tells: {error}");
            continue;
        }
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("nothing changed"), "{error}");
    }
    assert_eq!(states(&path), before);
}

#[tokio::test]
async fn after_a_failed_commit_the_writer_goes_on_with_a_fresh_connection() {
    static COMMITS: AtomicUsize = AtomicUsize::new(0);
    fn fails_once(connection: &Connection) -> rusqlite::Result<()> {
        match COMMITS.fetch_add(1, Ordering::SeqCst) {
            0 => fails_without_effect(connection),
            _ => commit(connection),
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let writer = writer(&path, fails_once);
    assert!(writer.ask(claim(1)).await.is_err());
    let again = writer.ask(claim(1)).await.unwrap();
    assert!(matches!(again, Reply::Claimed(Claimed::Won { grant: Grant::Fresh, .. })), "{again:?}");
}

#[tokio::test]
async fn a_failed_commit_on_a_file_that_cannot_be_read_is_ambiguous_until_it_can() {
    static AWAY: AtomicUsize = AtomicUsize::new(0);
    fn takes_the_folder_away(connection: &Connection) -> rusqlite::Result<()> {
        if AWAY.fetch_add(1, Ordering::SeqCst) > 0 {
            return commit(connection);
        }
        let path = connection.path().map(std::path::PathBuf::from).unwrap();
        let folder = path.parent().unwrap();
        std::fs::rename(folder, folder.with_extension("away")).unwrap();
        fails_after_effect(connection)
    }
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("store");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("x.db");
    let writer = writer(&path, takes_the_folder_away);

    let error = writer.ask(claim(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    let error = writer.ask(claim(2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "no write before the file is back: {error}");

    std::fs::rename(folder.with_extension("away"), &folder).unwrap();
    let again = writer.ask(claim(1)).await.unwrap();
    assert!(matches!(again, Reply::Claimed(Claimed::Won { grant: Grant::Again, .. })), "{again:?}");
}

/// I55: nobody is told that something is erased unless it is. Asking again tells.
#[tokio::test]
async fn an_erasure_whose_commit_failed_is_ambiguous_and_can_be_asked_for_again() {
    for failing in [fails_after_effect, fails_without_effect] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let leases = five_leases(&path).await;
        let broken = writer(&path, failing);
        let error = broken.ask(Op::Erase(leases[0].id)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        drop(broken);
        let sound = writer(&path, commit);
        let again = sound.ask(Op::Erase(leases[0].id)).await.unwrap();
        assert!(matches!(again, Reply::Erased(Erased::Unfinished)), "{again:?}");
    }
}

/// I12: a completion never refers to pieces that an erasure has taken away.
#[tokio::test]
async fn a_completion_whose_pieces_were_erased_is_told_so_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let leases = five_leases(&path).await;
    let lease = leases[0];
    let writer = writer(&path, commit);
    let body = bytes::Bytes::from("in two pieces");
    let saved = Saved { status: 201, headers: Headers::new(), body: body.clone() };
    let (answer, span) = (Answer::Kept(saved), Duration::from_secs(60));
    let outcome = answer.outcome();
    let completion = Completion { answer, retention: span, linger: span };
    let piece = |part: u32| {
        let bytes = if part == 0 { body.slice(..6) } else { body.slice(6..) };
        Op::Piece { lease, outcome, part, bytes }
    };
    let complete = || Op::Complete(lease, Box::new(CompletionParts::new(&lease, &completion, 2)));
    let kind = || {
        let connection = schema::open_reader(&path).unwrap();
        verbs::find(&Statements::of(&connection), &lease.id).unwrap().unwrap().record().state.kind()
    };
    for erased_after in [0, 1] {
        for part in 0..=1 {
            assert!(matches!(writer.ask(piece(part)).await, Ok(Reply::Wrote(Write::Applied))));
            if part == erased_after {
                writer.ask(Op::Erase(lease.id)).await.unwrap();
            }
        }
        let reply = writer.ask(complete()).await.unwrap();
        assert!(matches!(reply, Reply::PiecesGone), "erased after {erased_after}: {reply:?}");
        assert_eq!(kind(), StateKind::Running);
    }
    for part in 0..=1 {
        writer.ask(piece(part)).await.unwrap();
    }
    assert!(matches!(writer.ask(complete()).await, Ok(Reply::Wrote(Write::Applied))));
    assert_eq!(kind(), StateKind::Done);
}

#[tokio::test]
async fn one_damaged_record_does_not_spoil_the_batch_of_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let leases = five_leases(&path).await;
    let connection = Connection::open(&path).unwrap();
    connection.execute("UPDATE oncekey_records SET state = 7 WHERE id = 1", []).unwrap();
    drop(connection);
    let writer = writer(&path, commit);
    let (damaged, fine) =
        tokio::join!(writer.ask(Op::Send(leases[0])), writer.ask(Op::Send(leases[1])));
    assert_eq!(damaged.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(matches!(fine, Ok(Reply::Wrote(Write::Applied))));
}

/// I5: the end of a lease is not promised unless it is stored.
#[tokio::test]
async fn a_repeated_claim_whose_commit_failed_promises_no_longer_lease() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    five_leases(&path).await;
    let writer = writer(&path, fails_without_effect);
    let error = writer.ask(claim(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
}

/// What a failed commit left in the log cannot come to life in a crash: another commit follows it
/// before anybody is told that nothing changed.
#[tokio::test]
async fn a_failed_commit_is_followed_by_a_commit_before_anybody_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let writer = writer(&path, fails_without_effect);
    let other = Connection::open(&path).unwrap();
    let version =
        || -> i64 { other.pragma_query_value(None, "data_version", |row| row.get(0)).unwrap() };
    let before = version();
    assert!(writer.ask(claim(1)).await.is_err());
    assert_ne!(version(), before, "something was committed");
}

/// I4. Another process may have given the row to another key: what this writer remembers of it is a guess.
#[tokio::test]
async fn an_end_never_ends_what_runs_in_its_row_by_now() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let (one, other) = (writer(&path, commit), writer(&path, commit));
    let first = won(one.ask(claim(1)).await);
    assert_eq!(wrote(other.ask(Op::Release(first)).await), Write::Applied);
    // SQLite uses the last row again.
    let second = won(other.ask(claim(2)).await);
    assert_eq!(wrote(one.ask(complete(first)).await), Write::Fenced);
    let running = StateKind::Running.code();
    assert!(states(&path).contains(&(2, Some(running), Some(Sent::No.code()))));
    assert_eq!(wrote(one.ask(complete(second)).await), Write::Applied);
    // The same attempt, ended again, after the writer has forgotten its row.
    assert_eq!(wrote(other.ask(complete(second)).await), Write::Applied);
}

fn won(reply: Result<Reply, StoreError>) -> Lease {
    let Reply::Claimed(Claimed::Won { lease, .. }) = reply.unwrap() else {
        panic!("a fresh key is granted");
    };
    lease
}

fn wrote(reply: Result<Reply, StoreError>) -> Write {
    let Reply::Wrote(write) = reply.unwrap() else { panic!("a write is judged") };
    write
}
