//! Questions or answers that are lost without a word, and answers that come too late. F14, F20, I5.

use std::time::Duration;

use futures_util::future::join_all;
use oncekey::core::{Claimed, ErrorKind, Renewal, Store as _};

use crate::common::proxy::{Fault, Proxy, Way};
use crate::common::{claim, key_id};
use crate::place::{Kind, Manner, Place};
use crate::verbs::{Case, End, Verb, within};

/// Longer than a busy machine needs, and short enough to wait for it dozens of times.
const PATIENCE: Duration = Duration::from_millis(700);

/// A connection, a question, a rollback and a connection again, or four tries with pauses; with as
/// much again for a busy machine.
const LIMIT: Duration = Duration::from_millis(8 * 700 + 2_000);

const MANNER: Manner = Manner { patience: PATIENCE, connections: 1 };

/// Each verb meets a way that swallows everything: the call ends in bounded time, nobody is told
/// anything wrong, and once the way is healthy the owner is recognised.
async fn silence(kind: Kind, verb: Verb, way: Way) {
    let place = Place::on_shared(kind).await;
    let calm = place.open_calmly().await;
    let proxy = Proxy::start(place.port()).await;
    let store = place.open(proxy.port(), MANNER).await.expect("the store opens");
    for round in 0..3 {
        let warm = Case::prepare(verb, 100 + round, &calm).await;
        warm.ask_patiently(&store).await;
        let case = Case::prepare(verb, round, &calm).await;
        proxy.set(Fault::Lose(way));
        let what = format!("{kind:?} {verb:?} without any bytes {way:?}");
        let said = within(LIMIT, &what, case.ask(&store)).await;
        assert!(said.is_err(), "{what}: nobody can have answered");
        let read = within(LIMIT, &what, store.get(&key_id(round))).await;
        let error = read.expect_err("nobody can have answered");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: a read changes nothing: {error}");
        proxy.heal();
        let end = case.settle(said, &store, &calm).await;
        match (way, kind, verb) {
            (Way::Up, _, _) => assert_ne!(end, End::AmbiguousDone, "{what}: it never arrived"),
            // It asks which records nobody holds, and writes when it has heard.
            (Way::Down, Kind::MariaDb, Verb::Renew) => {
                assert_eq!(end, End::AmbiguousUndone, "{what}: only the question had arrived");
            }
            (Way::Down, _, _) => assert_eq!(end, End::AmbiguousDone, "{what}: it had arrived"),
        }
    }
    drop((store, calm));
    place.clean().await;
}

/// A statement is sent when the one before it on its connection was answered, and not earlier: pgbouncer
/// in transaction mode mixes up what is sent ahead.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn postgres_connections_carry_one_statement_at_a_time() {
    /// What ends a statement on the wire.
    const SYNC: [u8; 5] = [b'S', 0, 0, 0, 4];
    let place = Place::on_shared(Kind::Postgres).await;
    // Makes the tables, for which there is more time than for an answer.
    drop(place.open_calmly().await);
    let proxy = Proxy::start(place.port()).await;
    let store = place.open(proxy.port(), MANNER).await.expect("the store opens");
    // Its only connection for reads is open from here on, and its statement prepared.
    store.get(&key_id(0)).await.expect("it can be read");
    proxy.listen();
    proxy.set(Fault::Lose(Way::Down));
    let ids: Vec<_> = (0..8).map(key_id).collect();
    let reads = join_all(ids.iter().map(|id| store.get(id)));
    let answered = tokio::time::timeout(PATIENCE / 2, reads).await;
    assert!(answered.is_err(), "nobody can have answered");
    let sent = proxy.heard().up;
    let statements = sent.windows(SYNC.len()).filter(|bytes| *bytes == SYNC).count();
    assert_eq!(statements, 1, "the others wait");
    drop(store);
    place.clean().await;
}

