//! Files that are not what they should be: a clear error that says what to do, nothing lost, and
//! a refused file is left as it was. F35, F36, F48, I36.

#![cfg(all(feature = "sqlite", unix))]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use oncekey::core::{Answer, Claim, Claimed, ErrorKind, Grant, State, Store, StoreError, Write};
use oncekey::store::sqlite::{Placement, SqliteOptions, SqliteStore};

use self::common::child::{self, Process};
use self::common::{LARGE, answer, block_on, completion, file, key_id, owner, win};

/// The user that owns nothing.
const NOBODY: u32 = 65_534;

/// Not a test: what the child processes do.
#[test]
fn child() {
    let Some(orders) = child::orders() else { return };
    match orders.role.as_str() {
        "open" => {
            let said = match SqliteStore::open(&orders.file) {
                Ok(_) => "opened".to_owned(),
                Err(error) => format!("{}: {error}", error.kind().label()),
            };
            child::tell(&said);
        }
        "fill" => claim_until_full(&orders.file),
        "die" => claim_and_die(&orders.file, orders.number),
        other => panic!("there is no role {other}"),
    }
}

/// Opens and must be refused, with these words in the message.
fn refused(path: &Path, kind: ErrorKind, words: &str) {
    let error = SqliteStore::open(path).expect_err("such a file is refused");
    assert_eq!(error.kind(), kind, "{error} ({error:?})");
    assert!(error.to_string().contains(words), "{error}");
}

/// A closed file with a small and a large answer under keys 1 and 2.
fn finished_file(path: &Path) {
    let store = SqliteStore::open(path).expect("a new file opens");
    block_on(async {
        for (key, size) in [(1, 100), (2, LARGE)] {
            let (lease, _) = win(&store, &common::claim(key, key)).await;
            let write = store.complete(&lease, &completion(answer(key, size))).await;
            assert_eq!(write.expect("a completion"), Write::Applied);
        }
    });
}

/// Whoever has another account on the machine reads neither keys nor answers.
#[test]
fn a_new_file_is_for_its_owner_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.db");
    let store = SqliteStore::open(&path).expect("a new file opens");
    block_on(win(&store, &common::claim(1, 1)));
    for name in ["keys.db", "keys.db-wal", "keys.db-shm"] {
        let mode = fs::metadata(folder.path().join(name)).expect(name).permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    // Rights that somebody has chosen are left as they are.
    drop(store);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("new rights");
    drop(SqliteStore::open(&path).expect("a known file opens"));
    let mode = fs::metadata(&path).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}

fn replay(store: &SqliteStore, key: u64) -> Result<Answer, StoreError> {
    let rival = Claim { owner: owner(99), ..common::claim(key, key) };
    match block_on(store.claim(&rival))? {
        Claimed::Lost { record, .. } => {
            let State::Done { answer, .. } = record.state else {
                panic!("key {key} is done, not {record:?}");
            };
            Ok(answer)
        }
        Claimed::Won { grant, .. } => panic!("key {key} is done, but granted as {grant:?}"),
    }
}

#[test]
fn a_path_that_leads_to_no_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing").join("oncekey.db");
    refused(&missing, ErrorKind::Unavailable, "check that its folder exists");
    assert!(!missing.parent().unwrap().exists(), "no folder is made");
    refused(folder.path(), ErrorKind::Unavailable, "cannot be opened");
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    for text in ["shopping list\n".repeat(10), "x".repeat(100_000), "SQLite format".to_owned()] {
        fs::write(&path, &text).unwrap();
        refused(&path, ErrorKind::Unsuitable, "not a SQLite database");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn an_empty_file_becomes_ours() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oncekey.db");
    fs::write(&path, "").unwrap();
    finished_file(&path);
    assert!(replay(&SqliteStore::open(&path).unwrap(), 2).unwrap() == answer(2, LARGE));
    file::check(&path);
}

