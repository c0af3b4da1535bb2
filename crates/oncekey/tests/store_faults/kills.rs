//! `kill -9` of the server, under load and in the middle of a claim. F30, I3, I5, I32.
//!
//! `ONCEKEY_SERVER_KILLS` says how often each server is killed.

use std::time::Duration;

use futures_util::future::join_all;
use oncekey::core::{Claimed, ErrorKind, Lease, Record, Sent, State, Store, StoreError, Write};
use oncekey::store::Opened;

use crate::common::proxy::{Fault, How, Proxy, Way};
use crate::common::{Bits, answer, claim, completion, key_id, owner, say};
use crate::place::{Kind, Manner, Place};
use crate::server::Server;
use crate::verbs::{Case, Verb, within};

/// Enough to keep batches full.
const CALLERS: u64 = 24;

/// How many earlier keys are looked at again after each kill.
const LOOKS_BACK: usize = 40;

/// How long a dead server is waited for.
const MANNER: Manner = Manner { patience: Duration::from_secs(3), connections: 4 };

/// As in `silence`, for a longer patience.
const LIMIT: Duration = Duration::from_secs(30);

/// What one caller did with one key.
#[derive(Clone, Copy, Debug)]
struct Deed {
    key: u64,
    claim: Step,
    lease: Option<Lease>,
    send: Step,
    complete: Step,
}

/// Whether a call was made, and answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    NotYet,
    /// Nobody knows.
    Open,
    /// It was said that nothing has changed.
    Refused,
    Acknowledged,
}

/// What came of all kills.
#[derive(Debug, Default)]
struct Tally {
    claims: usize,
    completions: usize,
    open_done: usize,
    open_undone: usize,
}

fn kills() -> u64 {
    let set = std::env::var("ONCEKEY_SERVER_KILLS").ok();
    set.map_or(5, |number| number.parse().expect("ONCEKEY_SERVER_KILLS is a number"))
}

/// Works through new keys until the first error, and says what it did.
async fn load(store: Opened, first: u64) -> Vec<Deed> {
    let mut deeds = Vec::new();
    for key in first.. {
        let mut deed = Deed {
            key,
            claim: Step::NotYet,
            lease: None,
            send: Step::NotYet,
            complete: Step::NotYet,
        };
        let ended = work(&store, &mut deed).await;
        deeds.push(deed);
        if let Err(error) = ended {
            let kind = error.kind();
            let is_right = matches!(kind, ErrorKind::Ambiguous | ErrorKind::Unavailable);
            assert!(is_right, "{kind:?}: {error}: {error:?}");
            break;
        }
    }
    deeds
}

async fn work(store: &Opened, deed: &mut Deed) -> Result<(), StoreError> {
    let key = deed.key;
    let claimed = step(&mut deed.claim, store.claim(&claim(key, key)).await)?;
    let Claimed::Won { lease, .. } = claimed else { panic!("key {key} is new: {claimed:?}") };
    deed.lease = Some(lease);
    if key.is_multiple_of(2) {
        let write = step(&mut deed.send, store.send(&lease).await)?;
        assert_eq!(write, Write::Applied, "the mark of key {key}");
    }
    if !key.is_multiple_of(3) {
        let write = step(&mut deed.complete, store.complete(&lease, &done(key)).await)?;
        assert_eq!(write, Write::Applied, "the completion of key {key}");
    }
    Ok(())
}

fn step<T>(step: &mut Step, result: Result<T, StoreError>) -> Result<T, StoreError> {
    *step = match &result {
        Ok(_) => Step::Acknowledged,
        Err(error) if error.kind() == ErrorKind::Unavailable => Step::Refused,
        Err(_) => Step::Open,
    };
    result
}

fn done(key: u64) -> oncekey::core::Completion {
    completion(answer(key, 60))
}

