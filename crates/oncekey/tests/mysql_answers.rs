//! A record and its answer are two rows. Whatever happens to a batch, there is no answer without the
//! record that it belongs to, and nobody is told otherwise.

#![cfg(feature = "mysql")]

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder};
use oncekey::core::saved::{Headers, Saved};
use oncekey::core::{
    Answer, Claim, Claimed, Class, Completion, ErrorKind, Fingerprint, KeyId, Lease, Origin, Owner,
    Places, Refusal, Renewal, Sent, State, Store, Write,
};
use oncekey::store::mysql::{MysqlOptions, MysqlStore};

/// A database of its own.
struct Scene {
    name: String,
    store: Arc<MysqlStore>,
}

impl Scene {
    async fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("oncekey_answers_{}_{count}", std::process::id());
        run(&format!("DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name}")).await;
        let server = server();
        let (address, _) = server.rsplit_once('/').expect("a URL with a database");
        // With one writer, everything that waits while it is busy goes into one batch.
        let options = MysqlOptions::new(format!("{address}/{name}")).writers(1);
        Self { store: Arc::new(options.open().await.expect("the store opens")), name }
    }

    async fn win(&self, key: u64) -> Lease {
        match self.store.claim(&claim(key)).await.expect("a claim") {
            Claimed::Won { lease, .. } => lease,
            lost @ Claimed::Lost { .. } => panic!("not won: {lost:?}"),
        }
    }

    /// Completes all at once.
    async fn complete(&self, leases: &[Lease], completion: &Completion) -> Vec<Write> {
        let mut under_way = Vec::new();
        for lease in leases {
            let (store, lease, completion) = (Arc::clone(&self.store), *lease, completion.clone());
            under_way.push(tokio::spawn(async move { store.complete(&lease, &completion).await }));
        }
        let mut writes = Vec::new();
        for write in under_way {
            writes.push(write.await.expect("no panic").expect("no errors"));
        }
        writes
    }

    async fn run(&self, sql: &str) {
        run(&format!("USE {}; {sql}", self.name)).await;
    }

    async fn count(&self, what: &str) -> u64 {
        let sql = format!("SELECT COUNT(*) FROM {}.{what}", self.name);
        let count: Option<u64> = connect().await.query_first(sql).await.expect("a count");
        count.expect("a row")
    }

    async fn end(self) {
        run(&format!("DROP DATABASE {}", self.name)).await;
    }
}

/// Where the server is, or a panic that says how to get one.
fn server() -> String {
    env::var("ONCEKEY_TEST_MYSQL").expect(
        "ONCEKEY_TEST_MYSQL is not set: run `cargo xtask test`, or `cargo xtask servers` and its exports",
    )
}

async fn connect() -> Conn {
    let options = Opts::from_url(&server()).expect("a mysql:// URL");
    Conn::new(OptsBuilder::from_opts(options).prefer_socket(false)).await.expect("MariaDB")
}

async fn run(sql: &str) {
    connect().await.query_drop(sql).await.expect("a statement of the test");
}

fn claim(key: u64) -> Claim {
    let mut id = [7; 32];
    id[..8].copy_from_slice(&key.to_be_bytes());
    let mut bits = [1; 16];
    bits[..8].copy_from_slice(&key.to_be_bytes());
    Claim {
        id: KeyId::from_bytes(id),
        owner: Owner::from_bytes(bits),
        fingerprint: Fingerprint::from_parts(1, [9; 32]),
        class: Class::Keyed,
        lease: Duration::from_secs(60),
        grace: Duration::from_secs(5),
        sent: Sent::No,
        origin: Origin { key: "a key".into(), ..Origin::default() },
        places: Places::default(),
    }
}

fn completion(text: &'static str) -> Completion {
    let body = bytes::Bytes::from_static(text.as_bytes());
    Completion {
        answer: Answer::Kept(Saved { status: 201, headers: Headers::new(), body }),
        retention: Duration::from_secs(3_600),
        linger: Duration::from_secs(60),
    }
}

fn hex(id: &KeyId) -> String {
    let digits: String = id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("x'{digits}'")
}

/// What has happened to a record before its completion comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    TakenOver,
    GivenBack,
    Completed,
    CompletedOtherwise,
}

/// One record of a batch was taken over, one was given back, one is done already, and one is done with
/// another answer. Nothing of these is stored, and everything of the others is. Those without an answer
/// come by themselves too: the others alone would make the server refuse a second answer.
#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn a_batch_with_strangers_stores_what_is_its_own() {
    use Before::{Completed, CompletedOtherwise, GivenBack, TakenOver};
    batch_with(&[(3, TakenOver)]).await;
    batch_with(&[(0, GivenBack)]).await;
    batch_with(&[(39, Completed)]).await;
    batch_with(&[(3, TakenOver), (11, GivenBack), (12, Completed), (39, CompletedOtherwise)]).await;
}

