//! A caller that gives up in the middle of a call leaves a store that works, and a key that its
//! owner can still get hold of. F43, I5, L6.

#![cfg(feature = "sqlite")]

mod common;

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use oncekey::core::browse::{Browse, Filter, Page};
use oncekey::core::saved::NotKept;
use oncekey::core::wake::Wake as _;
use oncekey::core::{
    Answer, Claim, Claimed, Completion, Erase, Grant, Lease, Refusal, Renewal, Sent, State,
    StateKind, Store, Write,
};
use oncekey::store::sqlite::{SqliteOptions, SqliteStore};
use tempfile::TempDir;

use self::common::child::{self, Process};
use self::common::{LARGE, LONG, answer, completion, file, key_id, owner, win};

/// How many calls the store keeps waiting; beyond it, callers wait for a place.
const LANE: u64 = 2_048;

/// No call takes more polls than this.
const MOST_POLLS: usize = 100;

/// Not a test: what the child process does.
#[test]
fn child() {
    if let Some(orders) = child::orders() {
        leave_no_thread(&orders.file);
    }
}

/// A store in a folder of its own, and a runtime for those of its reads that need one.
struct Scene {
    store: SqliteStore,
    runtime: tokio::runtime::Runtime,
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = SqliteOptions::new(folder.path().join("oncekey.db")).small_map(8);
        let store = options.open().expect("a new file opens");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        Self { store, runtime, folder }
    }

    fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    fn state(&self, key: u64) -> Option<State> {
        let found = self.wait(self.store.get(&key_id(key))).expect("it can be read");
        found.map(|record| record.state)
    }

    fn answer(&self, key: u64) -> Option<Answer> {
        match self.state(key)? {
            State::Done { answer, .. } => Some(answer),
            State::Running { .. } | State::Unknown { .. } | State::Parked { .. } => None,
        }
    }
}

/// When a caller gives up.
#[derive(Clone, Copy, Debug)]
struct GivesUp {
    /// After how many polls.
    polls: usize,
    /// Whether it gives up at once or when there would be something to hear.
    waits: bool,
}

impl GivesUp {
    /// Every moment at which a caller can give up.
    fn at_every_moment() -> impl Iterator<Item = Self> {
        (0..MOST_POLLS).flat_map(|polls| [false, true].map(|waits| Self { polls, waits }))
    }

    /// Polls as often as it was told, each time when it was asked to, and drops the future.
    fn drive<T>(self, future: impl Future<Output = T>) -> Option<T> {
        let bell = Arc::new(Bell { rung: AtomicBool::new(false), sleeper: std::thread::current() });
        let waker = Waker::from(Arc::clone(&bell));
        let mut future = pin!(future);
        for poll in 1..=self.polls {
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Some(value);
            }
            if self.waits || poll < self.polls {
                bell.wait();
            }
        }
        None
    }
}

struct Bell {
    rung: AtomicBool,
    sleeper: Thread,
}

impl Bell {
    fn wait(&self) {
        while !self.rung.swap(false, Ordering::SeqCst) {
            std::thread::park();
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::SeqCst);
        self.sleeper.unpark();
    }
}

/// Tries `call` with a caller that gives up at every moment, until it is late enough to hear the
/// end. `call` says whether it heard it.
fn at_every_moment(name: &str, mut call: impl FnMut(GivesUp, u64) -> bool) {
    for (gives_up, key) in GivesUp::at_every_moment().zip(1..) {
        if call(gives_up, key) {
            assert!(gives_up.polls > 0, "{name}: nothing happens before the first poll");
            return;
        }
    }
    panic!("{name}: no end after {MOST_POLLS} polls");
}

