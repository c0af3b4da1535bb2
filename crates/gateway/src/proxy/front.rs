//! One request, from the connection that it came over to its answer.

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use oncekey::engine::Engine;
use oncekey::layer::{Outcome, RequestBody, ResponseBody};
use tokio::sync::OwnedSemaphorePermit;
use tower_service::Service as _;

use super::cors::{Author, allow};
use super::exchange::{Answered, Exchange, count_abort};
use super::forward::Reply;
use super::headers::{Switch, say_forwarded, strip_hops};
use super::paced::Paced;
use super::presence::Presence;
use super::strict::{Executed, Why, document, note};
use super::watched::Watched;
use crate::admin::Events;
use crate::observe::{Observer, Reached};
use crate::overheard::Overheard;
use crate::plan::Plan;
use crate::route::{Assigned, ClientName, Treatment};
use crate::telemetry::trace::{Serving, Tracer};
use crate::well_known;

/// The body of everything that a client is told.
pub(crate) type Told = Watched<ResponseBody<Reply>>;

/// Who is on the other side of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Where it is, as the upstream is told; `None` for unix sockets.
    pub(crate) address: Option<HeaderValue>,
    /// `http` or `https`.
    pub(crate) scheme: &'static str,
    /// Who it is, if its certificate was verified.
    pub(crate) name: Option<ClientName>,
    /// Whether it is still there.
    pub(super) presence: Presence,
    /// The place that it takes.
    pub(super) place: Arc<OwnedSemaphorePermit>,
}

/// What every connection of the gateway shares.
pub(crate) struct Front {
    /// What to do with requests; a reload swaps it.
    pub(crate) plan: ArcSwap<Plan>,
    pub(crate) engine: Engine,
    pub(crate) observer: Arc<Observer>,
    /// Where finished requests are told.
    pub(crate) events: Events,
    pub(crate) tracer: Tracer,
}

impl Peer {
    pub(super) fn new(
        place: &Arc<OwnedSemaphorePermit>,
        address: Option<HeaderValue>,
        scheme: &'static str,
        name: Option<ClientName>,
    ) -> Self {
        Self { address, scheme, name, presence: Presence::default(), place: Arc::clone(place) }
    }
}

impl Front {
    /// Answers one request. Everything that can go wrong is an answer, too.
    ///
    /// # Cancellation
    /// A protected request that has been claimed goes on in a task of its own; any other one is
    /// dropped, and with it its connection to the upstream.
    pub(crate) async fn answer(
        self: Arc<Self>,
        peer: Peer,
        request: Request<Paced>,
    ) -> Response<Told> {
        if request.method() == Method::CONNECT {
            return no_tunnel();
        }
        let plan = self.plan.load_full();
        let origin = plan.cors.origin(request.headers());
        if let Some(document) = plan.policy_document(&request) {
            let mut response = told(document);
            plan.cors.open(response.headers_mut(), origin.as_ref());
            return response;
        }
        let (mut head, mut body) = request.into_parts();
        let switch = Switch::of(&head.headers);
        strip_hops(&mut head.headers, &plan.own);
        say_forwarded(&mut head.headers, peer.address, peer.scheme);
        if let Switch::To(_) = switch {
            head.extensions.insert(switch);
        }
        if let Some(name) = peer.name {
            head.extensions.insert(name);
        }
        let route = match head.method.is_safe() {
            true => None,
            false => plan.routes.find(&head.method, head.uri.path()),
        };
        let mut serving = self.tracer.request(&mut head, route.map(|route| &**route));
        let assigned = route.map(|route| Assigned::new(route, &head));
        let preflight = plan.cors.preflight(&plan.routes, &head);
        let is_status = plan.is_status(&head);
        let method = head.method.clone();
        let is_protected = assigned.as_ref().is_some_and(|at| at.treatment == Treatment::Protect);
        if !is_protected && is_conversation(&head.headers) {
            body.relax();
        }
        let (request, exchange) = self.watch(head, body, assigned);
        if is_protected || exchange.is_some() {
            peer.presence.watch();
        }
        let response = match plan.service.clone().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let reached = peer.presence.met();
        if reached == Reached::Nobody {
            let name = route.map_or_else(|| "-".into(), |route| Arc::clone(&route.spec.name));
            count_abort(name, "before_answer");
        }
        let new_id = || self.engine.request_id().as_str().to_owned();
        let mut response = plan.dialect.rewrite(response, &method, new_id);
        if response.status().is_success() && !preflight.is_empty() {
            allow(response.headers_mut(), &preflight);
        }
        if is_status || Author::of(response.extensions()) == Author::Gateway {
            plan.cors.open(response.headers_mut(), origin.as_ref());
        } else if is_protected {
            plan.cors.expose(response.headers_mut());
        }
        serving.answered(&response);
        delivered(response, (exchange, reached), serving)
    }

