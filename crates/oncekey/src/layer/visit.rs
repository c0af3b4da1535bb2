//! One keyed request, from its arrival to its answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, Version};
use http_body::Body;
use oncekey_core::{Fingerprint, Key, Places, Scope, Subject};
use tower_service::Service;
use tracing::field::{Empty, display};
use tracing::{Instrument as _, Span};

use super::body::ResponseBody;
use super::collect::{Read, read};
use super::headers::{self, Mark, Status, mark};
use super::layer::Config;
use super::meters::Quality;
use super::outcome::Outcome;
use super::replay::{Restored, restore};
use super::rule::Rule;
use super::scope::NoScope;
use super::status::accepted;
use super::work::{Ended, Work};
use crate::clock::Stopwatch;
use crate::engine::{
    Call, NoSend, Ran, Recorded, Refused, Replayed, Reply, RequestId, Unavailable,
};
use crate::problem::{Code, Executed, Problem, Retryable};

/// A request that a rule applies to.
pub(super) struct Visit {
    config: Arc<Config>,
    rule: Arc<Rule>,
    request: RequestId,
    method: Method,
    version: Version,
    span: Span,
}

/// A request that ends before the engine hears of it: nothing was claimed.
struct Turned {
    outcome: Outcome,
    problem: Problem,
    key: Option<Key>,
}

/// How a request ended, and the answer to it.
type End<B, E> = (Outcome, Result<Response<ResponseBody<B>>, E>);

/// An attempt that lost its lease has a successor by now, which is at work: soon is soon enough.
const AFTER_LOST_LEASE: Duration = Duration::from_secs(1);

impl Visit {
    pub(super) fn new(config: Arc<Config>, rule: Arc<Rule>, parts: &Parts) -> Self {
        let request = config.request_id(parts);
        let span = tracing::info_span!(
            "idempotency",
            idempotency.route = rule.name(),
            idempotency.mode = rule.needs().label(),
            idempotency.request_id = request.as_str(),
            idempotency.outcome = Empty,
            idempotency.key_hash = Empty,
            idempotency.replayed = Empty,
            idempotency.attempt = Empty,
            idempotency.fence = Empty,
            idempotency.original_request_id = Empty,
            idempotency.original_traceparent = Empty,
        );
        let (method, version) = (parts.method.clone(), parts.version);
        Self { config, rule, request, method, version, span }
    }

    /// Tells the story of the request, and counts it.
    pub(super) async fn tell<S, B, RB>(
        self,
        service: S,
        parts: Parts,
        body: B,
    ) -> Result<Response<ResponseBody<RB>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<RB>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Send + 'static,
        B: Body<Data = Bytes> + From<Bytes> + Send + 'static,
        RB: Body<Data = Bytes> + Send + 'static,
        RB::Error: Send + 'static,
    {
        let watch = Stopwatch::start();
        let (outcome, answer) =
            self.story(service, parts, body).instrument(self.span.clone()).await;
        self.span.record("idempotency.outcome", outcome.label());
        self.rule.meters().request(&self.method, outcome);
        self.rule.meters().took(outcome, watch.elapsed());
        answer
    }

    /// The order is part of the contract: key, scope, body, fingerprint, and only then the engine.
    async fn story<S, B, RB>(&self, service: S, parts: Parts, body: B) -> End<RB, S::Error>
    where
        S: Service<Request<B>, Response = Response<RB>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Send + 'static,
        B: Body<Data = Bytes> + From<Bytes> + Send + 'static,
        RB: Body<Data = Bytes> + Send + 'static,
        RB::Error: Send + 'static,
    {
        let (call, body) = match self.prepare(&parts, body).await {
            Ok(prepared) => prepared,
            Err(turned) => return (turned.outcome, Ok(self.turn(turned))),
        };
        let key = call.key.clone();
        let limits = call.policy.limits;
        let span = self.span.clone();
        let work = Work { service, parts, body, limits };
        let work = move |attempt| work.run(attempt).instrument(span);
        let reply = self.config.engine.answer(call, work).await;
        self.respond(&key, reply)
    }

