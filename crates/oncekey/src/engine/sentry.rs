//! Watches whether the store is still the one that it was.
//!
//! A store that comes back older (a stale replica was promoted, a backup was restored) has forgotten
//! keys, and would grant them once more. So a node with a ring compares, about every second and
//! whenever something is odd:
//!
//! - the **lineage** of the store with the one that it knew, also across a restart of the node;
//! - the newest notes of the ring, the **canaries**, with what the store has of them.
//!
//! Another lineage with every canary in place is a failover that lost nothing of this node's. It is
//! adopted after a few seconds, and not while another node puts back what it misses (`sign.rs`). A canary
//! that is missing, or older than it was, is a regression: grants stop, people are alarmed, every
//! node puts its notes back at once, and after a lease grants go on.
//!
//! ```text
//!          ┌──────────┐  another lineage  ┌──────────┐  a canary is gone  ┌───────────┐
//!  start ──► watching ├──────────────────►│ settling ├───────────────────►│ regressed │
//!          └─▲─────┬──┘                   └────┬─────┘                    └─▲───┬─────┘
//!            │     └───── a canary is gone ────┼────────────────────────────┘   │
//!            └────────────────── adopt ────────┴────────────────────────────────┘
//! ```
//!
//! Nothing is granted before the first look, after a restart, and while a look is due because the
//! store failed or said something that a regressed store would say.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use oncekey_core::health::Finding;
use oncekey_core::{Lineage, Restore, StoreError, Timestamp, Write};
use tokio::sync::{Notify, watch};

use self::examine::Seen;
use self::heal::Healing;
use self::sign::Sign;
use super::end::Entry;
use super::measured::too_slow;
use super::ring::Ring;
use super::within::within;
use super::{Engine, Shared};

mod examine;
mod heal;
mod sign;

/// A ring, the store that it belongs to, and whether the two agree.
#[derive(Debug)]
pub(super) struct Sentry {
    pub(super) ring: Ring,
    store: Arc<dyn Restore>,
    state: watch::Sender<State>,
    /// The life of the store that the notes belong to; `None` if nobody knows.
    known: Mutex<Option<Lineage>>,
    /// What is under way about a regression.
    healing: Mutex<Option<Healing>>,
    /// The life that the store was found in, and since when, as long as nobody has adopted it.
    moved: Mutex<Option<(Lineage, Duration)>>,
    last: Mutex<Option<String>>,
    bell: Notify,
    ended: AtomicBool,
}

/// Whether grants may be given, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    phase: Phase,
    /// How often there was a reason to look.
    doubts: u64,
    /// How many of them a look has cleared.
    cleared: u64,
    /// How often the store was found to have regressed.
    regressions: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Watching,
    /// The store failed over. Nothing of this node's is missing, but others may miss something.
    Settling,
    /// The store has lost something.
    Regressed,
}

/// What the sentry says to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// It may be made. What it wins is void if the store is found to have regressed meanwhile.
    Granted(Ticket),
    /// The store could not be looked at.
    Unsure,
    /// The store failed over and may be put right just now. When to come back.
    Stopped(Duration),
}

/// Proof that the store was sound when a claim was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// Whether what the store says can be taken at its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Good,
    /// The store has regressed, or cannot be looked at: what it does not know may be lost.
    Doubtful,
}

/// How often the store is looked at without a reason: a regression that no error announces is found
/// out within this time, and a look is a handful of reads.
const EVERY: Duration = Duration::from_secs(1);
/// How soon after a look that failed, or in the middle of putting things back.
const SOON: Duration = Duration::from_millis(200);
/// Reasons to look come in swarms when a store fails. One look answers all of them.
const SWARM: Duration = Duration::from_millis(20);
/// How long a claim waits for a look. A look takes milliseconds; if it takes longer, the store is
/// better left alone, and the client told so.
const HURRY: Duration = Duration::from_secs(1);
/// How long nothing is granted after a failover of which this node has lost nothing. Another node may
/// have: it notices within a second, and then there is a sign for as long as it takes. A whole lease
/// would make every planned failover an outage of half a minute.
const SETTLE: Duration = Duration::from_secs(5);
/// How long one call to the store may take.
const LONGEST_CALL: Duration = Duration::from_secs(5);

