//! The connection ends at every step of the protocol: at the end of every message, one byte before
//! and after it, and at every seventh byte, of every question and every answer. F19, F20, I5.

use std::time::Duration;

use futures_util::future::join_all;
use oncekey::core::{Claimed, ErrorKind, Store as _};
use oncekey::store::Opened;

use crate::common::proxy::{Fault, How, Proxy, Then, Traffic, Way};
use crate::common::{claim, say};
use crate::frames::cuts;
use crate::place::{Kind, Manner, Place};
use crate::verbs::{Case, End, Said, Verb, within};

/// Enough for a healthy way on a busy machine, and not too long to be waited for where a cut leaves
/// a connection without an end.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// One connection of each sort, so that an exchange has the same bytes each time.
const ALONE: Manner = Manner { patience: PATIENCE, connections: 1 };

/// A connection, a question and an answer, each with its patience; on DynamoDB four tries, each of
/// them with pauses. And a machine that does something else.
const LIMIT: Duration = Duration::from_secs(12);

/// How each cut is made. Over two neighbours every ending meets every aftermath.
const MANNERS: [[(How, Then); 2]; 2] = [
    [(How::Reset, Then::Refuse), (How::Fin, Then::Heal)],
    [(How::Fin, Then::Refuse), (How::Reset, Then::Heal)],
];

/// What came of the cuts of one verb.
#[derive(Debug, Default)]
struct Tally {
    cuts: usize,
    missed: usize,
    answered: usize,
    unavailable: usize,
    undone: usize,
    done: usize,
}

/// A store behind a proxy, and one beside it.
struct Scene {
    place: Place,
    proxy: Proxy,
    store: Opened,
    calm: Opened,
    next: u64,
}

impl Scene {
    async fn new(kind: Kind) -> Self {
        let place = Place::on_shared(kind).await;
        let calm = place.open_calmly().await;
        let proxy = Proxy::start(place.port()).await;
        let store = place.open(proxy.port(), ALONE).await.expect("the store opens");
        Self { place, proxy, store, calm, next: 0 }
    }

    async fn case(&mut self, verb: Verb) -> Case {
        self.next += 1;
        Case::prepare(verb, self.next, &self.calm).await
    }

    /// The same call on a healthy way: afterwards there are connections that know the statements.
    async fn warm(&mut self, verb: Verb) {
        let case = self.case(verb).await;
        let (said, _) = case.ask_patiently(&self.store).await;
        assert!(said == Said::Yes || verb == Verb::Release, "the store works on: {case:?}");
    }

    /// What passes in a call that meets no fault.
    async fn exchange(&mut self, verb: Verb) -> Traffic {
        for _ in 0..3 {
            self.warm(verb).await;
        }
        let case = self.case(verb).await;
        self.proxy.listen();
        assert_eq!(case.ask(&self.store).await.expect("a healthy way"), Said::Yes);
        self.proxy.heard()
    }
}

async fn sweep(kind: Kind, verb: Verb, step: usize) -> Tally {
    let mut scene = Scene::new(kind).await;
    let Traffic { up, down, trips } = scene.exchange(verb).await;
    assert!(!up.is_empty() && !down.is_empty() && trips > 0, "{verb:?} goes by the proxy");
    let mut tally = Tally::default();
    for (way, bytes) in [(Way::Up, &up), (Way::Down, &down)] {
        for (index, after) in cuts(kind, way, bytes, step).into_iter().enumerate() {
            for (how, then) in MANNERS[index % 2] {
                scene.warm(verb).await;
                let case = scene.case(verb).await;
                let before = scene.proxy.cuts();
                let fault = Fault::Cut { way, after, how, then };
                scene.proxy.set(fault);
                let what = format!("{kind:?} {verb:?} {fault:?}");
                let said = within(LIMIT, &what, case.ask(&scene.store)).await;
                scene.proxy.heal();
                tally.cuts += 1;
                tally.missed += usize::from(scene.proxy.cuts() == before);
                match within(LIMIT, &what, case.settle(said, &scene.store, &scene.calm)).await {
                    End::Answered => tally.answered += 1,
                    End::Unavailable => tally.unavailable += 1,
                    End::AmbiguousUndone => tally.undone += 1,
                    End::AmbiguousDone => tally.done += 1,
                }
            }
        }
    }
    drop((scene.store, scene.calm));
    scene.place.clean().await;
    say(&format!("{kind:?} {verb:?}: {} + {} bytes, {tally:?}", up.len(), down.len()));
    tally
}

