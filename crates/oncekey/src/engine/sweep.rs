//! Loops that clean up: the reaper forgets what is over, the sweeper finds what is stuck.
//!
//! Both work in batches and change nothing that anybody still needs. Each has a `run` for a task
//! of its own and a `run_once` for tests and schedulers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncekey_core::browse::{Browse, Cursor, Filter, Page};
use oncekey_core::store::Purged;
use oncekey_core::{
    Claim, Claimed, Class, ErrorKind, KeyId, Owner, Policy, Record, Refusal, Sent, State,
    StateKind, Store as _, StoreError, Write,
};

use super::claim::store_time;
use super::resolve::Probed;
use super::{Engine, Shared};

/// Forgets finished records whose time is over.
#[derive(Clone, Debug)]
#[must_use]
pub struct Reaper {
    shared: Arc<Shared>,
    every: Duration,
    batch: usize,
}

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
}

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
    /// Unknown outcomes that are left for a person.
    pub in_doubt: usize,
}

/// A minute of expired keys is little work, and nobody misses the space sooner.
const REAP_EVERY: Duration = Duration::from_secs(60);
/// A few milliseconds of any store's time.
const REAP_BATCH: usize = 1_000;
/// Batches of one run: a backlog is worked off over several runs instead of in one go.
const REAP_BATCHES: usize = 100;
/// Half a default lease.
const SWEEP_EVERY: Duration = Duration::from_secs(15);
/// What is younger has an owner, as good as surely. It saves looking at everything that runs.
const SWEEP_OLDER_THAN: Duration = Duration::from_secs(30);
/// A claim of the sweeper's own, which it gives back at once. Short, because one whose answer is
/// lost keeps the key for as long.
const SWEEP_LEASE: Duration = Duration::from_secs(3);

impl Engine {
    /// A loop that forgets what is over.
    pub fn reaper(&self) -> Reaper {
        Reaper { shared: Arc::clone(&self.0), every: REAP_EVERY, batch: REAP_BATCH }
    }

    /// A loop that finds what is stuck. `browse` is the engine's own store.
    pub fn sweeper(&self, browse: Arc<dyn Browse>) -> Sweeper {
        let (every, older_than) = (SWEEP_EVERY, SWEEP_OLDER_THAN);
        let grace = oncekey_core::policy::DEFAULT_GRACE;
        let policies = Policies(Arc::new(|_| None));
        Sweeper { shared: Arc::clone(&self.0), browse, every, older_than, grace, policies }
    }
}

impl Reaper {
    /// How often it runs.
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// How many records one step of it removes.
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch.max(1);
        self
    }

    /// Runs for ever. Dropping the future stops it between two steps or in one, and nothing is
    /// lost either way.
    pub async fn run(self) {
        loop {
            match self.run_once().await {
                Ok(purged) if purged.total() > 0 => {
                    tracing::debug!(
                        forgotten = purged.forgotten,
                        stripped = purged.stripped,
                        "swept"
                    );
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "expired records could not be removed"),
            }
            tokio::time::sleep(self.shared.jittered(self.every)).await;
        }
    }

    /// Removes what is due now.
    ///
    /// # Errors
    /// If the store could not be asked. What was removed before stays removed.
    pub async fn run_once(&self) -> Result<Purged, StoreError> {
        let mut total = Purged::default();
        for _ in 0..REAP_BATCHES {
            let purged = self.shared.store.purge(self.batch).await?;
            total.forgotten += purged.forgotten;
            total.stripped += purged.stripped;
            let removed = u64::try_from(purged.forgotten).unwrap_or(u64::MAX);
            metrics::counter!("oncekey_sweep_deleted_total").increment(removed);
            if purged.total() < self.batch {
                break;
            }
        }
        Ok(total)
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
        for id in self.ids(StateKind::Unknown, None).await? {
            go_on(self.probe(&id, &mut swept).await)?;
        }
        metrics::gauge!("oncekey_unknown_outcomes")
            .set(f64::from(u32::try_from(swept.in_doubt).unwrap_or(u32::MAX)));
        Ok(swept)
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

    async fn probe(&self, id: &KeyId, swept: &mut Swept) -> Result<(), StoreError> {
        let Some(record) = self.shared.store.get(id).await? else { return Ok(()) };
        if !matches!(record.state, State::Unknown { .. }) {
            return Ok(());
        }
        let policy = self.policies.of(&record).unwrap_or_default();
        match self.shared.ask_probe(&record, &policy).await {
            Probed::Settled => swept.resolved += 1,
            Probed::AsBefore => swept.in_doubt += 1,
        }
        Ok(())
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
    fn jittered(&self, every: Duration) -> Duration {
        let mut chance = [0; 1];
        self.entropy.fill(&mut chance);
        let share = 0.9 + f64::from(chance[0]) / 1_280.0;
        // Whoever never wants it again says so with the longest time there is.
        Duration::try_from_secs_f64(every.as_secs_f64() * share).unwrap_or(Duration::MAX)
    }
}
