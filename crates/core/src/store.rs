//! The contract between oncekey and whatever keeps its records.
//!
//! A store author implements the eight methods of [`Store`], runs the conformance suite (feature
//! `conformance`) and is done. What only some stores can do is a second trait
//! ([`Browse`](crate::browse::Browse), [`Erase`](crate::erase::Erase),
//! [`Wake`](crate::wake::Wake)), so that its absence is a compile error and not a flag.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::decide::{Grant, Refusal};
use crate::fingerprint::{Fingerprint, Places};
use crate::key_id::KeyId;
use crate::policy::Class;
use crate::record::{Fence, Lease, Origin, Owner, Record, Sent};
use crate::saved::Answer;

/// Keeps records.
///
/// # Contract
///
/// **Atomicity.** Each method is one atomic step in the store's commit order, against other
/// callers, other connections and other processes. There is no moment at which two attempts own a
/// key, and no reader ever sees half a write.
///
/// **Authority.** Every write after the claim is a compare-and-set on `(id, fence, owner)`. If
/// they do not match the record, nothing changes and the answer is [`Write::Fenced`]. A lease is a
/// hint, the fence is the proof: a write whose lease has lapsed but whose fence is still the
/// newest is accepted.
///
/// **Fences.** The fences granted for a key id strictly increase for ever: across takeover,
/// release, purge, re-creation, restart and a clock that steps back.
///
/// **Time.** Leases and retention are judged by the store's clock at the moment of evaluation,
/// never by the caller's. The clock may step in either direction without two owners or a repeated
/// fence as a result, and a step back loses no record. A step forward is time that has passed: what
/// should live that long and no longer is over, as if everybody had slept.
///
/// **Durability.** `Ok` means that the effect survives whatever the store's documentation says it
/// survives. Nothing that was acknowledged is taken back.
///
/// **After a crash**, of the caller or the store, each call has either happened as a whole or not
/// at all. The caller cannot know which. It asks again with the same owner token, and the store
/// recognises it: [`Grant::Again`] for a claim, [`Write::Applied`] for everything but a release,
/// whose record is gone.
///
/// # Cancellation
///
/// Dropping a future of any method is like a crash of the caller at that moment: the call may or
/// may not take effect later, as a whole. The store itself stays usable; in particular no
/// connection with a half-done transaction is ever used again.
///
/// # Errors
///
/// [`StoreError::kind`] says what the caller can do. A decision is never an error.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Asks to own a key, and says what stands in the way if that cannot be.
    ///
    /// The decision is exactly [`decide`](crate::decide()) on the record found, in the same atomic
    /// step as the write that it leads to. On [`Claimed::Won`] a record that carries the caller's
    /// owner token is durable: there is no other way to own a key. On a grant other than
    /// [`Grant::Again`] the record is written anew from the claim with a higher fence, with the time
    /// that [`Grant::created`] says, and with a send mark if the claim or [`Grant::earlier`] says
    /// so; on `Again` only the lease is extended.
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError>;

    /// Extends leases, from now, and says for each whether it is still held.
    ///
    /// The answers are in the order of `leases`. Changes running records only: a renewal never
    /// revives an attempt that was taken over or has ended. What is wrong with one of them costs the
    /// others nothing: a record that is damaged is [`Lost`](Renewal::Lost), and one that could not be
    /// reached has [`Failed`](Renewal::Failed). An error means that nothing is known about any of
    /// them: a failed renewal is not a lost lease.
    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError>;

    /// Marks the point of no return: from here on the work may have happened.
    ///
    /// Must be durable before the first byte of a foreign request leaves. Repeating it is
    /// harmless.
    async fn send(&self, lease: &Lease) -> Result<Write, StoreError>;

    /// Records the answer. It never changes again.
    ///
    /// Allowed from running, unknown and parked: whoever resolves an unknown outcome completes it
    /// with [`Record::lease`]. Retention counts from this moment. Repeating it with the same
    /// answer is `Applied`; with another answer it is `Fenced` and changes nothing.
    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError>;

    /// Gives the key back because nothing happened. The record is gone; its next fence is higher.
    ///
    /// Allowed from running, unknown and parked, never from done. The caller vouches that nothing
    /// happened: the store does not look at the send mark. A release whose record is already gone
    /// is `Fenced`, because the store cannot tell a repetition from a purge.
    async fn release(&self, lease: &Lease) -> Result<Write, StoreError>;

    /// Records that nobody knows whether the work happened. Never expires by itself.
    ///
    /// Allowed from running and parked. Repeating it is harmless.
    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError>;

    /// Reads a record, without any effect. A record past its retention is returned as it stands,
    /// until it is forgotten: then it is `None`, even if it has not been removed yet.
    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError>;

    /// Removes finished records whose time is over, at most `limit` of them.
    ///
    /// Only done records: running, unknown and parked ones never expire. Records past `forget` are
    /// removed; of those past `expires` the answer, or the tombstone that stood for it, makes way
    /// for a tombstone that says [`NotKept::Expired`](crate::saved::NotKept::Expired). Costs time in proportion to
    /// what it removes. A purge that races a claim leads to a replay or to a fresh run, never to
    /// an error or to two owners.
    async fn purge(&self, limit: usize) -> Result<Purged, StoreError>;
}

