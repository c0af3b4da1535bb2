//! One request, from the connection that it came over to its answer.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use oncekey::engine::Engine;
use oncekey::layer::{Outcome, RequestBody, ResponseBody};
use tower_service::Service as _;

use super::exchange::{Answered, Exchange};
use super::forward::{Reply, sign};
use super::headers::{Switch, say_forwarded, strip_hops};
use super::watched::Watched;
use crate::admin::Events;
use crate::observe::Observer;
use crate::overheard::Overheard;
use crate::plan::Plan;
use crate::route::{Route, RouteMode};

/// The body of everything that a client is told.
pub(crate) type Told = Watched<ResponseBody<Reply>>;

/// Who is on the other side of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// `None` for unix sockets.
    pub(crate) address: Option<IpAddr>,
    /// `http` or `https`.
    pub(crate) scheme: &'static str,
}

/// What every connection of the gateway shares.
pub(crate) struct Front {
    /// What to do with requests; a reload swaps it.
    pub(crate) plan: ArcSwap<Plan>,
    pub(crate) engine: Engine,
    pub(crate) observer: Observer,
    /// Where finished requests are told.
    pub(crate) events: Events,
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
        mut request: Request<Incoming>,
    ) -> Response<Told> {
        if request.method() == Method::CONNECT {
            return empty(StatusCode::METHOD_NOT_ALLOWED);
        }
        let plan = self.plan.load_full();
        let switch = Switch::of(request.headers());
        strip_hops(request.headers_mut(), &plan.own);
        say_forwarded(request.headers_mut(), peer.address, peer.scheme);
        if let Switch::To(_) = switch {
            request.extensions_mut().insert(switch);
        }
        let route = match request.method().is_safe() {
            true => None,
            false => plan.routes.find(request.method(), request.uri().path()).cloned(),
        };
        let (request, exchange) = self.watch(request, route.as_ref());
        let mut request = request.map(RequestBody::new);
        if let Some(route) = route {
            request.extensions_mut().insert(route);
        }
        let mut service = plan.service.clone();
        let response = match service.call(request).await {
            Ok(response) => sign(response),
            Err(never) => match never {},
        };
        match exchange {
            None => response.map(Watched::unwatched),
            Some(exchange) => {
                let outcome = response.extensions().get::<Outcome>().copied();
                let answered = Answered { status: response.status(), outcome };
                let end = Box::new(move |delivered| exchange.end(answered, delivered));
                response.map(|body| Watched::new(body, end))
            }
        }
    }

    /// Listens to the request if its route is in observe mode, and remembers it if anybody wants to
    /// know its end.
    fn watch(
        self: &Arc<Self>,
        request: Request<Incoming>,
        route: Option<&Arc<Route>>,
    ) -> (Request<Overheard>, Option<Exchange>) {
        let observed = route.filter(|route| route.mode() == RouteMode::Observe);
        if observed.is_none() && !self.events.has_listeners() {
            return (request.map(Overheard::alone), None);
        }
        let mut exchange = Exchange::begin(self, route, &request);
        let Some(route) = observed else {
            return (request.map(Overheard::alone), Some(exchange));
        };
        let limit = route.spec.policy.limits.request_body;
        let (head, body) = request.into_parts();
        let (body, ear) = Overheard::heard(body, limit);
        exchange.listen(ear);
        (Request::from_parts(head, body), Some(exchange))
    }
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

/// An answer without words, for what no honest client sends.
fn empty(status: StatusCode) -> Response<Told> {
    let body = ResponseBody::new(Either::Right(Full::default()));
    let mut response = Response::new(Watched::unwatched(body));
    *response.status_mut() = status;
    response
}
