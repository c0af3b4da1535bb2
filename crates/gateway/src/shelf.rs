//! Records of the gateway itself, beside those of clients' keys.
//!
//! Such a record is claimed and completed at once, and its answer is what is kept. So every store
//! can keep it, it is encrypted like an answer, and it ends with its retention.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncekey::core::policy::{InFlight, Limits};
use oncekey::core::store::{MAX_BODY, MAX_HEADERS};
use oncekey::core::{
    Class, Fingerprint, FingerprintRules, Key, KeyId, Places, Policy, Saved, Scope, Subject,
};
use oncekey::engine::{Call, Engine, Finish, Reply};

/// The route of the records that hold requests for the completer.
pub(crate) const KEPT_ROUTE: &str = "oncekey: kept request";
/// The route of the records that hold the numbers of observe mode.
pub(crate) const OBSERVED_ROUTE: &str = "oncekey: observed";

/// Whom they belong to. No client has such a scope: those of one value begin with another byte, a
/// hashed header has two parts, and what is put together of several has parts that begin with such a
/// byte themselves.
const KEPT_SCOPE: &[u8] = b"oncekey/kept-request";
const OBSERVED_SCOPE: &[u8] = b"oncekey/observed";

/// Nobody renews it for long: it is completed in the next call. If that is lost, the next attempt
/// waits for it.
const LEASE: Duration = Duration::from_secs(3);
/// Longer than such a lease and its grace.
const WAIT: Duration = Duration::from_secs(10);

/// Records of one kind. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Shelf {
    engine: Engine,
    route: &'static str,
    scope: Scope,
    /// All of them have the same: there is nothing to compare.
    fingerprint: Fingerprint,
}

/// Whether a route is one of ours, by which lists leave its records out.
pub(crate) fn is_ours(route: &[u8]) -> bool {
    [KEPT_ROUTE, OBSERVED_ROUTE].iter().any(|ours| ours.as_bytes() == route)
}

impl Shelf {
    /// Requests for the completer.
    pub(crate) fn of_kept_requests(engine: Engine) -> Self {
        Self::new(engine, KEPT_ROUTE, KEPT_SCOPE)
    }

    /// The numbers of observe mode.
    pub(crate) fn of_observed(engine: Engine) -> Self {
        Self::new(engine, OBSERVED_ROUTE, OBSERVED_SCOPE)
    }

    fn new(engine: Engine, route: &'static str, scope: &'static [u8]) -> Self {
        let subject = Subject {
            method: "KEEP",
            path: b"",
            query: None,
            content_type: None,
            headers: &[],
            body: b"",
        };
        let (fingerprint, _) = Fingerprint::v1(&subject, &FingerprintRules::default());
        let scope = only(scope);
        Self { engine, route, scope, fingerprint }
    }

    /// Keeps something for a time, unless something is there already: then that is the reply.
    ///
    /// # Cancellation
    /// It may be kept or not. Asking again tells.
    pub(crate) async fn put(&self, key: Key, saved: Saved, time: Duration) -> Reply<()> {
        let call = Call {
            id: self.id(&key),
            key,
            scope: self.scope.clone(),
            fingerprint: self.fingerprint,
            exact: None,
            places: Places::default(),
            route: Arc::from(self.route),
            request: self.engine.request_id(),
            policy: Arc::new(policy(time)),
        };
        self.engine.answer(call, move |_| async move { Finish::answered(saved, ()) }).await
    }

    /// The id of such a record.
    pub(crate) fn id(&self, key: &Key) -> KeyId {
        self.engine.key_id(&self.scope, key)
    }
}

impl fmt::Debug for Shelf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Shelf").field("route", &self.route).finish_non_exhaustive()
    }
}

fn only(part: &[u8]) -> Scope {
    Scope::of_parts(&[part]).expect("a short scope")
}

fn policy(time: Duration) -> Policy {
    Policy {
        // There is no effect but the record itself: whoever finds it half-way begins anew.
        class: Class::Tx,
        retention: time,
        lease: LEASE,
        in_flight: InFlight::Wait(WAIT),
        limits: Limits { saved_body: MAX_BODY, saved_headers: MAX_HEADERS, ..Limits::default() },
        ..Policy::default()
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, Request};

    use super::*;
    use crate::route::{ScopePart, scope_of};

    /// Whatever a client sends, and however a route finds its scope.
    #[test]
    fn no_client_has_a_scope_of_ours() {
        [KEPT_SCOPE, OBSERVED_SCOPE].into_iter().for_each(is_nobodys);
    }

    fn is_nobodys(part: &[u8]) {
        let ours = only(part);
        let header = HeaderName::from_static("x-tenant");
        let header = |_| ScopePart::Header(header.clone());
        let inside = &ours.as_bytes()[1..];
        for value in [part, ours.as_bytes(), inside] {
            let Ok(value) = http::HeaderValue::from_bytes(value) else { continue };
            let mut head = Request::new(()).into_parts().0;
            head.headers.insert("x-tenant", value.clone());
            head.headers.insert("authorization", value);
            let several: Vec<ScopePart> = (0..3).map(header).collect();
            let hashed = ScopePart::ApiKey(HeaderName::from_static("x-tenant"));
            for parts in [&several[..1], &several, &[hashed], &[ScopePart::Credential], &[]] {
                let found = scope_of(parts, None).find(&head).unwrap();
                assert_ne!(found, ours, "{parts:?}");
            }
        }
        // What every other scope begins with, in each of its parts.
        let first = ours.as_bytes()[9];
        assert!(![0, 1, 2].contains(&first), "{first}");
        assert!(HeaderName::from_bytes(part).is_err(), "the name of a hashed header");
    }
}
