//! Writes: what an owner may still change, and what a purge may take away.

use std::time::Duration;

use oncekey::core::saved::{NotKept, Tombstone};
use oncekey::core::{Answer, Completion, Fence, Lease, Renewal, Sent, Timestamp, Write};

use super::books::{Attempt, Finished, Phase, Standing};
use super::{Asked, Judge};
use crate::log::{Ask, End, Got, Who};

/// What a write should come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Change,
    Nothing,
    Refusal,
}

impl Judge<'_> {
    /// I10: a renewal holds what is held and revives nothing.
    pub(super) fn renewed(&mut self, lease: &Lease, renewal: Renewal, end: Timestamp) {
        let held = match &mut self.book(lease.id).standing {
            Some(Standing { fence, owner, phase: Phase::Running { until, .. }, .. })
                if *fence == lease.fence && *owner == lease.owner =>
            {
                *until = end;
                true
            }
            Some(_) | None => false,
        };
        match renewal {
            Renewal::Until(told) if held && told == end => {}
            Renewal::Until(told) if held => {
                self.wrong("I6", format!("renewed until {told:?} instead of {end:?}"));
            }
            Renewal::Until(_) => {
                self.wrong("I10", format!("fence {} was renewed after its end", lease.fence));
            }
            Renewal::Lost if held => {
                self.wrong("I4", format!("fence {} is held and was said to be lost", lease.fence));
            }
            Renewal::Lost | Renewal::Failed => {}
        }
    }

    /// I4, I11, I17: a write takes effect if and only if its proof is right and the state allows.
    pub(super) fn wrote(&mut self, asked: &Asked, write: Write, now: Timestamp) {
        let ask = &*asked.ask;
        let Some(lease) = ask.lease().copied() else { return };
        let standing = self.book(lease.id).standing.clone();
        let due = due(standing.as_ref(), &lease, ask);
        match (write, due) {
            (Write::Applied, Due::Change) => self.change(asked, &lease, now),
            (Write::Applied, Due::Nothing) | (Write::Fenced, Due::Refusal) => {}
            (Write::Applied, Due::Refusal) => {
                let rule = match standing {
                    Some(Standing { fence, owner, phase: Phase::Done(_), .. })
                        if fence == lease.fence && owner == lease.owner =>
                    {
                        "I11"
                    }
                    Some(_) | None => "I4",
                };
                let what = name(ask);
                self.wrong(rule, format!("{what} under {} was applied", lease.fence));
            }
            (Write::Fenced, Due::Change | Due::Nothing) => {
                let what = name(ask);
                self.wrong("I4", format!("{what} by the owner {} was fenced", lease.fence));
            }
        }
    }

    fn change(&mut self, asked: &Asked, lease: &Lease, now: Timestamp) {
        let by = asked.by;
        match &*asked.ask {
            Ask::Send(_) => {
                self.set_phase(lease, |phase| {
                    if let Phase::Running { sent, .. } = phase {
                        *sent = Sent::Yes;
                    }
                });
                self.attempt(lease, |attempt| attempt.marked = Sent::Yes);
            }
            Ask::Complete(_, completion) => self.completed(by, lease, completion, now),
            Ask::Release(_) => self.released(by, lease),
            Ask::Unknown(_) => {
                self.check_unknown(asked, lease, now);
                self.set_phase(lease, |phase| *phase = Phase::Unknown);
                self.attempt(lease, |attempt| attempt.unknown = true);
            }
            Ask::Claim(_) | Ask::Renew(..) | Ask::Get(_) | Ask::Purge(_) => {}
        }
    }

    fn completed(&mut self, by: Who, lease: &Lease, completion: &Completion, now: Timestamp) {
        if let Who::Node(_) = by {
            self.check_answer(lease, &completion.answer);
        }
        let finished = finished(lease.fence, completion, now, self.at);
        self.set_phase(lease, |phase| *phase = Phase::Done(finished.clone()));
        self.attempt(lease, |attempt| attempt.completed = Some(finished));
        let book = self.book(lease.id);
        let generation = book.standing.as_ref().map(|standing| standing.generation);
        if let Some(generation) = generation.and_then(|number| book.generations.get_mut(number)) {
            generation.completions += 1;
            if generation.completions > 1 {
                self.wrong("I17", "a generation was completed twice".to_owned());
            }
        }
    }

    /// I8 and I16: what is given back must not have happened, or be about to.
    fn released(&mut self, by: Who, lease: &Lease) {
        let book = self.book(lease.id);
        let generation = book.standing.take().map(|standing| standing.generation);
        let visits = generation.and_then(|number| book.generations.get(number));
        let visits = visits.map(|generation| generation.visits.clone()).unwrap_or_default();
        let done = visits.iter().find(|visit| {
            self.visits.get(visit).is_some_and(|visited| visited.acted || !visited.settled)
        });
        if let (Some(visit), Who::Node(_)) = (done, by) {
            self.wrong("I8", format!("released, though visit {visit} acts"));
        }
        self.attempt(lease, |attempt| attempt.released = true);
    }

    /// I16: nothing is unknown if provably nothing was sent. That is the owner's to say: who finds a
    /// lapsed lease, or found one and asks before the work has ended, cannot know.
    fn check_unknown(&mut self, asked: &Asked, lease: &Lease, now: Timestamp) {
        let Who::Node(_) = asked.by else { return };
        let book = self.book(lease.id);
        if let Some(Standing { phase: Phase::Running { until, .. }, .. }) = book.standing
            && until <= now
        {
            return;
        }
        let Some(attempt) = book.attempts.get(&lease.fence) else { return };
        let (earlier, request, by) = (attempt.earlier, attempt.request, attempt.by);
        let visited =
            book.generations.get(attempt.generation).is_some_and(|it| !it.visits.is_empty());
        let work = request.and_then(|request| self.works.get(&request));
        if let Some(work) = work
            && let Some(End::Finished(Got::Refused | Got::Denied(_))) = work.end
            && by == asked.by
            && work.ended_event < asked.event
            && !visited
            && earlier == Sent::No
        {
            self.wrong("I16", format!("fence {} sent nothing and is unknown", lease.fence));
        }
    }

    /// I14, I18, I20: what is recorded is what the work was answered, if the policy keeps it.
    fn check_answer(&mut self, lease: &Lease, answer: &Answer) {
        let Some(attempt) = self.book(lease.id).attempts.get(&lease.fence) else { return };
        let request = attempt.request;
        let found_out = attempt.found_out.as_ref().is_some_and(|found| match answer {
            Answer::Kept(kept) => kept == found,
            Answer::Tombstone(tombstone) => tombstone.status == Some(found.status),
        });
        if found_out {
            return;
        }
        let end =
            request.and_then(|request| self.works.get(&request)).and_then(|it| it.end.clone());
        let right = match (&end, answer) {
            (Some(End::Finished(Got::Answer(given))), Answer::Kept(kept)) => {
                given == kept && is_kept(given.status)
            }
            (Some(End::Finished(Got::Answer(given))), Answer::Tombstone(tombstone)) => {
                tombstone.status == Some(given.status) && is_kept(given.status)
            }
            (Some(End::Finished(Got::TooLarge(status))), Answer::Tombstone(tombstone)) => {
                tombstone.status == Some(*status)
            }
            (Some(End::Panicked), answer) => answer.status() == Some(500),
            (Some(End::Finished(_) | End::Stopped) | None, _) => false,
        };
        if !right {
            let text = format!("fence {} ended with {end:?}, recorded is {answer:?}", lease.fence);
            self.wrong("I20", text);
        }
    }

    /// I27: a purge takes what is forgotten and strips what is expired; nothing else.
    pub(super) fn purged(&mut self, now: Timestamp) {
        for book in self.books.values_mut() {
            if book.standing.as_ref().is_some_and(|standing| standing.is_forgotten(now)) {
                book.standing = None;
            }
            if let Some(Standing { phase: Phase::Done(done), .. }) = &mut book.standing
                && done.expires <= now
            {
                let status = done.answer.status();
                done.answer = Answer::Tombstone(Tombstone { status, reason: NotKept::Expired });
            }
        }
    }

    fn set_phase(&mut self, lease: &Lease, set: impl FnOnce(&mut Phase)) {
        if let Some(standing) = &mut self.book(lease.id).standing {
            set(&mut standing.phase);
        }
    }

    fn attempt(&mut self, lease: &Lease, change: impl FnOnce(&mut Attempt)) {
        if let Some(attempt) = self.book(lease.id).attempts.get_mut(&lease.fence) {
            change(attempt);
        }
    }
}

