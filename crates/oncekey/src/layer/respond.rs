//! What the engine said, as a response.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body;
use oncekey_core::{Fence, Key};
use tracing::record_all;

use super::body::ResponseBody;
use super::headers::{self, Mark, Status, mark};
use super::outcome::Outcome;
use super::replay::{Restored, restore};
use super::status::accepted;
use super::trace::OriginalTrace;
use super::undelivered::Undelivered;
use super::visit::{End, Turned, Visit};
use super::work::Ended;
use crate::engine::{NoSend, Ran, Recorded, Refused, Replayed, Reply, Unavailable};
use crate::problem::{Code, Executed, Problem, Retryable};

/// An attempt that lost its lease has a successor by now, which is at work: soon is soon enough.
const AFTER_LOST_LEASE: Duration = Duration::from_secs(1);

impl Visit {
    pub(super) fn respond<B: Body, E>(&self, key: &Key, reply: Reply<Ended<B, E>>) -> End<B, E> {
        let outcome = Outcome::of(&reply);
        match reply {
            Reply::Ran(ran) => self.ran(key, outcome, ran),
            Reply::Replayed(replayed) => self.replay(key, outcome, &replayed),
            Reply::Refused(refused) => (outcome, Ok(self.refuse(key, &refused))),
        }
    }

    fn ran<B: Body, E>(&self, key: &Key, outcome: Outcome, ran: Ran<Ended<B, E>>) -> End<B, E> {
        let Ran { value, recorded, fence } = ran;
        record_all!(
            self.span,
            idempotency.replayed = false,
            idempotency.fence = fence.map(Fence::number)
        );
        if recorded != Recorded::Kept {
            // Where a doubt begins: the answer went out as it came, and a retry will be told otherwise.
            self.span.record("idempotency.recorded", recorded.label());
        }
        match value {
            Some(Ended::Answer(mut response)) => {
                // An answer that broke off goes to its client as far as it came, and is none.
                let cut = response.body().is_cut().then_some(Undelivered::NoAnswer);
                let undelivered = Undelivered::of(response.extensions()).or(cut);
                let outcome = outcome.of_answer(undelivered);
                let problem = response.extensions_mut().get_mut::<Problem>();
                let status = match problem.filter(|_| undelivered.is_some()) {
                    Some(problem) => {
                        problem.request_id = Some(self.request.as_str().to_owned());
                        Status::problem(outcome, problem)
                    }
                    None => self.status_of_run(outcome, recorded),
                };
                let own = self.request.as_str();
                mark(response.headers_mut(), &self.mark(Some(key), Some(own)), status);
                (outcome, Ok(*response))
            }
            Some(Ended::Failed(error)) => (outcome, Err(error)),
            Some(Ended::NotBegun(why, earlier)) => {
                let why = match why {
                    NoSend::Lost | NoSend::TooLate => Unavailable::LeaseLost,
                    NoSend::Store => Unavailable::Store,
                };
                let refused = Refused::Unavailable { why, retry_after: AFTER_LOST_LEASE };
                let mut problem = Problem::from(&refused);
                earlier.correct(&mut problem);
                let outcome = Outcome::of_refusal(&refused);
                (outcome, Ok(self.problem(outcome, problem, Some(key))))
            }
            None => {
                let outcome = outcome.of_broken(recorded);
                (outcome, Ok(self.broke(key, outcome, recorded)))
            }
        }
    }

    fn status_of_run(&self, outcome: Outcome, recorded: Recorded) -> Status {
        match (outcome, recorded) {
            // Nearly all of them.
            (Outcome::Executed, Recorded::Kept) => Status::known(outcome, self.rule.status_field()),
            (_, _) => Status::ran(outcome, recorded, self.rule.shared_policy().retention),
        }
    }