    async fn prepare<B>(&self, parts: &Parts, body: B) -> Result<(Call, Bytes), Turned>
    where
        B: Body<Data = Bytes>,
    {
        let key = self.key(&parts.headers)?;
        let scope = self.scope(parts, &key)?;
        let body = self.read(body, &key).await?;
        let (fingerprint, places) = self.fingerprint(parts, &body);
        let call = Call {
            key,
            scope,
            fingerprint,
            places,
            route: self.rule.shared_name(),
            request: self.request.clone(),
            policy: Arc::clone(self.rule.shared_policy()),
        };
        Ok((call, body))
    }

    fn key(&self, headers: &HeaderMap) -> Result<Key, Turned> {
        match self.rule.key(headers) {
            Ok(Some(key)) => {
                self.rule.meters().key(Quality::of(&key));
                self.record_attempt(headers);
                Ok(key)
            }
            Ok(None) => {
                self.rule.meters().keyless();
                let mut problem = Problem::new(
                    Code::KeyMissing,
                    "This operation needs an Idempotency-Key header, so that a retry cannot do it \
                     twice. Nothing was executed.",
                );
                problem.hint = Some(
                    "Generate one random key per operation, and send the same key on every retry \
                     of that operation.",
                );
                Err(Turned { outcome: Outcome::MissingKey, problem, key: None })
            }
            Err(error) => {
                self.rule.meters().key(Quality::Invalid);
                let detail = format!("Nothing was executed: {error}.");
                let problem = Problem::new(Code::KeyInvalid, detail);
                Err(Turned { outcome: Outcome::InvalidKey, problem, key: None })
            }
        }
    }

    fn scope(&self, parts: &Parts, key: &Key) -> Result<Scope, Turned> {
        let scope = self.config.scope.find(parts).map_err(|NoScope| {
            let outcome = Outcome::InvalidRequest;
            Turned { outcome, problem: NoScope.problem(), key: Some(key.clone()) }
        })?;
        if !self.span.is_disabled() {
            // Eight digits find a record in a log and say nothing about the key.
            let id = self.config.engine.key_id(&scope, key).to_string();
            self.span.record("idempotency.key_hash", &id[..8]);
        }
        Ok(scope)
    }

    async fn read<B>(&self, body: B, key: &Key) -> Result<Bytes, Turned>
    where
        B: Body<Data = Bytes>,
    {
        let limit = self.rule.shared_policy().limits.request_body;
        let problem = match read(body, limit).await {
            Read::Whole(body) => return Ok(body),
            Read::TooLarge => Problem::new(
                Code::BodyTooLarge,
                format!(
                    "A request with an Idempotency-Key may have a body of at most {limit} bytes \
                     here. Nothing was executed."
                ),
            ),
            Read::Broken => Problem::new(
                Code::BodyIncomplete,
                "The request body could not be read to its end. Nothing was executed.",
            ),
        };
        Err(Turned { outcome: Outcome::InvalidRequest, problem, key: Some(key.clone()) })
    }

    fn fingerprint(&self, parts: &Parts, body: &Bytes) -> (Fingerprint, Places) {
        let uri = self.config.uri(parts);
        let mut headers = Vec::new();
        for name in self.rule.counted_headers() {
            let lines = parts.headers.get_all(name).iter();
            headers.extend(lines.map(|value| (name.as_str(), value.as_bytes())));
        }
        let mut types = parts.headers.get_all(CONTENT_TYPE).iter().map(|value| value.as_bytes());
        let content_type = match (types.next(), types.next()) {
            (only, None) => only,
            // Who knows which of them the service believes: all count, and none means JSON.
            (_, Some(_)) => {
                let lines = parts.headers.get_all(CONTENT_TYPE).iter();
                headers.extend(lines.map(|value| (CONTENT_TYPE.as_str(), value.as_bytes())));
                None
            }
        };
        let subject = Subject {
            method: parts.method.as_str(),
            path: uri.path().as_bytes(),
            query: uri.query().map(str::as_bytes),
            content_type,
            headers: &headers,
            body,
        };
        Fingerprint::v1(&subject, self.rule.fingerprint_rules())
    }

