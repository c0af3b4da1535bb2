//! The service behind the layer: sends a request to the upstream, and says what it knows if there
//! is no answer.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, EXPECT, HOST};
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt as _, Collected, Either, Full};
use hyper::upgrade::OnUpgrade;
use oncekey::layer::{IdempotencyContext, Undelivered, is_stream};
use oncekey::problem::{Code, Executed, Problem, Retryable};
use tower_service::Service;

use super::headers::{Switch, strip_hops};
use super::tunnel::{Tether, tunnel};
use crate::completer::{Keeper, Kept};
use crate::route::{Assigned, Completer, Route, Treatment};
use crate::telemetry::trace::Tracer;
use crate::upstream::{Answer, Care, Failure, Outgoing, Upstream};

/// Passes requests on to an upstream. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub(crate) struct Forward(Arc<Settings>);

/// An answer's body: the upstream's, or one of ours.
pub(crate) type Reply = Either<Answer, Full<Bytes>>;

/// What all requests have in common.
pub(crate) struct Settings {
    pub(crate) upstream: Upstream,
    /// What the upstream is told as `Host`; as the client wrote it, if nothing is set.
    pub(crate) host: Option<HeaderValue>,
    /// Who keeps the requests of routes that complete them.
    pub(crate) keeper: Keeper,
    pub(crate) tracer: Tracer,
}

/// Tells an upstream which attempt of a key this is. A number that only rises: what carries a smaller
/// one than was seen before is out of date.
const ATTEMPT: HeaderName = HeaderName::from_static("idempotency-attempt");
/// The name of the only effect of a request that is passed on.
pub(crate) const STEP: &str = "upstream";
/// A connection that was refused may be accepted a moment later.
const COME_BACK: Duration = Duration::from_secs(1);

impl Forward {
    pub(crate) fn new(settings: Settings) -> Self {
        Self(Arc::new(settings))
    }

    async fn pass_on(self, mut request: Box<Request<Outgoing>>) -> Response<Reply> {
        let attempt = request.extensions_mut().remove::<IdempotencyContext>();
        let assigned = request.extensions_mut().remove::<Assigned>();
        if let Some(assigned) = assigned.as_ref().filter(|assigned| assigned.may_complete()) {
            // In a box, because few requests are kept, and all others would carry its size.
            let prepared = Box::pin(self.0.prepare(*request, attempt.as_ref(), assigned));
            request = match prepared.await {
                Ok(request) => Box::new(request),
                Err(refused) => return *refused,
            };
        }
        let treatment = assigned.as_ref().map(|assigned| assigned.treatment);
        let route = assigned.map(|assigned| assigned.route);
        let switch = request.extensions_mut().remove::<Switch>();
        let client = match (request.extensions_mut().remove::<Tether>(), switch) {
            // A request that is kept cannot become a conversation.
            (Some(tether), Some(switch)) if attempt.is_none() => {
                let client = hyper::upgrade::on(&mut *request);
                switch.ask(request.headers_mut());
                Some((client, tether))
            }
            (Some(_) | None, _) => None,
        };
        self.0.address(&mut request);
        let care = match &attempt {
            Some(attempt) => {
                announce(&mut request, attempt, route.as_deref());
                Care::Great
            }
            None => {
                // Who trusts this number behind a protected route takes it for ours. Nobody does where
                // nothing is protected, and there nothing is changed.
                if treatment == Some(Treatment::Protect) {
                    request.headers_mut().remove(ATTEMPT);
                }
                Care::Usual
            }
        };
        let calling = self.0.tracer.upstream(request.headers_mut());
        let answered = self.0.upstream.send(request, care).await;
        calling.ended(answered.as_ref().map(Response::status).ok());
        match answered {
            // A client that did not ask would go on in HTTP, and nobody would agree any more on
            // where an answer ends.
            Ok(mut response)
                if client.is_none() && response.status() == StatusCode::SWITCHING_PROTOCOLS =>
            {
                drop(response.body_mut().switch());
                explain(&Failure::Switched, route.as_deref(), care)
            }
            Ok(mut response) => {
                if care == Care::Great && !is_stream(response.headers()) {
                    response.body_mut().hurry(self.0.upstream.patience());
                }
                returned(response, client)
            }
            Err(failure) => explain(&failure, route.as_deref(), care),
        }
    }
}

