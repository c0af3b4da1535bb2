//! `oncekey store`, as a script meets it: killed and resumed, refused, told the truth.

#![cfg(feature = "sqlite")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncekey::core::browse::{Browse, Filter, Page};
use oncekey::core::saved::{Headers, Saved};
use oncekey::core::{
    Answer, Claim, Class, Clock, Fence, Fingerprint, KeyId, Origin, Owner, Places, Record, Restore,
    Sent, State, Store, Timestamp,
};
use oncekey::store::sqlite::SqliteStore;
use serde_json::Value;
use tempfile::TempDir;

const HOUR: Duration = Duration::from_secs(3_600);

/// A folder with files that the program is told of.
struct Scene {
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn url(&self, name: &str) -> String {
        format!("sqlite://{}", self.path(name).display())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
        command.arg("store").args(arguments).current_dir(self.folder.path());
        command
    }

    /// Runs to the end and gives its number and what it said.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let Output { status, stdout, stderr } =
            self.command(arguments).output().expect("the program runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (status.code().expect("it was not killed"), text(stdout), text(stderr))
    }

    /// A file with so many records, every fiftieth with a body in pieces, half of them unfinished.
    fn fill(&self, name: &str, records: u64) {
        let store = Arc::new(SqliteStore::open(self.path(name)).expect("the file opens"));
        block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for number in 0..records {
                let store = Arc::clone(&store);
                tasks.spawn(async move { store.restore(&record(number)).await });
            }
            for restored in tasks.join_all().await {
                restored.expect("a restoration");
            }
        });
    }

    fn records(&self, name: &str) -> BTreeMap<Vec<u8>, Record> {
        let store = SqliteStore::open(self.path(name)).expect("the file opens");
        block_on(async {
            let (mut all, mut after) = (BTreeMap::new(), None);
            loop {
                let page = Page { after, limit: 1_000 };
                let listing = store.list(&Filter::default(), &page).await.expect("a list");
                for summary in listing.summaries {
                    let record = store.get(&summary.id).await.expect("a record").expect("there");
                    all.insert(summary.id.as_bytes().to_vec(), record);
                }
                match listing.next {
                    Some(next) => after = Some(next),
                    None => return all,
                }
            }
        })
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(work)
}

