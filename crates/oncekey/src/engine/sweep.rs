//! The loop that finds what is stuck.
//!
//! It changes nothing that anybody still needs. It has a `run` for a task of its own and a `run_once`
//! for tests and schedulers.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncekey_core::browse::{Browse, Cursor, Filter, Page};
use oncekey_core::{
    Claim, Claimed, Class, ErrorKind, KeyId, Owner, Policy, Record, Refusal, Sent, State,
    StateKind, Store as _, StoreError, Write,
};

use super::claim::store_time;
use super::resolve::Probed;
use super::together::together;
use super::{Engine, Shared};

/// Finds attempts whose owner is gone, and outcomes that nobody knows.
#[derive(Clone, Debug)]
#[must_use]
pub struct Sweeper {
    shared: Arc<Shared>,
    browse: Arc<dyn Browse>,
    every: Duration,
    older_than: Duration,
    grace: Duration,
    policies: Policies,
    asked: Asked,
}

/// Of what the probe was asked, while there is something of which it was not: the next sweep begins with
/// that. Not a place in the list, because what stood there may be settled by then.
#[derive(Clone, Debug, Default)]
struct Asked(Arc<Mutex<BTreeSet<KeyId>>>);

/// How the policy of a route is found.
#[derive(Clone)]
struct Policies(Arc<Find>);

type Find = dyn Fn(&str) -> Option<Arc<Policy>> + Send + Sync;

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Keys whose owner was gone and had sent nothing: they are free again.
    pub freed: usize,
    /// Attempts whose owner was gone and may have acted: their outcome is now recorded as unknown.
    pub unknown: usize,
    /// Unknown outcomes that the probe knew about.
    pub resolved: usize,
    /// Unknown outcomes that are left: for a person, or for the probe in a later sweep if there was no
    /// time to ask it about all.
    pub in_doubt: usize,
}

/// Half a default lease.
const SWEEP_EVERY: Duration = Duration::from_secs(15);
/// What is younger has an owner, as good as surely. It saves looking at everything that runs.
const SWEEP_OLDER_THAN: Duration = Duration::from_secs(30);
/// A claim of the sweeper's own, which it gives back at once. Short, because one whose answer is
/// lost keeps the key for as long.
const SWEEP_LEASE: Duration = Duration::from_secs(3);
/// How many questions to a probe are under way at once: few for whoever answers them, and a few that hang
/// hold up a sweep no longer than one.
const PROBES: usize = 8;
/// After so long a sweep asks the probe nothing more. With questions that hang, the last of which take half
/// a minute, lost owners are looked for again within a minute.
const PROBING: Duration = Duration::from_secs(15);

impl Engine {
    /// A loop that finds what is stuck. `browse` is the engine's own store.
    pub fn sweeper(&self, browse: Arc<dyn Browse>) -> Sweeper {
        let (every, older_than) = (SWEEP_EVERY, SWEEP_OLDER_THAN);
        let grace = oncekey_core::policy::DEFAULT_GRACE;
        let policies = Policies(Arc::new(|_| None));
        let (shared, asked) = (Arc::clone(&self.0), Asked::default());
        Sweeper { shared, browse, every, older_than, grace, policies, asked }
    }
}

impl Sweeper {
    /// How often it runs.
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// How old an attempt must be before it is looked at: no less than the longest lease of a
    /// route makes sense.
    pub fn older_than(mut self, older_than: Duration) -> Self {
        self.older_than = older_than;
        self
    }

    /// How long after its end a lease is still respected.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How the policy of a route is found, by its name: what a probe finds out is kept as that
    /// says. Without this, and for routes that it does not know, as [`Policy::default`] says.
    pub fn policies(
        mut self,
        find: impl Fn(&str) -> Option<Arc<Policy>> + Send + Sync + 'static,
    ) -> Self {
        self.policies = Policies(Arc::new(find));
        self
    }

    /// Runs for ever. Dropping the future at any time is harmless.
    pub async fn run(self) {
        loop {
            match self.run_once().await {
                Ok(swept) if swept != Swept::default() => {
                    tracing::info!(
                        freed = swept.freed,
                        unknown = swept.unknown,
                        resolved = swept.resolved,
                        in_doubt = swept.in_doubt,
                        "looked for stuck keys"
                    );
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "stuck keys could not be looked for"),
            }
            tokio::time::sleep(self.shared.jittered(self.every)).await;
        }
    }

    /// Looks at everything that is running or unknown, once.
    ///
    /// # Errors
    /// If the store could not be asked. What was done before stays done.
    pub async fn run_once(&self) -> Result<Swept, StoreError> {
        let mut swept = Swept::default();
        if self.shared.sentry.as_ref().is_some_and(|sentry| !sentry.is_sound()) {
            // What looks stuck may be work whose end the store has forgotten.
            return Ok(swept);
        }
        for id in self.ids(StateKind::Running, Some(self.older_than)).await? {
            go_on(self.free(&id, &mut swept).await)?;
        }
        let unknown = self.ids(StateKind::Unknown, None).await?;
        swept.in_doubt = unknown.len();
        // Before anybody is asked, which may take its time: an alert must not wait for a probe.
        show(swept.in_doubt);
        let probed = self.probe_some(&unknown, &mut swept).await;
        show(swept.in_doubt);
        probed.map(|()| swept)
    }