/// F55: a file that lost its end answers truly or not at all.
#[test]
fn a_truncated_file_gives_errors_and_no_wrong_answers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oncekey.db");
    finished_file(&path);
    let whole = fs::read(&path).unwrap();
    // A file of no byte, or of one, is an empty file to SQLite.
    let cuts = (2..whole.len()).step_by(4_096 * 3).chain([50, 100, 4_095, 4_096, 8_192]);
    for cut in cuts {
        fs::write(&path, &whole[..cut]).unwrap();
        match SqliteStore::open(&path) {
            Err(error) => {
                let kinds = [ErrorKind::Unsuitable, ErrorKind::Corrupt];
                assert!(kinds.contains(&error.kind()), "cut at {cut}: {error} ({error:?})");
                assert!(fs::read(&path).unwrap() == whole[..cut], "cut at {cut}: it was changed");
            }
            Ok(store) => {
                for (key, size) in [(1, 100), (2, LARGE)] {
                    match replay(&store, key) {
                        Ok(kept) => assert!(kept == answer(key, size), "cut at {cut}"),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "cut at {cut}"),
                    }
                }
            }
        }
        for ending in ["-wal", "-shm"] {
            drop(fs::remove_file(file::beside(&path, ending)));
        }
    }
}

/// A database of another program, in the journal mode that SQLite begins with.
fn foreign_file(path: &Path) {
    let sql = "CREATE TABLE invoices (id INTEGER PRIMARY KEY, total INTEGER);
               INSERT INTO invoices VALUES (1, 100), (2, 250);";
    file::open(path).execute_batch(sql).expect("a database of another program");
}

#[test]
fn the_database_of_another_program_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("invoices.db");
    foreign_file(&path);
    let before = fs::read(&path).unwrap();
    refused(&path, ErrorKind::Unsuitable, "belongs to another program");
    assert!(fs::read(&path).unwrap() == before, "not a byte was changed");
    let files = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 1, "and nothing was left beside it");
}

#[test]
fn the_database_of_another_program_is_shared_if_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("invoices.db");
    foreign_file(&path);
    for grant in [Grant::Fresh, Grant::Again] {
        let store = SqliteOptions::new(&path).placement(Placement::Shared).open().unwrap();
        assert_eq!(block_on(win(&store, &common::claim(1, 1))).1, grant);
    }
    let raw = file::open(&path);
    assert_eq!(file::number(&raw, "SELECT sum(total) FROM invoices"), 350);
    assert_eq!(file::number(&raw, "PRAGMA application_id"), 0, "the file is not ours");
    file::check(&path);
}

/// I36: the tables of a newer version are not touched, whatever mode the file is in.
#[test]
fn a_file_of_a_newer_version_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    for mode in ["wal", "delete"] {
        let path = folder.path().join(format!("{mode}.db"));
        finished_file(&path);
        let raw = file::open(&path);
        raw.pragma_update(None, "journal_mode", mode).unwrap();
        let newer = "INSERT INTO oncekey_migrations VALUES (999, 'from the future', 0, 999)";
        assert_eq!(raw.execute(newer, []).unwrap(), 1);
        drop(raw);
        let before = fs::read(&path).unwrap();
        for placement in [Placement::Own, Placement::Shared] {
            let error = SqliteOptions::new(&path).placement(placement).open().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsuitable, "{error}");
            assert!(error.to_string().contains("999") && error.to_string().contains("upgrade"));
        }
        assert!(fs::read(&path).unwrap() == before, "{mode}: not a byte was changed");
    }
}

#[test]
fn a_file_in_another_journal_mode_is_put_into_wal_mode() {
    let folder = tempfile::tempdir().unwrap();
    for mode in ["delete", "truncate", "persist"] {
        let path = folder.path().join(format!("{mode}.db"));
        finished_file(&path);
        let raw = file::open(&path);
        raw.pragma_update(None, "journal_mode", mode).unwrap();
        drop(raw);
        let store = SqliteStore::open(&path).unwrap();
        assert!(replay(&store, 1).unwrap() == answer(1, 100), "{mode}");
        let raw = file::open(&path);
        let now: String = raw.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
        assert_eq!(now, "wal");
    }
}