/// What was acknowledged is there; what was said not to have happened is not.
fn check(deed: &Deed, found: Option<&Record>) {
    let Deed { key, claim, lease, send, complete } = deed;
    let Some(record) = found else {
        assert_ne!(*claim, Step::Acknowledged, "the claim of key {key} is lost: {deed:?}");
        return;
    };
    assert_ne!(*claim, Step::Refused, "the claim of key {key} happened: {deed:?}");
    assert_eq!(record.owner, owner(*key), "nobody else wanted key {key}");
    if let Some(lease) = lease {
        assert!(record.is_held_by(lease), "key {key} has another fence: {deed:?} {record:?}");
    }
    match &record.state {
        State::Done { answer, .. } => {
            assert!(matches!(complete, Step::Open | Step::Acknowledged), "{deed:?} {record:?}");
            assert_eq!(*answer, done(*key).answer, "the answer of key {key}");
        }
        State::Running { sent, .. } => {
            assert_ne!(*complete, Step::Acknowledged, "the end of key {key} is lost: {record:?}");
            match send {
                Step::Acknowledged => assert_eq!(*sent, Sent::Yes, "key {key}"),
                Step::NotYet | Step::Refused => assert_eq!(*sent, Sent::No, "key {key}"),
                Step::Open => {}
            }
        }
        state @ (State::Unknown { .. } | State::Parked { .. }) => panic!("key {key}: {state:?}"),
    }
}

/// Whoever was not told asks again, and is recognised.
async fn resolve(store: &Opened, deed: &mut Deed, was_there: bool, tally: &mut Tally) {
    let key = deed.key;
    let is_open = |step| matches!(step, Step::Open | Step::Refused);
    if is_open(deed.claim) {
        match was_there {
            true => tally.open_done += 1,
            false => tally.open_undone += 1,
        }
        let claimed = patiently(async || store.claim(&claim(key, key)).await).await;
        let Claimed::Won { lease, .. } = claimed else { panic!("key {key}: {claimed:?}") };
        (deed.claim, deed.lease) = (Step::Acknowledged, Some(lease));
        let rival = patiently(async || store.claim(&claim(key, !key)).await).await;
        assert!(matches!(rival, Claimed::Lost { .. }), "key {key} has two owners: {rival:?}");
    }
    let lease = deed.lease.expect("it was claimed");
    if is_open(deed.send) {
        assert_eq!(patiently(async || store.send(&lease).await).await, Write::Applied);
        deed.send = Step::Acknowledged;
    }
    if is_open(deed.complete) {
        let write = patiently(async || store.complete(&lease, &done(key)).await).await;
        assert_eq!(write, Write::Applied, "key {key}");
        deed.complete = Step::Acknowledged;
    }
    tally.claims += 1;
    tally.completions += usize::from(deed.complete == Step::Acknowledged);
}

