//! Contradictions within a route and between routes.

use std::collections::BTreeMap;
use std::time::Duration;

use oncekey::core::Class;
use oncekey::core::policy::{InFlight, PolicyError, StoreDown};
use oncekey::core::store::MAX_BODY;
use oncekey::layer::KeySource;

use super::fields;
use crate::config::flat::{Flat, Origin};
use crate::config::problem::ConfigProblem;
use crate::config::routes::{read_keep, read_route};
use crate::config::{Config, Values};
use crate::route::{Completer, Exempt, Methods, RolloutBy, RouteMode, RouteSpec, ScopePart, Tree};
use crate::shelf::is_ours;

/// A route with the values that it was made of.
pub(super) struct Seen<'c> {
    pub(super) spec: RouteSpec,
    flat: &'c Flat,
    config: &'c Config,
}

/// The largest body of a request that is kept: what stores take, less a mebibyte for its head, which
/// is encrypted together with it.
const KEEPABLE: usize = MAX_BODY - 1024 * 1024;
/// The largest head. A line takes up to twice its room in a store, which takes 256 KiB of them, and the
/// scope comes along.
const KEEPABLE_HEAD: usize = 96 * 1024;

pub(super) fn find(config: &Config, values: &Values) -> Vec<ConfigProblem> {
    let seen = values
        .routes
        .iter()
        .filter_map(|flat| Some(Seen { spec: read_route(flat, &values.globals)?, flat, config }));
    let seen: Vec<Seen<'_>> = seen.collect();
    let checks = [
        policy,
        record,
        methods,
        safe_methods,
        keyed_without_key,
        completed_once,
        kept_in_plain,
        completed_in_vain,
        too_large_to_keep,
        scope,
        no_source,
        fields::never_the_clients,
        fields::forwarded_over_another,
        never_exempt,
        drawn_by_a_body,
        accepted_nowhere,
        fails_open,
    ];
    let mut problems: Vec<ConfigProblem> =
        seen.iter().flat_map(|route| checks.iter().filter_map(|check| check(route))).collect();
    problems.extend(same_requests(&seen));
    problems.extend(same_names(&seen));
    problems.extend(nobody_said_whose(&seen));
    if values.routes.is_empty() {
        let message = "there are no routes, so nothing is protected";
        let problem = ConfigProblem::warning("no-routes", message).note("write a [[route]]");
        problems.push(problem.about("route.match"));
    }
    problems
}

impl Seen<'_> {
    /// A contradiction at the first of these settings that somebody set, or at the route.
    pub(super) fn contradiction(
        &self,
        paths: &[&str],
        message: impl Into<String>,
    ) -> ConfigProblem {
        let set = paths.iter().find_map(|path| self.flat.place(path));
        let place = set.or_else(|| self.flat.place("match"));
        let about = paths.first().copied().unwrap_or("match");
        ConfigProblem::error("contradiction", message)
            .maybe_at(place)
            .note(format!("route: {}", self.spec.name))
            .about(&format!("route.{about}"))
    }

    fn protects(&self) -> bool {
        self.spec.mode.of_rule() != oncekey::layer::Mode::Off
    }
}

fn policy(route: &Seen<'_>) -> Option<ConfigProblem> {
    let error = route.spec.policy.check().err()?;
    let paths: &[&str] = match error {
        PolicyError::Lease(_) => &["in_flight.lease"],
        PolicyError::Retention(_) => &["ttl"],
        PolicyError::RetentionWithinLease { .. } => &["ttl", "in_flight.lease", "in_flight.grace"],
        PolicyError::Statuses { .. } => &["record"],
        PolicyError::Limit(_) | _ => &["limits.max_request_body"],
    };
    Some(route.contradiction(paths, error.to_string()))
}

fn record(route: &Seen<'_>) -> Option<ConfigProblem> {
    let overlap = read_keep(route.flat).err()?;
    let message = format!(
        "`{}` and `{}` say different things about status {}",
        overlap.first, overlap.second, overlap.status
    );
    Some(route.contradiction(&["record"], message))
}

fn methods(route: &Seen<'_>) -> Option<ConfigProblem> {
    match route.spec.pattern.methods() {
        Methods::Unsaid => {
            let none = matches!(&route.spec.methods, Methods::Only(methods) if methods.is_empty());
            none.then(|| {
                route.contradiction(&["methods"], "a route without methods is for nothing")
            })
        }
        // Methods of the defaults and of presets are for routes whose pattern names none.
        Methods::Any | Methods::Only(_) => route
            .flat
            .is_own("methods")
            .then(|| route.contradiction(&["methods"], "`match` names the methods already")),
    }
}

