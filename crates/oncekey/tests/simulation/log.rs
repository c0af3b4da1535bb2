//! Everything that happened in a history, in the order in which it happened.
//!
//! All tasks of a history run on one thread, so the order of the log is the store's commit order
//! and the upstream's order of arrival at the same time. The checker reads nothing else.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncekey::core::store::Purged;
use oncekey::core::{
    Claim, Claimed, Class, Completion, ErrorKind, Fence, KeyId, Lease, Record, Renewal, Saved,
    Timestamp, Write,
};
use oncekey::engine::{Happened, NoSend, Recorded, Refused, Source};

use crate::time::SimTime;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    /// When, since the history began.
    pub(crate) at: Duration,
    pub(crate) what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    /// A question left for the store.
    Asked { call: u32, by: Who, ask: Arc<Ask> },
    /// It took effect, at this time by the store's clock; the records are what a reader sees
    /// afterwards.
    Committed { call: u32, told: Arc<Told>, now: Timestamp, after: Vec<(KeyId, Option<Record>)> },
    /// Whoever asked heard this.
    Heard { call: u32, told: Result<Arc<Told>, ErrorKind> },
    /// A client called a node.
    Called { job: Job, by: Life },
    /// The client got a reply.
    Replied { request: u32, note: Note },
    /// The client went away: it hung up, or the node died under it.
    WentAway { request: u32, why: Away },
    /// The work began.
    Began { request: u32, by: Life, fence: Option<Fence>, retry: bool },
    /// The work was told that it must not send.
    Denied { request: u32, fence: Option<Fence>, why: NoSend },
    /// The request arrived at the upstream.
    Arrived { visit: u32, request: u32, by: Life, fence: Option<Fence>, forwarded: Option<String> },
    /// The upstream did what it was asked.
    Acted { visit: u32 },
    /// The upstream is through with it: nothing more comes of this visit.
    Settled { visit: u32 },
    /// The work got the upstream's answer, or learned that none will come.
    Answered { visit: u32, answer: Got },
    /// The work ended.
    Ended { request: u32, fence: Option<Fence>, end: End },
    /// The upstream was asked whether work happened.
    Probed { id: KeyId, fence: Fence, happened: Happened },
    /// Something happened to a node.
    Node(Life, Change),
    /// The store's clock stepped by this many microseconds.
    Stepped(i64),
    /// The store is not to be reached for this long.
    Outage(Duration),
    /// From here on nothing goes wrong any more.
    Healed,
    /// A panic left the engine's task.
    Escaped(Life),
    /// Something that should have ended is still there.
    Stuck(String),
}

/// One life of a node, from its start to its crash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Life {
    pub(crate) node: usize,
    pub(crate) life: u32,
}

/// Who asks the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Who {
    Node(Life),
    /// A person with the truth, who resolves what is unknown.
    Operator,
    /// The purge.
    Reaper,
    /// Somebody with half a proof, who must not get anywhere.
    Forger,
}

/// A question to the store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ask {
    Claim(Claim),
    Renew(Vec<Lease>, Duration),
    Send(Lease),
    Complete(Lease, Completion),
    Release(Lease),
    Unknown(Lease),
    Get(KeyId),
    Purge(usize),
}

/// The store's answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Told {
    Claimed(Claimed),
    Renewed(Vec<Renewal>),
    Wrote(Write),
    Found(Option<Box<Record>>),
    Purged(Purged),
    Failed(ErrorKind),
}

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// The number of this call; a retry has another one.
    pub(crate) request: u32,
    pub(crate) id: KeyId,
    /// Which of the history's keys.
    pub(crate) key: usize,
    /// What the request says; another number is another request.
    pub(crate) body: u8,
    pub(crate) class: Class,
    /// How long it is ready to wait; `None` if it is not.
    pub(crate) wait: Option<Duration>,
    /// Whether the route runs unprotected while the store is down.
    pub(crate) passes: bool,
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Note {
    Ran { fence: Option<Fence>, recorded: Recorded, value: Option<Got> },
    Replayed { saved: Saved, source: Source, fence: Option<Fence>, original: String },
    Refused(Refused),
}

/// Why a client is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Away {
    HungUp,
    NodeDied,
}

/// What the work has in its hands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Got {
    /// A complete answer.
    Answer(Saved),
    /// An answer that is too large to keep.
    TooLarge(u16),
    /// Nothing came back.
    Nothing,
    /// Nothing was sent: the connection was refused.
    Refused,
    /// Nothing was sent: the engine said no.
    Denied(NoSend),
}

/// How the work ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    Finished(Got),
    Panicked,
    /// It was dropped half-way.
    Stopped,
}

/// What happened to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Started,
    Paused,
    Resumed,
    Crashed,
    Draining,
}

/// The log. All clones are one.
#[derive(Clone)]
pub(crate) struct Log(Arc<Mutex<Inner>>);

struct Inner {
    time: SimTime,
    events: Vec<Event>,
    calls: u32,
    closed: bool,
}

impl Log {
    pub(crate) fn new(time: SimTime) -> Self {
        Self(Arc::new(Mutex::new(Inner { time, events: Vec::new(), calls: 0, closed: false })))
    }

    /// Writes down what happens now.
    pub(crate) fn note(&self, what: What) {
        let mut inner = self.inner();
        if !inner.closed {
            let at = inner.time.now();
            inner.events.push(Event { at, what });
        }
    }

    /// A number for a question, a request or a visit.
    pub(crate) fn number(&self) -> u32 {
        let mut inner = self.inner();
        inner.calls += 1;
        inner.calls
    }

    /// Ends the history and gives the log away. What comes later is not part of it.
    pub(crate) fn close(&self) -> Vec<Event> {
        let mut inner = self.inner();
        inner.closed = true;
        std::mem::take(&mut inner.events)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.inner().closed
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ask {
    /// The key that it is about, unless it is about several.
    pub(crate) fn id(&self) -> Option<KeyId> {
        match self {
            Self::Claim(claim) => Some(claim.id),
            Self::Send(lease)
            | Self::Complete(lease, _)
            | Self::Release(lease)
            | Self::Unknown(lease) => Some(lease.id),
            Self::Get(id) => Some(*id),
            Self::Renew(..) | Self::Purge(_) => None,
        }
    }

    /// The lease under which something is written.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Send(lease)
            | Self::Complete(lease, _)
            | Self::Release(lease)
            | Self::Unknown(lease) => Some(lease),
            Self::Claim(_) | Self::Renew(..) | Self::Get(_) | Self::Purge(_) => None,
        }
    }
}

impl Told {
    /// What kind of failure it is, if it is one.
    pub(crate) fn failed(&self) -> Option<ErrorKind> {
        if let Self::Failed(kind) = self { Some(*kind) } else { None }
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Log({} events)", self.inner().events.len())
    }
}

impl fmt::Debug for Life {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "n{}.{}", self.node, self.life)
    }
}
