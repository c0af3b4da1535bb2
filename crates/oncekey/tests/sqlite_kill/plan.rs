//! What an attempt does. Everything follows from two numbers, so that parent and child need not
//! tell each other.

use std::time::Duration;

use oncekey::core::{Claim, Class, Completion, Sent};

use crate::common::{self, LARGE, LONG};

/// Keys below this number are used again and again: leases, retention and linger are short.
pub(crate) const RECYCLED: u64 = 24;

/// Attempts per process, at most.
pub(crate) const PER_GENERATION: u64 = 1_000_000;

/// One of so many processes lives until it writes its log back, and dies while it does.
pub(crate) const HEAVY: u64 = 10;

const MOMENT: Duration = Duration::from_millis(15);

/// How an attempt means to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Complete,
    SendAndComplete,
    Release,
    Unknown,
    UnknownAndComplete,
    /// Does nothing more, so that somebody takes over.
    Abandon,
    /// Completes much later, when somebody may have taken over.
    Late,
}

pub(crate) fn claim(key: u64, attempt: u64) -> Claim {
    let claim = common::claim(key, attempt);
    if is_recycled(key) {
        let class = if key.is_multiple_of(2) { Class::Retry } else { Class::Once };
        Claim { class, lease: MOMENT, ..claim }
    } else {
        Claim { sent: Sent::Yes, ..claim }
    }
}

pub(crate) fn completion(key: u64, attempt: u64) -> Completion {
    let answer = common::answer(attempt, size_of_body(key, attempt));
    let span = if is_recycled(key) { MOMENT } else { LONG };
    Completion { answer, retention: span, linger: span }
}

pub(crate) fn ending(key: u64, attempt: u64) -> Ending {
    match (is_recycled(key), attempt % 12) {
        (_, 3) => Ending::SendAndComplete,
        (_, 5) => Ending::UnknownAndComplete,
        (true, 6) => Ending::Unknown,
        (_, 7 | 8) => Ending::Release,
        (true, 9) => Ending::Abandon,
        (true, 10 | 11) => Ending::Late,
        _ => Ending::Complete,
    }
}

pub(crate) fn is_recycled(key: u64) -> bool {
    key < RECYCLED
}

pub(crate) fn is_heavy(generation: u64) -> bool {
    generation % HEAVY == HEAVY - 1
}

fn size_of_body(key: u64, attempt: u64) -> usize {
    let large = match (is_recycled(key), is_heavy(attempt / PER_GENERATION)) {
        (true, true) => attempt.is_multiple_of(8),
        (true, false) => attempt.is_multiple_of(16),
        (false, _) => attempt.is_multiple_of(64),
    };
    if large { LARGE } else { usize::try_from(attempt % 300).expect("a small number") }
}