fn safe_methods(route: &Seen<'_>) -> Option<ConfigProblem> {
    let Methods::Only(methods) = &route.spec.methods else { return None };
    let safe = methods.iter().find(|method| method.is_safe())?;
    (route.spec.mode != RouteMode::Off).then(|| {
        let message = format!("{safe} is safe to repeat by definition and never protected");
        route.contradiction(&["match"], message)
    })
}

fn keyed_without_key(route: &Seen<'_>) -> Option<ConfigProblem> {
    let lost = route.spec.policy.class == Class::Keyed && route.spec.forward_key.is_none();
    lost.then(|| {
        let message = "class `keyed` relies on the key that the upstream gets: set `forward_key`";
        route.contradiction(&["forward_key", "class"], message)
    })
}

fn completed_once(route: &Seen<'_>) -> Option<ConfigProblem> {
    let again = completes(route).is_some() && route.spec.policy.class == Class::Once;
    again.then(|| {
        let message = "`complete` sends requests again, and class `once` never does";
        route
            .contradiction(&["complete", "class"], message)
            .note("leave `complete` out, or set `class` if the upstream can be asked twice")
    })
}

/// How long abandoned requests are sent again, if they are.
fn completes(route: &Seen<'_>) -> Option<Duration> {
    match route.spec.completer {
        Completer::For(time) => Some(time),
        Completer::Off => None,
    }
}

/// A kept request has the credentials of its client in it.
fn kept_in_plain(route: &Seen<'_>) -> Option<ConfigProblem> {
    let store = &route.config.store;
    completes(route)?;
    // What is in memory alone is nowhere else; and class `once` is refused for another reason.
    let plain = store.encrypt_with_files.is_empty() && store.kind() != "memory";
    (plain && route.spec.policy.class != Class::Once).then(|| {
        let message = "`complete` keeps requests with their credentials, and this store would hold \
                       them as they are";
        route
            .contradiction(&["complete"], message)
            .note("set `store.encrypt_with_files`: docs/how-to/encrypt-records.md")
    })
}

fn completed_in_vain(route: &Seen<'_>) -> Option<ConfigProblem> {
    let policy = &route.spec.policy;
    let held = policy.lease.saturating_add(policy.grace);
    (completes(route)? <= held).then(|| {
        let message = format!(
            "`complete_for` must be longer than lease and grace together ({held:?}): before that \
             nobody knows that an owner is gone"
        );
        route.contradiction(&["complete_for", "in_flight.lease", "in_flight.grace"], message)
    })
}

fn too_large_to_keep(route: &Seen<'_>) -> Option<ConfigProblem> {
    completes(route)?;
    if route.config.server.max_head > KEEPABLE_HEAD {
        let message = "`complete` keeps requests, and a store keeps heads of at most 96 KiB";
        let problem = route.contradiction(&["complete"], message);
        return Some(problem.note("set `server.max_head` to 96KiB or less"));
    }
    (route.spec.policy.limits.request_body > KEEPABLE).then(|| {
        let message = "`complete` keeps requests, and a store keeps bodies of at most 15 MiB then";
        route.contradiction(&["limits.max_request_body", "complete"], message)
    })
}

fn scope(route: &Seen<'_>) -> Option<ConfigProblem> {
    let scope = &route.spec.scope;
    let has = |wanted: fn(&ScopePart) -> bool| scope.iter().any(wanted);
    let tls = route.config.server.tls.as_ref();
    let message = if scope.is_empty() {
        "a scope has a part; write \"shared\" if all callers share their keys"
    } else if has(|part| *part == ScopePart::Shared) && scope.len() > 1 {
        "a shared scope has no other part"
    } else if has(|part| matches!(part, ScopePart::Jwt(_))) && route.config.jwt.is_none() {
        "a claim counts only if the token is verified: set [jwt]"
    } else if has(|part| *part == ScopePart::Mtls)
        && tls.is_none_or(|tls| tls.client_ca_file.is_none())
    {
        "clients have to show a certificate: set `server.tls.client_ca_file`"
    } else {
        return None;
    };
    Some(route.contradiction(&["scope"], message))
}

fn no_source(route: &Seen<'_>) -> Option<ConfigProblem> {
    route
        .spec
        .keys
        .is_empty()
        .then(|| route.contradiction(&["key.sources"], "without a source no request has a key"))
}

