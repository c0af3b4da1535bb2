//! The table of problems: for each code its title, its status and what a client may conclude.
//!
//! `docs/reference/problems.md` shows the same table, and a test compares the two.

/// What went wrong, as a word that programs can rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The route needs a key and the request has none.
    KeyMissing,
    /// The key breaks the syntax.
    KeyInvalid,
    /// The key was first used for a different request.
    KeyReused,
    /// The work was done so long ago that its answer is gone.
    KeyTooOld,
    /// Nothing is known about a key that was asked about.
    KeyNotFound,
    /// The first request with this key is still running.
    InProgress,
    /// The work may have happened and nobody knows.
    OutcomeUnknown,
    /// The work is done, and its answer was not kept.
    ResponseNotRetained,
    /// The work waits for a person.
    Parked,
    /// It could not be told whom the key belongs to.
    ScopeMissing,
    /// The request's body is larger than the route allows.
    BodyTooLarge,
    /// The request's body ended before its end, or could not be read.
    BodyIncomplete,
    /// Nothing can be executed just now.
    StoreUnavailable,
    /// What is stored for the key cannot be trusted.
    RecordDamaged,
    /// The service broke while it did the work.
    WorkFailed,
    /// No byte of the request reached the upstream.
    UpstreamUnreachable,
    /// The upstream got the request and did not answer in time.
    UpstreamTimeout,
    /// The upstream got the request, and its answer never came or came incomplete.
    UpstreamNoAnswer,
}

/// Whether the work ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Executed {
    /// Surely not.
    No,
    /// Surely.
    Yes,
    /// Nobody can tell, or not yet.
    Unknown,
}

/// Whether the same request with the same key is worth sending again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retryable {
    /// Yes, unchanged, with the same key.
    Yes,
    /// No: it would meet the same answer, or something has to be changed first.
    No,
}

impl Code {
    /// All of them, in the order of the reference.
    pub const ALL: [Self; 18] = [
        Self::KeyMissing,
        Self::KeyInvalid,
        Self::KeyReused,
        Self::KeyTooOld,
        Self::KeyNotFound,
        Self::InProgress,
        Self::OutcomeUnknown,
        Self::ResponseNotRetained,
        Self::Parked,
        Self::ScopeMissing,
        Self::BodyTooLarge,
        Self::BodyIncomplete,
        Self::StoreUnavailable,
        Self::RecordDamaged,
        Self::WorkFailed,
        Self::UpstreamUnreachable,
        Self::UpstreamTimeout,
        Self::UpstreamNoAnswer,
    ];

