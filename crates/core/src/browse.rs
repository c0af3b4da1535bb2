//! Looking at many records at once, for operators.
//!
//! Nothing here is on the path of a request. Every answer is bounded, whatever is asked for.

use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::key_id::KeyId;
use crate::policy::Class;
use crate::record::{Fence, Origin, Record, State, StateKind, Text};
use crate::store::{Store, StoreError};

/// The most summaries that one page holds, however many were asked for.
pub const MAX_PAGE: usize = 1_000;

/// A store that can list, count and find records.
#[async_trait]
pub trait Browse: Store {
    /// Lists records, newest first as far as the store knows, a page at a time.
    ///
    /// Paging by [`Listing::next`] visits every record that exists throughout exactly once,
    /// however many others come and go meanwhile.
    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError>;

    /// Counts records, and stops counting at `cap`: an operator's question must not scan a
    /// hundred million rows.
    async fn count(&self, filter: &Filter, cap: usize) -> Result<Count, StoreError>;

    /// Finds the records of a key as the client sent it, in every scope, at most `limit`.
    ///
    /// This looks at [`Origin::key`]. Where the scope is known,
    /// [`Store::get`] by key id is the quicker way.
    async fn find(&self, key: &Text, limit: usize) -> Result<Vec<Summary>, StoreError>;
}

/// Which records are meant. All conditions must hold; the default matches everything.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Filter {
    /// Only this state.
    pub state: Option<StateKind>,
    /// Only this route.
    pub route: Option<Text>,
    /// Only this scope.
    pub scope: Option<Text>,
    /// Only records that were created at least this long ago, by the store's clock.
    pub older_than: Option<Duration>,
}

/// Which part of a list is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Where the page before ended; `None` for the first.
    pub after: Option<Cursor>,
    /// How many summaries to return; never more than [`MAX_PAGE`].
    pub limit: usize,
}

/// A place in a list. Opaque: each store has its own order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub Vec<u8>);

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The records of this page.
    pub summaries: Vec<Summary>,
    /// Where to go on; `None` at the end.
    pub next: Option<Cursor>,
    /// The store's clock when the page was read, and never later: a lease that has lapsed by this
    /// time had lapsed when it was read. Whoever looks for lost owners judges by it, not by a clock
    /// of their own.
    pub now: Timestamp,
}

/// A number of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Exactly so many.
    Exactly(usize),
    /// At least so many; counting stopped there.
    AtLeast(usize),
}

/// A record without its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Which key.
    pub id: KeyId,
    /// The number of its newest attempt.
    pub fence: Fence,
    /// Its effect class.
    pub class: Class,
    /// When this generation was first claimed.
    pub created: Timestamp,
    /// Where it came from.
    pub origin: Origin,
    /// What has become of it.
    pub state: StateKind,
    /// When it entered that state; for running records, when the lease lapses.
    pub at: Timestamp,
    /// Until when it answers, if it is done.
    pub expires: Option<Timestamp>,
    /// The status that the first caller got, if it is done.
    pub status: Option<u16>,
}

impl Default for Page {
    /// The first hundred: a screenful or two.
    fn default() -> Self {
        Self { after: None, limit: 100 }
    }
}

impl Page {
    /// The limit that applies: at least one, because an empty page would look like the end.
    #[must_use]
    pub fn bounded_limit(&self) -> usize {
        self.limit.clamp(1, MAX_PAGE)
    }
}

impl Filter {
    /// Returns true if and only if every condition holds for `record` at `now`.
    #[must_use]
    pub fn matches(&self, record: &Record, now: Timestamp) -> bool {
        let Self { state, route, scope, older_than } = self;
        state.is_none_or(|state| state == record.state.kind())
            && route.as_ref().is_none_or(|route| *route == record.origin.route)
            && scope.as_ref().is_none_or(|scope| *scope == record.origin.scope)
            && older_than.is_none_or(|age| record.created <= now.before(age))
    }
}

impl From<&Record> for Summary {
    fn from(record: &Record) -> Self {
        let (at, expires, status) = match &record.state {
            State::Running { until, .. } => (*until, None, None),
            State::Done { at, expires, answer, .. } => (*at, Some(*expires), answer.status()),
            State::Unknown { since } | State::Parked { since } => (*since, None, None),
        };
        Self {
            id: record.id,
            fence: record.fence,
            class: record.class,
            created: record.created,
            origin: record.origin.clone(),
            state: record.state.kind(),
            at,
            expires,
            status,
        }
    }
}