/// Asks until it is told: the same store finds its way back, but each of its connections notices for
/// itself that it is dead, and what is sent into it may or may not have arrived.
async fn patiently<T>(ask: impl AsyncFn() -> Result<T, StoreError>) -> T {
    let mut last = None;
    for _ in 0..100 {
        match ask().await {
            Ok(said) => return said,
            Err(error) => {
                let kind = error.kind();
                let is_right = matches!(kind, ErrorKind::Ambiguous | ErrorKind::Unavailable);
                assert!(is_right, "{kind:?}: {error}: {error:?}");
                last = Some(error);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the store does not find its way back to a server that is up: {last:?}");
}

async fn look(store: &Opened, key: u64) -> Option<Record> {
    patiently(async || store.get(&key_id(key)).await).await
}

async fn kill_again_and_again(kind: Kind) {
    let mut server = Server::start(kind, &[]);
    let place = Place::on(kind, &server.url()).await;
    let store = place.open(server.port(), MANNER).await.expect("the store opens");
    let mut bits = Bits::seeded(0x9d5a);
    let mut tally = Tally::default();
    let mut all: Vec<Deed> = Vec::new();
    for round in 0..kills() {
        let callers = (0..CALLERS).map(|caller| {
            let first = (round * CALLERS + caller + 1) << 20;
            tokio::spawn(load(store.clone(), first))
        });
        let callers: Vec<_> = callers.collect();
        tokio::time::sleep(Duration::from_millis(20 + bits.below(600))).await;
        server.kill();
        let deeds = within(LIMIT, "everybody notices", join_all(callers)).await;
        server.start_again();
        for mut deed in deeds.into_iter().flat_map(|caller| caller.expect("no caller panics")) {
            let found = look(&store, deed.key).await;
            check(&deed, found.as_ref());
            resolve(&store, &mut deed, found.is_some(), &mut tally).await;
            all.push(deed);
        }
        for _ in 0..LOOKS_BACK {
            let deed = &all[bits.index(all.len())];
            check(deed, look(&store, deed.key).await.as_ref());
        }
        if (round + 1).is_multiple_of(20) {
            say(&format!("{kind:?}: {} kills so far, {tally:?}", round + 1));
        }
    }
    let calm = place.open_calmly().await;
    for deed in &all {
        check(deed, look(&calm, deed.key).await.as_ref());
    }
    say(&format!("{kind:?}: {} kills, {tally:?}, nothing lost", kills()));
    assert!(tally.claims > 0 && tally.completions > 0, "there was no load");
}

/// The server dies while it has a call that nobody has answered, or before the call has come.
async fn die_in_the_middle(kind: Kind) {
    let mut server = Server::start(kind, &[]);
    let place = Place::on(kind, &server.url()).await;
    let proxy = Proxy::start(server.port()).await;
    // One connection: it is there when the call is made, and so the call is what is held.
    let manner = Manner { connections: 1, ..MANNER };
    let store = place.open(proxy.port(), manner).await.expect("the store opens");
    let held = [Fault::Lose(Way::Down), Fault::Delay(Way::Up, Duration::from_secs(1))];
    let rounds = Verb::ALL.into_iter().flat_map(|verb| held.map(|fault| (verb, fault)));
    for (number, (verb, fault)) in (0..).zip(rounds) {
        let calm = place.open_calmly().await;
        Case::prepare(verb, 100 + number, &calm).await.ask_patiently(&store).await;
        let case = Case::prepare(verb, number, &calm).await;
        drop(calm);
        proxy.set(fault);
        let before = proxy.total(Way::Up);
        let asking = case.ask(&store);
        let dying = async {
            while proxy.total(Way::Up) == before {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            server.kill();
            proxy.end_all(How::Reset);
        };
        let what = format!("{kind:?} dies under {verb:?} with {fault:?}");
        let (said, ()) = within(LIMIT, &what, async { tokio::join!(asking, dying) }).await;
        assert!(said.is_err(), "{what}: nobody can have answered");
        proxy.heal();
        server.start_again();
        look(&store, number).await;
        let calm = place.open_calmly().await;
        case.settle(said, &store, &calm).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn postgres_loses_nothing_when_it_is_killed() {
    kill_again_and_again(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn mariadb_loses_nothing_when_it_is_killed() {
    kill_again_and_again(Kind::MariaDb).await;
}

/// With `appendfsync always`, which is what the store's tier says.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs Redis: run cargo xtask test"]
async fn redis_loses_nothing_when_it_is_killed() {
    kill_again_and_again(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn dynamodb_loses_nothing_when_it_is_killed() {
    kill_again_and_again(Kind::DynamoDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn postgres_may_die_in_the_middle_of_a_call() {
    die_in_the_middle(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn mariadb_may_die_in_the_middle_of_a_call() {
    die_in_the_middle(Kind::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs Redis: run cargo xtask test"]
async fn redis_may_die_in_the_middle_of_a_call() {
    die_in_the_middle(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn dynamodb_may_die_in_the_middle_of_a_call() {
    die_in_the_middle(Kind::DynamoDb).await;
}