/// Answers come after everybody has given up. The next question must not take them for its own.
async fn lateness(kind: Kind) {
    let place = Place::on_shared(kind).await;
    let calm = place.open_calmly().await;
    let proxy = Proxy::start(place.port()).await;
    let store = place.open(proxy.port(), MANNER).await.expect("the store opens");
    for round in 0..4 {
        let [slow, next] = [2 * round, 2 * round + 1].map(|key| claim(key, key));
        let warm = Case::prepare(Verb::Claim, 100 + round, &calm).await;
        warm.ask_patiently(&store).await;
        proxy.set(Fault::Delay(Way::Down, PATIENCE + PATIENCE / 2));
        let what = format!("{kind:?} with late answers");
        let late = within(LIMIT, &what, store.claim(&slow)).await;
        assert!(late.is_err(), "{what}: {late:?}");
        proxy.heal();
        // While the late answer is under way, and after it has come.
        for _ in 0..12 {
            match store.claim(&next).await {
                Ok(Claimed::Won { lease, .. }) => {
                    assert_eq!((lease.id, lease.owner), (next.id, next.owner), "{what}");
                }
                Ok(Claimed::Lost { refusal, .. }) => panic!("{what}: {refusal:?}"),
                Err(_) => {}
            }
            if let Ok(Some(record)) = store.get(&next.id).await {
                assert_eq!((record.id, record.owner), (next.id, next.owner), "{what}");
            }
            tokio::time::sleep(PATIENCE / 6).await;
        }
        for claim in [slow, next] {
            let Claimed::Won { lease, .. } = store.claim(&claim).await.expect("a healthy way")
            else {
                panic!("{what}: an owner that asks again is recognised");
            };
            let record = calm.get(&claim.id).await.expect("a healthy way").expect("it stands");
            assert!(record.is_held_by(&lease), "{what}: {record:?} {lease:?}");
        }
    }
    drop((store, calm));
    place.clean().await;
}

/// I6: whoever renews leases gives a renewal up before the store does. The connection on which nobody answered is
/// not used for the next one, or one that leads nowhere would cost all leases.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_renewal_that_was_given_up_leaves_its_silent_connection() {
    const SPAN: Duration = Duration::from_secs(60);
    let place = Place::on_shared(Kind::Redis).await;
    // Makes the scripts known, for which there is more time than for an answer.
    drop(place.open_calmly().await);
    let proxy = Proxy::start(place.port()).await;
    let patient = Manner { patience: Duration::from_secs(30), connections: 1 };
    let store = place.open(proxy.port(), patient).await.expect("the store opens");
    let Ok(Claimed::Won { lease, .. }) = store.claim(&claim(0, 0)).await else {
        panic!("a new key is granted")
    };
    let leases = [lease];
    let renew = || store.renew(&leases, SPAN);
    assert!(matches!(renew().await.as_deref(), Ok([Renewal::Until(_)])));
    proxy.set(Fault::Lose(Way::Up));
    assert!(tokio::time::timeout(PATIENCE, renew()).await.is_err(), "nobody can have answered");
    proxy.heal();
    let renewed = within(LIMIT, "the next renewal", renew()).await;
    assert!(matches!(renewed.as_deref(), Ok([Renewal::Until(_)])), "{renewed:?}");
    drop(store);
    place.clean().await;
}

async fn all(kind: Kind) {
    let pairs = Verb::ALL.into_iter().flat_map(|verb| Way::BOTH.map(|way| (verb, way)));
    let silences = join_all(pairs.map(|(verb, way)| silence(kind, verb, way)));
    tokio::join!(silences, lateness(kind));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn postgres_calls_end_although_nobody_answers() {
    all(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn mariadb_calls_end_although_nobody_answers() {
    all(Kind::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs Redis: run cargo xtask test"]
async fn redis_calls_end_although_nobody_answers() {
    all(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn dynamodb_calls_end_although_nobody_answers() {
    all(Kind::DynamoDb).await;
}
