//! What a route promises: how its effects behave, what is kept of its answers and for how long.
//!
//! All of it is data and pure functions. The engine acts on it, the gateway reads it from a
//! configuration file, stores see only the few numbers that a claim and a completion carry.

use std::time::Duration;

use crate::fingerprint::JsonPath;
use crate::record::Sent;
use crate::saved::NotKept;

/// Everything that may differ from route to route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What may be done when an owner died or an upstream never answered.
    pub class: Class,
    /// Which endings are kept, released or unknown.
    pub keep: Keep,
    /// How long a finished record answers, counted from its completion.
    pub retention: Duration,
    /// How long after its retention a finished record still refuses a late retry as too late,
    /// instead of leaving the key free. Zero frees the key at once.
    pub linger: Duration,
    /// How long an owner owns a key before it must renew.
    pub lease: Duration,
    /// How long after its end a lease is still respected.
    pub grace: Duration,
    /// What a second request meets while the first is running.
    pub in_flight: InFlight,
    /// How large things may be.
    pub limits: Limits,
    /// What happens to keyed requests while the store cannot be asked.
    pub store_down: StoreDown,
    /// When the send mark is written.
    pub mark: Mark,
    /// How much of an answer is kept.
    pub retain: Retain,
    /// What a panic of the work counts as.
    pub panic: Panicked,
}

/// When the mark is written that says "from here on the work may have happened".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mark {
    /// Apart for `once`, with the claim for `keyed` and `retry`, and never for `tx`. Where nothing
    /// stands between claim and send, as behind the layer, with the claim for `once`, too.
    #[default]
    ByClass,
    /// With the claim. Saves a write; a crash between claim and send then counts as a send.
    WithClaim,
    /// By a write of its own, right before the send. A crash before it is provably harmless.
    Apart,
}

/// How much of an answer is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Retain {
    /// All of it.
    #[default]
    Whole,
    /// The status alone, for answers that hold a secret which is shown once. A retry is told that
    /// the work ran, and with which status.
    StatusOnly,
    /// All of it but these members of JSON bodies, which are replaced by `null`. A replay says
    /// which. A body that is not JSON, or not surely so, is not kept at all.
    Redacted(Vec<JsonPath>),
}

/// What a panic of the work counts as. Nobody knows how far the work got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Panicked {
    /// As work without an answer: unknown for `once`, to be done again for the other classes.
    #[default]
    ByClass,
    /// As an answer with status 500, which is kept and replayed like any other.
    Answer500,
}

/// What we may do when the owner died, or the upstream never answered after a byte was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The upstream does not dedupe: at most one send. What may have happened stays unknown until
    /// a probe, a reconciler or a person says what did.
    Once,
    /// The upstream honours the key that we forward: send again with the same derived key.
    Keyed,
    /// The work is idempotent by nature: run it again.
    Retry,
    /// The work and its completion commit in one transaction: nothing had happened.
    Tx,
}

/// Which endings are kept: the first rule that names a status wins, then the defaults.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Keep {
    rules: Vec<(Statuses, Verdict)>,
}

/// An inclusive range of statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Statuses {
    /// The first.
    pub from: u16,
    /// The last.
    pub to: u16,
}

/// How an attempt ended, as its owner saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// Provably no byte of the request left: refused connection, failed TLS, unknown host.
    NeverSent,
    /// Something was sent and no complete answer came back: timeout, reset, cut short.
    NoAnswer,
    /// The work panicked or was killed half-way, in our own process.
    Broke,
    /// A complete answer.
    Answered {
        /// Its status.
        status: u16,
        /// Whether it can be stored as it is.
        fit: Fit,
    },
}

/// Whether an answer can be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fit {
    /// All of it is here.
    Whole,
    /// It is larger than [`Limits::saved_body`] or [`Limits::saved_headers`].
    TooLarge,
    /// It is a stream that was passed on as it came.
    Streamed,
    /// The connection became something else.
    Upgraded,
}

