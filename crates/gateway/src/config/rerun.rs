//! Finished keys that a new configuration does not find any more.
//!
//! A retry of such a key runs its work again, so whoever reloads is told. Requests that stand for all
//! others are looked up in the routes of both configurations: a route may lose requests to another
//! one without a change of its own. What makes a retry fail is not told: nothing runs twice there.

use std::sync::Arc;

use http::Method;
use oncekey::layer::KeySource;

use super::Config;
use crate::route::{
    Exempt, Rollout, Route, RouteMode, RouteSpec, RouteTable, Secrets, common_path,
};

/// Why a finished key is not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hidden {
    /// No route protects its requests.
    Unprotected,
    /// It belongs to somebody else.
    Rescoped,
    /// It is not looked for where it stands.
    Unread,
    /// Its caller is not protected.
    LeftAlone,
}

impl Config {
    /// Whose retries run again although they were finished under this configuration, once `new` holds.
    /// A line each.
    pub(crate) fn runs_again(&self, new: &Self) -> Vec<String> {
        // Without secrets: nobody is asked who they are here. And a configuration that was loaded has
        // no route that contradicts itself.
        let table = |config: &Self| RouteTable::new(&config.routes, &Secrets::default());
        let (Ok(before), Ok(after)) = (table(self), table(new)) else { return Vec::new() };
        let all = || self.routes.iter().chain(&new.routes);
        // Longer paths take the same routes: only tails are left then.
        let longest = all().map(|route| route.pattern.segments().len()).max().unwrap_or(0) + 1;
        let mut said = Vec::new();
        for old in self.routes.iter().filter(|route| protects(route)) {
            // With itself, for requests that no new route is for.
            for other in std::iter::once(old).chain(&new.routes) {
                let paths = (0..=longest)
                    .filter_map(|length| common_path(&old.pattern, &other.pattern, length));
                for path in paths {
                    for method in methods(old, other) {
                        let (old, new) = (before.find(&method, &path), after.find(&method, &path));
                        let line = old.and_then(|old| told(old, new));
                        said.extend(line.filter(|line| !said.contains(line)));
                    }
                }
            }
        }
        said
    }
}

fn protects(route: &RouteSpec) -> bool {
    match route.mode {
        RouteMode::Off | RouteMode::Observe => false,
        RouteMode::Optional | RouteMode::Required => route.rollout.percent > 0,
    }
}

/// The methods of both that can be protected.
fn methods(old: &RouteSpec, other: &RouteSpec) -> Vec<Method> {
    let mut methods = old.protected_methods();
    methods.extend(other.protected_methods());
    methods
}

/// What to say of requests that took the route `old` and take `new` from now on.
fn told(old: &Arc<Route>, new: Option<&Arc<Route>>) -> Option<String> {
    let hidden = hidden(&old.spec, new.map(|route| &route.spec))?;
    let whose = match new {
        Some(new) if new.name() != old.name() => {
            format!("{} that {} takes over", old.name(), new.name())
        }
        Some(_) | None => old.name().to_owned(),
    };
    let what = match hidden {
        Hidden::Unprotected => format!("the requests of {whose} are not protected any more"),
        Hidden::Rescoped => format!("the keys of {whose} belong to others now"),
        Hidden::Unread => format!("the keys of {whose} are not looked for in all places any more"),
        Hidden::LeftAlone => format!("some callers of {whose} are not protected any more"),
    };
    Some(format!("{what}: a retry across this change runs again"))
}

fn hidden(old: &RouteSpec, new: Option<&RouteSpec>) -> Option<Hidden> {
    if !protects(old) {
        return None;
    }
    let Some(new) = new.filter(|new| protects(new)) else { return Some(Hidden::Unprotected) };
    // A source that is new makes a retry fail at worst: all that a request has must say the same.
    let is_read = |source: &KeySource| new.keys.contains(source);
    if old.scope != new.scope {
        Some(Hidden::Rescoped)
    } else if !old.keys.iter().all(is_read) {
        Some(Hidden::Unread)
    } else if leaves_alone(&old.rollout, &new.rollout) {
        Some(Hidden::LeftAlone)
    } else {
        None
    }
}