/// F36: a file or folder that may not be written. The superuser may write everything, so the
/// program that tries is nobody's.
#[test]
fn a_file_that_may_not_be_written_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oncekey.db");
    finished_file(&path);
    let before = fs::read(&path).unwrap();
    let program = folder.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let open = || {
        let mut command = child::command_of(&program, "open", &path, 0);
        if is_superuser(folder.path()) {
            command.uid(NOBODY).gid(NOBODY);
        }
        Process::start(&mut command).finish()
    };
    let allow = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    let rows = [
        ("neither may be written", 0o555, 0o444),
        ("the file may not be written", 0o777, 0o444),
        ("the folder may not be written", 0o555, 0o666),
        ("the file may not be read", 0o777, 0o000),
    ];
    for (what, folder_mode, file_mode) in rows {
        allow(&path, file_mode).unwrap();
        allow(folder.path(), folder_mode).unwrap();
        let said = open();
        allow(folder.path(), 0o777).unwrap();
        allow(&path, 0o666).unwrap();
        let [said] = &said[..] else { panic!("{what}: {said:?}") };
        assert!(said.starts_with("unavailable: the database file cannot be"), "{what}: {said}");
        assert!(said.contains("check"), "{what}: {said}");
        assert!(fs::read(&path).unwrap() == before, "{what}: not a byte was changed");
    }
    assert_eq!(open(), ["opened"], "and with all permissions it opens");
}

/// Whether permissions mean nothing to this process.
fn is_superuser(folder: &Path) -> bool {
    let secret = folder.join("secret");
    fs::write(&secret, "").expect("a file");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).expect("its mode");
    let readable = fs::read(&secret).is_ok();
    fs::remove_file(&secret).expect("it goes again");
    readable
}

/// F35: on a full disk claims fail closed and replays go on; with space, everything goes on, and
/// nothing that was acknowledged is missing. The disk is "full" for a process that may not write
/// large files.
#[test]
fn a_full_disk_refuses_claims_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oncekey.db");
    finished_file(&path);
    // In units of 512 or 1024 bytes, as the shell likes: some hundred kilobytes beyond the file.
    let limit = "trap '' XFSZ; ulimit -f 1000";
    let told = Process::start(&mut child::command_after(limit, "fill", &path, 0)).finish();
    let (last, won) = told.split_last().expect("the child says something");
    assert_eq!(last, "full", "{told:?}");
    assert!(won.len() > 3, "the disk was full from the beginning: {told:?}");
    let store = SqliteStore::open(&path).unwrap();
    for line in won {
        let (key, fence) = line.split_once(' ').expect("a key and a fence");
        let key = key.parse().unwrap();
        let (lease, grant) = block_on(win(&store, &common::claim(key, key)));
        assert_eq!((lease.fence.to_string().as_str(), grant), (fence, Grant::Again), "key {key}");
    }
    let next = 100 + u64::try_from(won.len()).unwrap();
    assert_eq!(block_on(win(&store, &common::claim(next, next))).1, Grant::Fresh);
    drop(store);
    file::check(&path);
}

/// Claims new keys until the disk is full, and goes on asking for a while.
fn claim_until_full(path: &Path) {
    let store = SqliteStore::open(path).expect("there is still room");
    let mut key = 100;
    let error = loop {
        match block_on(store.claim(&common::claim(key, key))) {
            Ok(Claimed::Won { lease, .. }) => child::tell(&format!("{key} {}", lease.fence)),
            Ok(other) => panic!("a fresh key is granted: {other:?}"),
            Err(error) => break error,
        };
        key += 1;
    };
    // Where the commit itself failed, nothing more can be committed to make sure of it.
    let refused = [ErrorKind::Unavailable, ErrorKind::Ambiguous];
    assert!(refused.contains(&error.kind()), "{error} ({error:?})");
    for again in [key, key + 1, key] {
        let error = block_on(store.claim(&common::claim(again, again))).expect_err("no room");
        assert!(refused.contains(&error.kind()), "{error} ({error:?})");
    }
    for (key, size) in [(1, 100), (2, LARGE)] {
        assert!(replay(&store, key).expect("replays go on") == answer(key, size));
    }
    child::tell("full");
}