/// F43, I5: whoever gave up on a claim asks again with the same owner token, and gets the key.
#[test]
fn a_claim_that_was_given_up_is_resolved_by_its_owner() {
    let scene = Scene::new();
    at_every_moment("claim", |gives_up, key| {
        let claim = common::claim(key, key);
        let heard = gives_up.drive(scene.store.claim(&claim));
        let (lease, grant) = scene.wait(win(&scene.store, &claim));
        assert!(matches!(grant, Grant::Fresh | Grant::Again), "{gives_up:?}: {grant:?}");
        if let Some(heard) = &heard {
            let Claimed::Won { lease: first, .. } = heard.as_ref().unwrap() else {
                panic!("a fresh key is granted: {heard:?}");
            };
            assert_eq!((first.fence, grant), (lease.fence, Grant::Again));
        }
        let rival = Claim { owner: owner(1_000 + key), ..claim };
        let refused = scene.wait(scene.store.claim(&rival)).unwrap();
        let Claimed::Lost { refusal: Refusal::InProgress(_), .. } = refused else {
            panic!("{gives_up:?}: the key has an owner: {refused:?}");
        };
        assert_eq!(scene.wait(scene.store.release(&lease)).unwrap(), Write::Applied);
        heard.is_some()
    });
    file::check(&scene.folder.path().join("oncekey.db"));
}

/// F43, I5: the same for every write of an owner.
#[test]
fn a_write_that_was_given_up_is_resolved_by_its_owner() {
    let scene = Scene::new();
    let writes: [(&str, StateKind, Call); 5] = [
        ("send", StateKind::Running, Call::Send),
        ("complete", StateKind::Done, Call::Complete(100)),
        ("complete with a large body", StateKind::Done, Call::Complete(LARGE)),
        ("unknown", StateKind::Unknown, Call::Unknown),
        ("renew", StateKind::Running, Call::Renew),
    ];
    for (place, (name, expected, call)) in (1..).zip(writes) {
        at_every_moment(name, |gives_up, number| {
            let key = place * 1_000 + number;
            let (lease, _) = scene.wait(win(&scene.store, &common::claim(key, key)));
            let heard = gives_up.drive(call.make(&scene.store, &lease, key));
            let again = scene.wait(call.make(&scene.store, &lease, key));
            assert_eq!(again, Write::Applied, "{name}, {gives_up:?}");
            let state = scene.state(key).expect("the record is there");
            assert_eq!(state.kind(), expected, "{name}, {gives_up:?}");
            match (call, state) {
                (Call::Send, State::Running { sent, .. }) => assert_eq!(sent, Sent::Yes),
                (Call::Complete(size), State::Done { answer: kept, .. }) => {
                    assert!(kept == answer(key, size), "{name}, {gives_up:?}: another answer");
                }
                (Call::Send | Call::Complete(_) | Call::Unknown | Call::Renew, _) => {}
            }
            heard.is_some()
        });
    }
    file::check(&scene.folder.path().join("oncekey.db"));
}

/// A call that an owner makes with its lease.
#[derive(Clone, Copy, Debug)]
enum Call {
    Send,
    Complete(usize),
    Unknown,
    Renew,
}

impl Call {
    async fn make(self, store: &SqliteStore, lease: &Lease, key: u64) -> Write {
        let made = match self {
            Self::Send => store.send(lease).await,
            Self::Complete(size) => store.complete(lease, &completion(answer(key, size))).await,
            Self::Unknown => store.unknown(lease).await,
            Self::Renew => store.renew(&[*lease], LONG).await.map(|renewals| match renewals[..] {
                [Renewal::Until(_)] => Write::Applied,
                _ => Write::Fenced,
            }),
        };
        made.expect("a write of an owner")
    }
}

/// F43: a release that was given up has happened or has not, and the key is never stuck.
#[test]
fn a_release_that_was_given_up_leaves_a_key_that_can_be_claimed() {
    let scene = Scene::new();
    at_every_moment("release", |gives_up, key| {
        let claim = common::claim(key, key);
        let (lease, _) = scene.wait(win(&scene.store, &claim));
        let heard = gives_up.drive(scene.store.release(&lease));
        // A release whose record is gone is fenced: that is how its repetition ends.
        let again = scene.wait(scene.store.release(&lease)).unwrap();
        assert!(heard.is_none() || again == Write::Fenced, "{gives_up:?}");
        assert_eq!(scene.state(key), None, "{gives_up:?}");
        let rival = Claim { owner: owner(1_000 + key), ..claim };
        let (newer, grant) = scene.wait(win(&scene.store, &rival));
        assert!(grant == Grant::Fresh && newer.fence > lease.fence, "{gives_up:?}");
        heard.is_some()
    });
}