/// What to do with a record when its attempt has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Keep the answer and replay it.
    Keep,
    /// Keep the fact, not the answer.
    Tombstone(NotKept),
    /// Nothing happened: free the key.
    Release,
    /// It may have happened. Whether somebody may try again is up to the [`Class`].
    Unknown,
}

/// What a second request meets while the first is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InFlight {
    /// It waits for the answer, at most this long, and is then told to come back.
    Wait(Duration),
    /// It is told to come back at once.
    Conflict,
    /// It is told where the answer will be.
    Accepted,
}

/// How large things may be. Everything that a caller can make large has a limit here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Bytes of a request body that are read before the request is refused.
    pub request_body: usize,
    /// Bytes of an answer's body that are kept; a larger answer becomes a tombstone.
    pub saved_body: usize,
    /// Bytes of an answer's stored header lines that are kept.
    pub saved_headers: usize,
    /// Requests that may wait for one key at the same time on one node.
    pub waiters_per_key: usize,
    /// Requests that may wait for any key at the same time on one node.
    pub waiters: usize,
}

/// What happens to keyed requests while the store cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreDown {
    /// They are refused with 503. A retry after the outage is safe.
    Refuse,
    /// They run unprotected: a retry may run twice. Only for routes that say so.
    PassUnprotected,
}

/// A policy that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A lease too short to be renewed in time, or longer than a person would wait.
    #[error("lease must be between 1 s and 1 h, it is {0:?}")]
    Lease(Duration),
    /// A retention that no client can rely on, or that no database can hold.
    #[error("retention must be between 1 min and 90 days, it is {0:?}")]
    Retention(Duration),
    /// A finished record would be gone before its owner's lease is.
    #[error("retention ({retention:?}) must be longer than lease plus grace ({held:?})")]
    RetentionWithinLease {
        /// The retention.
        retention: Duration,
        /// Lease and grace together.
        held: Duration,
    },
    /// A keep rule that can match nothing.
    #[error("statuses {from} to {to} are no range within 100 to 999")]
    Statuses {
        /// The first status.
        from: u16,
        /// The last status.
        to: u16,
    },
    /// A limit of zero, which would refuse everything.
    #[error("limit {0} must not be zero")]
    Limit(&'static str),
}

/// Long enough for any client that retries by itself, and what Stripe made everyone expect.
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// A garbage collection, a slow disk or a short network cut fit in; a person still waits for it.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// Covers the disagreement of ordinary clocks and a renewal that is on its way.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(2);
/// Most requests are done by then, and most clients have not yet given up.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(10);

impl Default for Policy {
    fn default() -> Self {
        Self {
            class: Class::Once,
            keep: Keep::default(),
            retention: DEFAULT_RETENTION,
            linger: Duration::ZERO,
            lease: DEFAULT_LEASE,
            grace: DEFAULT_GRACE,
            in_flight: InFlight::Wait(DEFAULT_WAIT),
            limits: Limits::default(),
            store_down: StoreDown::Refuse,
            mark: Mark::ByClass,
            retain: Retain::Whole,
            panic: Panicked::ByClass,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A payment is a few kilobytes; a mebibyte leaves room and still fits in memory a
            // thousand times over.
            request_body: 1024 * 1024,
            saved_body: 1024 * 1024,
            // What common servers accept as a whole header block.
            saved_headers: 64 * 1024,
            // More duplicates of one request than that are a storm, not a retry.
            waiters_per_key: 32,
            waiters: 1_000,
        }
    }
}

