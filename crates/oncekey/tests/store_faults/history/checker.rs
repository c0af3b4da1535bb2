//! Checks a history by what must be true of every attempt, without a search through all orders. I1, I2, I3, I4, I5, I6, I10, I11, I17, I27, I28.
//!
//! Keys do not matter to each other, and every grant has a number that orders it. So each rule looks
//! at one attempt and its predecessor, with the times of calls and returns.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use oncekey::core::saved::NotKept;
use oncekey::core::{Fence, Grant, Renewal, Sent, Timestamp, Write};

use super::book::{
    Attempt, Book, Granted, Spans, When, class_of, is_complete, is_release, is_send, is_unknown,
};
use super::log::{Act, End, Event, Seen, Shown};

/// Something that must not happen.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) rule: Rule,
    key: u64,
    text: String,
}

/// What was violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A fence belongs to one owner, who asked for it.
    OneOwner,
    /// Later grants and later sights have no lower fence.
    FencesRise,
    /// Nobody is granted a key while somebody else's attempt stands.
    OneAtATime,
    /// What was acknowledged is there.
    Present,
    /// What is there was asked for, and not refused.
    Explained,
    /// A finished record keeps its answer.
    Immutable,
    /// An attempt that was replaced or has ended can change nothing.
    Fenced,
    /// Nobody is fenced off without a reason.
    Reason,
}

/// How much the clock of the machine may be read apart by a store and by us.
const SKEW: Duration = Duration::from_millis(2);

/// How far a fence may be ahead of the clock: one microsecond per grant, and far fewer grants.
const AHEAD: Duration = Duration::from_millis(50);

/// Everything that is wrong with a history.
pub(crate) fn check(events: &[Event], spans: Spans) -> Vec<Violation> {
    let mut books: BTreeMap<u64, Book> = BTreeMap::new();
    for event in events {
        books.entry(event.key).or_insert_with(|| Book::new(event.key)).enter(event);
    }
    let mut found = Vec::new();
    for book in books.values() {
        let mut examiner = Examiner { book, spans, found: &mut found };
        for (fence, attempt) in &book.attempts {
            examiner.owners(*fence, attempt);
            examiner.grants(*fence, attempt);
            examiner.sights(*fence, attempt);
            examiner.writes(*fence, attempt);
        }
        examiner.order();
        examiner.absences();
    }
    found
}

struct Examiner<'b> {
    book: &'b Book,
    spans: Spans,
    found: &'b mut Vec<Violation>,
}