async fn batch_with(strangers: &[(usize, Before)]) {
    const KEYS: u64 = 40;
    let scene = Scene::new().await;
    let mut leases = Vec::new();
    for key in 0..KEYS {
        leases.push(scene.win(key).await);
    }
    let (done, otherwise) = (completion("done"), completion("something else"));
    for &(place, before) in strangers {
        let (store, lease) = (&scene.store, &leases[place]);
        let write = match before {
            Before::TakenOver => {
                let id = hex(&lease.id);
                let set = "UPDATE oncekey_records SET fence = fence + 1";
                scene.run(&format!("{set} WHERE key_id = {id}")).await;
                Write::Applied
            }
            Before::GivenBack => store.release(lease).await.expect("a release"),
            Before::Completed => store.complete(lease, &done).await.expect("a completion"),
            Before::CompletedOtherwise => {
                store.complete(lease, &otherwise).await.expect("a completion")
            }
        };
        assert_eq!(write, Write::Applied, "{before:?}");
    }
    let writes = scene.complete(&leases, &done).await;
    let mut open = 0;
    for (place, write) in writes.into_iter().enumerate() {
        let stranger =
            strangers.iter().find(|(other, _)| *other == place).map(|(_, before)| *before);
        let record = scene.store.get(&leases[place].id).await.expect("a record that can be read");
        let state = record.map(|record| record.state);
        let (expected, answer) = match stranger {
            None | Some(Before::Completed) => (Write::Applied, Some(&done.answer)),
            Some(Before::CompletedOtherwise) => (Write::Fenced, Some(&otherwise.answer)),
            Some(Before::TakenOver | Before::GivenBack) => (Write::Fenced, None),
        };
        open += u64::from(answer.is_none());
        assert_eq!(write, expected, "the write at {place}");
        match state {
            None => assert_eq!(stranger, Some(Before::GivenBack), "it is gone: {place}"),
            Some(State::Done { answer: stored, .. }) => assert_eq!(Some(&stored), answer),
            Some(_) => assert_eq!(stranger, Some(Before::TakenOver), "it runs: {place}"),
        }
    }
    assert_eq!(scene.count("oncekey_answers").await, KEYS - open, "one for each that is done");
    let orphans = format!(
        "oncekey_answers AS a WHERE NOT EXISTS (SELECT 1 FROM {}.oncekey_records AS r \
         WHERE r.key_id = a.key_id AND r.fence = a.fence AND r.state = 51)",
        scene.name
    );
    assert_eq!(scene.count(&orphans).await, 0, "answers without a record");
    scene.end().await;
}

/// A key whose record is over is used again. Its old answer goes with that, and the new one is the only
/// one.
#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn a_new_generation_leaves_no_old_answer() {
    let scene = Scene::new().await;
    let lease = scene.win(1).await;
    assert_eq!(scene.store.complete(&lease, &completion("old")).await.unwrap(), Write::Applied);
    scene.run("UPDATE oncekey_answers SET expires = 1, forget = 1, due = 1").await;
    let again = scene.win(1).await;
    assert!(again.fence > lease.fence);
    assert_eq!(scene.count("oncekey_answers").await, 0, "the old answer is gone");
    assert_eq!(scene.store.complete(&lease, &completion("old")).await.unwrap(), Write::Fenced);
    assert_eq!(scene.store.complete(&again, &completion("new")).await.unwrap(), Write::Applied);
    assert_eq!(scene.count("oncekey_answers").await, 1);
    let replay = scene.store.claim(&claim(1)).await.unwrap();
    assert!(matches!(replay, Claimed::Lost { refusal: Refusal::Replay, .. }), "{replay:?}");
    scene.end().await;
}

/// A purge takes the answer of a record that was deleted by hand, and does not count it. One that does
/// not fit its record stays for people to look at, and keeps nothing else from going.
#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn a_purge_goes_past_answers_without_a_record() {
    let scene = Scene::new().await;
    let mut leases = Vec::new();
    for key in 0..4 {
        leases.push(scene.win(key).await);
    }
    assert_eq!(scene.complete(&leases, &completion("done")).await, [Write::Applied; 4]);
    let [deleted, damaged] = [hex(&leases[0].id), hex(&leases[1].id)];
    scene
        .run(&format!(
            "DELETE FROM oncekey_records WHERE key_id = {deleted}; \
             UPDATE oncekey_records SET fence = fence + 1 WHERE key_id = {damaged}; \
             UPDATE oncekey_answers SET expires = 1, forget = 1, due = 1"
        ))
        .await;
    let error = scene.store.get(&leases[1].id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "done, and without an answer: {error}");
    // One at a time, so that each look has to go on behind the last.
    assert_eq!(scene.store.purge(1).await.unwrap().forgotten, 1);
    assert_eq!(scene.store.purge(10).await.unwrap().forgotten, 1);
    assert_eq!(scene.store.purge(10).await.unwrap().forgotten, 0);
    assert_eq!(scene.count("oncekey_records").await, 1, "the damaged one");
    assert_eq!(scene.count("oncekey_answers").await, 1, "and what may have been its answer");
    scene.end().await;
}

