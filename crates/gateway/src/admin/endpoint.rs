//! The one table of what the admin API has. Router, OpenAPI document and reference follow it.

use std::sync::Arc;

use axum::Router;
use axum::routing::{MethodRouter, get, post};
use http::Method;

use super::state::Admin;
use super::{audit, control, events, guard, health, keys, observed, openapi, page, status};

/// Something that can be asked.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) name: Name,
    pub(super) verb: Verb,
    /// As in OpenAPI: `{id}` stands for a part of the path.
    pub(super) path: &'static str,
    pub(super) door: Door,
    /// What it is for, as one sentence without a full stop.
    pub(super) summary: &'static str,
    pub(super) query: &'static [Param],
    pub(super) body: Body,
}

/// Every endpoint by name, so that none can be in the table without somebody who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Live,
    Ready,
    Metrics,
    Status,
    Routes,
    Observed,
    Keys,
    Key,
    Resolve,
    Release,
    Expire,
    Erase,
    Reload,
    Drain,
    Audit,
    Events,
    OpenApi,
}

/// How it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// Changes nothing.
    Get,
    /// Changes something, and is audited.
    Post,
}

/// Who may come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// Whoever reaches the listener: probes have no tokens.
    Open,
    /// Whoever has the token, if there is one.
    Closed,
}

/// A parameter of the query.
#[derive(Debug)]
pub(super) struct Param {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) about: &'static str,
}

/// What a parameter looks like.
#[derive(Debug)]
pub(super) enum Shape {
    Text,
    Number,
    Flag,
    OneOf(&'static [&'static str]),
}

/// What has to be in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// Nothing.
    None,
    /// A JSON object that may give a reason.
    Optional,
    /// A reason.
    Reason,
    /// A reason and the first digits of the key id, because it cannot be taken back.
    Confirmed,
    /// A reason, and what became of the work.
    Resolution,
}

const LIMIT: Param =
    param("limit", Shape::Number, "how many at most; 1 to 1000, 100 if it is not said");

const LIST: &[Param] = &[
    param("state", Shape::OneOf(&["running", "done", "unknown", "parked"]), "only this state"),
    param("route", Shape::Text, "only this route, by its name"),
    param("scope", Shape::Text, "only this scope; with `key`, the one record of both"),
    param("key", Shape::Text, "only this key as the client sent it, in every scope"),
    param(
        "id",
        Shape::Text,
        "only ids that begin with these digits, 8 at least, as logs show them",
    ),
    param("older_than", Shape::Text, "only what was created so long ago: 90s, 5m, 12h, 7d"),
    param("cursor", Shape::Text, "`next` of the page before"),
    LIMIT,
];
const OBSERVED: &[Param] = &[
    param("last", Shape::Text, "since so long ago: 90s, 5m, 12h, 7d; 24h if it is not said"),
    param("route", Shape::Text, "only this route, by its name"),
    param("intervals", Shape::Flag, "also what each node saw between two writes"),
];
const SHOW: &[Param] = &[param(
    "show",
    Shape::OneOf(&["payload"]),
    "`payload` adds the key, the scope and the answer, and is audited",
)];
const DRY_RUN: &[Param] =
    &[param("dry_run", Shape::Flag, "say what would change, and change nothing")];
const AUDIT: &[Param] =
    &[param("before", Shape::Number, "only entries older than the one of this number"), LIMIT];

/// Everything that there is.
pub(super) const ENDPOINTS: &[Endpoint] = &[
    open(Name::Live, "/healthz", "Whether the process lives; asks nobody else"),
    open(Name::Ready, "/readyz", "Whether it should get requests, and if not, why"),
    read(Name::Metrics, "/metrics", "Everything that was counted, for Prometheus", &[]),
    read(Name::Status, "/api/v1/status", "One screen: program, store, work in flight, routes", &[]),
    read(Name::Routes, "/api/v1/routes", "The routes of the configuration in force", &[]),
    read(Name::Observed, "/api/v1/observed", "What observe mode has seen, on all nodes", OBSERVED),
    read(Name::Keys, "/api/v1/keys", "Records, newest first, a page at a time", LIST),
    read(Name::Key, "/api/v1/keys/{id}", "One record", SHOW),
    change(
        Name::Resolve,
        "/api/v1/keys/{id}/resolve",
        "Say what became of work of which nobody knew",
        Body::Resolution,
    ),
    change(
        Name::Release,
        "/api/v1/keys/{id}/release",
        "Free a key whose work did not happen, so that a retry runs",
        Body::Confirmed,
    ),
    change(
        Name::Expire,
        "/api/v1/keys/{id}/expire",
        "End the retention of a finished record now",
        Body::Confirmed,
    ),
    change(
        Name::Erase,
        "/api/v1/keys/{id}/erase",
        "Blank key, scope and answer; that the work was done stays",
        Body::Reason,
    ),
    Endpoint {
        query: DRY_RUN,
        ..change(Name::Reload, "/api/v1/reload", "Read the configuration again", Body::Optional)
    },
    change(
        Name::Drain,
        "/api/v1/drain",
        "Take no new work, finish what is running, and end",
        Body::Optional,
    ),
    read(Name::Audit, "/api/v1/audit", "Who changed or saw what, newest first", AUDIT),
    read(Name::Events, "/api/v1/events", "Finished requests as they happen (SSE)", &[]),
    read(Name::OpenApi, "/api/v1/openapi.json", "This API as an OpenAPI 3.1 document", &[]),
];

