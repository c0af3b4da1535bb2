//! Replies: what clients are told must be what happened.

use std::time::Duration;

use oncekey::core::{Answer, Fence, Saved, Sent};
use oncekey::engine::{Recorded, Refused, Source, Unavailable};

use super::Judge;
use super::books::{Attempt, Finished, Phase, Standing, Work};
use super::writes::is_kept;
use crate::load::request_name;
use crate::log::{End, Got, Job, Life, Note};
use crate::options::Journal;
use crate::time::BASE;
use crate::work::SAVED_BODY;
use crate::world::fingerprint_of;

/// After an outage of any length a node asks its store again within this time.
const SLOWEST_RETURN: Duration = Duration::from_secs(20);

/// A call that is being replied to.
struct Served {
    job: Job,
    by: Life,
}

impl Judge<'_> {
    pub(super) fn replied(&mut self, request: u32, note: &Note) {
        let Some((job, by)) = self.jobs.get(&request).cloned() else { return };
        let served = Served { job, by };
        match note {
            Note::Ran { fence, recorded, value } => {
                self.check_value(request, value.as_ref());
                match fence {
                    Some(fence) => self.ran(&served, *fence, *recorded, value.as_ref()),
                    None if *recorded == Recorded::Unprotected && served.job.passes => {}
                    None => self.wrong("I33", format!("request {request} ran unprotected")),
                }
            }
            Note::Replayed { saved, source, fence, original } => {
                self.check_for_whom(&served, saved);
                match (source, fence) {
                    (Source::Record, Some(fence)) => {
                        self.check_replay(&served, *fence, original);
                        self.check_record(&served, saved, *fence);
                    }
                    (Source::Coalesced, Some(fence)) => {
                        self.check_replay(&served, *fence, original);
                        self.check_coalesced(&served, saved, *fence);
                    }
                    (Source::Coalesced, None) => self.check_unprotected(&served, saved, original),
                    (Source::Record, None) => {
                        self.wrong("I12", format!("request {request} got a record of nobody"));
                    }
                }
            }
            Note::Refused(refused) => self.check_refusal(&served, refused),
        }
    }

    /// The first caller gets what its work returned, or the fact that it broke.
    fn check_value(&mut self, request: u32, value: Option<&Got>) {
        let right = match self.works.get(&request).and_then(|work| work.end.as_ref()) {
            Some(End::Finished(got)) => value == Some(got),
            Some(End::Panicked | End::Stopped) => value.is_none(),
            None => false,
        };
        if !right {
            self.wrong("I13", format!("request {request} got what its work did not return"));
        }
    }

    /// I13: what the first caller is told about the record is true.
    fn ran(&mut self, served: &Served, fence: Fence, recorded: Recorded, value: Option<&Got>) {
        let (journal, patience) = (self.history.options.journal, self.history.options.patience);
        let by = served.by;
        let ended = self.works.get(&served.job.request).map(|work| work.ended);
        let tried_for = self.at.saturating_sub(ended.unwrap_or_default());
        let Some(attempt) = self.book(served.job.id).attempts.get(&fence) else {
            self.wrong("I33", format!("ran under fence {fence}, which was never granted"));
            return;
        };
        let known = attempt.known.get(&by).copied();
        let right = match recorded {
            Recorded::Kept => match (&attempt.completed, value) {
                (Some(Finished { answer: Answer::Kept(kept), .. }), Some(Got::Answer(given))) => {
                    kept == given
                }
                // A panic that counts as an answer.
                (Some(Finished { answer: Answer::Kept(kept), .. }), None) => kept.status == 500,
                (_, _) => false,
            },
            Recorded::Tombstone(reason) => matches!(
                &attempt.completed,
                Some(Finished { answer: Answer::Tombstone(tombstone), .. })
                    if tombstone.reason == reason
            ),
            // Who released and did not hear of it cannot tell its release from a takeover; either
            // way this attempt did nothing.
            Recorded::Released => attempt.released || known.is_some_and(|known| known.fenced),
            Recorded::Unknown => attempt.unknown,
            Recorded::Fenced => known.is_some_and(|known| known.fenced || known.lost),
            Recorded::Journalled => journal == Journal::Folder,
            Recorded::Unrecorded => tried_for >= patience,
            Recorded::Unprotected => false,
        };
        if !right {
            let book = summary(attempt);
            self.wrong("I13", format!("{recorded:?} was said about fence {fence}: {book}"));
        }
    }

    /// I21: whatever anybody gets is about its own key, scope and request.
    fn check_for_whom(&mut self, served: &Served, saved: &Saved) {
        let job = &served.job;
        let mine = format!("key {} body {} ", job.key, job.body);
        if saved.body.starts_with(b"key ") && !saved.body.starts_with(mine.as_bytes()) {
            self.wrong("I21", format!("request {} got what was meant for others", job.request));
        }
    }

    /// Who waited for an attempt without protection gets what that attempt returned.
    fn check_unprotected(&mut self, served: &Served, saved: &Saved, original: &str) {
        let led = |(request, work): (&u32, &Work)| {
            request_name(*request) == original && work.by == served.by && returned(work, saved)
        };
        if !self.works.iter().any(led) {
            let request = served.job.request;
            self.wrong("I12", format!("request {request} got what nobody returned"));
        }
    }

    /// I23: a replay belongs to the same request.
    fn check_replay(&mut self, served: &Served, fence: Fence, original: &str) {
        let job = &served.job;
        let asked = fingerprint_of(job.key, job.body, self.history.bug);
        let Some(attempt) = self.book(job.id).attempts.get(&fence) else {
            self.wrong("I12", format!("a replay of fence {fence}, which was never granted"));
            return;
        };
        let same = attempt.claim.fingerprint == asked;
        let named = attempt.claim.origin.request.as_bytes() == original.as_bytes();
        if !same {
            self.wrong("I23", format!("request {} got another's answer", job.request));
        }
        if !named {
            self.wrong("I12", format!("fence {fence} is not of {original}"));
        }
    }

    /// I12: a replay is what was recorded. I27: and not for longer than it was to be kept.
    fn check_record(&mut self, served: &Served, saved: &Saved, fence: Fence) {
        let (job, at) = (&served.job, self.at);
        let attempts = &self.book(job.id).attempts;
        let completed = attempts.get(&fence).and_then(|attempt| attempt.completed.clone());
        match completed {
            Some(Finished { answer: Answer::Kept(kept), expires, .. }) if kept == *saved => {
                // Only for a reply at once, without a look at the store: the store judges by its own
                // clock, and its answer may come late.
                let at_once = self.called.get(&job.request) == Some(&at);
                if at_once && self.stepped == 0 && expires < BASE.after(at) {
                    self.wrong("I27", format!("fence {fence} was replayed after {expires:?}"));
                }
            }
            Some(_) => self.wrong("I12", format!("a replay differs from the record of {fence}")),
            None => self.wrong("I12", format!("a replay of {fence}, which recorded nothing")),
        }
    }

    /// I12: who waited gets what the attempt that it waited for returned, on the same node.
    fn check_coalesced(&mut self, served: &Served, saved: &Saved, fence: Fence) {
        let attempt = self.book(served.job.id).attempts.get(&fence);
        let request = attempt.and_then(|attempt| attempt.request);
        // What came too late to be recorded is not the answer: another one may be.
        let outdated = attempt.is_some_and(|attempt| {
            let fenced = attempt.known.get(&served.by).is_some_and(|known| known.fenced);
            fenced && attempt.completed.is_none() && is_kept(saved.status)
        });
        if outdated {
            self.wrong("I12", format!("a waiter got what fence {fence} came too late with"));
        }
        let work = request.and_then(|request| self.works.get(&request));
        let right = work.is_some_and(|work| work.by == served.by && returned(work, saved));
        if !right {
            self.wrong("I12", format!("a waiter got what fence {fence} did not return"));
        }
    }

    /// I16, I18, I23, I33: who is refused was not executed, and for the reason that it is told.
    fn check_refusal(&mut self, served: &Served, refused: &Refused) {
        let job = &served.job;
        let request = job.request;
        if self.visits.values().any(|visited| visited.request == request) {
            self.wrong("I33", format!("request {request} was sent and refused: {refused:?}"));
        }
        let attempts = self.books.get(&job.id).map(|book| &book.attempts);
        let any = |what: &dyn Fn(&Attempt) -> bool| {
            attempts.is_some_and(|attempts| attempts.values().any(what))
        };
        let asked = fingerprint_of(job.key, job.body, self.history.bug);
        let right = match refused {
            Refused::Mismatch { .. } => {
                let other = |(other, _): &(Job, Life)| other.id == job.id && other.body != job.body;
                self.jobs.values().any(other)
            }
            Refused::Unknown { .. } => any(&|attempt| {
                attempt.claim.fingerprint == asked
                    && (attempt.unknown || attempt.marked == Sent::Yes)
            }),
            Refused::NotRetained { original, .. } | Refused::Expired { original } => {
                // Or it waited for an attempt without protection, of which there is no record.
                let led = |(request, work): (&u32, &Work)| {
                    let ended_so = work.fence.is_none() && work.end.is_some() && work.id == job.id;
                    request_name(*request) == **original && work.by == served.by && ended_so
                };
                any(&|attempt| attempt.claim.fingerprint == asked && attempt.completed.is_some())
                    || self.works.iter().any(led)
            }
            Refused::InProgress { waited, .. } => {
                *waited <= most_waited(job, self.history) && !self.slept_through(job)
            }
            // L4: a store that is back is used again.
            Refused::Unavailable { why: Unavailable::Store, .. } => {
                self.healed.is_none_or(|healed| self.at < healed + SLOWEST_RETURN)
            }
            Refused::Accepted { .. } | Refused::Unavailable { .. } => true,
            Refused::Parked { .. } | Refused::Damaged => false,
        };
        if !right {
            self.wrong("I16", format!("request {request} was refused without reason: {refused:?}"));
        }
    }
}

