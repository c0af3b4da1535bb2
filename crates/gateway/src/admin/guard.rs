//! What every request meets before anything else looks at it.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, Method};

use super::access::Shown;
use super::audit::{Audited, Refusal, Whose};
use super::endpoint::{Door, door};
use super::problem::{Code, Problem};
use super::state::Admin;

/// Who asks, as far as it can be told.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    /// The other end of the connection. Never a header: anybody can write those.
    pub(super) peer: Option<SocketAddr>,
    /// The name that the caller gave itself. Nobody has checked it.
    pub(super) name: Option<String>,
    pub(super) token: Shown,
}

/// The other end of a connection, put there by whoever accepted it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

/// The header by which a caller says who it is, for the audit.
pub(crate) const ACTOR: HeaderName = HeaderName::from_static("oncekey-actor");

/// The header by which every answer of this listener says whose it is. Without it a command line that
/// was given a wrong address would take any server's 200 for a success.
pub(crate) const IDENTITY: HeaderName = HeaderName::from_static("oncekey-admin");

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Nothing here is a page, so nothing may be loaded, framed, guessed or kept. What comes back is
/// data even if a browser is tricked into showing it.
const HEADERS: [(HeaderName, &str); 7] = [
    // The version of the API.
    (IDENTITY, "1"),
    (header::CACHE_CONTROL, "no-store"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Lets a request through, or says why not. A change that was refused, here or further in, and that
/// is not in the audit yet, gets into it.
pub(super) async fn guard(
    State(admin): State<Arc<Admin>>,
    mut request: Request,
    next: Next,
) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let caller = Caller::of(&admin, &request);
    let admitted = admit(&admin, &request, &caller);
    request.extensions_mut().insert(caller.clone());
    let whose = if admitted.is_ok() { Whose::Operator } else { Whose::Stranger };
    let mut response = match admitted {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    if method == Method::POST && response.extensions().get::<Audited>().is_none() {
        let code = response.extensions().get::<Code>().copied();
        let refusal = Refusal { caller: &caller, path: &path, code, whose };
        admin.audit.refused(refusal).await;
    }
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn admit(admin: &Admin, request: &Request, caller: &Caller) -> Result<(), Problem> {
    let headers = request.headers();
    let host = host(headers)?;
    // A proxy's request line has a host of its own, and it would win over the header.
    let line = request.uri().authority().map(http::uri::Authority::as_str);
    if !admin.access.knows_host(host) || line.is_some_and(|line| line != host) {
        return Err(Problem::new(
            Code::HostRefused,
            "this listener does not go by the name in Host: use its address, or add the name to \
             admin.names in the configuration",
        ));
    }
    refuse_other_sites(headers, host)?;
    match (caller.token, door(request.method(), request.uri().path())) {
        (Shown::NotNeeded | Shown::Right, _) | (Shown::Wrong, Door::Open) => Ok(()),
        (Shown::Wrong, Door::Closed) => Err(Problem::new(
            Code::TokenRequired,
            "send the token of the admin listener: Authorization: Bearer …",
        )),
    }
}

/// The value of the one `Host` header.
fn host(headers: &HeaderMap) -> Result<&str, Problem> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next().and_then(|host| host.to_str().ok()), hosts.next()) {
        (Some(host), None) => Ok(host),
        _ => Err(Problem::new(Code::HostRefused, "send exactly one Host header")),
    }
}

/// A browser says on whose behalf it asks. Only we may ask ourselves; programs say nothing.
fn refuse_other_sites(headers: &HeaderMap, host: &str) -> Result<(), Problem> {
    let refused = || {
        let detail = "a web page of another origin asked: the admin API answers none of them";
        Err(Problem::new(Code::OriginRefused, detail))
    };
    for origin in headers.get_all(header::ORIGIN) {
        let own = origin.as_bytes().strip_prefix(b"http://");
        if own.is_none_or(|own| !own.eq_ignore_ascii_case(host.as_bytes())) {
            return refused();
        }
    }
    for site in headers.get_all(SEC_FETCH_SITE) {
        // `none` is somebody who typed the address.
        if site != "same-origin" && site != "none" {
            return refused();
        }
    }
    Ok(())
}

impl Caller {
    fn of(admin: &Admin, request: &Request) -> Self {
        let headers = request.headers();
        let authorization = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        // It goes into a file that people read on terminals.
        let name = headers.get(ACTOR).and_then(|name| name.to_str().ok());
        let name = name.filter(|name| !name.is_empty() && name.len() <= 64).map(str::to_owned);
        let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
        Self { peer, name, token: admin.access.check(authorization) }
    }
}