const fn param(name: &'static str, shape: Shape, about: &'static str) -> Param {
    Param { name, shape, about }
}

const fn open(name: Name, path: &'static str, summary: &'static str) -> Endpoint {
    Endpoint { door: Door::Open, ..read(name, path, summary, &[]) }
}

const fn read(
    name: Name,
    path: &'static str,
    summary: &'static str,
    query: &'static [Param],
) -> Endpoint {
    let (verb, door) = (Verb::Get, Door::Closed);
    Endpoint { name, verb, path, door, summary, query, body: Body::None }
}

const fn change(name: Name, path: &'static str, summary: &'static str, body: Body) -> Endpoint {
    let (verb, door) = (Verb::Post, Door::Closed);
    Endpoint { name, verb, path, door, summary, query: &[], body }
}

/// The whole API.
pub(super) fn router(admin: Arc<Admin>) -> Router {
    let mut router = Router::new();
    for endpoint in ENDPOINTS {
        router = router.route(endpoint.path, answerer(endpoint.name));
    }
    router
        .fallback(page::nothing)
        .method_not_allowed_fallback(page::wrong_method)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&admin), guard::guard))
        .with_state(admin)
}

fn answerer(name: Name) -> MethodRouter<Arc<Admin>> {
    match name {
        Name::Live => get(health::live),
        Name::Ready => get(health::ready),
        Name::Metrics => get(status::metrics),
        Name::Status => get(status::status),
        Name::Routes => get(status::routes),
        Name::Observed => get(observed::observed),
        Name::Keys => get(keys::list),
        Name::Key => get(keys::show),
        Name::Resolve => post(keys::resolve),
        Name::Release => post(keys::release),
        Name::Expire => post(keys::expire),
        Name::Erase => post(keys::erase),
        Name::Reload => post(control::reload),
        Name::Drain => post(control::drain),
        Name::Audit => get(audit::list),
        Name::Events => get(events::stream),
        Name::OpenApi => get(openapi::document),
    }
}

impl Verb {
    pub(super) const fn method(self) -> Method {
        match self {
            Self::Get => Method::GET,
            Self::Post => Method::POST,
        }
    }
}

/// Who may come in here. What is not in the table is behind a closed door, too: a stranger cannot
/// find out what there is.
pub(super) fn door(method: &Method, path: &str) -> Door {
    let asks = matches!(*method, Method::GET | Method::HEAD);
    let found = ENDPOINTS.iter().find(|endpoint| asks && endpoint.path == path);
    found.map_or(Door::Closed, |endpoint| endpoint.door)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_probes_come_in_without_a_token() {
        let open: Vec<&str> = ENDPOINTS
            .iter()
            .filter(|endpoint| door(&endpoint.verb.method(), endpoint.path) == Door::Open)
            .map(|endpoint| endpoint.path)
            .collect();
        assert_eq!(open, ["/healthz", "/readyz"]);
        for (method, path) in [
            (Method::POST, "/healthz"),
            (Method::GET, "/healthz/"),
            (Method::GET, "//healthz"),
            (Method::GET, "/readyz/../api/v1/keys"),
            (Method::GET, "/HEALTHZ"),
        ] {
            assert_eq!(door(&method, path), Door::Closed, "{method} {path}");
        }
    }

    #[test]
    fn the_reference_lists_every_endpoint_and_every_parameter() {
        let page = include_str!("../../../../docs/reference/admin-api.md");
        let (_, table) = page.split_once("\n## Endpoints\n").expect("the table");
        let rows = table.lines().skip_while(|line| !line.starts_with("| `"));
        let shown: Vec<&str> = rows
            .take_while(|line| line.starts_with("| `"))
            .filter_map(|line| line.split('`').nth(1))
            .collect();
        let expected: Vec<String> =
            ENDPOINTS.iter().map(|it| format!("{} {}", it.verb.method(), it.path)).collect();
        assert_eq!(shown, expected);
        for param in ENDPOINTS.iter().flat_map(|endpoint| endpoint.query) {
            assert!(page.contains(&format!("`{}`", param.name)), "{}", param.name);
        }
    }
}