impl Sentry {
    pub(super) fn new(ring: Ring, known: Option<Lineage>, store: Arc<dyn Restore>) -> Self {
        let state = State { phase: Phase::Watching, doubts: 1, cleared: 0, regressions: 0 };
        metrics::gauge!("oncekey_store_regressed").set(0.0);
        Self {
            ring,
            store,
            state: watch::Sender::new(state),
            known: Mutex::new(known),
            healing: Mutex::default(),
            moved: Mutex::default(),
            last: Mutex::default(),
            bell: Notify::new(),
            ended: AtomicBool::new(false),
        }
    }

    /// Watches until the engine ends.
    pub(super) async fn run(self: Arc<Self>, shared: Weak<Shared>) {
        while !self.ended.load(Ordering::Acquire) {
            let Some(engine) = shared.upgrade() else { return };
            self.round(&engine).await;
            drop(engine);
            let pause = if self.is_sound() { EVERY } else { SOON };
            tokio::time::sleep(SWARM).await;
            let rung = std::pin::pin!(self.bell.notified());
            let slept = std::pin::pin!(tokio::time::sleep(pause));
            tokio::select! { biased; () = rung => {}, () = slept => {} }
        }
    }

    /// Asks to make a claim. Waits for a look that is under way.
    pub(super) async fn admit(&self, now: Duration) -> Pass {
        let is_known = |state: &State| state.is_sound() || state.phase != Phase::Watching;
        let mut state = *self.state.borrow();
        if !is_known(&state) {
            let mut states = self.state.subscribe();
            state = match tokio::time::timeout(HURRY, states.wait_for(is_known)).await {
                Ok(Ok(state)) => *state,
                Ok(Err(_)) | Err(_) => return Pass::Unsure,
            };
        }
        match state.phase {
            Phase::Watching => Pass::Granted(Ticket(state.regressions)),
            Phase::Settling => {
                let since = self.moved().as_ref().map(|(_, since)| *since);
                let left = since.map(|since| since.saturating_add(SETTLE).saturating_sub(now));
                Pass::Stopped(left.unwrap_or(SETTLE))
            }
            Phase::Regressed => {
                let left = self.healing().as_ref().map(|healing| healing.time_left(now));
                Pass::Stopped(left.unwrap_or(SOON))
            }
        }
    }

    /// Whether what was won with `ticket` is won.
    pub(super) fn holds_good(&self, Ticket(regressions): Ticket) -> bool {
        let state = *self.state.borrow();
        state.phase == Phase::Watching && state.regressions == regressions
    }

    /// Whether nothing is known against the store.
    pub(super) fn is_sound(&self) -> bool {
        self.state.borrow().is_sound()
    }

    /// Whether grants are stopped because the store has regressed.
    pub(super) fn is_regressed(&self) -> bool {
        self.state.borrow().phase == Phase::Regressed
    }

    /// There is a reason to look. Nothing is granted until that was done. Returns its number.
    pub(super) fn doubt(&self) -> u64 {
        let mut number = 0;
        self.state.send_modify(|state| {
            state.doubts += 1;
            number = state.doubts;
        });
        self.bell.notify_one();
        number
    }

    /// The store says that it does not know an attempt of ours. Looks whether it has forgotten more.
    pub(super) async fn word(&self) -> Word {
        let mine = self.doubt();
        let mut states = self.state.subscribe();
        let is_known = |state: &State| state.cleared >= mine || state.phase != Phase::Watching;
        let looked = tokio::time::timeout(HURRY * 2, states.wait_for(is_known)).await;
        match looked {
            Ok(Ok(state)) if state.phase == Phase::Watching => Word::Good,
            Ok(_) | Err(_) => Word::Doubtful,
        }
    }

    /// Notes what the store made of the end of an attempt, at `now` by its clock.
    pub(super) fn wrote(&self, entry: &Entry, write: Write, now: Timestamp) {
        match write {
            Write::Applied => self.ring.ended(&entry.lease, &entry.end, now, None),
            Write::Fenced => self.ring.gone(&entry.lease),
        }
    }