impl Service<Request<Outgoing>> for Forward {
    type Response = Response<Reply>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Reply>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Outgoing>) -> Self::Future {
        let forward = self.clone();
        // In a box of its own: in this one it would lie once for each hand that it goes through, and
        // a box is copied when it is filled.
        let request = Box::new(request);
        Box::pin(async move { Ok(forward.pass_on(request).await) })
    }
}

impl Settings {
    /// Sees to it that a request that may have to be sent again is kept before it is sent.
    ///
    /// # Errors
    /// What the client is told. Nothing was sent.
    async fn prepare(
        &self,
        request: Request<Outgoing>,
        attempt: Option<&IdempotencyContext>,
        assigned: &Assigned,
    ) -> Result<Request<Outgoing>, Box<Response<Reply>>> {
        let Assigned { route, treatment } = assigned;
        let (attempt, time) = match (treatment, attempt, route.spec.completer) {
            // A request of the completer without a lease, or of which nobody can have sent anything
            // before, would be one that nobody asked for.
            (Treatment::Complete, None, _) => return Err(Box::new(not_begun())),
            (Treatment::Complete, Some(attempt), _)
                if attempt.fence().is_none() || !attempt.is_retry() =>
            {
                return Err(Box::new(not_begun()));
            }
            (Treatment::Protect, Some(attempt), Completer::For(time)) => (attempt, time),
            // The completer's is kept already, and its time goes on.
            (Treatment::Complete, Some(_), _)
            | (Treatment::Pass | Treatment::Observe | Treatment::Protect, ..) => {
                return Ok(request);
            }
        };
        if attempt.fence().is_none() {
            // It runs without a record, so there is nothing to complete.
            return Ok(request);
        }
        let (head, body) = request.into_parts();
        // The layer has read it: this takes no time and cannot fail.
        let Ok(body) = body.collect().await.map(Collected::to_bytes) else {
            return Err(Box::new(not_kept(route, attempt)));
        };
        let kept = Kept {
            method: head.method.clone(),
            uri: head.uri.clone(),
            scope: attempt.scope().clone(),
            headers: head.headers.clone(),
            body: body.clone(),
        };
        let keeping = self.keeper.keep(attempt.key_id(), &kept, time);
        // Keeping may have taken its time: what is left of the lease is looked at again.
        if keeping.await.is_err() || attempt.send().await.is_err() {
            return Err(Box::new(not_kept(route, attempt)));
        }
        Ok(Request::from_parts(head, Outgoing::from(body)))
    }

    /// Writes the request the way a server wants it: only the path in the first line, one host.
    fn address(&self, request: &mut Request<Outgoing>) {
        let authority = request.uri().authority().cloned();
        if authority.is_some() || request.uri().scheme().is_some() {
            let path = request.uri().path_and_query().cloned();
            *request.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        }
        *request.version_mut() = Version::HTTP_11;
        let headers = request.headers_mut();
        // The client was told to go on when its body was first asked for.
        headers.remove(EXPECT);
        if let Some(host) = &self.host {
            headers.insert(HOST, host.clone());
        } else if let (Some(authority), false) = (authority, headers.contains_key(HOST)) {
            // HTTP/2 says it elsewhere.
            if let Ok(host) = HeaderValue::try_from(authority.as_str()) {
                headers.insert(HOST, host);
            }
        }
    }
}