/// F43: whoever gave up on a large answer may complete with another one, and that is kept whole:
/// nothing of the first is left in it.
#[test]
fn a_large_answer_that_was_given_up_leaves_nothing_in_the_next() {
    let scene = Scene::new();
    at_every_moment("complete with a large body", |gives_up, key| {
        let (lease, _) = scene.wait(win(&scene.store, &common::claim(key, key)));
        let (first, second) = (answer(key, 2 * LARGE), answer(1_000 + key, LARGE));
        let heard = gives_up.drive(scene.store.complete(&lease, &completion(first.clone())));
        let again = scene.wait(scene.store.complete(&lease, &completion(second.clone()))).unwrap();
        let kept = scene.answer(key).expect("it is done");
        let expected = if again == Write::Applied { second } else { first };
        assert!(kept == expected, "{gives_up:?}: {kept:?} was kept after {again:?}");
        heard.is_some()
    });
}

/// On a slow disk a large answer takes longer than its owner waits. It is there after some tries, because each
/// goes on where the one before was given up.
#[test]
fn a_large_answer_that_is_given_up_again_and_again_is_written_in_the_end() {
    let scene = Scene::new();
    let (lease, _) = scene.wait(win(&scene.store, &common::claim(1, 1)));
    let given = answer(1, 4 * LARGE);
    let completion = completion(given.clone());
    let gives_up = GivesUp { polls: 3, waits: true };
    let heard = (0..30).find_map(|_| gives_up.drive(scene.store.complete(&lease, &completion)));
    assert_eq!(heard.map(Result::unwrap), Some(Write::Applied));
    assert!(scene.answer(1) == Some(given), "whole");
}

/// I11: of two large answers of one owner, given at the same time, one is kept, and whole.
#[test]
fn two_large_answers_of_one_owner_do_not_mix() {
    let scene = Scene::new();
    for key in 1..=30 {
        let (lease, _) = scene.wait(win(&scene.store, &common::claim(key, key)));
        let answers = [answer(key, LARGE), answer(1_000 + key, LARGE)];
        let [one, other]: [Completion; 2] = answers.clone().map(completion);
        let (one, other) = scene.wait(async {
            tokio::join!(scene.store.complete(&lease, &one), scene.store.complete(&lease, &other))
        });
        let written = [one.unwrap(), other.unwrap()];
        let winners = written.iter().filter(|write| **write == Write::Applied).count();
        assert_eq!(winners, 1, "one of them is recorded");
        let kept = scene.answer(key).expect("it is done");
        let expected = written.iter().position(|write| *write == Write::Applied).unwrap();
        assert!(kept == answers[expected], "key {key}: the one that was acknowledged is kept");
    }
}

/// F43: reads, purges, feeds, lists and erasures can be given up as well.
#[test]
fn a_question_that_was_given_up_can_be_asked_again() {
    let scene = Scene::new();
    let store = &scene.store;
    for (key, size) in [(1, 10), (2, LARGE)] {
        let (lease, _) = scene.wait(win(store, &common::claim(key, key)));
        let completed = scene.wait(store.complete(&lease, &completion(answer(key, size))));
        assert_eq!(completed.unwrap(), Write::Applied);
    }
    let _inside = scene.runtime.enter();
    for key in [1, 2] {
        at_every_moment("get", |up, _| up.drive(store.get(&key_id(key))).is_some());
        let rival = Claim { owner: owner(9), ..common::claim(key, key) };
        at_every_moment("replay", |up, _| up.drive(store.claim(&rival)).is_some());
    }
    at_every_moment("purge", |up, _| up.drive(store.purge(10_000)).is_some());
    at_every_moment("watch", |up, _| up.drive(store.watch()).is_some());
    let (filter, page) = (Filter::default(), Page { after: None, limit: 10 });
    at_every_moment("list", |up, _| up.drive(store.list(&filter, &page)).is_some());
    at_every_moment("count", |up, _| up.drive(store.count(&filter, 10)).is_some());
    at_every_moment("find", |up, _| up.drive(store.find(&"key-1".into(), 10)).is_some());
    assert!(scene.answer(2) == Some(answer(2, LARGE)));
    at_every_moment("erase", |up, _| up.drive(store.erase(&key_id(2))).is_some());
    let Some(Answer::Tombstone(erased)) = scene.answer(2) else { panic!("it was erased") };
    assert_eq!(erased.reason, NotKept::Erased);
}

