//! Copies every record from one store to another: how a team moves to a store that has grown with it.
//!
//! Records are read page by page and written as they are, with their fences, owners and times. What
//! the target holds and is newer stays. So a copy can be stopped, killed and run again at any time:
//! it never takes anything back, and a second run carries over what has changed since the first.
//!
//! Move without losing a key:
//!
//! 1. Copy while the old store is in use ([`Pass::Live`]). This takes over what has ended, which is
//!    nearly everything; what has not may still be released, and a copy of it would block its key.
//! 2. Stop whoever uses the old store.
//! 3. Copy once more with [`Pass::Final`], which takes over everything, refuses while anybody still
//!    holds a lease, and says so if the store changed under its hands.
//! 4. Start with the new store.
//!
//! Memory is bounded: a page of summaries, and as many records with their bodies as are copied at
//! once.

mod bookmark;
mod compare;
mod one;
mod totals;

use std::sync::Arc;

use oncekey_core::browse::{Browse, Count, Filter, Listing, MAX_PAGE, Page, Summary};
use oncekey_core::{Erase, Restore, StateKind, StoreError};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::task::JoinSet;

pub use self::bookmark::{Bookmark, BookmarkError};
pub use self::totals::{Copied, Failed, Totals};

use self::one::{One, Way};

/// How many records are copied at once. Enough that a store which commits in groups has groups to
/// commit; few enough that the largest bodies of all of them fit into memory.
const AT_ONCE: usize = 32;

/// More records than any store counts in a while: a count is a scan.
const COUNT_CAP: usize = 1_000_000_000;

/// Copies records.
#[derive(Debug)]
#[must_use]
pub struct Copier {
    from: Arc<dyn Browse>,
    to: Arc<dyn Target>,
    at_once: usize,
    verify: Verify,
    pass: Pass,
    begin: Bookmark,
}

/// What records are copied to.
trait Target: Browse + Erase + Restore {}
impl<S: Browse + Erase + Restore> Target for S {}

/// Which records are read back and compared, each right after it was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// About one in sixty-four, chosen by its key id: what is wrong with a store is seldom wrong with
    /// one record alone.
    #[default]
    Sample,
    /// All.
    All,
}

/// Whether the source is still in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    /// It may be. Records that have ended are copied, all others are left for the final pass. On its
    /// own this is no move: a key that is left out would be free at the target.
    #[default]
    Live,
    /// It must not be: copies everything, refuses if anybody holds a lease there, and fails if it
    /// changes meanwhile.
    Final,
}

/// How far a copy has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'p> {
    /// What has been done, in earlier runs too if this one resumes them.
    pub totals: &'p Totals,
    /// How many records the source had at the beginning.
    pub expected: usize,
    /// Where to go on if the copy ends here; once for each page.
    pub bookmark: Option<&'p Bookmark>,
}

/// Why a copy ended early. What was copied stays copied, and copying again goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The store that is copied cannot be read.
    #[error("the store that is copied from does not answer")]
    Source(#[source] StoreError),
    /// The store that is copied to cannot be written.
    #[error("the store that is copied to does not answer")]
    Target(#[source] StoreError),
    /// A final copy needs a source at rest.
    #[error(
        "the store is in use, {live} leases are held: stop whoever uses it, wait for the leases to end, and copy again"
    )]
    InUse {
        /// Records whose owner holds a lease.
        live: usize,
    },
    /// Somebody has written to the source during a final copy.
    #[error("the store changed while it was copied: stop whoever uses it, and copy again")]
    Changed,
    /// After a final copy the target holds fewer records than the source.
    #[error(
        "the target holds {found} records, the source {expected}: copy again with every record verified"
    )]
    Fewer {
        /// In the source.
        expected: usize,
        /// In the target.
        found: usize,
    },
}

impl Copier {
    /// A copy of everything in `from` to `to`.
    pub fn new<F, T>(from: Arc<F>, to: Arc<T>) -> Self
    where
        F: Browse,
        T: Browse + Erase + Restore,
    {
        Self {
            from,
            to,
            at_once: AT_ONCE,
            verify: Verify::default(),
            pass: Pass::default(),
            begin: Bookmark::default(),
        }
    }

