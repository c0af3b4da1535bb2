//! One request, from the connection that it came over to its answer.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use oncekey::layer::{RequestBody, ResponseBody};
use tower_service::Service as _;

use super::forward::Reply;
use super::headers::{Switch, say_forwarded, strip_hops};
use crate::plan::Plan;

/// The body of everything that a client is told.
pub(crate) type Told = ResponseBody<Reply>;

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
        request: Request<Incoming>,
    ) -> Response<Told> {
        let plan = self.plan.load();
        let mut request = request.map(RequestBody::new);
        if request.method() == Method::CONNECT {
            return refuse(StatusCode::METHOD_NOT_ALLOWED);
        }
        let switch = Switch::of(request.headers());
        strip_hops(request.headers_mut(), &plan.own);
        say_forwarded(request.headers_mut(), peer.address, peer.scheme);
        if let Switch::To(_) = switch {
            request.extensions_mut().insert(switch);
        }
        if !request.method().is_safe()
            && let Some(route) = plan.routes.find(request.method(), request.uri().path())
        {
            let route = Arc::clone(route);
            request.extensions_mut().insert(route);
        }
        let mut service = plan.service.clone();
        drop(plan);
        match service.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// An answer without words, for what no honest client sends.
fn refuse(status: StatusCode) -> Response<Told> {
    let mut response = Response::new(ResponseBody::new(Either::Right(Full::default())));
    *response.status_mut() = status;
    response
}