/// A damaged record is lost, and its neighbours in the same call are renewed.
#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn one_damaged_record_costs_no_other_its_renewal() {
    let scene = Scene::new().await;
    let leases = [scene.win(1).await, scene.win(2).await, scene.win(3).await];
    let damaged = hex(&leases[1].id);
    scene.run(&format!("UPDATE oncekey_records SET state = 14 WHERE key_id = {damaged}")).await;
    let renewals = scene.store.renew(&leases, Duration::from_secs(600)).await.unwrap();
    assert_eq!(renewals[1], Renewal::Lost);
    for place in [0, 2] {
        let Renewal::Until(until) = renewals[place] else { panic!("{renewals:?}") };
        assert!(until > leases[place].until, "it was extended");
    }
    scene.end().await;
}

/// A batch was committed, and then the server refuses to say what became of a part of it. What is known
/// is told, what is not is ambiguous, and nothing is run a second time.
#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn a_committed_batch_is_not_run_again() {
    let scene = Scene::new().await;
    let (name, user) = (&scene.name, format!("a{}", std::process::id()));
    run(&format!("CREATE OR REPLACE USER {user}@'%'")).await;
    for table in ["records", "answers", "pieces", "clock", "migrations"] {
        let rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON";
        run(&format!("{rights} {name}.oncekey_{table} TO {user}@'%'")).await;
    }
    let options = Opts::from_url(&server()).expect("a mysql:// URL");
    let (host, port) = (options.ip_or_hostname(), options.tcp_port());
    let url = format!("mysql://{user}@{host}:{port}/{name}");
    let store = MysqlOptions::new(url).writers(1).open().await.expect("it has all rights");
    let (lease, other) = (scene.win(1).await, scene.win(2).await);
    let stale = Lease { owner: lease.owner, ..other };
    // The rights on a table count from the next statement on.
    run(&format!("REVOKE SELECT ON {name}.oncekey_answers FROM {user}@'%'")).await;
    let (released, sent) = tokio::join!(store.release(&lease), store.send(&stale));
    assert_eq!(released.expect("it was committed"), Write::Applied);
    let error = sent.expect_err("nobody can say");
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    assert_eq!(scene.count("oncekey_records").await, 1, "the other one");
    run(&format!("DROP USER {user}@'%'")).await;
    scene.end().await;
}

/// What a newer version has written means something that this one does not know: nothing is written over
/// it, by nobody, and whoever tries is told to upgrade.
#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn a_record_of_a_newer_format_is_not_written_over() {
    let scene = Scene::new().await;
    let store = &scene.store;
    let mut leases = Vec::new();
    for key in 0..8 {
        leases.push(scene.win(key).await);
    }
    let newer: Vec<String> = leases[..6].iter().map(|lease| hex(&lease.id)).collect();
    let set = "UPDATE oncekey_records SET format = 2 WHERE key_id IN";
    scene.run(&format!("{set} ({})", newer.join(", "))).await;
    let large = Completion {
        answer: Answer::Kept(Saved {
            status: 200,
            headers: Headers::new(),
            body: vec![7; 100_000].into(),
        }),
        ..completion("")
    };
    let tried = [
        ("send", store.send(&leases[0]).await),
        ("complete", store.complete(&leases[1], &completion("done")).await),
        ("a large answer", store.complete(&leases[2], &large).await),
        ("release", store.release(&leases[3]).await),
        ("unknown", store.unknown(&leases[4]).await),
    ];
    for (verb, tried) in tried {
        let error = tried.expect_err(verb);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{verb}: {error}");
        assert!(error.to_string().contains("upgrade"), "{verb}: {error}");
    }
    let renewals = store.renew(&leases[5..7], Duration::from_secs(600)).await.unwrap();
    assert_eq!(renewals[0], Renewal::Lost);
    assert!(matches!(renewals[1], Renewal::Until(_)), "{renewals:?}");
    // In the company of one that is known.
    let done = completion("done");
    let (bad, good) =
        tokio::join!(store.complete(&leases[5], &done), store.complete(&leases[7], &done));
    assert_eq!(bad.expect_err("in company").kind(), ErrorKind::Corrupt);
    assert_eq!(good.unwrap(), Write::Applied);
    let untouched = "oncekey_records WHERE format = 2 AND state = 15 AND sent = 15";
    assert_eq!(scene.count(untouched).await, 6, "all are as they were");
    scene.run("UPDATE oncekey_records SET format = 2 WHERE state = 51").await;
    scene.run("UPDATE oncekey_answers SET expires = 1, forget = 1, due = 1").await;
    assert_eq!(store.purge(10).await.unwrap().total(), 0, "nor is one removed");
    scene.end().await;
}