    fn respond<B: Body, E>(&self, key: &Key, reply: Reply<Ended<B, E>>) -> End<B, E> {
        let outcome = Outcome::of(&reply);
        match reply {
            Reply::Ran(ran) => self.ran(key, outcome, ran),
            Reply::Replayed(replayed) => self.replay(key, outcome, &replayed),
            Reply::Refused(refused) => (outcome, Ok(self.refuse(key, &refused))),
        }
    }

    fn ran<B: Body, E>(&self, key: &Key, outcome: Outcome, ran: Ran<Ended<B, E>>) -> End<B, E> {
        let Ran { value, recorded, fence } = ran;
        self.span.record("idempotency.replayed", false);
        if let Some(fence) = fence {
            self.span.record("idempotency.fence", fence.number());
        }
        match value {
            Some(Ended::Answer(mut response)) => {
                let retention = self.rule.shared_policy().retention;
                let status = Status::ran(outcome, recorded, retention);
                let own = self.request.as_str();
                mark(response.headers_mut(), &self.mark(Some(key), Some(own)), status);
                (outcome, Ok(response))
            }
            Some(Ended::Failed(error)) => (outcome, Err(error)),
            Some(Ended::NotBegun(why)) => {
                let why = match why {
                    NoSend::Lost | NoSend::TooLate => Unavailable::LeaseLost,
                    NoSend::Store => Unavailable::Store,
                };
                let refused = Refused::Unavailable { why, retry_after: AFTER_LOST_LEASE };
                (Outcome::of_refusal(&refused), Ok(self.refuse(key, &refused)))
            }
            None => (outcome, Ok(self.problem(outcome, self.broke(recorded), Some(key)))),
        }
    }

    /// The problem of the caller whose work panicked.
    fn broke(&self, recorded: Recorded) -> Problem {
        let mut problem = match recorded {
            Recorded::Kept | Recorded::Tombstone(_) | Recorded::Unprotected => Problem::new(
                Code::WorkFailed,
                "The service broke while it executed the request. How far it got is not known.",
            ),
            Recorded::Released => {
                let mut problem = Problem::new(
                    Code::WorkFailed,
                    "The service broke while it executed the request, and everything was undone.",
                );
                problem.executed = Executed::No;
                problem.retryable = Retryable::Yes;
                problem
            }
            Recorded::Unknown | Recorded::Journalled | Recorded::Fenced | Recorded::Unrecorded => {
                let mut problem = Problem::new(
                    Code::OutcomeUnknown,
                    "The service broke while it executed the request, and nobody knows how far it \
                     got.",
                );
                if self.rule.shared_policy().class.may_send_again() {
                    problem.retryable = Retryable::Yes;
                }
                problem
            }
        };
        problem.status = Code::WorkFailed.status();
        problem
    }

    fn replay<B: Body, E>(&self, key: &Key, outcome: Outcome, replayed: &Replayed) -> End<B, E> {
        self.span.record("idempotency.replayed", true);
        self.span.record("idempotency.fence", replayed.fence.number());
        self.span.record("idempotency.original_request_id", replayed.original.as_str());
        let Ok(Restored { mut response, traceparent }) = restore(&replayed.saved) else {
            let refused = Refused::Damaged;
            return (Outcome::of_refusal(&refused), Ok(self.refuse(key, &refused)));
        };
        if let Some(trace) = traceparent {
            self.span.record("idempotency.original_traceparent", trace);
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

    fn turn<B: Body>(&self, turned: Turned) -> Response<ResponseBody<B>> {
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
        response
    }

    fn mark<'a>(&'a self, key: Option<&'a Key>, original: Option<&'a str>) -> Mark<'a> {
        Mark { key, request: &self.request, original, rule: Some(&self.rule) }
    }

    /// Clients that count their attempts let telemetry tell a retry from a second click.
    fn record_attempt(&self, headers: &HeaderMap) {
        let line = headers.get("idempotency-attempt").and_then(|line| line.to_str().ok());
        if let Some(attempt) = line.and_then(|text| text.parse::<u32>().ok()) {
            self.span.record("idempotency.attempt", display(attempt));
        }
    }
}