    /// How many records are copied at once; at least one.
    pub fn at_once(mut self, records: usize) -> Self {
        self.at_once = records.max(1);
        self
    }

    /// Which records are compared.
    pub fn verify(mut self, verify: Verify) -> Self {
        self.verify = verify;
        self
    }

    /// Whether the source is still in use.
    pub fn pass(mut self, pass: Pass) -> Self {
        self.pass = pass;
        self
    }

    /// Goes on where an earlier run of the same pass ended. A final one begins anew if the source has
    /// been used since.
    pub fn resume(mut self, bookmark: Bookmark) -> Self {
        self.begin = bookmark;
        self
    }

    /// Copies, and tells `report` after every record.
    ///
    /// A record that cannot be read or that the target rejects does not stop the copy: it is counted
    /// and named in [`Copied::failed`]. An outage does, after a few tries.
    ///
    /// # Errors
    /// See [`CopyError`].
    ///
    /// # Cancellation
    /// Dropping the future ends the copy between two writes of a store. What was copied stays.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn run(self, mut report: impl FnMut(Progress<'_>)) -> Result<Copied, CopyError> {
        let before = self.still().await?;
        // Where a final pass has been, nobody may have been since.
        let is_stale = self.begin.trace != before.trace;
        let begin = if is_stale { Bookmark::default() } else { self.begin.clone() };
        let Bookmark { cursor: mut after, totals, .. } = begin;
        let (expected, lapsed) = (before.count, before.lapsed);
        let mut copied = Copied { totals, expected, lapsed, ..Copied::default() };
        let filter = self.pass.filter();
        loop {
            let listing = self.page(&filter, after).await?;
            self.copy_page(&listing.summaries, &mut copied, &mut report).await?;
            let Some(next) = listing.next else { break };
            let (cursor, totals) = (Some(next.clone()), copied.totals);
            let bookmark =
                Bookmark { cursor, totals, pass: self.pass, trace: before.trace.clone() };
            report(Progress { totals: &totals, expected, bookmark: Some(&bookmark) });
            after = Some(next);
        }
        match self.pass {
            Pass::Live => copied.left = self.left().await?,
            Pass::Final => self.conclude(&before, &mut copied).await?,
        }
        copied.target = count(&*self.to, &Filter::default()).await.map_err(CopyError::Target)?;
        Ok(copied)
    }

    /// Copies the records of a page, several at once, and waits for all of them: only then may a
    /// bookmark say that they are there.
    async fn copy_page(
        &self,
        summaries: &[Summary],
        copied: &mut Copied,
        report: &mut impl FnMut(Progress<'_>),
    ) -> Result<(), CopyError> {
        let way = Arc::new(Way {
            from: Arc::clone(&self.from),
            to: Arc::clone(&self.to),
            verify: self.verify,
        });
        let mut under_way: JoinSet<Result<One, CopyError>> = JoinSet::new();
        let mut waiting = summaries.iter();
        loop {
            while under_way.len() < self.at_once
                && let Some(summary) = waiting.next()
            {
                under_way.spawn(Arc::clone(&way).copy(summary.id));
            }
            let Some(ended) = under_way.join_next().await else { return Ok(()) };
            let one =
                ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
            copied.add(one);
            let (totals, expected) = (&copied.totals, copied.expected);
            report(Progress { totals, expected, bookmark: None });
        }
    }

    /// What the source is like before and after: enough to notice that somebody uses it.
    ///
    /// What has ended does not change, so a final pass looks at the newest record and at all that
    /// have not ended: whoever works leaves a trace in one or the other.
    async fn still(&self) -> Result<Still, CopyError> {
        let count = count(&*self.from, &self.pass.filter()).await.map_err(CopyError::Source)?;
        let mut still = Still { count, ..Still::default() };
        if self.pass == Pass::Live {
            return Ok(still);
        }
        let mut trace = Sha256::new();
        let first = self.page(&Filter::default(), None).await?;
        first.summaries.iter().take(1).for_each(|newest| note(&mut trace, newest));
        let mut live = 0;
        for state in OPEN {
            let open = Filter { state: Some(state), ..Filter::default() };
            let mut after = None;
            loop {
                let listing = self.page(&open, after).await?;
                for summary in &listing.summaries {
                    note(&mut trace, summary);
                    match state {
                        StateKind::Running if summary.at > listing.now => live += 1,
                        StateKind::Running => still.lapsed += 1,
                        StateKind::Unknown | StateKind::Parked | StateKind::Done => {}
                    }
                }
                match listing.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
        }
        if live > 0 {
            return Err(CopyError::InUse { live });
        }
        still.trace = trace.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(still)
    }

    /// How many records a live pass has left out.
    async fn left(&self) -> Result<usize, CopyError> {
        let mut left = 0;
        for state in OPEN {
            let open = Filter { state: Some(state), ..Filter::default() };
            left += count(&*self.from, &open).await.map_err(CopyError::Source)?;
        }
        Ok(left)
    }

    /// Whether the source was at rest, and everything is there.
    async fn conclude(&self, before: &Still, copied: &mut Copied) -> Result<(), CopyError> {
        let after = self.still().await?;
        // Fewer are no change: some may have been forgotten meanwhile.
        if after.trace != before.trace || after.count > before.count {
            return Err(CopyError::Changed);
        }
        let everything = Filter::default();
        let found = count(&*self.to, &everything).await.map_err(CopyError::Target)?;
        let failed = usize::try_from(copied.totals.failed).unwrap_or(usize::MAX);
        if found.saturating_add(failed) < after.count {
            return Err(CopyError::Fewer { expected: after.count, found });
        }
        copied.strangers = self.strangers().await?;
        Ok(())
    }

    /// How many records of the target have not ended and are not in the source: their keys were
    /// given back there after an earlier final pass, or the target has work of its own.
    async fn strangers(&self) -> Result<usize, CopyError> {
        let mut strangers = 0;
        for state in OPEN {
            let open = Filter { state: Some(state), ..Filter::default() };
            let mut after = None;
            loop {
                let page = Page { after, limit: MAX_PAGE };
                let listing = one::patiently(|| self.to.list(&open, &page)).await;
                let listing = listing.map_err(CopyError::Target)?;
                for summary in &listing.summaries {
                    // One that cannot be read is there.
                    if let Ok(None) = one::patiently(|| self.from.get(&summary.id)).await {
                        strangers += 1;
                    }
                }
                match listing.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
        }
        Ok(strangers)
    }

    async fn page(
        &self,
        filter: &Filter,
        after: Option<oncekey_core::browse::Cursor>,
    ) -> Result<Listing, CopyError> {
        let page = Page { after, limit: MAX_PAGE };
        one::patiently(|| self.from.list(filter, &page)).await.map_err(CopyError::Source)
    }
}

/// A store at a moment.
#[derive(Debug, Default)]
struct Still {
    /// How many records there are to copy.
    count: usize,
    /// Running records whose owners are gone, if this is a final pass.
    lapsed: usize,
    /// A digest of what changes when somebody works, if this is a final pass.
    trace: String,
}

fn note(trace: &mut Sha256, summary: &Summary) {
    trace.update(summary.id.as_bytes());
    trace.update(summary.fence.number().to_be_bytes());
    trace.update([summary.state.code()]);
    trace.update(summary.at.micros().to_be_bytes());
}

/// The states of what has not ended.
const OPEN: [StateKind; 3] = [StateKind::Running, StateKind::Unknown, StateKind::Parked];

impl Pass {
    /// What is copied.
    fn filter(self) -> Filter {
        let state = match self {
            Self::Live => Some(StateKind::Done),
            Self::Final => None,
        };
        Filter { state, ..Filter::default() }
    }
}

async fn count<S: Browse + ?Sized>(store: &S, filter: &Filter) -> Result<usize, StoreError> {
    match one::patiently(|| store.count(filter, COUNT_CAP)).await? {
        Count::Exactly(count) | Count::AtLeast(count) => Ok(count),
    }
}