/// A request to own a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which key.
    pub id: KeyId,
    /// Who asks. Drawn at random once per attempt, before the first try, and kept across retries
    /// of this call.
    pub owner: Owner,
    /// What the request is.
    pub fingerprint: Fingerprint,
    /// What may be done about an owner that is gone.
    pub class: Class,
    /// How long the lease lasts.
    pub lease: Duration,
    /// How long after its end another owner's lease is still respected.
    pub grace: Duration,
    /// Whether the claim itself announces the send. `Yes` saves a write and makes every crash
    /// after the claim an unknown outcome in class `once`; `No` needs [`Store::send`] later, and
    /// a crash before that is provably harmless.
    pub sent: Sent,
    /// Where the request came from, for people.
    pub origin: Origin,
    /// Digests of the request's places.
    pub places: Places,
}

/// The longest text in an [`Origin`]: the longest scope, encrypted, with room to spare.
pub const MAX_TEXT: usize = 2 * 1024;
/// The largest body that any store takes. Above this an answer is a download, not an answer, and
/// belongs in an object store; its record becomes a tombstone.
pub const MAX_BODY: usize = 16 * 1024 * 1024;
/// The largest stored header block: four times what common servers accept.
pub const MAX_HEADERS: usize = 256 * 1024;

impl Claim {
    /// Checks what the type system cannot. Every store calls it before it does anything.
    ///
    /// # Errors
    /// [`ErrorKind::Rejected`] if a text is longer than [`MAX_TEXT`].
    pub fn check(&self) -> Result<(), StoreError> {
        let Origin { key, scope, route, request } = &self.origin;
        let texts = [("key", key), ("scope", scope), ("route", route), ("request", request)];
        match texts.into_iter().find(|(_, text)| text.as_bytes().len() > MAX_TEXT) {
            Some((name, text)) => Err(StoreError::new(
                ErrorKind::Rejected,
                format!(
                    "{name} of {} bytes is longer than the {MAX_TEXT} bytes that a store takes",
                    text.as_bytes().len()
                ),
            )),
            None => Ok(()),
        }
    }
}

impl Completion {
    /// The times of a completion at `now` under `fence`.
    #[must_use]
    pub fn times(&self, fence: Fence, now: Timestamp) -> Times {
        Times::of(self.retention, self.linger, fence, now)
    }

    /// Checks what the type system cannot. Every store calls it before it does anything.
    ///
    /// # Errors
    /// [`ErrorKind::Rejected`] if the body is larger than [`MAX_BODY`] or the header lines than
    /// [`MAX_HEADERS`]: the caller completes with a tombstone instead.
    pub fn check(&self) -> Result<(), StoreError> {
        let Answer::Kept(saved) = &self.answer else { return Ok(()) };
        let headers = saved.headers.encoded_len();
        let (what, size, limit) = if saved.body.len() > MAX_BODY {
            ("body", saved.body.len(), MAX_BODY)
        } else if headers > MAX_HEADERS {
            ("header block", headers, MAX_HEADERS)
        } else {
            return Ok(());
        };
        Err(StoreError::new(
            ErrorKind::Rejected,
            format!("{what} of {size} bytes is larger than the {limit} bytes that a store takes"),
        ))
    }
}

