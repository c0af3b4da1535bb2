//! All routes, and the way to the one that a request takes.

use std::cmp::Reverse;
use std::sync::Arc;

use http::{HeaderName, Method};
use oncekey::core::fingerprint::FingerprintRules;
use oncekey::core::policy::{InFlight, PolicyError, StoreDown, Verdict};
use oncekey::core::{Class, Pepper, Policy};
use oncekey::layer::{Rule, ScopeFrom, WeakKeys};

use super::path::{READABLE, inside, is_odd, readings};
use super::scope::{kept_scope, scope_of};
use super::spec::{Completer, RouteMode, RouteSpec, ScopePart};
use super::tree::Tree;
use crate::token::Verifier;

/// All routes of a configuration.
#[derive(Debug, Default)]
pub(crate) struct RouteTable {
    routes: Vec<Arc<Route>>,
    tree: Tree,
}

/// What is done with some requests.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) spec: RouteSpec,
    /// The layer's rule. Where the mode protects nothing, it says so.
    pub(crate) rule: Arc<Rule>,
    /// The rule for kept requests that are sent again, if the route wants that.
    pub(crate) rule_again: Option<Arc<Rule>>,
    pub(crate) scope: ScopeFrom,
}

/// What the rules of routes need besides the configuration itself.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    /// The secret behind fingerprints.
    pub(crate) pepper: Option<Pepper>,
    /// Who verifies tokens.
    pub(crate) tokens: Option<Arc<Verifier>>,
}

impl RouteTable {
    /// Makes the rules of all routes. Of two routes for the same requests the first stays; a
    /// configuration with such routes is refused long before.
    ///
    /// # Errors
    /// If a policy contradicts itself, which a configuration that was loaded does not.
    pub(crate) fn new(specs: &[RouteSpec], secrets: &Secrets) -> Result<Self, PolicyError> {
        let mut table = Self::default();
        for (number, spec) in specs.iter().enumerate() {
            let _ = table.tree.add(&spec.pattern, &spec.methods, number);
            table.routes.push(Arc::new(Route::new(spec, secrets)?));
        }
        Ok(table)
    }

    /// The most specific route of a request. Allocates nothing unless servers may disagree about
    /// the path; then the strictest of the routes wins that it could mean.
    pub(crate) fn find(&self, method: &Method, path: &str) -> Option<&Arc<Route>> {
        if is_odd(path) {
            return self.strictest(method, path);
        }
        let number = self.tree.find(method, inside(path)?)?;
        self.routes.get(number)
    }

    /// The headers by which we decide: no client can have them removed.
    pub(crate) fn own_headers(&self) -> Vec<HeaderName> {
        let mut names: Vec<HeaderName> = Vec::new();
        for route in &self.routes {
            names.extend(route.spec.key_headers());
            names.extend(route.spec.counted.iter().cloned());
            names.extend(route.spec.scope.iter().filter_map(ScopePart::header).cloned());
        }
        names.sort_unstable_by(|one, two| one.as_str().cmp(two.as_str()));
        names.dedup();
        names
    }

    /// All routes in the order of the configuration.
    pub(crate) fn routes(&self) -> &[Arc<Route>] {
        &self.routes
    }

    fn strictest(&self, method: &Method, path: &str) -> Option<&Arc<Route>> {
        inside(path)?;
        if path.len() > READABLE {
            let possible = self.routes.iter().filter(|route| route.spec.methods.contain(method));
            return possible.max_by_key(|route| route.strictness());
        }
        let found = readings(path).into_iter().filter_map(|reading| {
            let inside = reading.strip_prefix(b"/")?;
            let inside = inside.strip_suffix(b"/").unwrap_or(inside);
            self.routes.get(self.tree.find(method, inside)?)
        });
        // The first reading takes the path as it came, and wins among equals.
        let stricter =
            |best: &Arc<Route>, other: &Arc<Route>| other.strictness() > best.strictness();
        found.reduce(|best, other| if stricter(best, other) { other } else { best })
    }
}

