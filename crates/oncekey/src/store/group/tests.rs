//! The group against a backend that keeps what it was given and fails on demand.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::sync::Semaphore;

use super::*;

/// An operation that touches the key of its number; `rank` and `size` are what the test says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Op {
    key: u8,
    name: u32,
    rank: usize,
    size: usize,
}

impl Operation for Op {
    type Reply = u32;
    const RANKS: usize = 3;

    fn rank(&self) -> usize {
        self.rank
    }

    fn ids(&self) -> impl Iterator<Item = KeyId> {
        std::iter::once(KeyId::from_bytes([self.key; 32]))
    }

    fn size(&self) -> usize {
        self.size
    }
}

/// What the next batch meets, if not success.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Refused,
    NotSent,
    Unknown,
    Silence,
}

#[derive(Debug)]
struct Fake {
    /// One permit lets one batch end.
    gate: Semaphore,
    batches: Mutex<Vec<Vec<u32>>>,
    fates: Mutex<VecDeque<Fate>>,
    /// How many attempts to connect fail.
    refusals: Mutex<u32>,
    connections: Mutex<u32>,
}

impl Fake {
    fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self {
            gate: Semaphore::new(permits),
            batches: Mutex::default(),
            fates: Mutex::default(),
            refusals: Mutex::default(),
            connections: Mutex::default(),
        })
    }

    fn batches(&self) -> Vec<Vec<u32>> {
        self.batches.lock().unwrap().clone()
    }

    fn meets(&self, fates: &[Fate]) {
        self.fates.lock().unwrap().extend(fates);
    }
}

fn error(kind: ErrorKind) -> StoreError {
    // As servers do: with the values of one operation in it.
    StoreError::new(kind, "as the test says").with_source(std::io::Error::other("entry '7-secret'"))
}

impl Backend for Fake {
    type Op = Op;
    type Connection = u32;

    async fn connect(&self) -> Result<u32, StoreError> {
        let mut refusals = self.refusals.lock().unwrap();
        if *refusals > 0 {
            *refusals -= 1;
            return Err(error(ErrorKind::Unavailable));
        }
        let mut connections = self.connections.lock().unwrap();
        *connections += 1;
        Ok(*connections)
    }

    async fn run(&self, _: &mut u32, batch: &[Op]) -> Result<Answers<Op>, Failure> {
        self.batches.lock().unwrap().push(batch.iter().map(|op| op.name).collect());
        self.gate.acquire().await.unwrap().forget();
        let fate = self.fates.lock().unwrap().pop_front();
        match fate {
            None => Ok(batch.iter().map(|op| Ok(op.name)).collect()),
            Some(Fate::Refused) => Err(Failure::Refused(error(ErrorKind::Rejected))),
            Some(Fate::NotSent) => Err(Failure::NotSent(error(ErrorKind::Unavailable))),
            Some(Fate::Unknown) => Err(Failure::Unknown(error(ErrorKind::Unavailable))),
            Some(Fate::Silence) => std::future::pending().await,
        }
    }
}

const LIMITS: Limits = Limits {
    writers: 1,
    batch: 4,
    bytes: 100,
    queue: 8,
    company: Company::None,
    mixing: Mixing::Apart,
    patience: Duration::from_secs(60),
    connect: Duration::from_secs(5),
    run: Duration::from_secs(10),
};

fn op(name: u32) -> Op {
    Op { key: u8::try_from(name).unwrap(), name, rank: 2, size: 1 }
}

type Asked = tokio::task::JoinHandle<Result<u32, StoreError>>;

/// Asks in this order, each from a task of its own.
async fn ask_all(group: &Arc<Group<Op>>, ops: impl IntoIterator<Item = Op>) -> Vec<Asked> {
    let mut asked = Vec::new();
    for op in ops {
        let group = Arc::clone(group);
        asked.push(tokio::spawn(async move { group.ask(op).await }));
        settle().await;
    }
    asked
}

/// Lets every task go as far as it can.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

async fn kinds(asked: Vec<Asked>) -> Vec<Result<u32, ErrorKind>> {
    let mut kinds = Vec::new();
    for one in asked {
        kinds.push(one.await.unwrap().map_err(|error| error.kind()));
    }
    kinds
}

