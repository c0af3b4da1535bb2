//! A request that somebody wants to know the end of: observe mode, or whoever watches.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Method, Request, StatusCode};
use oncekey::clock::{SystemClock, SystemUptime, Uptime as _};
use oncekey::core::{Clock as _, KeyId};
use oncekey::layer::Outcome;

use super::front::Front;
use super::watched::Delivered;
use crate::admin::{Event, Mark};
use crate::observe::{Finding, Suspicion, Would};
use crate::overheard::{Ear, Listened};
use crate::route::{ClientName, Route};

/// What is known when a request comes.
pub(super) struct Exchange {
    front: Arc<Front>,
    route: Option<Arc<Route>>,
    head: Parts,
    /// Set in observe mode.
    ear: Option<Ear>,
    /// When it came.
    began: Duration,
}

/// What is known when it has been answered.
pub(super) struct Answered {
    pub(super) status: StatusCode,
    /// What the layer did, if it did anything.
    pub(super) outcome: Option<Outcome>,
}

impl Exchange {
    /// Notes a request. Its head is copied: the original goes on.
    pub(super) fn begin(front: &Arc<Front>, route: Option<&Arc<Route>>, of: &Parts) -> Self {
        let (mut head, ()) = Request::new(()).into_parts();
        head.method = of.method.clone();
        head.uri = of.uri.clone();
        head.headers = of.headers.clone();
        if let Some(name) = of.extensions.get::<ClientName>() {
            head.extensions.insert(name.clone());
        }
        let (front, route) = (Arc::clone(front), route.cloned());
        Self { front, route, head, ear: None, began: SystemUptime.elapsed() }
    }

    /// Listens to the body, too.
    pub(super) fn listen(&mut self, ear: Ear) {
        self.ear = Some(ear);
    }

    /// Tells everybody how it ended. In a task of its own, because a long body takes a while to
    /// compare, and the connection has others to serve.
    pub(super) fn end(self, answered: Answered, delivered: Delivered) {
        // Without a runtime the program ends, and nobody listens any more.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let took = SystemUptime.elapsed().saturating_sub(self.began);
            runtime.spawn(async move { self.tell(&answered, delivered, took) });
        }
    }

    fn tell(&self, answered: &Answered, delivered: Delivered, took: Duration) {
        let listened = self.ear.as_ref().map(Ear::listened);
        let key = self.key(listened.as_ref());
        let finding = listened.map(|listened| self.compare(&listened, key));
        if delivered == Delivered::Partly {
            let (route, stage) = (self.name(), "after_answer");
            metrics::counter!("oncekey_client_aborts_total", "route" => route, "stage" => stage)
                .increment(1);
        }
        if let Some(finding) = finding {
            self.count(finding);
            self.log(finding, answered.status, took);
        }
        self.front.events.publish(|| Event {
            ts: SystemClock.now(),
            method: method(&self.head.method),
            route: self.name(),
            path: self.head.uri.path().into(),
            status: answered.status.as_u16(),
            outcome: match (finding, answered.outcome) {
                (Some(finding), _) => finding.would.label(),
                (None, Some(outcome)) => outcome.label(),
                (None, None) => Outcome::Bypassed.label(),
            },
            duration: took,
            key_hash: key.ok().flatten(),
            mark: mark(finding, answered.outcome),
        });
    }

    fn name(&self) -> Arc<str> {
        self.route.as_ref().map_or_else(|| "-".into(), |route| Arc::clone(&route.spec.name))
    }

    /// Which key it has; an error if it has something that is none, or nobody knows whose it is.
    fn key(&self, listened: Option<&Listened>) -> Result<Option<KeyId>, ()> {
        let Some(route) = &self.route else { return Ok(None) };
        let body: &[u8] = match listened {
            Some(Listened::Whole(body)) => body,
            // A key in a body that nobody heard is not found.
            Some(Listened::TooLong | Listened::Broken) | None => b"{}",
        };
        let Some(key) = route.rule.key(&self.head, body).map_err(drop)? else { return Ok(None) };
        let scope = route.scope.find(&self.head).map_err(drop)?;
        Ok(Some(self.front.engine.key_id(&scope, &key)))
    }

    fn compare(&self, listened: &Listened, key: Result<Option<KeyId>, ()>) -> Finding {
        let fingerprint = match (listened, &self.route) {
            (Listened::Whole(body), Some(route)) => {
                Some(route.rule.fingerprint_of(&self.head, body))
            }
            (Listened::TooLong | Listened::Broken, _) | (_, None) => None,
        };
        self.front.observer.look(key, fingerprint)
    }

    fn count(&self, finding: Finding) {
        let (route, method) = (self.name(), method(&self.head.method));
        let outcome = finding.would.label();
        metrics::counter!(
            "oncekey_requests_total",
            "route" => Arc::clone(&route), "method" => method, "mode" => "observe",
            "outcome" => outcome
        )
        .increment(1);
        let duplicate = match (finding.would, finding.suspicion) {
            (Would::Replay { .. }, _) => Some(("keyed", "high")),
            (_, Some(suspicion)) => Some((suspicion.label(), "low")),
            (_, None) => None,
        };
        if let Some((kind, confidence)) = duplicate {
            metrics::counter!(
                "oncekey_duplicates_observed_total",
                "route" => route, "kind" => kind, "confidence" => confidence
            )
            .increment(1);
        }
    }

    fn log(&self, finding: Finding, status: StatusCode, took: Duration) {
        let seen = match (finding.would, finding.suspicion) {
            (Would::Replay { after }, _) => Some(("keyed", after)),
            (_, Some(Suspicion::Hollow { after })) => Some(("hollow", after)),
            (_, Some(Suspicion::Keyless { after })) => Some(("keyless_suspected", after)),
            (_, None) => None,
        };
        let duration_ms = took.as_secs_f64() * 1_000.0;
        match seen {
            Some((kind, after)) => tracing::warn!(
                route = &*self.name(),
                kind,
                after_ms = after.as_secs_f64() * 1_000.0,
                status = status.as_u16(),
                duration_ms,
                "duplicate observed"
            ),
            None => tracing::debug!(
                route = &*self.name(),
                outcome = finding.would.label(),
                status = status.as_u16(),
                duration_ms,
                "observed"
            ),
        }
    }
}

fn mark(finding: Option<Finding>, outcome: Option<Outcome>) -> Option<Mark> {
    let (would, suspicion) =
        finding.map_or((None, None), |finding| (Some(finding.would), finding.suspicion));
    match (would, suspicion, outcome) {
        (Some(Would::Replay { .. }), ..) => Some(Mark::Duplicate),
        (_, Some(Suspicion::Hollow { .. }), _) => Some(Mark::Hollow),
        (_, Some(Suspicion::Keyless { .. }), _) => Some(Mark::Repeated),
        (.., Some(Outcome::Replayed)) => Some(Mark::Replayed),
        (.., Some(Outcome::Coalesced)) => Some(Mark::Coalesced),
        (..) => None,
    }
}

/// A method as a label: clients can make up any number of them.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}