/// Whether somebody may be protected before and not after.
fn leaves_alone(old: &Rollout, new: &Rollout) -> bool {
    let was_exempt = |exempt: &Exempt| old.exempt.contains(exempt);
    new.percent < old.percent
        || (new.by != old.by && new.percent < 100)
        || !new.exempt.iter().all(was_exempt)
}

#[cfg(test)]
mod tests {
    use super::super::Env;
    use super::*;

    const CHARGES: &str = "[[route]]\nmatch = 'POST /v1/charges'\nmode = 'required'\n";

    fn load(routes: &str) -> Config {
        let text = format!(
            "version = 1\n[server]\nupstream = ':3000'\n[defaults]\nscope = ['header:x-tenant']\n{routes}"
        );
        Config::from_text("a.toml", &text, &Env::default()).unwrap()
    }

    /// What is said of a change, without its end, which is always the same.
    fn said(old: &str, new: &str) -> Vec<String> {
        let lines = load(old).runs_again(&load(new));
        let end = ": a retry across this change runs again";
        lines.iter().map(|line| line.strip_suffix(end).expect(line).to_owned()).collect()
    }

    #[test]
    fn a_change_that_hides_no_finished_key_is_not_warned_of() {
        let old = &format!("{CHARGES}rollout = {{ percent = 10 }}\n");
        for new in [
            old.to_owned(),
            CHARGES.to_owned(),
            CHARGES.replace("required", "optional"),
            format!("{CHARGES}name = 'charge'\nttl = '2h'\n"),
            format!("{CHARGES}key.sources = ['query:key', 'header:Idempotency-Key']\n"),
            "[[route]]\nmatch = '/{rest...}'\nmode = 'optional'\n".to_owned(),
            format!("{CHARGES}[[route]]\nmatch = 'POST /v1/{{x}}'\nscope = ['shared']\n"),
        ] {
            assert_eq!(said(old, &new), [] as [&str; 0], "{new}");
        }
        assert_eq!(said(&CHARGES.replace("required", "observe"), ""), [] as [&str; 0]);
    }

    #[test]
    fn a_route_whose_finished_keys_are_not_found_any_more_is_named() {
        let rollout = |rollout: &str| format!("{CHARGES}rollout = {{ {rollout} }}\n");
        for (new, expected) in [
            (
                format!("{CHARGES}scope = ['shared']\n"),
                "the keys of POST /v1/charges belong to others now",
            ),
            (
                format!("{CHARGES}key.sources = ['query:key']\n"),
                "the keys of POST /v1/charges are not looked for in all places any more",
            ),
            (
                CHARGES.replace("required", "observe"),
                "the requests of POST /v1/charges are not protected any more",
            ),
            (
                CHARGES.replace("POST", "PUT"),
                "the requests of POST /v1/charges are not protected any more",
            ),
            (
                CHARGES.replace("charges", "payments"),
                "the requests of POST /v1/charges are not protected any more",
            ),
            (
                rollout("percent = 99"),
                "some callers of POST /v1/charges are not protected any more",
            ),
            (
                rollout("exempt = ['scope:acme']"),
                "some callers of POST /v1/charges are not protected any more",
            ),
        ] {
            assert_eq!(said(CHARGES, &new), [expected], "{new}");
        }
        let (half, drawn) = ("percent = 50", "percent = 50, by = 'key'");
        assert_eq!(said(&rollout(half), &rollout(drawn)).len(), 1);
    }

    #[test]
    fn a_route_that_loses_requests_to_a_more_specific_one_is_named() {
        let old = "[[route]]\nname = 'all'\nmatch = '/{rest...}'\nmode = 'optional'\n";
        let new = format!("{old}{CHARGES}name = 'charge'\nscope = ['shared']\n");
        assert_eq!(
            said(old, &new),
            ["the keys of all that charge takes over belong to others now"]
        );
        let old = "[[route]]\nname = 'old'\nmatch = 'POST /{x}/b'\nmode = 'optional'\n";
        let new = format!("{old}[[route]]\nname = 'new'\nmatch = 'POST /c/{{y}}'\nmode = 'off'\n");
        assert_eq!(
            said(old, &new),
            ["the requests of old that new takes over are not protected any more"],
            "they have one path in common"
        );
    }
}