impl Judge<'_> {
    /// L2: on a good day whoever waits is told of the end within a poll of it.
    fn slept_through(&self, job: &Job) -> bool {
        // Twice the slowest poll, and the way there and back.
        const SOON: Duration = Duration::from_millis(2_500);
        let done = match self.books.get(&job.id).and_then(|book| book.standing.as_ref()) {
            Some(Standing { phase: Phase::Done(done), .. }) => done.at,
            Some(_) | None => return false,
        };
        let called = self.called.get(&job.request).copied().unwrap_or_default();
        self.history.options.is_calm() && self.at.saturating_sub(done.max(called)) > SOON
    }
}

/// Whether the work returned this answer, for those who waited.
fn returned(work: &Work, saved: &Saved) -> bool {
    match &work.end {
        Some(End::Finished(Got::Answer(given))) => given == saved,
        // Who waits gets an answer that is too large to keep, as long as it is there.
        Some(End::Finished(Got::TooLarge(status))) => {
            saved.status == *status && saved.body.len() > SAVED_BODY
        }
        // A panic that counts as an answer.
        Some(End::Panicked) => saved.status == 500,
        Some(End::Finished(Got::Nothing | Got::Refused | Got::Denied(_)) | End::Stopped) | None => {
            false
        }
    }
}

/// How long a call may wait: what it allowed, and what faults of the node and the store add.
fn most_waited(job: &Job, history: &crate::run::History) -> Duration {
    match history.options.is_calm() {
        true => job.wait.unwrap_or_default() + Duration::from_secs(1),
        false => Duration::MAX,
    }
}

fn summary(attempt: &Attempt) -> String {
    let Attempt { completed, released, unknown, known, .. } = attempt;
    format!("completed {completed:?}, released {released}, unknown {unknown}, known {known:?}")
}
