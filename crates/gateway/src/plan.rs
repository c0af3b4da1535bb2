//! What the gateway does with requests, put together from a configuration. A reload makes a new one.

use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use oncekey::layer::{Idempotency, IdempotencyLayer, ScopeFrom};
use oncekey::problem;
use tower_layer::Layer as _;

use crate::config::{Config, HostHeader};
use crate::exit::{self, Exit};
use crate::keeping::Keeping;
use crate::proxy::{Forward, Settings};
use crate::route::{Route, RouteTable, ScopePart};
use crate::upstream::{Patience, Place, Target, Tls, Trust, Upstream};

/// Everything that a request meets on its way. Never changes: whoever has one keeps it to the end of
/// the request, whatever is reloaded meanwhile.
pub(crate) struct Plan {
    pub(crate) routes: RouteTable,
    /// Fields that no client can have removed: those that hold keys and scopes.
    pub(crate) own: Vec<HeaderName>,
    pub(crate) upstream: Upstream,
    pub(crate) service: Idempotency<Forward>,
}

impl Plan {
    /// Needs a runtime.
    ///
    /// # Errors
    /// If something cannot be done as it is configured.
    pub(crate) fn new(config: &Config, keeping: &Keeping) -> Result<Self, Exit> {
        refuse_what_is_missing(config)?;
        let routes = RouteTable::new(&config.routes, keeping.pepper.as_ref())
            .map_err(|error| refused("a route contradicts itself", &error))?;
        let upstream = upstream(config)?;
        let problems = config.errors.docs.as_deref().unwrap_or(problem::DEFAULT_BASE);
        let host = match config.server.host {
            HostHeader::Keep => None,
            HostHeader::Upstream => own_host(upstream.target()),
        };
        let settings = Settings { upstream: upstream.clone(), host, problems: problems.into() };
        let mut layer = IdempotencyLayer::builder(keeping.engine.clone())
            .rules(|parts| Some(Arc::clone(&parts.extensions.get::<Arc<Route>>()?.rule)))
            .scope(ScopeFrom::credential())
            .problems(problems)
            .map_err(|error| refused("errors.docs cannot be used", &error))?;
        if let Some(path) = &config.status_path {
            layer = layer
                .status_path(path)
                .map_err(|error| refused("status.path cannot be used", &error))?;
        }
        let service = layer.build().layer(Forward::new(settings));
        Ok(Self { own: routes.own_headers(), routes, upstream, service })
    }
}

/// Refuses settings that this version reads and does not follow yet: whoever relies on one of them
/// must not find out from a double charge.
fn refuse_what_is_missing(config: &Config) -> Result<(), Exit> {
    let missing = |what: &str| {
        let text = format!("{what} is not built yet; leave it out of the configuration");
        Err(Exit::new(exit::INVALID, &text))
    };
    for route in &config.routes {
        if route.scope.iter().any(|part| matches!(part, ScopePart::Jwt(_) | ScopePart::Mtls)) {
            return missing("a scope from a token or from a client certificate");
        }
        if route.keys.iter().any(|source| source.header().is_none()) {
            return missing("a key in a query or in a body");
        }
        if route.probe.is_some() {
            return missing("probe");
        }
        if route.completer == crate::route::Completer::On {
            return missing("complete");
        }
        if route.rollout != crate::route::Rollout::ALL {
            return missing("rollout");
        }
    }
    if config.errors.format != crate::config::ErrorFormat::Problem {
        return missing("errors.format other than problem+json");
    }
    if config.cors_amend {
        return missing("cors.amend");
    }
    if config.telemetry.otlp.is_some() {
        return missing("telemetry.otlp");
    }
    Ok(())
}

fn upstream(config: &Config) -> Result<Upstream, Exit> {
    let server = &config.server;
    let target: Target =
        server.upstream.parse().map_err(|error| refused("server.upstream", &error))?;
    let trust = match (target.tls, &server.upstream_ca_file) {
        (Tls::Plain, _) => Ok(Trust::nobody()),
        (Tls::Encrypted, Some(file)) => Trust::of_file(file),
        (Tls::Encrypted, None) => Trust::of_machine(),
    };
    let trust = trust.map_err(|error| refused("the upstream cannot be checked", &error))?;
    let patience =
        Patience { connect: server.timeouts.connect, answer: server.timeouts.answer };
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