fn due(standing: Option<&Standing>, lease: &Lease, ask: &Ask) -> Due {
    let Some(Standing { fence, owner, phase, .. }) = standing else { return Due::Refusal };
    if *fence != lease.fence || *owner != lease.owner {
        return Due::Refusal;
    }
    match (phase, ask) {
        (Phase::Running { sent: Sent::Yes, .. }, Ask::Send(_)) => Due::Nothing,
        (Phase::Running { .. }, _) => Due::Change,
        (Phase::Unknown, Ask::Complete(..) | Ask::Release(_)) => Due::Change,
        (Phase::Unknown, Ask::Unknown(_)) => Due::Nothing,
        (Phase::Done(done), Ask::Complete(_, again)) if done.outcome == again.answer.outcome() => {
            Due::Nothing
        }
        (Phase::Unknown | Phase::Done(_), _) => Due::Refusal,
    }
}

/// Retention counts from the completion, or from the fence if the clock fell behind it, but no
/// more than a day.
fn finished(fence: Fence, completion: &Completion, now: Timestamp, at: Duration) -> Finished {
    let most = now.after(Duration::from_secs(86_400));
    let from = Timestamp::from_micros(fence.number()).min(most).max(now);
    let expires = from.after(completion.retention);
    let forget = expires.after(completion.linger);
    let answer = completion.answer.clone();
    Finished { expires, forget, outcome: answer.outcome(), answer, at }
}

/// The default table: the upstream did not do it, or nobody knows.
pub(super) fn is_kept(status: u16) -> bool {
    !matches!(status, 401 | 403 | 407 | 408 | 409 | 421 | 423 | 425 | 429 | 502 | 503 | 504)
}

fn name(ask: &Ask) -> &'static str {
    match ask {
        Ask::Claim(_) => "a claim",
        Ask::Renew(..) => "a renewal",
        Ask::Send(_) => "a send mark",
        Ask::Complete(..) => "a completion",
        Ask::Release(_) => "a release",
        Ask::Unknown(_) => "an unknown outcome",
        Ask::Get(_) => "a read",
        Ask::Purge(_) => "a purge",
    }
}