    /// Listens to the request if it is observed, and remembers it if anybody wants to know its end.
    fn watch(
        self: &Arc<Self>,
        mut head: Parts,
        body: Paced,
        assigned: Option<Assigned>,
    ) -> (Request<RequestBody<Overheard>>, Option<Exchange>) {
        let observed = assigned.as_ref().filter(|at| at.treatment == Treatment::Observe);
        let limit = observed.map(|at| at.route.spec.policy.limits.request_body);
        let mut exchange = (limit.is_some() || self.events.has_listeners()).then(|| {
            let route = assigned.as_ref().map(|assigned| &assigned.route);
            Exchange::begin(self, route, &head)
        });
        let body = match (limit, &mut exchange) {
            (Some(limit), Some(exchange)) => {
                let (body, ear) = Overheard::heard(body, limit);
                exchange.listen(ear);
                body
            }
            (Some(_), None) | (None, _) => Overheard::alone(body),
        };
        if let Some(assigned) = assigned {
            head.extensions.insert(assigned);
        }
        (Request::from_parts(head, RequestBody::new(body)), exchange)
    }
}

/// Whether both sides may go on speaking for hours, with silence in between: calls of gRPC do. They
/// are held up by nobody, and hold up nobody, as long as they are not read as a whole.
pub(super) fn is_conversation(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// What a client is told that was stopped in the middle of its request.
pub(super) fn refuse(status: u16, problem: String) -> Response<Told> {
    let body = ResponseBody::new(Either::Right(Full::from(problem)));
    let mut response = Response::new(Watched::unwatched(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    let kind = HeaderValue::from_static(oncekey::problem::MEDIA_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    // What is left of its body is no request.
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// What a client is told that takes the gateway for a way to somewhere else.
fn no_tunnel() -> Response<Told> {
    note(Why::Tunnel);
    let mut response = refuse(Why::Tunnel.status(), document(Why::Tunnel, Executed::No));
    // Nothing was cut off: what comes next is another request.
    response.headers_mut().remove(CONNECTION);
    response
}

impl Plan {
    /// The policy document, if somebody asks for it.
    fn policy_document<B>(&self, request: &Request<B>) -> Option<Bytes> {
        let read = matches!(*request.method(), Method::GET | Method::HEAD);
        let document = self.well_known.as_ref()?;
        (read && request.uri().path() == well_known::PATH).then(|| document.clone())
    }

    /// Whether somebody asks what became of a key, which the layer answers.
    fn is_status(&self, head: &Parts) -> bool {
        let read = matches!(head.method, Method::GET | Method::HEAD);
        let path = self.status_path.as_deref();
        read && path.is_some_and(|path| head.uri.path().starts_with(path))
    }
}

/// Tells whoever wants to know when a response has been handed over.
fn delivered(
    response: Response<ResponseBody<Reply>>,
    (exchange, reached): (Option<Exchange>, Reached),
    serving: Serving,
) -> Response<Told> {
    if exchange.is_none() && !serving.is_on() {
        return response.map(Watched::unwatched);
    }
    let outcome = response.extensions().get::<Outcome>().copied();
    let answered = Answered { status: response.status(), outcome, reached };
    let end = Box::new(move |delivered| {
        serving.end();
        if let Some(exchange) = exchange {
            exchange.end(answered, delivered);
        }
    });
    response.map(|body| Watched::new(body, end))
}

/// The policy document. Clients may keep it as long as a configuration usually holds.
fn told(document: Bytes) -> Response<Told> {
    let mut response = plain(StatusCode::OK, document);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=300"));
    response
}

fn plain(status: StatusCode, body: Bytes) -> Response<Told> {
    let body = ResponseBody::new(Either::Right(Full::new(body)));
    let mut response = Response::new(Watched::unwatched(body));
    *response.status_mut() = status;
    response
}
