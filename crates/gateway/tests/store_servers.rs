//! `oncekey store` with each server: looked at, made, looked at again, copied to and from.

#![cfg(feature = "all")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A store of its own on one server, and what a look at it must say.
struct Station {
    url: String,
    /// How its name begins.
    name: &'static str,
    /// Some of its checks.
    checks: &'static [&'static str],
}

fn url_of(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run `cargo xtask test`, or `cargo xtask servers` and its exports")
    })
}

/// Each under a name of this process and test. They go with the servers.
fn stations(test: &str) -> Vec<Station> {
    let own = format!("cli_{test}_{}", std::process::id());
    let (postgres, bouncer) = (url_of("ONCEKEY_TEST_POSTGRES"), url_of("ONCEKEY_TEST_PGBOUNCER"));
    let postgres_checks: &[_] = &["server-version", "synchronous-commit", "fsync", "rights"];
    vec![
        Station {
            url: format!("{postgres}?schema={own}"),
            name: "PostgreSQL ",
            checks: postgres_checks,
        },
        Station {
            url: format!("{bouncer}?schema={own}_b&prepared=off"),
            name: "PostgreSQL ",
            checks: postgres_checks,
        },
        Station {
            url: format!("{}?prefix={own}_", url_of("ONCEKEY_TEST_MYSQL")),
            name: "MariaDB ",
            checks: &["version", "isolation", "flush-log", "engine", "schema"],
        },
        Station {
            url: format!("{}?prefix={own}", url_of("ONCEKEY_TEST_REDIS")),
            name: "Redis ",
            checks: &["version", "eviction", "persistence", "tier", "lineage"],
        },
        Station {
            url: format!("redis+cluster://{}?prefix={own}_c", url_of("ONCEKEY_TEST_REDIS_CLUSTER")),
            name: "Redis ",
            checks: &["version", "eviction", "persistence", "tier", "lineage"],
        },
        Station {
            url: format!(
                "dynamodb://{own}?region=us-east-1&endpoint={}&missing=create",
                url_of("ONCEKEY_TEST_DYNAMODB")
            ),
            name: "DynamoDB",
            checks: &["table-status", "key-schema", "index", "garbage"],
        },
    ]
}

/// Runs the program in a folder, with URLs in the environment where everybody should have them.
fn run(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    command.current_dir(folder).arg("store").args(arguments).envs(variables.iter().copied());
    let Output { status, stdout, stderr } = command.output().expect("the program runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code().expect("it was not killed"), text(stdout), text(stderr))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The names of all findings.
fn checks_of(health: &Value) -> Vec<&str> {
    let findings = health["findings"].as_array().expect("a list");
    findings.iter().map(|finding| finding["check"].as_str().expect("a name")).collect()
}

#[test]
#[ignore = "needs all servers: run cargo xtask test"]
fn every_server_is_looked_at_and_its_findings_are_printed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    let page = std::fs::read_to_string(page).expect("the reference");
    for Station { url, name, checks } in stations("check") {
        let store = [("ONCEKEY_STORE", url.as_str())];
        for _ in 0..2 {
            // Twice: the first look has made nothing.
            let (code, out, err) = run(folder.path(), &["check"], &store);
            assert!([1, 4].contains(&code), "nobody has made it: {code} {out}{err}");
            assert!(out.is_empty() && err.starts_with("error: "), "{out}{err}");
        }
        let (code, out, err) = run(folder.path(), &["migrate"], &store);
        assert!(code == 0 && out.ends_with(": up to date\n"), "{url}: {out}{err}");
        assert!(!out.contains('?'), "settings are not shown: {out}");
        let (code, out, err) = run(folder.path(), &["check"], &store);
        assert_eq!((code, err.as_str()), (0, ""), "{url}: {out}");
        assert!(out.starts_with(name) && out.contains('✔'), "{out}");
        assert!(out.lines().last().is_some_and(|line| line.ends_with(", 0 refused")), "{out}");
        let (code, out, _) = run(folder.path(), &["check", "--json"], &store);
        let health = json(&out);
        assert!(code == 0 && health["verdict"] != "refused", "{out}");
        let found = checks_of(&health);
        for check in checks {
            assert!(found.contains(check), "{url}: {check} is not among {found:?}");
        }
        for check in found {
            assert!(page.contains(&format!("`{check}`")), "the reference does not have {check}");
        }
    }
}

/// A file goes out to each server and comes home as it was.
#[test]
#[ignore = "needs all servers: run cargo xtask test"]
fn a_file_is_copied_to_each_server_and_back() {
    let folder: TempDir = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    fill(&path("first.db"));
    let copy = |from: &str, to: &str| {
        let variables = [("ONCEKEY_COPY_FROM", from), ("ONCEKEY_COPY_TO", to)];
        let arguments = ["copy", "--final", "--verify", "--json"];
        let (code, out, err) = run(folder.path(), &arguments, &variables);
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        let result = json(&out);
        let counts = [&result["seen"], &result["written"], &result["verified"]];
        assert_eq!(counts, [&Value::from(COUNT); 3], "{out}");
    };
    for (number, Station { url, .. }) in stations("copy").into_iter().enumerate() {
        let home = format!("sqlite://home-{number}.db");
        copy("sqlite://first.db", &url);
        copy(&url, &home);
        assert_eq!(contents(&path(&format!("home-{number}.db"))), contents(&path("first.db")));
    }
}

/// As many records as are put into the first file.
const COUNT: u64 = 3;

/// Three records: one done, one with a large answer, one of which nobody knows.
fn fill(path: &Path) {
    use oncekey::core::{
        Answer, Class, Clock, Fence, Fingerprint, Headers, KeyId, Origin, Owner, Places, Record,
        Restore, Saved, State,
    };

    let store = oncekey::store::sqlite::SqliteStore::open(path).expect("the file opens");
    let now = oncekey::clock::SystemClock.now();
    let hour = std::time::Duration::from_secs(3_600);
    for number in 0..u8::try_from(COUNT).expect("a few") {
        let body = vec![number; if number == 1 { 600_000 } else { 10 }];
        let answer =
            Answer::Kept(Saved { status: 201, headers: Headers::new(), body: body.into() });
        let outcome = answer.outcome();
        let (expires, forget) = (now.after(hour), now.after(hour * 2));
        let state = match number {
            2 => State::Unknown { since: now },
            _ => State::Done { at: now, expires, forget, outcome, answer },
        };
        let record = Record {
            id: KeyId::from_bytes([number; 32]),
            fence: Fence::next(None, now),
            owner: Owner::from_bytes([number; 16]),
            fingerprint: Fingerprint::from_parts(1, [number; 32]),
            class: Class::Once,
            created: now,
            origin: Origin { key: format!("key-{number}").into(), ..Origin::default() },
            places: Places::default(),
            state,
        };
        block_on(store.restore(&record)).expect("it is restored");
    }
}

fn contents(path: &Path) -> Vec<oncekey::core::Record> {
    use oncekey::core::{KeyId, Store};

    let store = oncekey::store::sqlite::SqliteStore::open(path).expect("the file opens");
    let ids =
        (0..u8::try_from(COUNT).expect("a few")).map(|number| KeyId::from_bytes([number; 32]));
    ids.map(|id| block_on(store.get(&id)).expect("an answer").expect("a record")).collect()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(work)
}