    /// The word for it: the member `code`, and the anchor in the reference.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::KeyMissing => "idempotency_key_missing",
            Self::KeyInvalid => "idempotency_key_invalid",
            Self::KeyReused => "idempotency_key_reused",
            Self::KeyTooOld => "idempotency_key_too_old",
            Self::KeyNotFound => "idempotency_key_not_found",
            Self::InProgress => "idempotency_in_progress",
            Self::OutcomeUnknown => "idempotency_outcome_unknown",
            Self::ResponseNotRetained => "idempotency_response_not_retained",
            Self::Parked => "idempotency_parked",
            Self::ScopeMissing => "idempotency_scope_missing",
            Self::BodyTooLarge => "idempotency_body_too_large",
            Self::BodyIncomplete => "idempotency_body_incomplete",
            Self::StoreUnavailable => "idempotency_store_unavailable",
            Self::RecordDamaged => "idempotency_record_damaged",
            Self::WorkFailed => "idempotency_work_failed",
            Self::UpstreamUnreachable => "upstream_unreachable",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::UpstreamNoAnswer => "upstream_no_answer",
        }
    }

    /// A title that is the same for every request with this problem.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::KeyMissing => "Idempotency-Key is missing",
            Self::KeyInvalid => "Idempotency-Key is not valid",
            Self::KeyReused => "Idempotency-Key was already used for a different request",
            Self::KeyTooOld => "Idempotency-Key was used too long ago",
            Self::KeyNotFound => "Nothing is known about this Idempotency-Key",
            Self::InProgress => "A request with this Idempotency-Key is still running",
            Self::OutcomeUnknown => "It is not known whether the request was executed",
            Self::ResponseNotRetained => "The request was executed, but its answer was not kept",
            Self::Parked => "The request waits for a person",
            Self::ScopeMissing => "It cannot be told whom the Idempotency-Key belongs to",
            Self::BodyTooLarge => "The request body is too large",
            Self::BodyIncomplete => "The request body is incomplete",
            Self::StoreUnavailable => {
                "Requests with an Idempotency-Key cannot be executed just now"
            }
            Self::RecordDamaged => "The record of this Idempotency-Key is damaged",
            Self::WorkFailed => "The service broke while it executed the request",
            Self::UpstreamUnreachable => "The service behind cannot be reached",
            Self::UpstreamTimeout => "The service behind did not answer in time",
            Self::UpstreamNoAnswer => "The service behind gave no complete answer",
        }
    }

    /// The HTTP status, unless a route says otherwise.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::KeyMissing | Self::KeyInvalid | Self::BodyIncomplete => 400,
            // Not 401: that needs a challenge, and we do not know the scheme.
            Self::ScopeMissing => 403,
            Self::KeyNotFound => 404,
            Self::InProgress | Self::OutcomeUnknown | Self::ResponseNotRetained | Self::Parked => {
                409
            }
            Self::BodyTooLarge => 413,
            Self::KeyReused | Self::KeyTooOld => 422,
            Self::RecordDamaged | Self::WorkFailed => 500,
            Self::UpstreamUnreachable | Self::UpstreamNoAnswer => 502,
            Self::StoreUnavailable => 503,
            Self::UpstreamTimeout => 504,
        }
    }

    /// Whether the work ran.
    #[must_use]
    pub const fn executed(self) -> Executed {
        match self {
            Self::KeyMissing
            | Self::KeyInvalid
            | Self::KeyReused
            | Self::ScopeMissing
            | Self::BodyTooLarge
            | Self::BodyIncomplete
            | Self::StoreUnavailable
            | Self::UpstreamUnreachable => Executed::No,
            // The record is still there and says that the work was completed.
            Self::KeyTooOld | Self::ResponseNotRetained => Executed::Yes,
            Self::KeyNotFound
            | Self::InProgress
            | Self::OutcomeUnknown
            | Self::Parked
            | Self::RecordDamaged
            | Self::WorkFailed
            | Self::UpstreamTimeout
            | Self::UpstreamNoAnswer => Executed::Unknown,
        }
    }

    /// Whether asking again helps, unless the route's class allows more.
    #[must_use]
    pub const fn retryable(self) -> Retryable {
        match self {
            Self::InProgress | Self::StoreUnavailable | Self::UpstreamUnreachable => Retryable::Yes,
            Self::KeyMissing
            | Self::KeyInvalid
            | Self::KeyReused
            | Self::KeyTooOld
            | Self::KeyNotFound
            | Self::OutcomeUnknown
            | Self::ResponseNotRetained
            | Self::Parked
            | Self::ScopeMissing
            | Self::BodyTooLarge
            | Self::BodyIncomplete
            | Self::RecordDamaged
            | Self::WorkFailed
            | Self::UpstreamTimeout
            | Self::UpstreamNoAnswer => Retryable::No,
        }
    }

    /// The URI that names this type of problem: an anchor in the page at `base`.
    #[must_use]
    pub fn type_uri(self, base: &str) -> String {
        format!("{base}#{}", self.label())
    }
}

impl Executed {
    /// The word for it in documents and in `Idempotency-Status`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Yes => "yes",
            Self::Unknown => "unknown",
        }
    }
}
