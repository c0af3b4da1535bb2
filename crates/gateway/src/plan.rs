//! What the gateway does with requests, put together from a configuration. A reload makes a new one.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Uri};
use oncekey::layer::{Idempotency, IdempotencyLayer, KeyHash, Outcomes, ScopeFrom};
use tower_layer::Layer as _;

use crate::completer::Keeper;
use crate::config::{Config, HostHeader, LogKeys};
use crate::exit::{self, Exit};
use crate::keeping::{Keeping, Secrecy};
use crate::probe::Knower;
use crate::proxy::{Cors, ErrorDialect, Forward, Settings};
use crate::route::{Assigned, Completer, RouteTable, Secrets, scope_of};
use crate::telemetry::trace::Tracer;
use crate::token::Verifier;
use crate::upstream::{Patience, Place, Target, Tls, Trust, Upstream};
use crate::well_known;

/// Everything that a request meets on its way. Never changes: whoever has one keeps it to the end of
/// the request, whatever is reloaded meanwhile.
pub(crate) struct Plan {
    pub(crate) routes: RouteTable,
    /// Fields that no client can have removed: those that hold keys and scopes.
    pub(crate) own: Vec<HeaderName>,
    pub(crate) upstream: Upstream,
    pub(crate) service: Idempotency<Forward>,
    pub(crate) dialect: ErrorDialect,
    pub(crate) cors: Cors,
    /// Who is asked about lost answers, by route.
    pub(crate) knowers: HashMap<Box<str>, Knower>,
    /// What clients can rely on, if they may know.
    pub(crate) well_known: Option<Bytes>,
    /// Below which paths clients ask for the status of a key.
    pub(crate) status_path: Option<String>,
}

impl Plan {
    /// Needs a runtime.
    ///
    /// # Errors
    /// If something cannot be done as it is configured.
    pub(crate) fn new(config: &Config, keeping: &Keeping, tracer: &Tracer) -> Result<Self, Exit> {
        Tracer::check(config)?;
        refuse_plain_requests(config, keeping)?;
        let tokens = config.jwt.as_ref().map(Verifier::new).transpose();
        let tokens = tokens.map_err(|error| refused("tokens cannot be verified", &error))?;
        let secrets = Secrets { pepper: keeping.pepper.clone(), tokens: tokens.map(Arc::new) };
        let routes = RouteTable::new(&config.routes, &secrets)
            .map_err(|error| refused("a route contradicts itself", &error))?;
        let upstream = upstream(config)?;
        let dialect = ErrorDialect::new(&config.errors)
            .map_err(|error| refused("errors.template_file cannot be used", &error))?;
        let next = next(config, keeping, &upstream, tracer);
        let service = service(config, keeping, &secrets, &dialect, next)?;
        let cors = Cors::new(&config.cors);
        let well_known = config.well_known.then(|| well_known::document(config, dialect.base()));
        let (own, knowers) = (routes.own_headers(), knowers(config)?);
        let status_path = config.status_path.clone();
        Ok(Self { routes, own, upstream, service, dialect, cors, knowers, well_known, status_path })
    }
}

/// The layer with the upstream behind it.
fn service(
    config: &Config,
    keeping: &Keeping,
    secrets: &Secrets,
    dialect: &ErrorDialect,
    next: Settings,
) -> Result<Idempotency<Forward>, Exit> {
    let key_hash = match config.telemetry.keys {
        LogKeys::Hash => KeyHash::Shown,
        LogKeys::None => KeyHash::Hidden,
    };
    let scopes: HashMap<Arc<str>, ScopeFrom> = config
        .routes
        .iter()
        .map(|route| (Arc::clone(&route.name), scope_of(&route.scope, secrets.tokens.as_ref())))
        .collect();
    let mut layer = IdempotencyLayer::builder(keeping.engine.clone())
        .rules(|parts| parts.extensions.get::<Assigned>()?.rule())
        // Routes have scopes of their own; these are for status URLs.
        .scope(scope_of(&config.scope, secrets.tokens.as_ref()))
        .status_scopes(config.routes.iter().filter_map(|route| scopes.get(&route.name).cloned()))
        // User 42 is not organisation 42: who may see a record is said by the route that it came under.
        .rule_scopes(move |route| scopes.get(route).cloned())
        .key_hash(key_hash)
        // What watches, traces and CORS go by.
        .outcomes(Outcomes::InExtensions)
        .problems(dialect.base())
        .map_err(|error| refused("errors.docs cannot be used", &error))?;
    if let Some(path) = &config.status_path {
        layer = layer
            .status_path(path)
            .map_err(|error| refused("status.path cannot be used", &error))?;
    }
    Ok(layer.build().layer(Forward::new(next)))
}

