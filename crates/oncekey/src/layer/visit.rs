//! One keyed request, from its arrival to its answer.

use std::future::poll_fn;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Request, Response, Version};
use http_body::Body;
use oncekey_core::{Key, KeyId, Scope, fingerprint};
use tower_service::Service;
use tracing::field::{Empty, display};
use tracing::{Instrument as _, Span};

use super::body::ResponseBody;
use super::collect::{Read, read};
use super::context::IdempotencyContext;
use super::layer::{Config, KeyHash};
use super::meters::{self, Quality};
use super::outcome::{Outcome, Outcomes};
use super::rule::{Mode, Rule, WeakKeys};
use super::subject::Head;
use super::work::{Brought, Work};
use crate::clock::Stopwatch;
use crate::engine::{Call, Recalled, Replayed, Reply, RequestId};
use crate::problem::{Code, Problem};

/// Where clients count their attempts.
const ATTEMPT: HeaderName = HeaderName::from_static("idempotency-attempt");

/// A request that a rule applies to.
pub(super) struct Visit {
    pub(super) config: Arc<Config>,
    pub(super) rule: Arc<Rule>,
    pub(super) request: RequestId,
    pub(super) version: Version,
    pub(super) span: Span,
    method: Method,
}

/// A request that ends before the engine hears of it: nothing was claimed.
pub(super) struct Turned {
    pub(super) outcome: Outcome,
    pub(super) problem: Problem,
    pub(super) key: Option<Key>,
}

/// A request that the engine may answer.
enum Prepared {
    /// It was answered a moment ago.
    Known(Key, Box<Replayed>),
    /// The engine has to be asked. If nobody remembered anything about the key, then at this moment.
    Asks(Arc<Call>, Option<Duration>),
    /// Its body was read in vain: there is no key, and none is needed. Or another layer of the same engine
    /// stands around this one, and the request is the very work that it runs: it would wait for itself.
    Passes,
}

