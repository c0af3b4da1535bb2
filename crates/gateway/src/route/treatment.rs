//! What a route does with one request.

use std::sync::Arc;

use http::request::Parts;
use oncekey::layer::Rule;

use super::rollout::RolloutBy;
use super::spec::{Completer, RouteMode};
use super::table::Route;

/// A request's route, and what it does with this very request.
#[derive(Clone, Debug)]
pub(crate) struct Assigned {
    pub(crate) route: Arc<Route>,
    pub(crate) treatment: Treatment,
}

/// What is done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// Nothing.
    Pass,
    /// It passes, and it is noted what would have happened.
    Observe,
    /// The layer's rule applies.
    Protect,
    /// It was kept, and is sent again: the completer's rule applies.
    Complete,
}

impl Assigned {
    pub(crate) fn new(route: &Arc<Route>, head: &Parts) -> Self {
        let treatment = match route.mode() {
            RouteMode::Off => Treatment::Pass,
            RouteMode::Observe => Treatment::Observe,
            RouteMode::Optional | RouteMode::Required => route.rolled_out_to(head),
        };
        Self { route: Arc::clone(route), treatment }
    }

    /// Whether it may be kept, or was, to be sent again.
    pub(crate) fn may_complete(&self) -> bool {
        match self.treatment {
            Treatment::Pass | Treatment::Observe => false,
            Treatment::Protect => self.route.spec.completer != Completer::Off,
            Treatment::Complete => true,
        }
    }

    /// The layer's rule, if it applies.
    pub(crate) fn rule(&self) -> Option<Arc<Rule>> {
        match self.treatment {
            Treatment::Pass | Treatment::Observe => None,
            Treatment::Protect => Some(Arc::clone(&self.route.rule)),
            Treatment::Complete => self.route.rule_again.clone(),
        }
    }
}

impl Route {
    /// Whether a request belongs to those who are protected already. Somebody whom nobody knows, or
    /// who has no key where keys are drawn, comes in last.
    fn rolled_out_to(&self, head: &Parts) -> Treatment {
        let rollout = &self.spec.rollout;
        if rollout.is_for_all() {
            return Treatment::Protect;
        }
        let scope = self.scope.find(head).ok();
        if rollout.exempts(scope.as_ref(), &head.headers) {
            return Treatment::Observe;
        }
        let drawn = match (rollout.by, scope) {
            (RolloutBy::Scope, scope) => scope.map(|scope| scope.as_bytes().to_vec()),
            (RolloutBy::Key, None) => None,
            (RolloutBy::Key, Some(scope)) => {
                let key = self.rule.key(head, &[]).ok().flatten();
                key.map(|key| [scope.as_bytes(), key.as_bytes()].concat())
            }
        };
        let inside = match drawn {
            Some(drawn) => rollout.includes(&drawn),
            None => rollout.percent >= 100,
        };
        if inside { Treatment::Protect } else { Treatment::Observe }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::config::{Config, Env};
    use crate::route::{RouteTable, Secrets};

    fn route(more: &str) -> Arc<Route> {
        let text = format!(
            "version = 1\n[server]\nupstream = ':3000'\n[[route]]\nmatch = 'POST /a'\n\
             scope = ['header:x-tenant']\n{more}"
        );
        let config = Config::from_text("a.toml", &text, &Env::default()).unwrap();
        let table = RouteTable::new(&config.routes, &Secrets::default()).unwrap();
        Arc::clone(&table.routes()[0])
    }

    fn treated(route: &Arc<Route>, tenant: &str, key: Option<&str>) -> Treatment {
        let mut request = Request::post("/a").header("x-tenant", tenant);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        Assigned::new(route, &request.body(()).unwrap().into_parts().0).treatment
    }

    #[test]
    fn the_mode_decides_where_nothing_is_rolled_out() {
        for (mode, expected) in [
            ("off", Treatment::Pass),
            ("observe", Treatment::Observe),
            ("optional", Treatment::Protect),
            ("required", Treatment::Protect),
        ] {
            let route = route(&format!("mode = '{mode}'\n"));
            assert_eq!(treated(&route, "acme", None), expected, "{mode}");
        }
    }

    #[test]
    fn a_caller_is_in_or_out_with_everything() {
        let route = route("mode = 'required'\nrollout = { percent = 50 }\n");
        let tenants: Vec<String> = (0..40).map(|n| format!("tenant {n}")).collect();
        let of = |tenant: &str, key| treated(&route, tenant, Some(key));
        let inside = tenants.iter().filter(|t| of(t, "k") == Treatment::Protect).count();
        assert!((8..32).contains(&inside), "{inside}");
        for tenant in &tenants {
            assert_eq!(of(tenant, "k"), of(tenant, "another"), "{tenant}");
        }
    }

    #[test]
    fn where_keys_are_drawn_all_attempts_of_one_are_treated_alike() {
        let route = route("mode = 'required'\nrollout = { percent = 50, by = 'key' }\n");
        let keys: Vec<String> = (0..40).map(|n| format!("key {n}")).collect();
        let of = |key: &str| treated(&route, "acme", Some(key));
        let inside = keys.iter().filter(|key| of(key) == Treatment::Protect).count();
        assert!((8..32).contains(&inside), "{inside}");
        assert_eq!(treated(&route, "acme", None), Treatment::Observe);
    }

    #[test]
    fn who_is_exempt_is_observed() {
        let route = route("mode = 'required'\nrollout = { exempt = ['scope:acme'] }\n");
        assert_eq!(treated(&route, "acme", None), Treatment::Observe);
        assert_eq!(treated(&route, "other", None), Treatment::Protect);
    }
}