    /// Asks the probe about records in doubt for as long as there is time, and begins with those about
    /// which it was not asked before.
    async fn probe_some(&self, unknown: &[KeyId], swept: &mut Swept) -> Result<(), StoreError> {
        let began = self.shared.uptime.elapsed();
        for ids in self.asked.left_of(unknown).chunks(PROBES) {
            if self.shared.uptime.elapsed().saturating_sub(began) >= PROBING {
                return Ok(());
            }
            self.asked.note(ids);
            for probed in together(ids.iter().map(|id| self.probe(id))).await {
                go_on(probed.map(|probed| match probed {
                    Some(Probed::AsBefore) => {}
                    Some(Probed::Settled) => {
                        swept.resolved += 1;
                        swept.in_doubt -= 1;
                    }
                    None => swept.in_doubt -= 1,
                }))?;
            }
        }
        self.asked.about_all();
        Ok(())
    }

    async fn ids(
        &self,
        state: StateKind,
        older_than: Option<Duration>,
    ) -> Result<Vec<KeyId>, StoreError> {
        let filter = Filter { state: Some(state), older_than, ..Filter::default() };
        let mut ids = Vec::new();
        let mut after: Option<Cursor> = None;
        loop {
            let page = Page { after, limit: oncekey_core::browse::MAX_PAGE };
            let listing = self.browse.list(&filter, &page).await?;
            ids.extend(listing.summaries.iter().map(|summary| summary.id));
            match listing.next {
                Some(next) => after = Some(next),
                None => return Ok(ids),
            }
        }
    }

    /// Takes a key over whose owner is gone, and gives it back; or says that its outcome is unknown.
    ///
    /// Only a claim can tell that a lease has lapsed *and* take it in the same step. Releasing what
    /// merely looked lapsed would free a key whose owner renewed, and sent, a moment later.
    async fn free(&self, id: &KeyId, swept: &mut Swept) -> Result<(), StoreError> {
        let Some(record) = self.shared.store.get(id).await? else { return Ok(()) };
        if !matches!(record.state, State::Running { .. }) {
            return Ok(());
        }
        let (claim, asked) = (self.claim_like(&record), self.shared.uptime.elapsed());
        let claimed = self.shared.store.claim(&claim).await?;
        let (store, answered) = (store_time(&claimed, claim.lease), self.shared.uptime.elapsed());
        // Not our own lease, which nobody renews: the routes' leases say how long a step matters.
        self.shared.suspicion.look(store, asked, answered, None);
        match claimed {
            Claimed::Won { lease, earlier: Sent::No, .. } => {
                if self.shared.store.release(&lease).await? == Write::Applied {
                    swept.freed += 1;
                }
            }
            Claimed::Lost { refusal: Refusal::Unknown, record, .. }
                if matches!(record.state, State::Running { .. }) =>
            {
                if self.shared.store.unknown(&record.lease()).await? == Write::Applied {
                    swept.unknown += 1;
                }
            }
            Claimed::Won { .. } | Claimed::Lost { .. } => {}
        }
        Ok(())
    }

    /// Asks about one record; `None` if it is not in doubt any more.
    async fn probe(&self, id: &KeyId) -> Result<Option<Probed>, StoreError> {
        let Some(record) = self.shared.store.get(id).await? else { return Ok(None) };
        if !matches!(record.state, State::Unknown { .. }) {
            return Ok(None);
        }
        let policy = self.policies.of(&record).unwrap_or_default();
        Ok(Some(self.shared.ask_probe(&record, &policy).await))
    }

    /// A claim for the same request. Class `once` takes over only what has sent nothing.
    fn claim_like(&self, record: &Record) -> Claim {
        let mut owner = [0; 16];
        self.shared.entropy.fill(&mut owner);
        let grace = self.shared.suspicion.grace(self.grace, self.shared.uptime.elapsed());
        Claim {
            id: record.id,
            owner: Owner::from_bytes(owner),
            fingerprint: record.fingerprint,
            class: Class::Once,
            lease: SWEEP_LEASE,
            grace,
            sent: Sent::No,
            origin: record.origin.clone(),
            places: record.places.clone(),
        }
    }
}

/// One record that cannot be trusted must not keep the others from being looked at (F55). A store
/// that does not answer ends the sweep: it is left alone until the next one.
fn go_on(looked: Result<(), StoreError>) -> Result<(), StoreError> {
    match looked {
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Rejected) => {
            tracing::error!(%error, "a stuck record cannot be looked at");
            Ok(())
        }
        looked => looked,
    }
}

/// Shows how many outcomes are unknown.
fn show(in_doubt: usize) {
    metrics::gauge!("oncekey_unknown_outcomes")
        .set(f64::from(u32::try_from(in_doubt).unwrap_or(u32::MAX)));
}

impl Asked {
    /// Those of `unknown` about which the probe was not asked yet.
    fn left_of(&self, unknown: &[KeyId]) -> Vec<KeyId> {
        let mut asked = self.lock();
        let listed: BTreeSet<_> = unknown.iter().collect();
        asked.retain(|id| listed.contains(id));
        if asked.len() == listed.len() {
            asked.clear();
        }
        unknown.iter().filter(|id| !asked.contains(id)).copied().collect()
    }

    fn note(&self, ids: &[KeyId]) {
        self.lock().extend(ids);
    }

    /// Notes that the probe was asked about all that were left: the next sweep asks about every one again.
    fn about_all(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<KeyId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Policies {
    fn of(&self, record: &Record) -> Option<Arc<Policy>> {
        (self.0)(std::str::from_utf8(record.origin.route.as_bytes()).ok()?)
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Policies")
    }
}

impl Shared {
    /// A pause of about `every`, so that the loops of many nodes do not fall into step.
    pub(super) fn jittered(&self, every: Duration) -> Duration {
        let mut chance = [0; 1];
        self.entropy.fill(&mut chance);
        let share = 0.9 + f64::from(chance[0]) / 1_280.0;
        // Whoever never wants it again says so with the longest time there is.
        Duration::try_from_secs_f64(every.as_secs_f64() * share).unwrap_or(Duration::MAX)
    }
}