    /// The answer to the caller whose work panicked, or was stopped by a shutdown.
    fn broke<B: Body>(
        &self,
        key: &Key,
        outcome: Outcome,
        recorded: Recorded,
    ) -> Response<ResponseBody<B>> {
        let mut problem = match recorded {
            Recorded::Kept => return self.bare_500(key, outcome, recorded),
            Recorded::Released => {
                let mut problem = Problem::new(
                    Code::WorkFailed,
                    "The service stopped before it had executed the request. Nothing was executed.",
                );
                problem.executed = Executed::No;
                problem.retryable = Retryable::Yes;
                problem
            }
            Recorded::Unprotected | Recorded::Tombstone(_) => Problem::new(
                Code::WorkFailed,
                "The service broke while it executed the request. How far it got is not known.",
            ),
            Recorded::Unknown | Recorded::Journalled | Recorded::Fenced | Recorded::Unrecorded => {
                let mut problem = Problem::new(
                    Code::OutcomeUnknown,
                    "The service broke, or was stopped, while it executed the request, and nobody \
                     knows how far it got.",
                );
                problem.original_request = Some(self.request.as_str().to_owned());
                if self.rule.shared_policy().class.may_send_again() {
                    problem.retryable = Retryable::Yes;
                }
                problem
            }
        };
        problem.status = Code::WorkFailed.status();
        self.problem(outcome, problem, Some(key))
    }

    /// The policy counts a panic as an answer and has recorded an empty 500. The first caller gets
    /// what every retry will get (I13), not a document that nobody else sees.
    fn bare_500<B: Body>(
        &self,
        key: &Key,
        outcome: Outcome,
        recorded: Recorded,
    ) -> Response<ResponseBody<B>> {
        let mut response = Response::new(ResponseBody::whole(Bytes::new(), None));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        let status = Status::ran(outcome, recorded, self.rule.shared_policy().retention);
        let own = self.request.as_str();
        mark(response.headers_mut(), &self.mark(Some(key), Some(own)), status);
        response
    }

    fn replay<B: Body, E>(&self, key: &Key, outcome: Outcome, replayed: &Replayed) -> End<B, E> {
        // At once, because every look for the span costs as much as what is written there.
        record_all!(
            self.span,
            idempotency.replayed = true,
            idempotency.fence = replayed.fence.map(Fence::number),
            idempotency.original_request_id = &*replayed.original
        );
        let Ok(Restored { mut response, traceparent }) = restore(&replayed.saved) else {
            let refused = Refused::Damaged;
            return (Outcome::of_refusal(&refused), Ok(self.refuse(key, &refused)));
        };
        if let Some(trace) = traceparent {
            self.span.record("idempotency.original_traceparent", &*trace);
            response.extensions_mut().insert(OriginalTrace::new(trace));
        }
        let status = Status::replayed(outcome, replayed.age, replayed.ttl);
        mark(response.headers_mut(), &self.mark(Some(key), Some(&replayed.original)), status);
        (outcome, Ok(response))
    }

    fn refuse<B: Body>(&self, key: &Key, refused: &Refused) -> Response<ResponseBody<B>> {
        if let Refused::Accepted { retry_after, original } = refused
            && let Some(path) = self.config.status_path_for(&self.rule)
        {
            let with = self.mark(Some(key), original.as_deref());
            return accepted(path, key, *retry_after, &with);
        }
        self.problem(Outcome::of_refusal(refused), Problem::from(refused), Some(key))
    }

    pub(super) fn turn<B: Body>(&self, turned: Turned) -> Response<ResponseBody<B>> {
        let Turned { outcome, problem, key } = turned;
        let unread = problem.code == Code::BodyTooLarge;
        let mut response = self.problem(outcome, problem, key.as_ref());
        if unread {
            headers::close(response.headers_mut(), self.version);
        }
        response
    }

    fn problem<B: Body>(
        &self,
        outcome: Outcome,
        mut problem: Problem,
        key: Option<&Key>,
    ) -> Response<ResponseBody<B>> {
        problem.request_id = Some(self.request.as_str().to_owned());
        let original = problem.original_request.as_deref();
        if let Some(original) = original {
            self.span.record("idempotency.original_request_id", original);
        }
        let mut response = headers::problem(&problem, &self.config.problems);
        let status = Status::problem(outcome, &problem);
        mark(response.headers_mut(), &self.mark(key, original), status);
        // For whoever speaks another dialect of errors than we do.
        response.extensions_mut().insert(problem);
        response
    }

    fn mark<'a>(&'a self, key: Option<&'a Key>, original: Option<&'a str>) -> Mark<'a> {
        Mark { key, request: &self.request, original, rule: Some(&self.rule) }
    }
}
