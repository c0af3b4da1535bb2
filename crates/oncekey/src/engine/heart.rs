//! Keeps leases alive while their work runs.
//!
//! One loop for the whole node renews everything that is due in one call, on a thread and a runtime
//! of its own: handlers that block every worker thread cannot cost the leases. A renewal that
//! *fails* says nothing, and the work goes on until its local deadline. Only a store that says that
//! the lease is *lost* ends it.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncekey_core::{ErrorKind, Fence, KeyId, Lease, Renewal, Store, StoreError};
use tokio::sync::Notify;

use super::attempt::{Grip, Held};
use super::caught::caught;
use super::measured::too_slow;
use super::rhythm::{Look, RETRY, Rhythm, due};
use super::sentry::{Sentry, Word};
use super::suspicion::Suspicion;
use super::within::within;
use crate::clock::Uptime;

/// Everything that is held on this node.
#[derive(Debug)]
pub(super) struct Heart {
    kept: Mutex<Kept>,
    bell: Notify,
    ended: AtomicBool,
}

#[derive(Debug, Default)]
struct Kept {
    all: BTreeMap<(KeyId, Fence), Arc<Held>>,
    rhythm: Rhythm,
}

/// What the loop needs. Not the engine itself, which must be able to end.
#[derive(Debug)]
pub(super) struct Beat {
    pub(super) heart: Arc<Heart>,
    pub(super) store: Arc<dyn Store>,
    pub(super) uptime: Arc<dyn Uptime>,
    pub(super) suspicion: Arc<Suspicion>,
    pub(super) sentry: Option<Arc<Sentry>>,
}

/// Renewals in one call: a statement of a few kilobytes, and one that fails costs no more than
/// this many leases a round.
const BATCH: usize = 256;

impl Heart {
    pub(super) fn new() -> Self {
        let (kept, bell, ended) = (Mutex::default(), Notify::new(), AtomicBool::new(false));
        Self { kept, bell, ended }
    }

    /// Keeps `held` alive from now on.
    pub(super) fn keep(&self, held: &Arc<Held>) {
        let Some(grip) = &held.grip else { return };
        let mut kept = self.kept();
        let look = kept.rhythm.comes(grip.since(), grip.span);
        kept.all.insert((held.id, grip.lease.fence), Arc::clone(held));
        drop(kept);
        match look {
            Look::InTime => {}
            Look::TooLate => self.bell.notify_one(),
        }
    }

    /// Lets go of `held`. Comes before its end is written, so that the two cannot race.
    pub(super) fn let_go(&self, held: &Held) {
        if let Some(grip) = &held.grip {
            self.kept().all.remove(&(held.id, grip.lease.fence));
        }
    }

    /// Everything that is held now.
    pub(super) fn everything(&self) -> Vec<Arc<Held>> {
        self.kept().all.values().cloned().collect()
    }

    /// Notes when the loop looks next, and says how long that is from `now`; `None` if it waits to be
    /// woken. In one step with the look at what is held, so that nothing comes in between.
    fn plan(&self, now: Duration) -> Option<Duration> {
        let mut kept = self.kept();
        let Kept { all, rhythm } = &mut *kept;
        let grips = all.values().filter_map(|held| held.grip.as_ref());
        let held = grips.filter(|grip| !grip.is_lost()).map(|grip| (grip.since(), grip.span));
        rhythm.next(now, held)
    }

    /// Ends the loop.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Beat {
    /// Renews on a thread of its own until the heart ends.
    pub(super) fn start_thread(self) -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = move || runtime.block_on(self.run());
        std::thread::Builder::new().name("oncekey-heart".into()).spawn(run)?;
        Ok(())
    }

    /// Renews until the heart ends.
    pub(super) async fn run(self) {
        while !self.heart.ended.load(Ordering::Acquire) {
            match self.run_once().await {
                None => self.heart.bell.notified().await,
                Some(pause) => {
                    let rung = std::pin::pin!(self.heart.bell.notified());
                    let slept = std::pin::pin!(tokio::time::sleep(pause));
                    tokio::select! { biased; () = rung => {}, () = slept => {} }
                }
            }
        }
    }

    /// Renews what is due, and says how long until more may be; `None` if it waits to be woken.
    pub(super) async fn run_once(&self) -> Option<Duration> {
        let now = self.uptime.elapsed();
        let mut due: BTreeMap<Duration, Vec<Arc<Held>>> = BTreeMap::new();
        for held in self.heart.everything() {
            let Some(grip) = &held.grip else { continue };
            if !grip.is_lost() && is_due(grip, now) {
                due.entry(grip.span).or_default().push(Arc::clone(&held));
            }
        }
        for (span, held) in due {
            self.renew_all(span, &held).await;
        }
        self.heart.plan(self.uptime.elapsed())
    }

    async fn renew_all(&self, span: Duration, held: &[Arc<Held>]) {
        for batch in held.chunks(BATCH) {
            let leases: Vec<Lease> =
                batch.iter().filter_map(|held| held.grip.as_ref()).map(|grip| grip.lease).collect();
            let asked = self.uptime.elapsed();
            // The others must not lapse because one call takes its time.
            let longest = (span / 3).max(RETRY);
            // A panic of the store must not end the thread that all leases depend on.
            let renewed = pin!(caught(self.store.renew(&leases, span)));
            let renewed = within(longest, renewed).await;
            match renewed.map_or_else(|| Err(too_slow()), |renewed| renewed.unwrap_or_else(broke)) {
                Ok(renewals) => {
                    let failed = renewals.iter().filter(|it| **it == Renewal::Failed).count();
                    if failed > 0 {
                        tracing::warn!(leases = failed, "some leases could not be renewed");
                    }
                    for (held, renewal) in batch.iter().zip(renewals) {
                        self.note(held, renewal, span, asked).await;
                    }
                }
                Err(error) => {
                    // A failed renewal is not a lost lease.
                    tracing::warn!(%error, leases = leases.len(), "leases could not be renewed");
                }
            }
        }
    }

    async fn note(&self, held: &Held, renewal: Renewal, span: Duration, asked: Duration) {
        match (renewal, &held.grip) {
            (Renewal::Until(until), Some(grip)) => {
                grip.renewed(asked);
                let answered = self.uptime.elapsed();
                self.suspicion.look(until.before(span), asked, answered, Some(span));
            }
            // Work that ended meanwhile is not running under its lease either; it has let go.
            (Renewal::Lost, Some(grip)) => {
                let is_kept = || self.heart.kept().all.contains_key(&(held.id, grip.lease.fence));
                // A store that has forgotten more than this has lost nothing to anybody.
                let word = match &self.sentry {
                    Some(sentry) if is_kept() => sentry.word().await,
                    Some(_) | None => Word::Good,
                };
                if word == Word::Good && is_kept() {
                    held.lose();
                }
            }
            // As an error that concerns this one alone: it is tried again a moment later.
            (Renewal::Failed, Some(_)) | (_, None) => {}
        }
    }
}

/// A store panicked: whether it renewed anything is not known.
fn broke<T>() -> Result<T, StoreError> {
    Err(StoreError::new(ErrorKind::Ambiguous, "the store panicked"))
}

fn is_due(grip: &Grip, now: Duration) -> bool {
    due(grip.since(), grip.span) <= now
}