/// What the client is told if there is no answer. How that is written is decided later.
fn explain(failure: &Failure, route: Option<&Route>, care: Care) -> Response<Reply> {
    let undelivered = failure.undelivered();
    let (code, detail, phase) = match (failure, undelivered) {
        // Neither the upstream nor we failed: what the client sent broke off.
        (Failure::Broke(_, fault), _) if fault.is_of_client() => {
            (Code::BodyIncomplete, "The body of the request ended before its end.", "client")
        }
        (
            Failure::Unreachable(_) | Failure::Broke(..) | Failure::Switched,
            Undelivered::NeverSent,
        ) => (
            Code::UpstreamUnreachable,
            "The service behind this gateway could not be reached. Nothing was executed.",
            "connect",
        ),
        (Failure::Late(_), Undelivered::NeverSent) => (
            Code::UpstreamUnreachable,
            "The service behind this gateway took no request in time. Nothing was executed.",
            "connect",
        ),
        (Failure::Late(_), Undelivered::NoAnswer) => (
            Code::UpstreamTimeout,
            "The service behind this gateway got the request and did not answer in time. \
             Whether it was executed is not known.",
            "reading",
        ),
        (
            Failure::Unreachable(_) | Failure::Broke(..) | Failure::Switched,
            Undelivered::NoAnswer,
        ) => (
            Code::UpstreamNoAnswer,
            "The service behind this gateway got the request and gave no complete answer. \
             Whether it was executed is not known.",
            "sent",
        ),
    };
    if code != Code::BodyIncomplete {
        let name = route.map_or("-", Route::name).to_owned();
        metrics::counter!("oncekey_upstream_failures_total", "route" => name, "phase" => phase)
            .increment(1);
        tracing::warn!(error = %chain(failure), phase, "no answer from the upstream");
    }
    let mut problem = Problem::new(code, detail);
    let again = route.is_some_and(|route| route.spec.policy.class.may_send_again());
    match undelivered {
        Undelivered::NeverSent if code == Code::UpstreamUnreachable => {
            problem.retry_after = Some(COME_BACK);
        }
        // With a key the retry is safe: the class says so.
        Undelivered::NoAnswer if again && care == Care::Great => {
            problem.retryable = Retryable::Yes;
            problem.hint = Some("Retry with the same key. Do not create a new one.");
        }
        // The first who hears of it is the one who would pay twice.
        Undelivered::NoAnswer if care == Care::Great => {
            problem.hint = Some(
                "It may have been executed: do not try with a new key. Contact support with the id in \
                 request_id.",
            );
        }
        Undelivered::NeverSent | Undelivered::NoAnswer => {}
    }
    told(problem, undelivered)
}

/// What the client is told whose request could not be kept.
fn not_kept(route: &Route, attempt: &IdempotencyContext) -> Response<Reply> {
    let name = Arc::clone(&route.spec.name);
    metrics::counter!("oncekey_completer_not_kept_total", "route" => name).increment(1);
    tracing::warn!(route = route.name(), "a request was not sent, because it could not be kept");
    let mut problem = match attempt.is_retry() {
        false => {
            let detail = "The request could not be kept, so it was not sent. Nothing was executed.";
            Problem::new(Code::StoreUnavailable, detail)
        }
        true => {
            let detail = "The request could not be kept, so it was not sent again. What became of it \
                          before is not known.";
            let mut problem = Problem::new(Code::StoreUnavailable, detail);
            problem.executed = Executed::Unknown;
            problem
        }
    };
    problem.retry_after = Some(COME_BACK);
    told(problem, Undelivered::NeverSent)
}

/// What the completer is told, which throws it away.
fn not_begun() -> Response<Reply> {
    let detail = "Nobody waits for this request, and nobody has sent it before.";
    told(Problem::new(Code::StoreUnavailable, detail), Undelivered::NeverSent)
}

fn told(problem: Problem, undelivered: Undelivered) -> Response<Reply> {
    let mut response = Response::new(Either::Right(Full::default()));
    if let Ok(status) = StatusCode::from_u16(problem.status) {
        *response.status_mut() = status;
    }
    response.extensions_mut().insert(problem);
    response.extensions_mut().insert(undelivered);
    response
}

/// What an upstream learns about the attempt that a request belongs to.
fn announce(request: &mut Request<Outgoing>, attempt: &IdempotencyContext, route: Option<&Route>) {
    let headers = request.headers_mut();
    // What is kept has to suit every retry, whatever encodings that one accepts (T11).
    headers.remove(ACCEPT_ENCODING);
    if let Some(name) = route.and_then(|route| route.spec.forward_key.as_ref())
        && let Ok(key) = HeaderValue::try_from(attempt.derived_key(STEP))
    {
        headers.insert(name.clone(), key);
    }
    match attempt.fence() {
        Some(fence) => headers.insert(ATTEMPT, HeaderValue::from(fence.number())),
        None => headers.remove(ATTEMPT),
    };
}

/// An answer of the upstream, without what belongs to the connection that it came over.
fn returned(
    mut response: Response<Answer>,
    client: Option<(OnUpgrade, Tether)>,
) -> Response<Reply> {
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let switch = Switch::of(response.headers());
    strip_hops(response.headers_mut(), &[]);
    if let (true, Some((client, tether))) = (switched, client)
        && let Some(upstream) = response.body_mut().switch()
    {
        switch.ask(response.headers_mut());
        tokio::spawn(tunnel(client, tether, upstream));
    }
    response.map(Either::Left)
}

/// An error and what lies behind it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