impl Policy {
    /// Checks the policy for contradictions.
    ///
    /// # Errors
    /// The first contradiction found, with the values that contradict.
    pub fn check(&self) -> Result<(), PolicyError> {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        // Renewal happens at a third of the lease: below one second a busy machine misses it.
        if self.lease < Duration::from_secs(1) || self.lease > Duration::from_secs(3_600) {
            return Err(PolicyError::Lease(self.lease));
        }
        if self.retention < Duration::from_secs(60) || self.retention > 90 * DAY {
            return Err(PolicyError::Retention(self.retention));
        }
        let held = self.lease.saturating_add(self.grace);
        if self.retention <= held {
            return Err(PolicyError::RetentionWithinLease { retention: self.retention, held });
        }
        let Limits { request_body, saved_body, saved_headers, waiters_per_key, waiters } =
            self.limits;
        let limits = [
            ("request_body", request_body),
            ("saved_body", saved_body),
            ("saved_headers", saved_headers),
            ("waiters_per_key", waiters_per_key),
            ("waiters", waiters),
        ];
        match limits.into_iter().find(|(_, limit)| *limit == 0) {
            Some((name, _)) => Err(PolicyError::Limit(name)),
            None => Ok(()),
        }
    }

    /// Whether a claim announces the send at the same time.
    #[must_use]
    pub const fn announced(&self) -> Sent {
        match (self.mark, self.class) {
            // Under `tx` nothing is ever sent.
            (_, Class::Tx) | (Mark::Apart, _) | (Mark::ByClass, Class::Once) => Sent::No,
            (Mark::WithClaim, Class::Once | Class::Keyed | Class::Retry)
            | (Mark::ByClass, Class::Keyed | Class::Retry) => Sent::Yes,
        }
    }

    /// What to do with the record of an attempt that ended like this, given whether an earlier
    /// attempt may have done the work ([`Claimed::Won`](crate::store::Claimed::Won) says so). A
    /// pure function: the same ending always gets the same verdict.
    #[must_use]
    pub fn verdict(&self, earlier: Sent, ending: Ending) -> Verdict {
        match (self.verdict_alone(ending), earlier) {
            // That this attempt did nothing does not mean that nothing happened.
            (Verdict::Release, Sent::Yes) => Verdict::Unknown,
            (verdict, Sent::Yes | Sent::No) => verdict,
        }
    }

    fn verdict_alone(&self, ending: Ending) -> Verdict {
        match ending {
            Ending::NeverSent => Verdict::Release,
            Ending::NoAnswer | Ending::Broke if self.class == Class::Tx => Verdict::Release,
            Ending::NoAnswer | Ending::Broke => Verdict::Unknown,
            Ending::Answered { status, fit } => match (self.keep.verdict(status), fit) {
                (Verdict::Keep, _) if self.retain == Retain::StatusOnly => {
                    Verdict::Tombstone(NotKept::StatusOnly)
                }
                (Verdict::Keep, Fit::TooLarge) => Verdict::Tombstone(NotKept::TooLarge),
                (Verdict::Keep, Fit::Streamed) => Verdict::Tombstone(NotKept::Streamed),
                (Verdict::Keep, Fit::Upgraded) => Verdict::Tombstone(NotKept::Upgraded),
                (verdict, Fit::Whole | Fit::TooLarge | Fit::Streamed | Fit::Upgraded) => verdict,
            },
        }
    }
}

impl Class {
    /// All of them, the most careful first.
    pub const ALL: [Self; 4] = [Self::Once, Self::Keyed, Self::Retry, Self::Tx];

    /// The word for it in configuration, logs, metrics, JSON and SQL.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Keyed => "keyed",
            Self::Retry => "retry",
            Self::Tx => "tx",
        }
    }

    /// How it is written down; any two codes differ in at least four bits.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Once => 0x0f,
            Self::Keyed => 0x33,
            Self::Retry => 0x55,
            Self::Tx => 0x69,
        }
    }

    /// Reads a [`code`](Self::code) back; `None` means that the stored byte cannot be trusted.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.code() == code)
    }

    /// Whether work that may have happened may be done again.
    ///
    /// `Tx` is not among them: under `Tx` nothing is ever sent, so a send mark or an unknown
    /// outcome can only come from an attempt of another class.
    #[must_use]
    pub const fn may_send_again(self) -> bool {
        match self {
            Self::Keyed | Self::Retry => true,
            Self::Once | Self::Tx => false,
        }
    }
}