impl Route {
    fn new(spec: &RouteSpec, secrets: &Secrets) -> Result<Self, PolicyError> {
        let pepper = secrets.pepper.clone();
        let fingerprint = FingerprintRules { pepper, ..spec.fingerprint.clone() };
        let scope = scope_of(&spec.scope, secrets.tokens.as_ref());
        let rule = |policy: Arc<Policy>, weak, scope| {
            let rule = Rule::new(Arc::clone(&spec.name))
                .mode(spec.mode.of_rule())
                .policy(policy)?
                .fingerprint(fingerprint.clone())
                .count_headers(spec.counted.clone())
                .methods(spec.protected_methods())
                .key_sources(spec.keys.clone())
                .weak_keys(weak)
                .scope(scope);
            Ok(Arc::new(rule))
        };
        let rule_again = match (spec.completer, spec.mode) {
            (Completer::Off, _) | (_, RouteMode::Off | RouteMode::Observe) => None,
            (Completer::For(_), RouteMode::Optional | RouteMode::Required) => {
                // It never waits for another attempt: if that fails, the next one comes when it is
                // due. And what was accepted once is not refused for its key.
                // Without a lease it sends nothing, whatever the route lets clients do. And an
                // upstream that refuses credentials of then has said nothing about the work.
                let keep =
                    [401, 403, 407].into_iter().fold(spec.policy.keep.clone(), |keep, status| {
                        keep.first(status, Verdict::Release)
                    });
                let policy = Policy {
                    in_flight: InFlight::Conflict,
                    store_down: StoreDown::Refuse,
                    keep,
                    ..(*spec.policy).clone()
                };
                Some(rule(Arc::new(policy), WeakKeys::Accept, kept_scope())?)
            }
        };
        let rule = rule(Arc::clone(&spec.policy), spec.quality, scope.clone())?;
        Ok(Self { spec: spec.clone(), rule, rule_again, scope })
    }

    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }

    pub(crate) const fn mode(&self) -> RouteMode {
        self.spec.mode
    }

    /// How much it demands; more is stricter. Of two that protect alike, the one whose work is never sent
    /// twice: a path that could mean either must not become retryable by its spelling (I8).
    fn strictness(&self) -> (RouteMode, Reverse<usize>) {
        let class = self.spec.policy.class;
        let place = Class::ALL.iter().position(|known| *known == class);
        (self.spec.mode, Reverse(place.unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use oncekey::layer::Mode;

    use super::*;
    use crate::config::{Config, Env};

    fn table(routes: &[(&str, &str)]) -> RouteTable {
        let mut text = "version = 1\n[server]\nupstream = 'http://127.0.0.1:1'\n".to_owned();
        for (pattern, mode) in routes {
            text += &format!("[[route]]\nmatch = '{pattern}'\nmode = '{mode}'\n");
        }
        let config = Config::from_text("test.toml", &text, &Env::default()).unwrap();
        RouteTable::new(&config.routes, &Secrets::default()).unwrap()
    }

    fn found(table: &RouteTable, method: &Method, path: &str) -> Option<String> {
        table.find(method, path).map(|route| route.spec.pattern.to_string())
    }

    #[test]
    fn the_most_specific_route_wins() {
        let table = table(&[
            ("/{rest...}", "optional"),
            ("POST /v1/charges", "required"),
            ("POST /v1/{thing}", "observe"),
            ("* /v1/charges/{id}/capture", "required"),
        ]);
        for (method, path, expected) in [
            (Method::POST, "/v1/charges", Some("POST /v1/charges")),
            (Method::POST, "/v1/refunds", Some("POST /v1/{thing}")),
            (Method::PATCH, "/v1/charges", Some("/{rest...}")),
            (Method::PUT, "/v1/charges", None),
            (Method::PUT, "/v1/charges/9/capture", Some("* /v1/charges/{id}/capture")),
            (Method::POST, "/v1/charges/9", Some("/{rest...}")),
            (Method::GET, "/v1/charges", None),
            (Method::OPTIONS, "*", None),
        ] {
            assert_eq!(found(&table, &method, path).as_deref(), expected, "{path}");
        }
    }

    /// T9: no spelling of a path leads around a protected route.
    #[test]
    fn an_odd_path_takes_the_strictest_route_that_it_could_mean() {
        let table = table(&[("/{rest...}", "off"), ("POST /v1/charges", "required")]);
        for path in [
            "/v1//charges",
            "/v1/./charges",
            "/v1/x/../charges",
            "/v1%2Fcharges",
            "/v1\\charges",
            "/v1/charges;a=1",
            "/v1/charges%00",
            "/V1/CHARGES/",
            "/v1/%63harges",
            "/v1/x%2f..%2fcharges",
            "//v1/charges//",
        ] {
            let route = table.find(&Method::POST, path).unwrap();
            assert_eq!(route.mode(), RouteMode::Required, "{path}");
        }
        assert_eq!(table.find(&Method::POST, "/v1//other").unwrap().mode(), RouteMode::Off);
    }

    /// I8: nor to a class that may send again what the other may not.
    #[test]
    fn an_odd_path_takes_the_most_careful_class_that_it_could_mean() {
        let routes = "[[route]]\nmatch = '/{rest...}'\nmode = 'optional'\nclass = 'retry'\n\
                      [[route]]\nmatch = 'POST /v1/charges'\nmode = 'optional'\nclass = 'once'\n";
        let text = format!("version = 1\n[server]\nupstream = 'http://127.0.0.1:1'\n{routes}");
        let config = Config::from_text("test.toml", &text, &Env::default()).unwrap();
        let table = RouteTable::new(&config.routes, &Secrets::default()).unwrap();
        let long = format!("/v1/{}charges", "x/../".repeat(1_000));
        for path in ["/v1//charges", "/V1/charges", &long] {
            let route = table.find(&Method::POST, path).unwrap();
            assert_eq!(route.spec.policy.class, Class::Once, "{path}");
        }
        assert_eq!(
            table.find(&Method::POST, "/v1//other").unwrap().spec.policy.class,
            Class::Retry
        );
    }

    #[test]
    fn an_odd_path_that_is_too_long_to_read_takes_the_strictest_route_of_all() {
        let table = table(&[("/{rest...}", "off"), ("POST /v1/charges", "required")]);
        let path = format!("/v1/{}charges", "x/../".repeat(1_000));
        assert_eq!(table.find(&Method::POST, &path).unwrap().mode(), RouteMode::Required);
        assert_eq!(table.find(&Method::PATCH, &path).unwrap().mode(), RouteMode::Off);
        assert!(table.find(&Method::DELETE, &path).is_none());
        let plain = format!("/v1/{}charges", "x/".repeat(10_000));
        assert_eq!(table.find(&Method::POST, &plain).unwrap().mode(), RouteMode::Off);
    }

    #[test]
    fn only_routes_that_protect_have_a_rule_that_does() {
        let table = table(&[("POST /a", "observe"), ("POST /b", "optional"), ("* /c", "off")]);
        let modes: Vec<Mode> = table.routes().iter().map(|route| route.rule.needs()).collect();
        assert_eq!(modes, [Mode::Off, Mode::Optional, Mode::Off]);
        assert_eq!(table.routes()[1].name(), "POST /b");
    }

    #[test]
    fn hundreds_of_routes_are_found_each() {
        let patterns: Vec<String> = (0..400).map(|n| format!("POST /v1/thing{n}/{{id}}")).collect();
        let routes: Vec<(&str, &str)> =
            patterns.iter().map(|pattern| (pattern.as_str(), "optional")).collect();
        let table = table(&routes);
        for (n, pattern) in patterns.iter().enumerate() {
            let path = format!("/v1/thing{n}/9");
            assert_eq!(found(&table, &Method::POST, &path).as_ref(), Some(pattern));
        }
    }
}