async fn sweep_all(kind: Kind, step: usize) {
    let tallies = join_all(Verb::ALL.map(|verb| sweep(kind, verb, step))).await;
    for Tally { cuts, missed, undone, done, .. } in tallies {
        // Lengths vary by a few bytes: a cut at the very end may come after it.
        assert!(missed * 10 < cuts, "{missed} of {cuts} cuts never happened");
        assert!(done > 0, "no call was cut off after it had happened");
        assert!(undone > 0, "no call was cut off before it had happened");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn postgres_calls_survive_a_cut_at_every_step() {
    sweep_all(Kind::Postgres, 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn mariadb_calls_survive_a_cut_at_every_step() {
    sweep_all(Kind::MariaDb, 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs Redis: run cargo xtask test"]
async fn redis_calls_survive_a_cut_at_every_step() {
    sweep_all(Kind::Redis, 7).await;
}

/// HTTP has one message each way, and most of it are headers: larger steps will do.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn dynamodb_calls_survive_a_cut_at_every_step() {
    sweep_all(Kind::DynamoDb, 61).await;
}

/// Opens a store whose tables are there, with a cut at every message of the handshakes and checks.
async fn opening(kind: Kind) {
    let place = Place::on_shared(kind).await;
    drop(place.open_calmly().await);
    let proxy = Proxy::start(place.port()).await;
    proxy.listen();
    drop(place.open(proxy.port(), ALONE).await.expect("a healthy way"));
    let Traffic { up, down, .. } = proxy.heard();
    let mut refused = 0;
    for (way, bytes) in [(Way::Up, &up), (Way::Down, &down)] {
        // The ends of messages are what matters here, and there are enough of them.
        let all = cuts(kind, way, bytes, 211);
        let step = all.len().div_ceil(120).max(1);
        for (index, after) in all.into_iter().enumerate().step_by(step) {
            let (how, then) = MANNERS[index % 2][0];
            let fault = Fault::Cut { way, after, how, then };
            proxy.set(fault);
            let what = format!("opening {kind:?} with {fault:?}");
            match within(LIMIT, &what, place.open(proxy.port(), ALONE)).await {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}: {error:?}");
                    refused += 1;
                }
            }
            proxy.heal();
        }
    }
    assert!(refused > 20, "only {refused} openings met a cut");
    let store = place.open(proxy.port(), ALONE).await.expect("a healthy way again");
    assert!(matches!(store.claim(&claim(1, 1)).await, Ok(Claimed::Won { .. })));
    drop(store);
    place.clean().await;
    say(&format!("{kind:?}: {} + {} bytes to open, {refused} refused", up.len(), down.len()));
}

/// Opens a store for the first time, and is cut off while it makes its tables: the next one goes on.
async fn first_opening(kind: Kind) {
    const CUTS: usize = 12;
    let measured = Place::on_shared(kind).await;
    let proxy = Proxy::start(measured.port()).await;
    proxy.listen();
    drop(measured.open(proxy.port(), ALONE).await.expect("a healthy way"));
    let Traffic { up, down, .. } = proxy.heard();
    measured.clean().await;
    for (way, bytes) in [(Way::Up, &up), (Way::Down, &down)] {
        for number in 0..CUTS {
            let place = Place::on_shared(kind).await;
            let after = (2 * number + 1) * bytes.len() / (2 * CUTS);
            let (how, then) = MANNERS[number % 2][0];
            let fault = Fault::Cut { way, after, how, then };
            proxy.set(fault);
            let what = format!("opening {kind:?} for the first time with {fault:?}");
            let opened = within(LIMIT, &what, place.open(proxy.port(), ALONE)).await;
            if let Err(error) = opened {
                let kind = error.kind();
                let is_right = matches!(kind, ErrorKind::Unavailable | ErrorKind::Ambiguous);
                assert!(is_right, "{what}: {kind:?} {error}: {error:?}");
            }
            proxy.heal();
            let store = place.open(proxy.port(), ALONE).await;
            let store = store.unwrap_or_else(|error| panic!("after {what}: {error}: {error:?}"));
            assert!(matches!(store.claim(&claim(1, 1)).await, Ok(Claimed::Won { .. })), "{what}");
            drop(store);
            place.clean().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn postgres_opens_after_a_cut_at_every_step() {
    opening(Kind::Postgres).await;
    first_opening(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn mariadb_opens_after_a_cut_at_every_step() {
    opening(Kind::MariaDb).await;
    first_opening(Kind::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: run cargo xtask test"]
async fn redis_opens_after_a_cut_at_every_step() {
    opening(Kind::Redis).await;
    first_opening(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn dynamodb_opens_after_a_cut_at_every_step() {
    opening(Kind::DynamoDb).await;
    first_opening(Kind::DynamoDb).await;
}