impl Keep {
    /// Adds a rule after the ones that are there. Rules come before the defaults.
    ///
    /// # Errors
    /// If the range is empty or names statuses that do not exist.
    pub fn rule(mut self, statuses: Statuses, verdict: Verdict) -> Result<Self, PolicyError> {
        let Statuses { from, to } = statuses;
        if from > to || from < 100 || to > 999 {
            return Err(PolicyError::Statuses { from, to });
        }
        self.rules.push((statuses, verdict));
        Ok(self)
    }

    /// Adds a rule for one status before the ones that are there.
    #[must_use]
    pub fn first(mut self, status: u16, verdict: Verdict) -> Self {
        self.rules.insert(0, (Statuses::only(status), verdict));
        self
    }

    /// The verdict for a complete answer with this status.
    #[must_use]
    pub fn verdict(&self, status: u16) -> Verdict {
        let ruled = self.rules.iter().find(|(statuses, _)| statuses.contains(status));
        match (ruled, status) {
            (Some((_, verdict)), _) => *verdict,
            // The upstream says that it did not do it: not allowed, not now, not here.
            (None, 401 | 403 | 407 | 409 | 421 | 423 | 425 | 429 | 503) => Verdict::Release,
            // Somebody gave up waiting for the upstream, which may have acted. A 408 would mean that
            // the request did not come in time, but it was whole before it was sent: layers that cut a
            // handler off say so, in the middle of its work.
            (None, 408 | 502 | 504) => Verdict::Unknown,
            // A declined card (402) and a crash after the charge (500) are outcomes too.
            (None, _) => Verdict::Keep,
        }
    }
}

impl Statuses {
    /// A single status.
    #[must_use]
    pub const fn only(status: u16) -> Self {
        Self { from: status, to: status }
    }

    /// Returns true if and only if `status` is in the range.
    #[must_use]
    pub const fn contains(self, status: u16) -> bool {
        self.from <= status && status <= self.to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16) -> Ending {
        Ending::Answered { status, fit: Fit::Whole }
    }

    /// I20: which upstream answers are stored is a pure function of status and send state.
    #[test]
    fn the_default_table_of_what_is_kept() {
        let policy = Policy::default();
        for status in 100..=999 {
            let expected = match status {
                401 | 403 | 407 | 409 | 421 | 423 | 425 | 429 | 503 => Verdict::Release,
                408 | 502 | 504 => Verdict::Unknown,
                _ => Verdict::Keep,
            };
            assert_eq!(policy.verdict(Sent::No, answered(status)), expected, "{status}");
        }
        assert_eq!(policy.verdict(Sent::No, Ending::NeverSent), Verdict::Release);
        assert_eq!(policy.verdict(Sent::No, Ending::NoAnswer), Verdict::Unknown);
        assert_eq!(policy.verdict(Sent::No, Ending::Broke), Verdict::Unknown);
    }

    /// I16 and I8: without an answer only a transaction is known to have done nothing.
    #[test]
    fn no_answer_is_unknown_in_every_class_but_tx() {
        for class in Class::ALL {
            let policy = Policy { class, ..Policy::default() };
            let expected = if class == Class::Tx { Verdict::Release } else { Verdict::Unknown };
            assert_eq!(policy.verdict(Sent::No, Ending::NoAnswer), expected);
            assert_eq!(policy.verdict(Sent::No, Ending::Broke), expected);
            assert_eq!(policy.verdict(Sent::No, Ending::NeverSent), Verdict::Release);
        }
    }