/// How requests go on to the upstream.
fn next(config: &Config, keeping: &Keeping, upstream: &Upstream, tracer: &Tracer) -> Settings {
    let host = match config.server.host {
        HostHeader::Keep => None,
        HostHeader::Upstream => own_host(upstream.target()),
    };
    let keeper = Keeper::new(keeping.engine.clone(), keeping.store.clone());
    Settings { upstream: upstream.clone(), host, keeper, tracer: tracer.clone() }
}

/// Refuses to keep requests where others can read them. A configuration that does so is refused, too;
/// but a reload may bring encryption that holds only after a restart.
fn refuse_plain_requests(config: &Config, keeping: &Keeping) -> Result<(), Exit> {
    let keeps = config.routes.iter().any(|route| route.completer != Completer::Off);
    if keeps && keeping.secrecy == Secrecy::Plain {
        let text = "`complete` keeps requests with their credentials, and the store was opened \
                    without encryption; set store.encrypt_with_files and restart";
        return Err(Exit::new(exit::INVALID, text));
    }
    Ok(())
}

fn upstream(config: &Config) -> Result<Upstream, Exit> {
    let target: Target =
        config.server.upstream.parse().map_err(|error| refused("server.upstream", &error))?;
    upstream_at(target, config)
}

/// Those who know about lost answers.
fn knowers(config: &Config) -> Result<HashMap<Box<str>, Knower>, Exit> {
    let mut knowers = HashMap::new();
    for route in &config.routes {
        let Some(url) = &route.probe else { continue };
        let uri: Uri = url.parse().map_err(|error| refused("probe is no URL", &error))?;
        let (scheme, authority) = (uri.scheme_str(), uri.authority());
        let place = format!(
            "{}://{}",
            scheme.unwrap_or("http"),
            authority.map_or("", http::uri::Authority::as_str)
        );
        let target: Target = place.parse().map_err(|error| refused("probe", &error))?;
        if let Some(knower) = Knower::new(upstream_at(target, config)?, &uri) {
            knowers.insert(Box::from(&*route.name), knower);
        }
    }
    Ok(knowers)
}

fn upstream_at(target: Target, config: &Config) -> Result<Upstream, Exit> {
    let server = &config.server;
    let trust = match (target.tls, &server.upstream_ca_file) {
        (Tls::Plain, _) => Ok(Trust::nobody()),
        (Tls::Encrypted, Some(file)) => Trust::of_file(file),
        (Tls::Encrypted, None) => Trust::of_machine(),
    };
    let trust = trust.map_err(|error| refused("the upstream cannot be checked", &error))?;
    let patience = Patience { connect: server.timeouts.connect, answer: server.timeouts.answer };
    Ok(Upstream::new(target, &trust, patience))
}

/// The `Host` that the upstream has as a URL.
fn own_host(target: &Target) -> Option<HeaderValue> {
    match &target.place {
        Place::Unix(_) => Some(HeaderValue::from_static("localhost")),
        Place::Tcp { .. } => {
            let url = target.to_string();
            HeaderValue::try_from(url.split_once("://").map_or(url.as_str(), |(_, host)| host)).ok()
        }
    }
}

fn refused(what: &str, error: &(dyn std::error::Error + 'static)) -> Exit {
    Exit::chain(exit::INVALID, what, Some(error))
}