/// F43, F42: those who give up while they wait for a place leave no trace and take no place along.
#[test]
fn callers_that_give_up_in_a_full_queue_leave_no_trace() {
    let scene = Scene::new();
    let once = GivesUp { polls: 1, waits: false };
    for round in 0..2 {
        // The writer thread waits for this lock while the queue fills behind it.
        let lock = file::open(&scene.folder.path().join("oncekey.db"));
        lock.execute_batch("BEGIN IMMEDIATE").unwrap();
        let first = round * 10_000;
        for key in first..first + LANE {
            let claim = common::claim(key, key);
            assert!(once.drive(scene.store.claim(&claim)).is_none(), "the writer is held up");
        }
        let too_many = common::claim(first + LANE, 0);
        assert!(once.drive(scene.store.claim(&too_many)).is_none(), "there is no place");
        lock.execute_batch("ROLLBACK").unwrap();
        // In the queue means that it happens; not in it, that it does not.
        for key in first..first + LANE {
            let (_, grant) = scene.wait(win(&scene.store, &common::claim(key, key)));
            assert_eq!(grant, Grant::Again, "key {key}");
        }
        assert_eq!(scene.state(first + LANE), None, "it was never in the queue");
    }
}

/// L6: closing a store finishes what is queued; whoever gave up on it finds it done.
#[test]
fn closing_a_store_finishes_what_is_under_way() {
    let Scene { store, runtime, folder } = Scene::new();
    let once = GivesUp { polls: 1, waits: false };
    let claims: Vec<Claim> = (0..500).map(|key| common::claim(key, key)).collect();
    for claim in &claims {
        // A very fast writer may have answered already.
        drop(once.drive(store.claim(claim)));
    }
    drop(store);
    let path = folder.path().join("oncekey.db");
    assert!(!file::log_of(&path).exists(), "the file is closed when the store is gone");
    file::check(&path);
    let store = SqliteStore::open(&path).unwrap();
    let mut fences = BTreeSet::new();
    for claim in &claims {
        let (lease, grant) = runtime.block_on(win(&store, claim));
        assert_eq!(grant, Grant::Again, "what was queued has happened");
        assert!(fences.insert(lease.fence), "a fence was granted twice");
    }
}

/// F43: a store that is gone leaves no thread behind. In a process of its own, because the other
/// tests have stores too.
#[test]
#[cfg(target_os = "linux")]
fn a_closed_store_leaves_no_thread() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = child::command("threads", &folder.path().join("oncekey.db"), 0);
    let told = Process::start(&mut command).finish();
    let [open, closed] = &told[..] else { panic!("two lines: {told:?}") };
    // Not an exact number: a thread gives itself its name when it first runs, and the one that fills
    // the filter comes and goes.
    assert_ne!(open, "open: 0", "threads are found by their names");
    assert_eq!(closed, "closed: 0");
}

/// Counts the store's threads while it is open and afterwards.
fn leave_no_thread(path: &std::path::Path) {
    let store = SqliteStore::open(path).expect("a new file opens");
    common::block_on(async {
        let feed = store.watch().await.expect("a feed");
        win(&store, &common::claim(1, 1)).await;
        child::tell(&format!("open: {}", threads_of_the_store()));
        let once = GivesUp { polls: 1, waits: false };
        drop(once.drive(store.claim(&common::claim(2, 2))));
        drop(feed);
    });
    drop(store);
    child::tell(&format!("closed: {}", threads_of_the_store()));
}

/// How many threads of this process carry the store's name.
fn threads_of_the_store() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux lists threads");
    let names = threads.map(|thread| {
        let thread = thread.expect("a thread").path();
        // A thread may end while it is looked at.
        std::fs::read_to_string(thread.join("comm")).unwrap_or_default()
    });
    names.filter(|name| name.starts_with("oncekey-sqlite")).count()
}
