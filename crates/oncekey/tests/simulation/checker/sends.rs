//! Sends: what arrived upstream, and whether it was allowed to.

use std::time::Duration;

use oncekey::core::{Claimed, Class, Fence, KeyId, Lease, Renewal, Sent, Write};

use super::books::{Known, Visited, Work};
use super::{Asked, Judge};
use crate::log::{Ask, End, Got, Life, Told};
use crate::world::fingerprint_of;

impl Judge<'_> {
    /// Notes what a node has learned about its leases.
    pub(super) fn learned(&mut self, life: Life, asked: &Asked, told: &Told) {
        match (&*asked.ask, told) {
            (Ask::Claim(claim), Told::Claimed(Claimed::Won { lease, .. })) => {
                let known = self.known(life, lease.id, lease.fence);
                if let Some(known) = known {
                    // Counted from when the question left: the answer may have taken long.
                    known.deadline = known.deadline.max(asked.at + claim.lease);
                    known.marked = known.marked.or(claim.sent);
                }
            }
            (Ask::Renew(leases, span), Told::Renewed(renewals)) => {
                for (lease, renewal) in leases.iter().zip(renewals) {
                    self.learned_renewal(life, lease, *renewal, asked.at + *span);
                }
            }
            (Ask::Send(lease), Told::Wrote(Write::Applied)) => {
                if let Some(known) = self.known(life, lease.id, lease.fence) {
                    known.marked = Sent::Yes;
                }
            }
            (ask, Told::Wrote(Write::Fenced)) => {
                let lease = ask.lease().copied();
                if let Some(known) = lease.and_then(|lease| self.known(life, lease.id, lease.fence))
                {
                    known.fenced = true;
                    known.lost = true;
                }
            }
            (_, _) => {}
        }
    }

    fn learned_renewal(&mut self, life: Life, lease: &Lease, renewal: Renewal, end: Duration) {
        let Some(known) = self.known(life, lease.id, lease.fence) else { return };
        match renewal {
            Renewal::Until(_) => known.deadline = known.deadline.max(end),
            Renewal::Lost => known.lost = true,
            Renewal::Failed => {}
        }
    }

    /// What a node knows about a lease; `None` for a lease that was never granted.
    fn known(&mut self, life: Life, id: KeyId, fence: Fence) -> Option<&mut Known> {
        let nothing =
            Known { deadline: Duration::ZERO, marked: Sent::No, lost: false, fenced: false };
        let attempt = self.book(id).attempts.get_mut(&fence)?;
        Some(attempt.known.entry(life).or_insert(nothing))
    }

    pub(super) fn began(&mut self, request: u32, by: Life, fence: Option<Fence>) {
        let Some((job, _)) = self.jobs.get(&request).cloned() else { return };
        let again = self.works.insert(
            request,
            Work {
                by,
                answer: None,
                end: None,
                ended: Duration::ZERO,
                ended_event: 0,
                fence,
                id: job.id,
            },
        );
        if again.is_some() {
            self.wrong("I9", format!("the work of request {request} began twice"));
        }
        let Some(fence) = fence else { return };
        match self.book(job.id).attempts.get_mut(&fence) {
            Some(attempt) if attempt.request.is_none() => attempt.request = Some(request),
            Some(_) => self.wrong("I9", format!("work began twice under fence {fence}")),
            None => self.wrong("I33", format!("work began under {fence}, never granted")),
        }
    }

    pub(super) fn arrived(&mut self, visit: u32, request: u32, by: Life, fence: Option<Fence>) {
        let Some((job, _)) = self.jobs.get(&request).cloned() else { return };
        let mut generation = None;
        match fence {
            None if job.passes => {}
            None => self.wrong("I33", format!("request {request} was sent without a claim")),
            Some(fence) => {
                self.check_authority(request, by, fence);
                let book = self.book(job.id);
                if let Some(attempt) = book.attempts.get_mut(&fence) {
                    generation = Some(attempt.generation);
                    attempt.visits.push(visit);
                    let sends = attempt.visits.len();
                    if sends > 1 {
                        self.wrong("I9", format!("fence {fence} was sent {sends} times"));
                    }
                }
            }
        }
        let visited = Visited {
            id: job.id,
            request,
            generation,
            class: job.class,
            acted: false,
            settled: false,
        };
        self.visits.insert(visit, visited);
        if let Some(generation) = generation {
            self.count_sends(job.id, generation, visit);
        }
    }

    /// I7, I8, I23, I33: a send needs a grant that was heard of, a mark, and time.
    fn check_authority(&mut self, request: u32, by: Life, fence: Fence) {
        let Some((job, _)) = self.jobs.get(&request).cloned() else { return };
        let at = self.at;
        // Who has less than this left has no time to do anything.
        let budget = Duration::from_secs(2).min(self.history.options.lease / 4);
        let asked = fingerprint_of(job.key, job.body, self.history.bug);
        let Some(attempt) = self.book(job.id).attempts.get(&fence) else {
            self.wrong("I33", format!("sent under fence {fence}, which was never granted"));
            return;
        };
        let same = attempt.claim.fingerprint == asked;
        let Some(known) = attempt.known.get(&by).copied() else {
            self.wrong("I33", format!("sent under fence {fence} before the grant was heard of"));
            return;
        };
        if !same {
            self.wrong("I23", format!("request {request} was sent under another's claim"));
        }
        if known.deadline < at + budget {
            let left = known.deadline.saturating_sub(at);
            self.wrong("I7", format!("fence {fence} was sent {left:?} before its deadline"));
        }
        if known.lost {
            self.wrong("I7", format!("fence {fence} was sent though it was known to be lost"));
        }
        if known.marked == Sent::No {
            self.wrong("I8", format!("fence {fence} was sent without a durable mark"));
        }
    }

    /// I8: more than one send needs a class that allows it, in every one of them.
    fn count_sends(&mut self, id: KeyId, generation: usize, visit: u32) {
        let Some(generation) = self.book(id).generations.get_mut(generation) else { return };
        generation.visits.push(visit);
        let visits = generation.visits.clone();
        let once = visits
            .iter()
            .filter_map(|visit| self.visits.get(visit))
            .any(|visited| !visited.class.may_send_again());
        if visits.len() > 1 && once {
            self.wrong("I8", format!("one generation was sent {} times", visits.len()));
        }
    }

    /// I8 and I45: what happened happened once, unless the key's class says that it may be twice.
    pub(super) fn acted(&mut self, visit: u32) {
        let Some(visited) = self.visits.get_mut(&visit) else { return };
        visited.acted = true;
        let (id, generation) = (visited.id, visited.generation);
        let Some(generation) = generation else { return };
        let visits = self.book(id).generations.get(generation).map(|it| it.visits.clone());
        let visits = visits.unwrap_or_default();
        let all: Vec<_> = visits.iter().filter_map(|visit| self.visits.get(visit)).collect();
        let acts = all.iter().filter(|visited| visited.acted).count();
        if acts > 1 && all.iter().all(|visited| visited.class != Class::Retry) {
            self.wrong("I45", format!("it was done {acts} times in one generation"));
        }
    }

    pub(super) fn settled(&mut self, visit: u32) {
        if let Some(visited) = self.visits.get_mut(&visit) {
            visited.settled = true;
        }
    }

    pub(super) fn answered(&mut self, visit: u32, answer: &Got) {
        let Some(visited) = self.visits.get(&visit) else { return };
        if let Some(work) = self.works.get_mut(&visited.request) {
            work.answer = Some(answer.clone());
        }
    }

    /// I14 and I20: what the work takes for the answer is what the upstream said.
    pub(super) fn ended(&mut self, request: u32, end: &End) {
        let Some(work) = self.works.get_mut(&request) else { return };
        work.end = Some(end.clone());
        (work.ended, work.ended_event) = (self.at, self.event);
        if *end == End::Stopped && !self.draining.contains(&work.by) {
            let text = format!("the work of request {request} was dropped on {:?}", work.by);
            self.wrong("I41", text);
            return;
        }
        let answer = work.answer.clone();
        let tx = self.jobs.get(&request).is_some_and(|(job, _)| job.class == Class::Tx);
        if let End::Finished(Got::Answer(taken)) = end
            && !tx
            && answer != Some(Got::Answer(taken.clone()))
        {
            self.wrong("I14", format!("request {request} took {taken:?} for {answer:?}"));
        }
    }
}