#[tokio::test(start_paused = true)]
async fn a_lone_caller_waits_for_nobody_and_the_next_batch_gathers_meanwhile() {
    let fake = Fake::new(0);
    let group = Arc::new(Group::start(&fake, LIMITS));
    let asked = ask_all(&group, (0..7).map(op)).await;
    assert_eq!(fake.batches(), [vec![0]], "the first leaves alone");
    fake.gate.add_permits(9);
    assert_eq!(kinds(asked).await, (0..7).map(Ok).collect::<Vec<_>>());
    assert_eq!(fake.batches(), [vec![0], vec![1, 2, 3, 4], vec![5, 6]]);
    assert_eq!(*fake.connections.lock().unwrap(), 1, "a writer keeps its connection");
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_bounded_by_bytes_but_takes_one_of_any_size() {
    let fake = Fake::new(0);
    let group = Arc::new(Group::start(&fake, LIMITS));
    let sizes = [1, 60, 60, 900, 1];
    let ops = sizes.iter().zip(0..).map(|(size, name)| Op { size: *size, ..op(name) });
    let asked = ask_all(&group, ops).await;
    fake.gate.add_permits(9);
    assert!(kinds(asked).await.iter().all(Result::is_ok));
    assert_eq!(fake.batches(), [vec![0], vec![1], vec![2], vec![3], vec![4]]);
}

#[tokio::test(start_paused = true)]
async fn what_ends_an_attempt_goes_before_what_begins_one() {
    for (mixing, expected) in [
        (Mixing::Apart, vec![vec![0], vec![3, 4], vec![2], vec![1]]),
        (Mixing::Together, vec![vec![0], vec![3, 4, 2, 1]]),
    ] {
        let fake = Fake::new(0);
        let group = Arc::new(Group::start(&fake, Limits { mixing, ..LIMITS }));
        let ranks = [2, 2, 1, 0, 0];
        let ops = ranks.iter().zip(0..).map(|(rank, name)| Op { rank: *rank, ..op(name) });
        let asked = ask_all(&group, ops).await;
        fake.gate.add_permits(9);
        assert!(kinds(asked).await.iter().all(Result::is_ok));
        assert_eq!(fake.batches(), expected, "{mixing:?}");
    }
}

/// Not in one batch, and not in two that are under way at the same time either.
#[tokio::test(start_paused = true)]
async fn two_operations_on_one_key_are_never_under_way_together() {
    let fake = Fake::new(0);
    let group = Arc::new(Group::start(&fake, Limits { writers: 3, ..LIMITS }));
    let ops = [op(0), Op { key: 0, ..op(1) }, Op { key: 0, ..op(2) }, op(3)];
    let asked = ask_all(&group, ops).await;
    assert_eq!(fake.batches(), [vec![0], vec![3]], "the key of the first is busy");
    fake.gate.add_permits(2);
    settle().await;
    assert_eq!(fake.batches(), [vec![0], vec![3], vec![1]], "one at a time, in their order");
    fake.gate.add_permits(9);
    assert!(kinds(asked).await.iter().all(Result::is_ok));
    assert_eq!(fake.batches().last(), Some(&vec![2]));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_refused_is_run_one_by_one() {
    let fake = Fake::new(1);
    let group = Arc::new(Group::start(&fake, LIMITS));
    let asked = ask_all(&group, [op(9)]).await;
    assert_eq!(kinds(asked).await, [Ok(9)]);
    fake.meets(&[Fate::Refused]);
    let asked = ask_all(&group, [op(0), op(1), op(2), op(3)]).await;
    // The first is alone and refused for good; then the whole batch, then one of its members.
    fake.meets(&[Fate::Refused]);
    fake.gate.add_permits(3);
    settle().await;
    fake.meets(&[Fate::Refused]);
    fake.gate.add_permits(9);
    let expected = [Err(ErrorKind::Rejected), Ok(1), Err(ErrorKind::Rejected), Ok(3)];
    assert_eq!(kinds(asked).await, expected);
    assert_eq!(fake.batches()[2..], [vec![1, 2, 3], vec![1], vec![2], vec![3]]);
    assert_eq!(*fake.connections.lock().unwrap(), 1, "a refusal leaves the connection good");
}

#[tokio::test(start_paused = true)]
async fn after_an_error_of_which_nobody_knows_the_effect_everybody_is_told_so() {
    for fate in [Fate::Unknown, Fate::Silence] {
        let fake = Fake::new(1);
        let group = Arc::new(Group::start(&fake, LIMITS));
        assert_eq!(kinds(ask_all(&group, [op(9)]).await).await, [Ok(9)]);
        let mut asked = ask_all(&group, [op(0), op(1), op(2)]).await;
        fake.gate.add_permits(1);
        assert_eq!(kinds(vec![asked.remove(0)]).await, [Ok(0)]);
        fake.meets(&[fate]);
        fake.gate.add_permits(9);
        assert_eq!(kinds(asked).await, [Err(ErrorKind::Ambiguous), Err(ErrorKind::Ambiguous)]);
        assert_eq!(kinds(ask_all(&group, [op(1)]).await).await, [Ok(1)], "the keys are free");
        assert_eq!(*fake.connections.lock().unwrap(), 2, "the connection was dropped: {fate:?}");
    }
}

/// Nobody hears the words of the server about somebody else.
#[tokio::test(start_paused = true)]
async fn what_a_server_says_about_one_is_not_told_to_the_others() {
    let fake = Fake::new(0);
    let group = Arc::new(Group::start(&fake, LIMITS));
    let first = ask_all(&group, [op(1)]).await;
    let others = ask_all(&group, [op(2), op(3)]).await;
    fake.meets(&[Fate::Unknown, Fate::Unknown]);
    fake.gate.add_permits(2);
    for (asked, is_alone) in [(first, true), (others, false)] {
        for asked in asked {
            let error = asked.await.unwrap().unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
            let has_cause = std::error::Error::source(&error).is_some();
            assert_eq!(has_cause, is_alone, "{error:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_that_was_closed_costs_nobody_anything() {
    let fake = Fake::new(9);
    let group = Arc::new(Group::start(&fake, LIMITS));
    assert_eq!(kinds(ask_all(&group, [op(0)]).await).await, [Ok(0)]);
    fake.meets(&[Fate::NotSent]);
    assert_eq!(kinds(ask_all(&group, [op(1)]).await).await, [Ok(1)]);
    assert_eq!(*fake.connections.lock().unwrap(), 2);
}

/// As with a pooler that has lent out another server meanwhile. Once: then it is an error.
#[tokio::test(start_paused = true)]
async fn a_connection_that_turns_out_useless_is_replaced_once() {
    let fake = Fake::new(9);
    let group = Arc::new(Group::start(&fake, LIMITS));
    fake.meets(&[Fate::NotSent]);
    assert_eq!(kinds(ask_all(&group, [op(0)]).await).await, [Ok(0)]);
    fake.meets(&[Fate::NotSent, Fate::NotSent]);
    let expected = Err(ErrorKind::Unavailable);
    assert_eq!(kinds(ask_all(&group, [op(1)]).await).await, [expected]);
    assert_eq!(*fake.connections.lock().unwrap(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_not_there_is_unavailable_until_it_is() {
    let fake = Fake::new(9);
    *fake.refusals.lock().unwrap() = 2;
    let group = Arc::new(Group::start(&fake, LIMITS));
    for expected in [Err(ErrorKind::Unavailable), Err(ErrorKind::Unavailable), Ok(1)] {
        assert_eq!(kinds(ask_all(&group, [op(1)]).await).await, [expected]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_changes_nothing() {
    let fake = Fake::new(0);
    let group = Arc::new(Group::start(&fake, LIMITS));
    let asked = ask_all(&group, [op(0), op(1), op(2)]).await;
    asked[0].abort();
    asked[1].abort();
    fake.gate.add_permits(9);
    settle().await;
    assert_eq!(fake.batches(), [vec![0], vec![1, 2]]);
    assert_eq!(asked.into_iter().next_back().unwrap().await.unwrap().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_and_a_long_wait_are_refused_untried() {
    let fake = Fake::new(0);
    let limits = Limits { patience: Duration::from_secs(8), ..LIMITS };
    let group = Arc::new(Group::start(&fake, limits));
    let asked = ask_all(&group, (0..10).map(op)).await;
    // The first never gets an answer, and by then the others have waited too long. The tenth never
    // had a place; another rank has places of its own.
    let renewal = ask_all(&group, [Op { rank: 0, ..op(100) }]).await;
    let heard = kinds(asked).await;
    assert_eq!(heard[0], Err(ErrorKind::Ambiguous));
    assert!(heard[1..].iter().all(|one| *one == Err(ErrorKind::Unavailable)), "{heard:?}");
    assert_eq!(kinds(renewal).await, [Err(ErrorKind::Unavailable)]);
    assert_eq!(fake.batches(), [vec![0]], "nobody else was tried");
}

#[tokio::test(start_paused = true)]
async fn closing_finishes_what_is_queued() {
    let fake = Fake::new(0);
    let group = Arc::new(Group::start(&fake, Limits { writers: 2, ..LIMITS }));
    let (sent, heard) = tokio::sync::oneshot::channel();
    let asking = Arc::clone(&group);
    tokio::spawn(async move {
        let reply = asking.ask(op(5));
        let _ = sent.send(reply.await.map_err(|error| error.kind()));
    });
    settle().await;
    drop(group);
    fake.gate.add_permits(1);
    assert_eq!(heard.await.unwrap(), Ok(5));
    settle().await;
    assert_eq!(Arc::strong_count(&fake), 1, "the writers have ended");
}

/// Beside a batch that is under way, a few operations wait for more, but not for long; and nobody waits
/// when nothing is under way.
#[tokio::test(start_paused = true)]
async fn where_batches_are_dear_a_small_one_waits_for_company() {
    let fake = Fake::new(0);
    let limits = Limits { writers: 2, batch: 8, company: Company::OneIn(2), ..LIMITS };
    let group = Arc::new(Group::start(&fake, limits));
    let mut asked = ask_all(&group, [op(1), op(2)]).await;
    assert_eq!(fake.batches(), [[1], [2]], "alone, and one of two, they leave at once");
    asked.extend(ask_all(&group, (3..=8).map(op)).await);
    fake.gate.add_permits(1);
    settle().await;
    assert_eq!(fake.batches().last().map(Vec::len), Some(6), "six of seven are company enough");
    asked.extend(ask_all(&group, [op(9)]).await);
    fake.gate.add_permits(1);
    settle().await;
    assert_eq!(fake.batches().len(), 3, "one of seven waits, though a writer is free");
    tokio::time::sleep(Duration::from_millis(3)).await;
    settle().await;
    assert_eq!(fake.batches().last().map(Vec::as_slice), Some(&[9][..]), "but not for long");
    fake.gate.add_permits(2);
    assert!(kinds(asked).await.iter().all(Result::is_ok));
}