fn record(number: u64) -> Record {
    let now = oncekey::clock::SystemClock.now();
    let mut id = [0; 32];
    for (at, chunk) in (1_u64..).zip(id.chunks_mut(8)) {
        let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_mul(2 * at + 1);
        chunk.copy_from_slice(&mixed.to_be_bytes());
    }
    let size = if number.is_multiple_of(50) { 25_000 } else { 25 };
    let body = Bytes::from(number.to_string().repeat(size));
    let answer = Answer::Kept(Saved { status: 201, headers: Headers::new(), body });
    let state = match number % 3 {
        0 => State::Running { until: now.before(HOUR), sent: Sent::Yes },
        1 if number.is_multiple_of(2) => State::Unknown { since: now },
        _ => State::Done {
            at: now,
            expires: now.after(HOUR),
            forget: now.after(HOUR * 2),
            outcome: answer.outcome(),
            answer,
        },
    };
    Record {
        id: KeyId::from_bytes(id),
        fence: Fence::next(None, Timestamp::from_micros(now.micros())),
        owner: Owner::from_bytes([1; 16]),
        fingerprint: Fingerprint::from_parts(1, id),
        class: Class::Once,
        created: now.before(HOUR),
        origin: Origin { key: format!("key-{number}").into(), ..Origin::default() },
        places: Places::default(),
        state,
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Waits until the file has changed, or the program has ended by itself.
fn wait_for_change(file: &Path, before: &str, child: &mut Child) -> bool {
    loop {
        if child.try_wait().expect("a child").is_some() {
            return false;
        }
        if std::fs::read_to_string(file).is_ok_and(|text| text != before) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// F1: `kill -9` in the middle, again and again. Every run goes on where the last one was, and in the
/// end every record is there, byte for byte, and counted once.
#[test]
fn a_copy_that_is_killed_goes_on_where_it_was() {
    let scene = Scene::new();
    scene.fill("a.db", 6_000);
    let (from, to) = (scene.url("a.db"), scene.url("b.db"));
    let copy = ["copy", "--from", &from, "--to", &to, "--final", "--resume", "place", "--json"];
    let place = scene.path("place");
    let (mut kills, mut before) = (0, String::new());
    while kills < 4 {
        let mut child =
            scene.command(&copy).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("runs");
        let is_alive = wait_for_change(&place, &before, &mut child);
        assert!(is_alive, "it ended before it was killed {kills} times: give it more to do");
        // Somewhere in the next page.
        std::thread::sleep(Duration::from_millis(7 * kills));
        child.kill().expect("a child can be killed");
        child.wait().expect("it is dead");
        let after = std::fs::read_to_string(&place).expect("a whole file, always");
        let seen = |text: &str| json(text)["totals"]["seen"].as_u64().expect("a number");
        let was = if before.is_empty() { 0 } else { seen(&before) };
        assert!(seen(&after) > was, "every run comes further: {before} {after}");
        before = after;
        kills += 1;
    }
    let (code, out, err) = scene.run(&copy);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let result = json(&out);
    assert_eq!(result["seen"], 6_000, "every record counts once: {out}");
    assert_eq!((&result["failed"], &result["target"]), (&0.into(), &6_000.into()), "{out}");
    assert!(!place.exists(), "a complete copy has no place");
    let (copied, expected) = (scene.records("b.db"), scene.records("a.db"));
    assert_eq!(copied.len(), expected.len());
    assert!(copied == expected, "byte for byte");
}

#[test]
fn a_bookmark_of_something_else_is_refused() {
    let scene = Scene::new();
    scene.fill("a.db", 3);
    let (from, to) = (scene.url("a.db"), scene.url("b.db"));
    let copy = ["copy", "--from", &from, "--to", &to, "--resume", "place"];
    let other = r#"{"oncekey_copy":1,"from":"x","to":"y","pass":"live","cursor":"","trace":"","totals":
        {"seen":0,"written":0,"kept":0,"gone":0,"verified":0,"failed":0}}"#;
    for text in ["", "{\"oncekey_copy\":", other] {
        std::fs::write(scene.path("place"), text).unwrap();
        let (code, out, err) = scene.run(&copy);
        assert_eq!((code, out.as_str()), (64, ""), "{err}");
        assert!(err.contains("remove the file"), "{err}");
    }
    std::fs::remove_file(scene.path("place")).unwrap();
    std::fs::create_dir(scene.path("place")).unwrap();
    assert_eq!(scene.run(&copy).0, 1, "a folder is no file");
}

#[test]
fn the_result_is_told_to_people_and_to_programs() {
    let scene = Scene::new();
    scene.fill("a.db", 60);
    let (from, to) = (scene.url("a.db"), scene.url("b.db"));
    let copy = ["copy", "--from", &from, "--to", &to, "--verify"];
    let (code, out, err) = scene.run(&copy);
    assert_eq!((code, err.as_str()), (0, ""), "no bar where nobody watches");
    assert!(out.contains("30 records: 30 written, 0 kept"), "{out}");
    assert!(out.contains("30 have not ended and were left. Next: stop"), "{out}");
    let (code, out, _) = scene.run(&[&copy[..], &["--final", "--json"]].concat());
    let result = json(&out);
    let numbers = ["seen", "written", "kept", "verified", "failed", "target", "lapsed", "left"];
    let numbers = numbers.map(|name| result[name].as_u64().expect("a number"));
    assert_eq!((code, numbers), (0, [60, 30, 30, 60, 0, 60, 20, 0]), "{out}");
    let (_, out, _) = scene.run(&[&copy[..], &["--final"]].concat());
    assert!(out.contains("0 written, 60 kept") && out.contains("owners are gone"), "{out}");
}

#[test]
fn what_makes_no_sense_is_refused_with_what_to_do() {
    let scene = Scene::new();
    scene.fill("a.db", 3);
    std::fs::write(scene.path("notes.txt"), "shopping list\n".repeat(99)).unwrap();
    std::os::unix::fs::symlink(scene.path("a.db"), scene.path("link.db")).unwrap();
    let [a, b, link, none, notes] =
        ["a.db", "b.db", "link.db", "none.db", "notes.txt"].map(|name| scene.url(name));
    let rows: [(&str, &str, i32, &str); 10] = [
        (&a, &a, 64, "the same store"),
        (&a, &link, 64, "the same store"),
        (&none, &b, 4, "there is no database file"),
        (&notes, &b, 1, "not a SQLite database"),
        (&a, &notes, 1, "not a SQLite database"),
        (&a, "sqlite:///no/such/folder/x.db", 4, "check that its folder exists"),
        (&a, "memory:", 64, "in memory"),
        (&a, "oracle://x", 64, "there is no kind of store `oracle`: write sqlite://"),
        (&a, "sqlite://b.db?plaecment=own", 64, "no setting `plaecment`: it has placement"),
        ("b.db", &a, 64, "a file is sqlite://file"),
    ];
    for (from, to, expected, words) in rows {
        let (code, out, err) = scene.run(&["copy", "--from", from, "--to", to]);
        assert_eq!((code, out.as_str()), (expected, ""), "{from} → {to}: {err}");
        assert!(err.starts_with("error: ") && err.contains(words), "{from} → {to}: {err}");
    }
    assert!(!scene.path("none.db").exists() && !scene.path("b.db").exists(), "nothing is made");
}

#[test]
fn a_final_copy_of_a_store_in_use_is_refused() {
    let scene = Scene::new();
    scene.fill("a.db", 3);
    let store = SqliteStore::open(scene.path("a.db")).unwrap();
    let about = record(77);
    let claim = Claim {
        id: about.id,
        owner: about.owner,
        fingerprint: about.fingerprint,
        class: Class::Once,
        lease: HOUR,
        grace: HOUR,
        sent: Sent::No,
        origin: Origin::default(),
        places: Places::default(),
    };
    block_on(store.claim(&claim)).unwrap();
    let (from, to) = (scene.url("a.db"), scene.url("b.db"));
    let (code, _, err) = scene.run(&["copy", "--from", &from, "--to", &to, "--final"]);
    assert_eq!(code, 7, "{err}");
    assert!(err.contains("the store is in use, 1 leases are held: stop"), "{err}");
}

#[test]
fn a_check_says_how_the_store_is_set_up() {
    let scene = Scene::new();
    scene.fill("a.db", 3);
    let url = scene.url("a.db");
    let (code, out, err) = scene.run(&["check", &url]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("SQLite 3.") && out.contains("✔ journal-mode"), "{out}");
    let store = SqliteStore::open(scene.path("a.db")).unwrap();
    let (code, out, _) = scene.run(&["check", &url, "--json"]);
    let health = json(&out);
    assert_eq!(code, 0);
    let checks: Vec<&str> = health["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|finding| finding["check"].as_str().expect("a name"))
        .collect();
    let expected = [
        "version",
        "journal-mode",
        "synchronous",
        "secure-delete",
        "schema-version",
        "ledger",
        "clock",
        "file-system",
        "log",
        "room",
    ];
    assert_eq!(checks[..expected.len()], expected);
    if cfg!(target_os = "linux") {
        assert!(out.contains("another process has the file open"), "{out}");
    }
    drop(store);
    let (code, _, err) = scene.run(&["check", &scene.url("none.db")]);
    assert_eq!(code, 4, "{err}");
    assert!(!scene.path("none.db").exists(), "a check makes nothing");
    let (code, out, _) = scene.run(&["check", "memory:"]);
    assert!(code == 0 && out.contains("volatile") && out.contains('⚠'), "{out}");
}

#[test]
fn migrations_are_printed_or_applied() {
    let scene = Scene::new();
    let url = scene.url("a.db");
    let (code, sql, _) = scene.run(&["migrate", &url, "--print"]);
    assert!(code == 0 && sql.contains("CREATE TABLE oncekey_records"), "{sql}");
    assert!(!scene.path("a.db").exists(), "printing changes nothing");
    let (code, out, _) = scene.run(&["migrate", &url]);
    assert!(code == 0 && out.ends_with("a.db: up to date\n"), "{out}");
    assert!(scene.path("a.db").exists());
    assert_eq!(scene.run(&["migrate", &url]).0, 0, "once more is no harm");
    let (code, out, _) = scene.run(&["migrate", "memory:", "--print"]);
    assert_eq!((code, out.as_str()), (0, ""));
}

/// What was lost may run again: nobody does that by accident.
#[test]
fn a_store_is_adopted_only_if_that_is_confirmed() {
    let scene = Scene::new();
    scene.fill("keys.db", 2);
    let url = scene.url("keys.db");
    let (code, out, err) = scene.run(&["adopt", &url]);
    assert_eq!((code, out.as_str()), (7, ""), "{err}");
    assert!(err.contains("--confirm"), "{err}");
    let (code, out, err) = scene.run(&["adopt", &url, "--confirm"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("adopted"), "{out}");
    // As for every command that looks at a store: it has to be there.
    let (code, _, err) = scene.run(&["adopt", &scene.url("none.db"), "--confirm"]);
    assert_eq!(code, 4, "{err}");
    assert!(!scene.path("none.db").exists());
}