/// A name is compared with the whole scope, and only that of one plain part is what somebody wrote.
fn never_exempt(route: &Seen<'_>) -> Option<ConfigProblem> {
    let named = |exempt: &Exempt| matches!(exempt, Exempt::Scope(_));
    let is_plain = match &route.spec.scope[..] {
        [ScopePart::Header(_) | ScopePart::Jwt(_) | ScopePart::Mtls] => true,
        [ScopePart::ApiKey(_) | ScopePart::Credential | ScopePart::Shared] | [] | [_, _, ..] => {
            false
        }
    };
    (!is_plain && route.spec.rollout.exempt.iter().any(named)).then(|| {
        let message = "`scope:` never applies here: only a scope of one part that is not hashed \
                       (`header:`, `jwt:`, `mtls`) has a name to compare";
        route
            .contradiction(&["rollout.exempt", "scope"], message)
            .note("exempt callers by a header: \"header:NAME=VALUE\"")
    })
}

/// Who is protected is decided before a body is read.
fn drawn_by_a_body(route: &Seen<'_>) -> Option<ConfigProblem> {
    let rollout = &route.spec.rollout;
    let drawn = rollout.by == RolloutBy::Key && !rollout.is_for_all();
    let json = route.spec.keys.iter().any(|source| matches!(source, KeySource::Json(_)));
    (drawn && json).then(|| {
        let message =
            "keys in bodies are not known when lots are drawn: set `rollout.by = \"scope\"`";
        route.contradiction(&["rollout.by", "key.sources"], message)
    })
}

fn accepted_nowhere(route: &Seen<'_>) -> Option<ConfigProblem> {
    let accepted = route.spec.policy.in_flight == InFlight::Accepted;
    (accepted && route.config.status_path.is_none()).then(|| {
        let message = "`accepted` tells clients where to ask: set `status.path`";
        route.contradiction(&["in_flight.on_duplicate"], message)
    })
}

fn fails_open(route: &Seen<'_>) -> Option<ConfigProblem> {
    let open = route.spec.policy.store_down == StoreDown::PassUnprotected;
    (open && route.protects()).then(|| {
        let message = "while the store is down, retries of this route may run twice";
        ConfigProblem::warning("fails-open", message)
            .maybe_at(route.flat.place("on_unavailable").or_else(|| route.flat.place("match")))
            .note(format!("route: {}", route.spec.name))
            .about("route.on_unavailable")
    })
}

/// Two routes that no request could choose between.
fn same_requests(seen: &[Seen<'_>]) -> Vec<ConfigProblem> {
    let mut tree = Tree::default();
    let mut problems = Vec::new();
    for (number, route) in seen.iter().enumerate() {
        let Err(other) = tree.add(&route.spec.pattern, &route.spec.methods, number) else {
            continue;
        };
        let (ours, others) = (&route.spec.pattern, &seen[other].spec.pattern);
        let message = format!("`{ours}` and `{others}` are for the same requests");
        let problem = ConfigProblem::error("same-requests", message);
        let problem = problem.maybe_at(route.flat.place("match"));
        let problem = match seen[other].flat.place("match") {
            Some(place) => problem.note(format!("the other one: {place}")),
            None => problem,
        };
        problems.push(problem.about("route.match"));
    }
    problems
}

/// Metrics and records could not tell them apart.
fn same_names(seen: &[Seen<'_>]) -> Vec<ConfigProblem> {
    let mut known: BTreeMap<&str, &Seen<'_>> = BTreeMap::new();
    let mut problems = Vec::new();
    for route in seen {
        if is_ours(route.spec.name.as_bytes()) {
            let name = &route.spec.name;
            let message = format!("`{name}` is the name of records of the gateway: choose another");
            problems.push(route.contradiction(&["name"], message));
        }
        let Some(other) = known.insert(&route.spec.name, route) else { continue };
        // Routes without a name collide with their patterns, and that is said already.
        let Some(place) = route.flat.place("name") else { continue };
        let message = format!("two routes are called `{}`", route.spec.name);
        let problem = ConfigProblem::error("contradiction", message).at(place);
        let problem = match other.flat.place("name") {
            Some(other) => problem.note(format!("the other one: {other}")),
            None => problem,
        };
        problems.push(problem.about("route.name"));
    }
    problems
}

fn nobody_said_whose(seen: &[Seen<'_>]) -> Option<ConfigProblem> {
    let guessed = |route: &&Seen<'_>| {
        route.protects() && matches!(route.flat.leaf("scope").origin, Origin::Default)
    };
    let first = seen.iter().find(guessed)?;
    let message = "nobody said whom keys belong to: the Authorization header stands in for it, so \
                   a retry after a token refresh runs again";
    Some(
        ConfigProblem::warning("scope-guessed", message)
            .maybe_at(first.flat.place("match"))
            .note(
                "callers without that header share their keys and see each other's answers: \
                 cookies and X-Api-Key do not count",
            )
            .note("set defaults.scope; \"credential\" if that is what you want")
            .about("route.scope"),
    )
}