/// How a request ended, and the answer to it.
pub(super) type End<B, E> = (Outcome, Result<Response<ResponseBody<B>>, E>);

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
            idempotency.recorded = Empty,
            idempotency.original_request_id = Empty,
            idempotency.original_traceparent = Empty,
        );
        let (method, version) = (parts.method.clone(), parts.version);
        Self { config, rule, request, method, version, span }
    }

    /// Tells the story of the request, and counts it.
    pub(super) async fn tell<S, B, RB>(
        self,
        work: Box<Work<S, B>>,
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
        let (outcome, mut answer) = {
            let mut story = pin!(self.story(work));
            // As `instrument` does it, without another handle of the span: to make one and to let go
            // of it takes longer than to enter it.
            poll_fn(|context| self.span.in_scope(|| story.as_mut().poll(context))).await
        };
        if let Ok(response) = &mut answer
            && self.config.outcomes == Outcomes::InExtensions
        {
            response.extensions_mut().insert(outcome);
        }
        self.span.record("idempotency.outcome", outcome.label());
        self.rule.meters().request(&self.method, outcome);
        let took = watch.elapsed();
        self.rule.meters().took(outcome, took);
        tracing::info!(
            parent: &self.span,
            http.request.method = meters::label(&self.method),
            http.response.status_code = answer.as_ref().ok().map(|told| told.status().as_u16()),
            outcome = outcome.label(),
            duration_ms = took.as_secs_f64() * 1_000.0,
            message = outcome.message(),
        );
        answer
    }

    /// The order is part of the contract: key, scope, body, fingerprint, and only then the engine.
    /// Where a body may hold the key, it comes first.
    async fn story<S, B, RB>(&self, mut work: Box<Work<S, B>>) -> End<RB, S::Error>
    where
        S: Service<Request<B>, Response = Response<RB>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Send + 'static,
        B: Body<Data = Bytes> + From<Bytes> + Send + 'static,
        RB: Body<Data = Bytes> + Send + 'static,
        RB::Error: Send + 'static,
    {
        let (call, looked) = match self.prepare(&mut work).await {
            Ok(Prepared::Asks(call, looked)) => (call, looked),
            Ok(Prepared::Known(key, replayed)) => {
                return self.respond(&key, Reply::Replayed(*replayed));
            }
            Ok(Prepared::Passes) => {
                let answer = work.call_service().await;
                let answer = answer.map(|response| response.map(ResponseBody::new));
                return (Outcome::Bypassed, answer);
            }
            Err(turned) => return (turned.outcome, Ok(self.turn(*turned))),
        };
        let key = call.key.clone();
        let span = self.span.clone();
        let work = move |attempt| work.run(attempt).instrument(span);
        let engine = &self.config.engine;
        let reply = match looked {
            Some(began) => engine.answer_anew(call, began, work).await,
            // In a box, because it is rare, and would make every story larger.
            None => Box::pin(engine.answer(call, work)).await,
        };
        self.respond(&key, reply)
    }

    async fn prepare<S, B>(&self, work: &mut Work<S, B>) -> Result<Prepared, Box<Turned>>
    where
        B: Body<Data = Bytes>,
    {
        if self.rule.needs_body(&work.parts) {
            let body = self.read(work, None).await?;
            let parts = &work.parts;
            return match (self.key(parts, &body)?, self.rule.needs()) {
                (Some(key), _) => {
                    let named = self.name(parts, &key)?;
                    match self.is_within(parts, &named.1) {
                        true => Ok(Prepared::Passes),
                        false => Ok(self.recall(parts, key, named, &body)),
                    }
                }
                (None, Mode::Required) => Err(self.missing()),
                (None, Mode::Optional | Mode::Off) => {
                    self.rule.meters().keyless();
                    Ok(Prepared::Passes)
                }
            };
        }
        let key = self.key(&work.parts, &[])?.ok_or_else(|| self.missing())?;
        let named = self.name(&work.parts, &key)?;
        if self.is_within(&work.parts, &named.1) {
            return Ok(Prepared::Passes);
        }
        let body = self.read(work, Some(&key)).await?;
        Ok(self.recall(&work.parts, key, named, &body))
    }

    fn key(&self, parts: &Parts, body: &[u8]) -> Result<Option<Key>, Box<Turned>> {
        let Some((place, found)) = self.rule.search(parts, body) else { return Ok(None) };
        let key = found.map_err(|error| {
            self.rule.meters().key(place, Quality::Invalid);
            invalid(format!("Nothing was executed: {error}."))
        })?;
        let quality = Quality::of(&key);
        self.rule.meters().key(place, quality);
        self.record_attempt(&parts.headers);
        match (quality, self.rule.on_weak_keys()) {
            (Quality::Weak, WeakKeys::Reject) => Err(invalid(
                "Nothing was executed: the idempotency key is easy to guess. Send a random one of \
                 16 characters or more, for example a UUID, and no e-mail address.",
            )),
            (Quality::Weak, WeakKeys::Warn) => {
                if let Some(keys) = self.rule.weak_seen().happened(self.config.engine.uptime()) {
                    tracing::warn!(
                        parent: &self.span,
                        keys,
                        "weak keys: clients may come to the same one by chance"
                    );
                }
                Ok(Some(key))
            }
            (Quality::Weak | Quality::Good | Quality::Invalid, _) => Ok(Some(key)),
        }
    }

    fn missing(&self) -> Box<Turned> {
        self.rule.meters().keyless();
        let detail = format!(
            "This operation needs {}, so that a retry cannot do it twice. Nothing was executed.",
            self.rule.wanted_key()
        );
        let mut problem = Problem::new(Code::KeyMissing, detail);
        problem.hint = Some(
            "Generate one random key per operation, and send the same key on every retry of that \
             operation.",
        );
        Turned::new(Outcome::MissingKey, problem, None)
    }

    /// Whom the key belongs to, and what its record is called.
    fn name(&self, parts: &Parts, key: &Key) -> Result<(Scope, KeyId), Box<Turned>> {
        let from = self.rule.own_scope().unwrap_or(&self.config.scope);
        let scope = from.find(parts).map_err(|refused| {
            Turned::new(Outcome::InvalidRequest, refused.problem(), Some(key))
        })?;
        let id = self.config.engine.key_id(&scope, key);
        if !self.span.is_disabled() && self.config.key_hash == KeyHash::Shown {
            // Eight digits find a record in a log and say nothing about the key.
            self.span.record("idempotency.key_hash", id.short().as_str());
        }
        Ok((scope, id))
    }

    /// Whether the request is the work of an attempt for the same record, begun by a layer around this one.
    fn is_within(&self, parts: &Parts, id: &KeyId) -> bool {
        let around = parts.extensions.get::<IdempotencyContext>();
        around.is_some_and(|attempt| attempt.is_under_way_for(&self.config.engine, id))
    }

    /// Reads the body, and leaves what was read in its place.
    async fn read<S, B>(
        &self,
        work: &mut Work<S, B>,
        key: Option<&Key>,
    ) -> Result<Bytes, Box<Turned>>
    where
        B: Body<Data = Bytes>,
    {
        let limit = work.limits.request_body;
        let read = match mem::replace(&mut work.body, Brought::Read(Bytes::new())) {
            Brought::Unread(body) => read(pin!(body), limit).await,
            Brought::Read(body) => Read::Whole(body),
        };
        let problem = match read {
            Read::Whole(body) => {
                work.body = Brought::Read(body.clone());
                return Ok(body);
            }
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
        Err(Turned::new(Outcome::InvalidRequest, problem, key))
    }

    /// Looks whether somebody remembers the answer, and computes the fingerprint only if not.
    fn recall(
        &self,
        parts: &Parts,
        key: Key,
        (scope, id): (Scope, KeyId),
        body: &Bytes,
    ) -> Prepared {
        let head = Head::of(parts, self.config.uri(parts));
        head.with_subject(&self.rule, body, |subject| {
            let exact = self.config.exactly.of(&self.rule, subject);
            let looked = match exact.map(|exact| self.config.engine.look_back(&id, exact)) {
                Some(Recalled::Same(replayed)) => return Prepared::Known(key, replayed),
                Some(Recalled::Nothing(looked)) => Some(looked),
                Some(Recalled::Other) | None => None,
            };
            let read = fingerprint::Prepared::v1(subject, self.rule.fingerprint_rules());
            let call = Call {
                id,
                key,
                scope,
                fingerprint: read.fingerprint(),
                exact,
                places: read.places(),
                route: self.rule.shared_name(),
                request: self.request.clone(),
                policy: Arc::clone(self.rule.shared_policy()),
            };
            Prepared::Asks(Arc::new(call), looked)
        })
    }

    /// Clients that count their attempts let telemetry tell a retry from a second click.
    fn record_attempt(&self, headers: &HeaderMap) {
        if self.span.is_disabled() {
            return;
        }
        let line = headers.get(ATTEMPT).and_then(|line| line.to_str().ok());
        if let Some(attempt) = line.and_then(|text| text.parse::<u32>().ok()) {
            self.span.record("idempotency.attempt", display(attempt));
        }
    }
}

impl Turned {
    fn new(outcome: Outcome, problem: Problem, key: Option<&Key>) -> Box<Self> {
        Box::new(Self { outcome, problem, key: key.cloned() })
    }
}

fn invalid(detail: impl Into<std::borrow::Cow<'static, str>>) -> Box<Turned> {
    Turned::new(Outcome::InvalidKey, Problem::new(Code::KeyInvalid, detail), None)
}