impl Examiner<'_> {
    fn violated(&mut self, rule: Rule, text: String) {
        self.found.push(Violation { rule, key: self.book.key, text });
    }

    fn owners(&mut self, fence: Fence, attempt: &Attempt) {
        let [owner] = attempt.owners[..] else {
            let text = format!("fence {fence} has the owners {:?}", attempt.owners);
            return self.violated(Rule::OneOwner, text);
        };
        let Some(first) = attempt.shown().min_by_key(|when| when.ret) else { return };
        let has_asked = self.book.claims.iter().any(|asked| {
            let fits = asked.may_own.is_some_and(|won| won.is_none_or(|won| won == fence));
            asked.owner == owner && fits && asked.when.may_precede(first)
        });
        if !has_asked {
            let asked = self.book.claims.iter().filter(|asked| asked.owner == owner);
            let asked: Vec<_> = asked.collect();
            let text = format!(
                "fence {fence} is {owner:?}'s, who was refused or never asked: {asked:?}: {attempt:?}"
            );
            self.violated(Rule::OneOwner, text);
        }
    }

    /// Whatever the store shows has no lower fence than what it has shown before.
    fn order(&mut self) {
        let attempts = self.book.attempts.iter();
        let mut shown: Vec<(When, Fence)> = attempts
            .flat_map(|(fence, attempt)| attempt.shown().map(|when| (when, *fence)))
            .collect();
        shown.sort_unstable_by_key(|(when, _)| when.ret);
        // The highest fence of all that had returned by then.
        let mut highest: Vec<(i64, Fence)> = Vec::with_capacity(shown.len());
        for (when, fence) in &shown {
            let top = highest.last().map_or(*fence, |(_, top)| (*top).max(*fence));
            highest.push((when.ret, top));
        }
        for (when, fence) in shown {
            let earlier = highest.partition_point(|(ret, _)| *ret < when.call);
            let Some((_, top)) = earlier.checked_sub(1).map(|index| highest[index]) else {
                continue;
            };
            if top > fence {
                self.violated(Rule::FencesRise, format!("fence {fence} at {when:?} after {top}"));
            }
        }
    }

    fn grants(&mut self, fence: Fence, attempt: &Attempt) {
        let new = attempt.grants.iter().filter(|(_, granted)| granted.grant != Grant::Again);
        for (number, (when, granted)) in new.enumerate() {
            if number > 0 || attempt.shown().any(|shown| shown.before(*when)) {
                let text = format!("fence {fence} is granted again as {granted:?} at {when:?}");
                self.violated(Rule::FencesRise, text);
            }
            let before = self.book.attempts.range(..fence).next_back();
            let Some((old, previous)) = before else { continue };
            if !self.may_follow(*old, previous, *when, *granted) {
                let text = format!(
                    "fence {fence} is granted as {granted:?} at {when:?} while fence {old} stands: \
                     {previous:?}"
                );
                self.violated(Rule::OneAtATime, text);
            }
        }
    }

    /// Whether an attempt may have ended before another was granted the key.
    fn may_follow(&self, fence: Fence, old: &Attempt, when: When, granted: Granted) -> bool {
        let now = granted.until.before(self.spans.lease);
        if self.may_be_gone(fence, old, when, now) {
            return true;
        }
        if is_done(old, when) {
            return false;
        }
        let may_send_again = class_of(self.book.key).may_send_again();
        if old.may_have(when, is_unknown) && may_send_again {
            return true;
        }
        let was_unknown = old.acknowledged(when, is_unknown);
        let was_sent = self.was_sent(fence, old, when);
        let is_lapsed =
            old.until(when).is_none_or(|until| now.after(SKEW) >= until.after(self.spans.grace));
        is_lapsed && (may_send_again || !(was_sent || was_unknown))
    }

    /// Whether the record of an attempt may be gone by `now`, at the time of a call.
    fn may_be_gone(&self, fence: Fence, old: &Attempt, when: When, now: Timestamp) -> bool {
        if is_done(old, when) {
            return now.after(SKEW) >= self.forgotten(fence, old, when);
        }
        old.may_have(when, is_release)
            || (old.may_have(when, is_complete)
                && now.after(SKEW) >= self.forgotten(fence, old, when))
    }

    /// The earliest moment at which a record that is done may be forgotten.
    fn forgotten(&self, fence: Fence, old: &Attempt, when: When) -> Timestamp {
        let seen = old.sights.iter().filter(|(seen, _)| seen.before(when));
        let told = seen.filter_map(|(_, state)| match state {
            Seen::Done { forget, .. } => Some(*forget),
            Seen::Running { .. } | Seen::Unknown | Seen::Parked => None,
        });
        let begun = Timestamp::from_micros(fence.number()).before(AHEAD);
        let bound = begun.after(self.spans.retention).after(self.spans.linger);
        told.max().unwrap_or(bound)
    }

    /// Whether a send of this attempt was acknowledged or shown before a call.
    fn was_sent(&self, fence: Fence, old: &Attempt, when: When) -> bool {
        let by_claim = self.book.claims.iter().any(|asked| {
            asked.may_own == Some(Some(fence)) && asked.sent == Sent::Yes && asked.when.before(when)
        });
        let by_grant = old
            .grants
            .iter()
            .any(|(grant, granted)| granted.earlier == Sent::Yes && grant.before(when));
        let by_sight = old.sights.iter().any(|(seen, state)| {
            matches!(state, Seen::Running { sent: Sent::Yes, .. }) && seen.before(when)
        });
        old.acknowledged(when, is_send) || by_claim || by_grant || by_sight
    }

    /// Reads that found nothing: whatever stood there had ended and was gone.
    fn absences(&mut self) {
        for when in &self.book.absences {
            let stood = self.book.attempts.iter().rev();
            let newest =
                stood.clone().find(|(_, attempt)| attempt.shown().any(|shown| shown.before(*when)));
            let Some((newest, _)) = newest else { continue };
            let now = Timestamp::from_micros(when.ret);
            let is_explained = stood
                .take_while(|(fence, _)| *fence >= newest)
                .any(|(fence, attempt)| self.may_be_gone(*fence, attempt, *when, now));
            if !is_explained {
                let attempt = &self.book.attempts[newest];
                let text = format!("nothing is found at {when:?}, but {newest} stood: {attempt:?}");
                self.violated(Rule::Present, text);
            }
        }
    }

    fn sights(&mut self, fence: Fence, attempt: &Attempt) {
        for (when, state) in &attempt.sights {
            let acknowledged = |is_it: fn(Act) -> bool| attempt.acknowledged(*when, is_it);
            let is_gone = acknowledged(is_release);
            let (is_lost, is_explained) = match state {
                Seen::Running { until, sent } => {
                    let is_ended = acknowledged(is_complete) || acknowledged(is_unknown);
                    let is_unmarked = *sent == Sent::No && self.was_sent(fence, attempt, *when);
                    let is_short =
                        attempt.until(*when).is_some_and(|told| until.after(SKEW) < told);
                    let is_marked = *sent == Sent::Yes;
                    let is_lost = is_gone || is_ended || is_unmarked || is_short;
                    (is_lost, !is_marked || self.may_be_sent(fence, *when))
                }
                Seen::Done { outcome, .. } => {
                    let asked = |act| act == Act::Complete(*outcome);
                    (is_gone, attempt.may_have(*when, asked))
                }
                Seen::Unknown => {
                    (is_gone || acknowledged(is_complete), attempt.may_have(*when, is_unknown))
                }
                Seen::Parked => (false, false),
            };
            let show = || format!("fence {fence} is shown as {state:?} at {when:?}: {attempt:?}");
            if is_lost {
                self.violated(Rule::Present, show());
            }
            if !is_explained {
                self.violated(Rule::Explained, show());
            }
            if !self.is_answer_right(*when, *state) {
                self.violated(Rule::Immutable, show());
            }
        }
        let outcomes = attempt.sights.iter().filter_map(|(_, state)| match state {
            Seen::Done { outcome, .. } => Some(*outcome),
            Seen::Running { .. } | Seen::Unknown | Seen::Parked => None,
        });
        let mut outcomes: Vec<_> = outcomes.collect();
        outcomes.dedup();
        if outcomes.len() > 1 {
            self.violated(Rule::Immutable, format!("fence {fence} has ended as {outcomes:?}"));
        }
    }

    /// Whether this attempt or one before it may have announced a send.
    fn may_be_sent(&self, fence: Fence, when: When) -> bool {
        let by_claim = self.book.claims.iter().any(|asked| {
            asked.sent == Sent::Yes && asked.may_own.is_some() && asked.when.may_precede(when)
        });
        // An outcome that was unknown counts as sent for whoever takes over.
        let by_write = self.book.attempts.range(..=fence).any(|(_, attempt)| {
            attempt.may_have(when, is_send) || attempt.may_have(when, is_unknown)
        });
        by_claim || by_write
    }

    fn is_answer_right(&self, when: When, state: Seen) -> bool {
        let Seen::Done { outcome, shown, expires, .. } = state else { return true };
        match shown {
            Shown::Answer(answer) => answer == outcome,
            Shown::Left => true,
            Shown::Gone(NotKept::Expired) => {
                Timestamp::from_micros(when.ret).after(SKEW) >= expires
            }
            Shown::Gone(NotKept::Erased) => {
                self.book.erasures.iter().any(|erasure| erasure.may_precede(when))
            }
            // No caller completes with a tombstone.
            Shown::Gone(
                NotKept::TooLarge
                | NotKept::Streamed
                | NotKept::Upgraded
                | NotKept::StatusOnly
                | NotKept::Lost,
            ) => false,
        }
    }

    fn writes(&mut self, fence: Fence, attempt: &Attempt) {
        for (when, act, end) in &attempt.writes {
            match end {
                End::Said(Write::Applied) => self.applied(fence, attempt, *when, Some(*act)),
                End::Said(Write::Fenced) => self.fenced(fence, attempt, *when),
                End::Nothing | End::Open => {}
            }
        }
        for (when, end) in &attempt.renewals {
            match end {
                End::Said(Renewal::Until(_)) => self.applied(fence, attempt, *when, None),
                End::Said(Renewal::Lost) => self.fenced(fence, attempt, *when),
                End::Said(Renewal::Failed) | End::Nothing | End::Open => {}
            }
        }
    }

    /// A write, or a renewal, that was accepted: nothing had taken the right to it away.
    fn applied(&mut self, fence: Fence, attempt: &Attempt, when: When, act: Option<Act>) {
        let mut newer = self.book.attempts.range(fence..).filter(|(newer, _)| **newer > fence);
        let is_replaced = newer.any(|(_, newer)| newer.shown().any(|shown| shown.before(when)));
        let is_released = attempt.acknowledged(when, is_release);
        let is_done = attempt.acknowledged(when, |other| match (other, act) {
            (Act::Complete(given), Some(Act::Complete(again))) => given != again,
            (Act::Complete(_), _) => true,
            (Act::Send | Act::Release | Act::Unknown, _) => false,
        });
        let is_still = matches!(act, None | Some(Act::Send));
        let is_unknown = is_still && attempt.acknowledged(when, is_unknown);
        if is_replaced || is_released || is_done || is_unknown {
            let text = format!("{act:?} under fence {fence} is accepted at {when:?}: {attempt:?}");
            self.violated(Rule::Fenced, text);
        }
    }

    /// A write, or a renewal, that was refused: something may have taken the right to it away.
    fn fenced(&mut self, fence: Fence, attempt: &Attempt, when: When) {
        let has_ended = attempt.may_have(when, is_release)
            || attempt.may_have(when, is_complete)
            || attempt.may_have(when, is_unknown);
        let is_replaced = self.book.claims.iter().any(|asked| {
            let is_newer = asked.may_own.is_some_and(|won| won.is_none_or(|won| won > fence));
            is_newer && asked.when.may_precede(when) && !attempt.owners.contains(&asked.owner)
        });
        if !has_ended && !is_replaced {
            let text = format!("fence {fence} is fenced off at {when:?}: {attempt:?}");
            self.violated(Rule::Reason, text);
        }
    }
}

/// Whether an attempt had ended for certain when a call was made.
fn is_done(attempt: &Attempt, when: When) -> bool {
    let is_shown = attempt
        .sights
        .iter()
        .any(|(seen, state)| matches!(state, Seen::Done { .. }) && seen.before(when));
    is_shown || attempt.acknowledged(when, is_complete)
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?} on key {}: {}", self.rule, self.key, self.text)
    }
}