/// F36: a store whose file is taken away acknowledges nothing more, because nobody would ever find
/// it again. Put back, it goes on.
#[test]
fn a_file_that_was_moved_deleted_or_replaced_is_not_written_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oncekey.db");
    finished_file(&path);
    let store = SqliteStore::open(&path).unwrap();
    let (lease, _) = block_on(win(&store, &common::claim(3, 3)));
    let aside = folder.path().join("aside.db");
    let unavailable = |what: &str| {
        let claimed = block_on(store.claim(&common::claim(4, 4))).map(drop);
        let completed = block_on(store.complete(&lease, &completion(answer(3, 10)))).map(drop);
        for result in [claimed, completed] {
            let error = result.expect_err(what);
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}");
            assert!(error.to_string().contains("moved, deleted or replaced"), "{what}: {error}");
        }
        assert!(replay(&store, 1).expect("small replays go on") == answer(1, 100), "{what}");
        // A large body is read on a connection of its own, which must not be to another file.
        let large = replay(&store, 2).expect_err(what);
        assert_eq!(large.kind(), ErrorKind::Unavailable, "{what}: {large}");
    };
    fs::rename(&path, &aside).unwrap();
    unavailable("the file was moved");
    assert!(!path.exists(), "no new file is made");
    fs::copy(&aside, &path).unwrap();
    unavailable("the file was replaced by a copy");
    fs::rename(&aside, &path).unwrap();
    let log_aside = folder.path().join("aside-wal");
    fs::rename(file::log_of(&path), &log_aside).unwrap();
    let error = block_on(store.claim(&common::claim(4, 4))).expect_err("the log was moved");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    fs::rename(&log_aside, file::log_of(&path)).unwrap();
    assert_eq!(block_on(win(&store, &common::claim(4, 4))).1, Grant::Fresh, "it was put back");
    let write = block_on(store.complete(&lease, &completion(answer(3, 10)))).unwrap();
    assert_eq!(write, Write::Applied);
    drop(store);
    file::check(&path);
}

type Damage = fn(&Path);

/// F31: a log that is lost or garbled after a crash costs what was only in it. The file opens, the
/// rest is there, and no fence is granted twice.
#[test]
fn a_lost_or_garbled_log_costs_no_more_than_what_was_in_it() {
    let garbage: [(&str, Damage); 4] = [
        ("is gone", |log| fs::remove_file(log).expect("it was there")),
        ("is empty", |log| fs::write(log, "").expect("it can be written")),
        ("is garbage", |log| fs::write(log, [0xa5; 50_000]).expect("it can be written")),
        ("is cut", |log| {
            let bytes = fs::read(log).expect("it can be read");
            fs::write(log, &bytes[..bytes.len() / 2 + 7]).expect("it can be written");
        }),
    ];
    for (number, (what, damage)) in (100..).zip(garbage) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oncekey.db");
        finished_file(&path);
        let fence = fence_of_the_dead(&path, number);
        damage(&file::log_of(&path));
        let store = SqliteStore::open(&path).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(replay(&store, 2).unwrap() == answer(2, LARGE), "{what}");
        let rival = Claim { owner: owner(1), ..common::claim(number + 1, 0) };
        let (lease, _) = block_on(win(&store, &rival));
        assert!(lease.fence.number() > fence, "{what}: {} after {fence}", lease.fence);
        drop(store);
        file::check(&path);
    }
}

/// Has a process claim a key and die, so that its log stays, and returns the fence it was granted.
fn fence_of_the_dead(path: &Path, number: u64) -> i64 {
    let mut process = Process::start(&mut child::command("die", path, number));
    let fence = process.hear().expect("the child tells its fence");
    process.kill();
    assert!(file::log_of(path).exists(), "a killed process leaves its log");
    fence.parse().expect("a number")
}

fn claim_and_die(path: &Path, number: u64) {
    let store = SqliteStore::open(path).expect("the file opens");
    let (lease, _) = block_on(win(&store, &common::claim(number, number)));
    child::tell(&lease.fence.to_string());
    child::wait_for_parent();
}

/// A path that is a link leads to the file, also when the file is looked at again.
#[test]
fn a_link_to_a_file_is_as_good_as_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("oncekey.db"), folder.path().join("link.db"));
    finished_file(&path);
    std::os::unix::fs::symlink(PathBuf::from("oncekey.db"), &link).unwrap();
    let store = SqliteStore::open(&link).unwrap();
    assert_eq!(block_on(win(&store, &common::claim(3, 3))).1, Grant::Fresh);
    assert!(replay(&store, 2).unwrap() == answer(2, LARGE));
    assert!(block_on(store.get(&key_id(3))).unwrap().is_some());
}