/// What came of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The caller owns the key.
    Won {
        /// The right to act, and the proof for every later write.
        lease: Lease,
        /// Why it was granted.
        grant: Grant,
        /// Whether an earlier attempt of this generation may have done the work. If so, this
        /// attempt must never release the key: that *it* sent nothing does not mean that nothing
        /// happened. For [`Grant::Again`] it may be the caller's own mark that is seen.
        earlier: Sent,
    },
    /// The caller does not own the key.
    Lost {
        /// Why not.
        refusal: Refusal,
        /// The record that stands in the way. For [`Refusal::Replay`] it holds the answer; for
        /// any other refusal a store may leave the body of a saved answer empty, and save itself
        /// reading it.
        record: Box<Record>,
        /// The store's clock at the decision, by which ages and times to live are told.
        now: Timestamp,
    },
}

/// What came of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Renewal {
    /// Still held, until this time.
    Until(Timestamp),
    /// Not running under this lease any more: nothing may be sent under it.
    Lost,
    /// Nothing is known about this one, as after an error that concerns it alone. It may be held, and
    /// the next call may say so.
    Failed,
}

/// What came of a write.
#[must_use = "a fenced write changed nothing"]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// It took effect, now or when the same call was made before.
    Applied,
    /// Somebody else owns the key, or the record is finished or gone. Nothing changed.
    Fenced,
}

/// The end of an attempt, as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What became of it.
    pub answer: Answer,
    /// How long it answers.
    pub retention: Duration,
    /// How long after that it still says that it is too late.
    pub linger: Duration,
}

/// The times of a finished record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// When it was completed.
    pub at: Timestamp,
    /// Until when it answers.
    pub expires: Timestamp,
    /// When it may be forgotten.
    pub forget: Timestamp,
}

impl Times {
    /// When a completion at `now` under `fence` counts as done, until when it answers, and when it
    /// may be forgotten.
    ///
    /// The fence is a clock reading too. If the store's clock stepped back after the claim, the
    /// fence still tells the later time, and counting from it keeps the record from expiring the
    /// moment the clock is put right. No more than a day of that, so that a clock that was once
    /// decades ahead does not make records immortal.
    #[must_use]
    pub fn of(retention: Duration, linger: Duration, fence: Fence, now: Timestamp) -> Self {
        const MOST_AHEAD: Duration = Duration::from_secs(24 * 60 * 60);
        let at = now.max(Timestamp::from_micros(fence.number()).min(now.after(MOST_AHEAD)));
        let expires = at.after(retention);
        Self { at, expires, forget: expires.after(linger) }
    }
}

/// What a purge removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Purged {
    /// Records that are gone.
    pub forgotten: usize,
    /// Records that lost their answer and became tombstones.
    pub stripped: usize,
}

/// Why a question could not be answered.
///
/// Opaque, so that a store can say more without breaking callers. Its text never holds a key, a
/// body or a credential.
#[derive(Debug)]
pub struct StoreError {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What the caller can do about a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing changed. Ask again later, with the same owner token.
    Unavailable,
    /// It may or may not have taken effect. Ask again with the same owner token: the store will
    /// recognise it. Never treat it as a failure, never as a success.
    Ambiguous,
    /// What is stored cannot be trusted. Do not run, do not replay: call a person.
    Corrupt,
    /// The input breaks a limit of the store. Asking again will not help.
    Rejected,
    /// The store cannot keep its promises as it is set up. It refuses to work until that changes.
    Unsuitable,
}

impl Purged {
    /// How many records were touched. Less than the limit means that nothing else is due now.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.forgotten + self.stripped
    }
}

impl StoreError {
    /// An error of a kind, with a message in lower case that says what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Adds the cause. It is shown by whoever walks the chain, not by `Display`.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What the caller can do.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl ErrorKind {
    /// The word for it in logs and metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Ambiguous => "ambiguous",
            Self::Corrupt => "corrupt",
            Self::Rejected => "rejected",
            Self::Unsuitable => "unsuitable",
        }
    }
}