    /// Ends the loop.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    /// What people should know.
    fn finding(&self) -> Finding {
        const CHECK: &str = "store-regression";
        let (state, last) = (*self.state.borrow(), self.last().clone());
        match (state.phase, last) {
            (Phase::Regressed, last) => Finding::refused(
                CHECK,
                format!(
                    "the store has lost records that it had acknowledged, and grants are stopped \
                     until they are put back: {}",
                    last.unwrap_or_default()
                ),
            ),
            (Phase::Settling, _) => Finding::degraded(
                CHECK,
                "the store failed over with everything that this node knows; grants go on in a few \
                 seconds, when other nodes have looked too",
            ),
            (Phase::Watching, Some(last)) => Finding::degraded(
                CHECK,
                format!(
                    "the store lost records that it had acknowledged, and this node has put back \
                     what it knew: {last}; find out why an older copy became the store"
                ),
            ),
            (Phase::Watching, None) if !state.is_sound() => {
                Finding::degraded(CHECK, "the store could not be looked at yet")
            }
            (Phase::Watching, None) => {
                Finding::good(CHECK, "the store has what this node last wrote to it")
            }
        }
    }

    async fn round(&self, shared: &Shared) {
        let state = *self.state.borrow();
        let done = match state.phase {
            Phase::Settling if self.is_settling(shared) => Ok(()),
            Phase::Watching | Phase::Settling => self.watch(shared, state.doubts).await,
            Phase::Regressed => self.heal(shared).await,
        };
        if let Err(error) = done {
            tracing::debug!(%error, "the store could not be looked at");
        }
    }

    /// Looks once, and acts on what is seen.
    async fn watch(&self, shared: &Shared, doubts: u64) -> Result<(), StoreError> {
        match self.examine(shared).await? {
            Seen::Same => {}
            Seen::First(lineage) => self.know(lineage).await,
            Seen::Moved(lineage) => {
                let is_settled = self.moved().as_ref().is_some_and(|(moved, _)| *moved == lineage);
                if !is_settled {
                    self.settle(shared, lineage);
                    return Ok(());
                }
                if self.look_for_sign(shared).await? == Sign::Up {
                    return Ok(());
                }
                self.adopt().await?;
            }
            Seen::Regressed(evidence) => {
                self.stop(shared, evidence);
                return self.heal(shared).await;
            }
        }
        *self.moved() = None;
        self.state.send_modify(|state| {
            state.phase = Phase::Watching;
            state.cleared = state.cleared.max(doubts);
        });
        Ok(())
    }

    /// Lets other nodes look too, and put back what they miss.
    fn settle(&self, shared: &Shared, lineage: Lineage) {
        tracing::warn!(
            lineage = lineage.as_str(),
            "the store failed over or was moved, and has everything that this node knows; grants go \
             on in a few seconds"
        );
        *self.moved() = Some((lineage, shared.uptime.elapsed()));
        self.state.send_modify(|state| state.phase = Phase::Settling);
    }

    fn is_settling(&self, shared: &Shared) -> bool {
        let now = shared.uptime.elapsed();
        self.moved().as_ref().is_some_and(|(_, since)| now < since.saturating_add(SETTLE))
    }

    /// Accepts the life that the store is in, and remembers it.
    async fn adopt(&self) -> Result<(), StoreError> {
        self.call(self.store.adopt()).await?;
        // A store may begin another life when it is adopted.
        let lineage = self.call(self.store.lineage()).await?;
        self.know(lineage).await;
        Ok(())
    }

    async fn know(&self, lineage: Lineage) {
        if let Err(error) = self.ring.remember(&lineage).await {
            let why: &dyn std::error::Error = &error;
            // It is compared anew at the next start, which takes a moment longer.
            tracing::warn!(error = why, "the ring cannot remember the life of the store");
        }
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(lineage);
    }

    async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        within(LONGEST_CALL, pin!(call)).await.unwrap_or_else(|| Err(too_slow()))
    }

    fn healing(&self) -> MutexGuard<'_, Option<Healing>> {
        self.healing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moved(&self) -> MutexGuard<'_, Option<(Lineage, Duration)>> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self) -> MutexGuard<'_, Option<String>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_sound(self) -> bool {
        self.phase == Phase::Watching && self.cleared >= self.doubts
    }
}

impl Engine {
    /// What this node found out about its store while it ran, for `doctor` and health checks: beside
    /// what the store says about itself. Empty without a [`ring`](super::Builder::ring).
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        self.0.sentry.iter().map(|sentry| sentry.finding()).collect()
    }
}
