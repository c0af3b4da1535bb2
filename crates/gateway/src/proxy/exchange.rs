//! A request that somebody wants to know the end of: observe mode, or whoever watches.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Method, Request, StatusCode};
use oncekey::clock::{SystemClock, SystemUptime, Uptime as _};
use oncekey::core::{Clock as _, Key, KeyId, Scope};
use oncekey::layer::Outcome;

use super::front::Front;
use super::watched::Delivered;
use crate::admin::{Event, Mark};
use crate::observe::{Caller, Finding, Reached, Suspicion, Would};
use crate::overheard::{Ear, Listened};
use crate::route::{ClientName, Route};

/// A request on its way. If this goes before its end was told, the client has left before there was
/// an answer.
pub(super) struct Exchange(Option<Box<Noted>>);

/// What is known when a request comes.
struct Noted {
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
    /// Whether the client was still there.
    pub(super) reached: Reached,
}

/// Under this key the digest of a caller is computed: as secret as those of keys are, where there is a
/// pepper, and of no use to find one.
const CALLER: &[u8] = b"oncekey: caller";

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
        let noted = Noted { front, route, head, ear: None, began: SystemUptime.elapsed() };
        Self(Some(Box::new(noted)))
    }

    /// Listens to the body, too.
    pub(super) fn listen(&mut self, ear: Ear) {
        if let Some(noted) = &mut self.0 {
            noted.ear = Some(ear);
        }
    }

    /// Tells everybody how it ended. In a task of its own, because a long body takes a while to
    /// compare, and the connection has others to serve.
    pub(super) fn end(mut self, answered: Answered, delivered: Delivered) {
        if let Some(noted) = self.0.take() {
            let took = SystemUptime.elapsed().saturating_sub(noted.began);
            later(move || noted.tell(&answered, delivered, took));
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // Of what is protected, the engine knows who has left.
        if let Some(noted) = self.0.take().filter(|noted| noted.ear.is_some()) {
            later(move || noted.unanswered());
        }
    }
}

/// Does it in a task. Without a runtime the program ends, and nobody listens any more.
fn later(work: impl FnOnce() + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move { work() });
    }
}

impl Noted {
    fn tell(&self, answered: &Answered, delivered: Delivered, took: Duration) {
        let (listened, scope) = (self.ear.as_ref().map(Ear::listened), self.scope());
        let key = self.key(listened.as_ref(), scope.as_ref());
        let finding = listened.map(|listened| self.compare(&listened, key));
        // Whoever left before the answer is counted already.
        if (delivered, answered.reached) == (Delivered::Partly, Reached::Client) {
            count_abort(self.name(), "after_answer");
        }
        if let Some(finding) = finding {
            let reached = match delivered {
                Delivered::Whole => answered.reached,
                Delivered::Partly => Reached::Nobody,
            };
            self.count(finding, scope.as_ref(), reached);
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

    /// Nobody waited for an answer. The upstream may have got the request or not.
    fn unanswered(&self) {
        count_abort(self.name(), "before_answer");
        let Some(listened) = self.ear.as_ref().map(Ear::listened) else { return };
        let scope = self.scope();
        let key = self.key(Some(&listened), scope.as_ref());
        let finding = self.compare(&listened, key);
        self.count(finding, scope.as_ref(), Reached::Nobody);
    }

    /// Whom its key would belong to; `None` if nobody can tell.
    fn scope(&self) -> Option<Scope> {
        self.route.as_ref()?.scope.find(&self.head).ok()
    }

    fn name(&self) -> Arc<str> {
        self.route.as_ref().map_or_else(|| "-".into(), |route| Arc::clone(&route.spec.name))
    }

    /// Which key it has; an error if it has something that is none, or nobody knows whose it is.
    fn key(&self, listened: Option<&Listened>, scope: Option<&Scope>) -> Result<Option<KeyId>, ()> {
        let Some(route) = &self.route else { return Ok(None) };
        let body: &[u8] = match listened {
            Some(Listened::Whole(body)) => body,
            // A key in a body that nobody heard is not found.
            Some(Listened::TooLong | Listened::Broken) | None => b"{}",
        };
        let Some(key) = route.rule.key(&self.head, body).map_err(drop)? else { return Ok(None) };
        Ok(Some(self.front.engine.key_id(scope.ok_or(())?, &key)))
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

    fn count(&self, finding: Finding, scope: Option<&Scope>, reached: Reached) {
        let (route, method) = (self.name(), method(&self.head.method));
        let caller = scope.map_or(Caller::Nobody, |scope| {
            let key = Key::new(CALLER).expect("a short text");
            Caller::of(&self.front.engine.key_id(scope, &key))
        });
        self.front.observer.count(Arc::clone(&route), caller, finding, reached);
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

/// Counts an answer that nobody waited for.
pub(super) fn count_abort(route: Arc<str>, stage: &'static str) {
    metrics::counter!("oncekey_client_aborts_total", "route" => route, "stage" => stage)
        .increment(1);
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