    /// I18: an answer that cannot be stored is a tombstone, never a reason to run again.
    #[test]
    fn an_answer_that_does_not_fit_becomes_a_tombstone() {
        let policy = Policy::default();
        for (fit, reason) in [
            (Fit::TooLarge, NotKept::TooLarge),
            (Fit::Streamed, NotKept::Streamed),
            (Fit::Upgraded, NotKept::Upgraded),
        ] {
            let kept = policy.verdict(Sent::No, Ending::Answered { status: 200, fit });
            assert_eq!(kept, Verdict::Tombstone(reason));
            let released = policy.verdict(Sent::No, Ending::Answered { status: 429, fit });
            assert_eq!(released, Verdict::Release, "a large 429 did nothing either");
        }
    }

    /// I8: what an earlier attempt may have done is not undone by one that did nothing.
    #[test]
    fn nothing_is_released_after_an_attempt_that_may_have_acted() {
        for class in Class::ALL {
            let policy = Policy { class, ..Policy::default() };
            for ending in [Ending::NeverSent, Ending::NoAnswer, Ending::Broke, answered(429)] {
                assert_eq!(policy.verdict(Sent::Yes, ending), Verdict::Unknown, "{ending:?}");
            }
            assert_eq!(policy.verdict(Sent::Yes, answered(201)), Verdict::Keep);
        }
    }

    #[test]
    fn status_only_keeps_the_fact_and_nothing_else() {
        let policy = Policy { retain: Retain::StatusOnly, ..Policy::default() };
        let kept = policy.verdict(Sent::No, answered(201));
        assert_eq!(kept, Verdict::Tombstone(NotKept::StatusOnly));
        assert_eq!(policy.verdict(Sent::No, answered(429)), Verdict::Release);
    }

    #[test]
    fn the_mark_is_apart_where_a_second_send_would_hurt() {
        for (mark, class, expected) in [
            (Mark::ByClass, Class::Once, Sent::No),
            (Mark::ByClass, Class::Keyed, Sent::Yes),
            (Mark::ByClass, Class::Retry, Sent::Yes),
            (Mark::ByClass, Class::Tx, Sent::No),
            (Mark::WithClaim, Class::Once, Sent::Yes),
            (Mark::WithClaim, Class::Tx, Sent::No),
            (Mark::Apart, Class::Keyed, Sent::No),
        ] {
            let policy = Policy { mark, class, ..Policy::default() };
            assert_eq!(policy.announced(), expected, "{mark:?} {class:?}");
        }
    }

    #[test]
    fn the_first_rule_that_names_a_status_wins() {
        let keep = Keep::default()
            .rule(Statuses::only(429), Verdict::Keep)
            .unwrap()
            .rule(Statuses { from: 400, to: 499 }, Verdict::Release)
            .unwrap();
        let policy = Policy { keep, ..Policy::default() };
        assert_eq!(policy.verdict(Sent::No, answered(429)), Verdict::Keep);
        assert_eq!(policy.verdict(Sent::No, answered(402)), Verdict::Release);
        assert_eq!(policy.verdict(Sent::No, answered(200)), Verdict::Keep);
    }

    #[test]
    fn contradictions_are_refused_with_their_values() {
        let fine = Policy::default();
        assert_eq!(fine.check(), Ok(()));
        let secs = Duration::from_secs;
        let cases = [
            (Policy { lease: Duration::ZERO, ..fine.clone() }, "lease must be"),
            (Policy { lease: secs(3_601), ..fine.clone() }, "lease must be"),
            (Policy { retention: secs(1), ..fine.clone() }, "retention must be"),
            (Policy { retention: secs(100 * 365 * 86_400), ..fine.clone() }, "retention must be"),
            (Policy { lease: secs(600), retention: secs(601), ..fine.clone() }, "longer than"),
            (
                Policy { limits: Limits { saved_body: 0, ..Limits::default() }, ..fine.clone() },
                "limit saved_body",
            ),
        ];
        for (policy, expected) in cases {
            let error = policy.check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        for statuses in [Statuses { from: 500, to: 400 }, Statuses::only(42), Statuses::only(1000)]
        {
            assert!(Keep::default().rule(statuses, Verdict::Keep).is_err());
        }
    }
}
