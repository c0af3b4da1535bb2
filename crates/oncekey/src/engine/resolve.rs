//! Saying what became of work of which nobody knew.

use std::fmt;
use std::pin::pin;
use std::time::Duration;

use async_trait::async_trait;
use oncekey_core::policy::{Ending, Fit, Policy, Verdict};
use oncekey_core::{
    KeyId, Origin, Record, Saved, State, Store as _, StoreError, Write, derived_key,
};

use super::caught::caught;
use super::end::{End, Entry};
use super::ring::Note;
use super::within::within;
use super::{Engine, Shared};

/// Somebody who can find out whether work happened: by asking the upstream for the derived key, or
/// by looking for its trace in a ledger.
///
/// Asked before any client or person is told that the outcome is unknown.
#[async_trait]
pub trait Probe: fmt::Debug + Send + Sync + 'static {
    /// Did it happen?
    ///
    /// `No` only if it cannot happen any more either: a request that is still under way somewhere
    /// would come to pass after the key was freed. A probe that panics or takes longer than half a
    /// minute could not tell.
    async fn did_it_happen(&self, doubt: &Doubt<'_>) -> Happened;
}

/// A record whose outcome is unknown, as a probe sees it.
#[derive(Debug)]
pub struct Doubt<'a> {
    /// The record.
    pub record: &'a Record,
    /// Where the request came from, decrypted; `None` if that cannot be read.
    pub origin: Option<Origin>,
    namespace: &'a str,
}

/// Whether a probe changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probed {
    /// The record is not in doubt any more.
    Settled,
    /// It is as it was.
    AsBefore,
}

/// What a probe found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It happened, and this is its answer.
    Yes(Saved),
    /// It did not happen, and will not.
    No,
    /// It cannot be told.
    CannotTell,
}

/// What somebody who knows says about an unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It happened: keep this answer and replay it from now on.
    Succeeded(Saved),
    /// It failed for good: keep this answer, so that a retry is told so and does not run.
    Failed(Saved),
    /// It did not happen: free the key, so that a retry runs.
    Release,
}

/// What came of a resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resolved {
    /// It is recorded.
    Recorded,
    /// The record is not in doubt: it is running, finished, or gone. Nothing changed.
    NotInDoubt,
    /// Somebody else was quicker. Nothing changed.
    TooLate,
}

/// How long a probe may take: longer than any upstream takes to answer a question, and short enough that
/// the keys behind it are still looked at.
const LONGEST_PROBE: Duration = Duration::from_secs(30);

impl Doubt<'_> {
    /// The derived key that the work forwarded with its foreign call `step`.
    #[must_use]
    pub fn derived_key(&self, step: &str) -> String {
        derived_key(self.namespace, &self.record.id, step)
    }
}

impl Engine {
    /// Says what became of work whose outcome is unknown, or that is parked.
    ///
    /// # Errors
    /// If the store could not be asked. Saying it again is harmless.
    pub async fn resolve(
        &self,
        id: &KeyId,
        resolution: Resolution,
        policy: &Policy,
    ) -> Result<Resolved, StoreError> {
        let Some(record) = self.0.store.get(id).await? else { return Ok(Resolved::NotInDoubt) };
        match record.state {
            State::Unknown { .. } | State::Parked { .. } => {}
            State::Running { .. } | State::Done { .. } => return Ok(Resolved::NotInDoubt),
        }
        let write = self.0.write_resolution(&record, resolution, policy).await?;
        tracing::info!(fence = %record.fence, "resolved");
        Ok(match write {
            Write::Applied => Resolved::Recorded,
            Write::Fenced => Resolved::TooLate,
        })
    }
}

impl Shared {
    /// Asks the probe about a record in doubt.
    ///
    /// What it says is kept as `policy` says, like an answer that came in time.
    pub(super) async fn ask_probe(&self, record: &Record, policy: &Policy) -> Probed {
        let Some(probe) = &self.probe else { return Probed::AsBefore };
        let doubt = Doubt { record, origin: self.origin_of(record), namespace: &self.namespace };
        // Somebody else's code: it may hang or panic, and neither may cost the key or the sweeper.
        let asked = pin!(caught(probe.did_it_happen(&doubt)));
        let happened = within(LONGEST_PROBE, asked).await.flatten().unwrap_or_else(|| {
            tracing::warn!(fence = %record.fence, "a probe panicked or did not answer in time");
            Happened::CannotTell
        });
        let resolution = match happened {
            Happened::Yes(saved) => Resolution::Succeeded(saved),
            Happened::No => Resolution::Release,
            Happened::CannotTell => return Probed::AsBefore,
        };
        match self.write_resolution(record, resolution, policy).await {
            // Fenced: somebody else said it first. Either way there is something new to learn.
            Ok(Write::Applied | Write::Fenced) => Probed::Settled,
            Err(error) => {
                tracing::warn!(%error, "what a probe found out could not be recorded");
                Probed::AsBefore
            }
        }
    }

    async fn write_resolution(
        &self,
        record: &Record,
        resolution: Resolution,
        policy: &Policy,
    ) -> Result<Write, StoreError> {
        let lease = record.lease();
        let end = match resolution {
            Resolution::Succeeded(saved) | Resolution::Failed(saved) => {
                // Kept whatever its status is: somebody said that this is the answer.
                let ending = Ending::Answered { status: saved.status, fit: Fit::Whole };
                let kept = Self::kept_form(policy, &saved);
                let stored = kept.map(|kept| self.vault.seal_answer(&lease, &kept));
                End::of(policy, Verdict::Keep, ending, stored)
            }
            Resolution::Release => End::Release,
        };
        let entry = Entry { lease, end };
        let write = entry.write(&*self.store).await?;
        if let (Write::Applied, Some(sentry)) = (write, &self.sentry) {
            let known = Some(Note::of(record));
            sentry.ring.ended(&entry.lease, &entry.end, self.store_now(), known);
        }
        Ok(write)
    }
}
