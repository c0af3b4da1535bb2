//! What a route asks of its clients and promises to them.
//!
//! A [`Rule`] says whether a key is needed, where it stands, which requests count as the same and
//! under which policy the work runs. The layer has one rule for everything, or asks a closure for
//! the rule of each request; a request without a rule passes through untouched.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use oncekey_core::policy::{Mark, PolicyError};
use oncekey_core::{FingerprintRules, Key, Policy};

use super::headers::Status;
use super::meters::Meters;
use super::outcome::Outcome;
use super::scope::ScopeFrom;
use super::seldom::Seldom;
use super::source::{KeySource, Place, SourceError, has, is_json};
use crate::engine::Recorded;

/// How a route treats its requests.
#[derive(Debug)]
#[must_use]
pub struct Rule {
    number: u64,
    name: Arc<str>,
    mode: Mode,
    policy: Arc<Policy>,
    fingerprint: FingerprintRules,
    counted: Vec<HeaderName>,
    methods: Vec<Method>,
    sources: Vec<KeySource>,
    weak: WeakKeys,
    weak_seen: Seldom,
    scope: Option<ScopeFrom>,
    policy_field: OnceLock<HeaderValue>,
    status_field: OnceLock<HeaderValue>,
    meters: OnceLock<Meters>,
}

/// Whether a key is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Keys mean nothing here: every request passes through.
    Off,
    /// A request with a key is protected, one without passes through.
    #[default]
    Optional,
    /// A request without a key is refused with 400.
    Required,
}

/// What happens to a key that another client may come to by chance: shorter than 16 characters, or
/// with an `@`, as in an e-mail address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeakKeys {
    /// It is a key like any other, and counted as weak.
    #[default]
    Accept,
    /// There is a line in the log, too: once a minute, with how many there were.
    Warn,
    /// It is refused with 400.
    Reject,
}

/// What a rule finds in the head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// There is no key.
    Absent,
    /// There is something where a key may stand.
    Present,
    /// The body has to be read to know.
    Perhaps,
}

/// A key, or why there is none, and where that stands.
pub(super) type Searched = (Place, Result<Key, SourceError>);

impl Rule {
    /// A rule for POST and PATCH with an optional key in `Idempotency-Key`, and the default policy.
    ///
    /// `name` is the route's template, such as `POST /v1/charges`. It becomes a metric label and
    /// goes into every record: never put anything into it that a client can choose.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        static RULES: AtomicU64 = AtomicU64::new(0);
        Self {
            number: RULES.fetch_add(1, Ordering::Relaxed),
            name: name.into(),
            mode: Mode::default(),
            policy: sent_at_once(Arc::default()),
            fingerprint: FingerprintRules::default(),
            counted: Vec::new(),
            methods: vec![Method::POST, Method::PATCH],
            sources: vec![KeySource::Header(HeaderName::from_static("idempotency-key"))],
            weak: WeakKeys::default(),
            weak_seen: Seldom::default(),
            scope: None,
            policy_field: OnceLock::new(),
            status_field: OnceLock::new(),
            meters: OnceLock::new(),
        }
    }

    /// Sets whether a key is needed.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Refuses requests without a key: [`Mode::Required`].
    pub fn required(self) -> Self {
        self.mode(Mode::Required)
    }

    /// Sets what the route promises.
    ///
    /// [`Mark::ByClass`] is [`Mark::WithClaim`] here, for `once` too: the service is called as soon as
    /// the key is held, so a mark of its own would be written in the very moment that it is about.
    ///
    /// # Errors
    /// If the policy contradicts itself.
    pub fn policy(mut self, policy: impl Into<Arc<Policy>>) -> Result<Self, PolicyError> {
        self.policy = sent_at_once(policy.into());
        self.policy.check()?;
        Ok(self)
    }

    /// Sets how bodies are compared.
    pub fn fingerprint(mut self, rules: FingerprintRules) -> Self {
        self.fingerprint = rules;
        self
    }

    /// Sets the headers that must not change between attempts, besides `Content-Type` and
    /// `Content-Encoding`, which always count. `Host` is one to name if several APIs share a
    /// service; credentials and trace headers are not, because they change between honest retries.
    pub fn count_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.counted = names.into_iter().collect();
        self
    }

    /// Sets the methods that the rule is for. GET, HEAD, OPTIONS and TRACE are never protected:
    /// they are safe to repeat by definition (RFC 9110, section 9.2.1).
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// Sets the headers that may hold the key, for example `Idempotency-Key` and
    /// `PayPal-Request-Id`. A request that has two of them must say the same in both.
    pub fn key_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.key_sources(names.into_iter().map(KeySource::Header))
    }

    /// Sets where a key may stand. A request that has it in several places must say the same in
    /// all of them.
    ///
    /// For a [`KeySource::Json`] every request with a JSON body is read before anybody knows
    /// whether it has a key: one over the limit of the policy is refused, key or not, and so is one
    /// whose JSON is doubtful.
    pub fn key_sources(mut self, sources: impl IntoIterator<Item = KeySource>) -> Self {
        self.sources = sources.into_iter().collect();
        self
    }

    /// Sets what happens to weak keys.
    pub fn weak_keys(mut self, weak: WeakKeys) -> Self {
        self.weak = weak;
        self
    }

    /// Sets whom the keys of this route belong to, if that is not what the layer says.
    pub fn scope(mut self, scope: ScopeFrom) -> Self {
        self.scope = Some(scope);
        self
    }

    /// The route's template name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a key is needed.
    #[must_use]
    pub fn needs(&self) -> Mode {
        self.mode
    }

    /// Tells this rule from every other of the process, whatever they are called.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    pub(super) fn shared_policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    pub(super) fn own_scope(&self) -> Option<&ScopeFrom> {
        self.scope.as_ref()
    }

    pub(super) fn fingerprint_rules(&self) -> &FingerprintRules {
        &self.fingerprint
    }

    /// The headers that count, those that always do first.
    pub(super) fn counted_headers(&self) -> impl Iterator<Item = &HeaderName> {
        // The last three are another method to many frameworks: a POST that deletes.
        static ALWAYS: [HeaderName; 4] = [
            http::header::CONTENT_ENCODING,
            HeaderName::from_static("x-http-method"),
            HeaderName::from_static("x-http-method-override"),
            HeaderName::from_static("x-method-override"),
        ];
        ALWAYS.iter().chain(self.counted.iter().filter(|name| !ALWAYS.contains(name)))
    }

    pub(super) fn is_for(&self, method: &Method) -> bool {
        self.methods.contains(method)
    }

    pub(super) fn on_weak_keys(&self) -> WeakKeys {
        self.weak
    }

    /// The weak keys that clients of this rule have sent, for whoever warns of them.
    pub(super) fn weak_seen(&self) -> &Seldom {
        &self.weak_seen
    }

    /// Looks whether a request has the key that it may have, as far as its headers say. `None` if
    /// the rule is not that simple, or not for this method.
    pub(super) fn looks_into_headers(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Option<Presence> {
        if self.mode != Mode::Optional || !self.is_for(method) {
            return None;
        }
        let mut presence = Presence::Absent;
        for source in &self.sources {
            match source {
                KeySource::Header(name) if has(headers, name) => {
                    presence = Presence::Present;
                }
                KeySource::Header(_) => {}
                KeySource::Query(_) | KeySource::Json(_) => return None,
            }
        }
        Some(presence)
    }

    /// Looks whether a request has a key, as far as its head says.
    pub(super) fn looks_for_key(&self, parts: &Parts) -> Presence {
        if self.sources.iter().any(|source| source.is_in_head(parts)) {
            return Presence::Present;
        }
        match self.needs_body(parts) {
            true => Presence::Perhaps,
            false => Presence::Absent,
        }
    }

    /// What a client has to send, for the one that did not.
    pub(super) fn wanted_key(&self) -> Cow<'static, str> {
        match &*self.sources {
            [KeySource::Header(name)] if name == "idempotency-key" => {
                "an Idempotency-Key header".into()
            }
            sources => {
                let places: Vec<String> = sources.iter().map(ToString::to_string).collect();
                format!("an idempotency key in {}", places.join(" or ")).into()
            }
        }
    }

    /// Whether the body has to be read before the key is known.
    pub(super) fn needs_body(&self, parts: &Parts) -> bool {
        self.sources.iter().any(|source| source.place() == Place::Json) && is_json(parts)
    }

    /// The key, from wherever it stands.
    ///
    /// # Errors
    /// If a place does not hold one key, or two of them hold different ones.
    pub fn key(&self, parts: &Parts, body: &[u8]) -> Result<Option<Key>, SourceError> {
        self.search(parts, body).map(|(_, key)| key).transpose()
    }

    /// As [`key`](Self::key), and says where it stands.
    pub(super) fn search(&self, parts: &Parts, body: &[u8]) -> Option<Searched> {
        let mut found: Option<(Place, Key)> = None;
        for source in &self.sources {
            let place = source.place();
            match (source.find(parts, body), &found) {
                (Err(error), _) => return Some((place, Err(error))),
                (Ok(None), _) => {}
                (Ok(Some(key)), None) => found = Some((place, key)),
                (Ok(Some(key)), Some((_, first))) if key != *first => {
                    return Some((place, Err(SourceError::Disagree)));
                }
                (Ok(Some(_)), Some(_)) => {}
            }
        }
        found.map(|(place, key)| (place, Ok(key)))
    }

    /// The value of `Idempotency-Policy`.
    pub(super) fn policy_field(&self) -> HeaderValue {
        let make = || {
            let text = format!("{}; ttl={}", self.mode.label(), self.policy.retention.as_secs());
            HeaderValue::try_from(text).expect("letters, digits and punctuation")
        };
        self.policy_field.get_or_init(make).clone()
    }

    /// The value of `Idempotency-Status` for work that ran and whose answer is kept.
    pub(super) fn status_field(&self) -> HeaderValue {
        let retention = self.policy.retention;
        let make = || Status::ran(Outcome::Executed, Recorded::Kept, retention).value();
        self.status_field.get_or_init(make).clone()
    }

    /// The rule's meters, made on first use: a recorder that is installed before the first
    /// request counts everything.
    pub(super) fn meters(&self) -> &Meters {
        self.meters.get_or_init(|| Meters::new(&self.name, self.mode))
    }
}

impl Mode {
    /// The word for it in metrics, spans, configuration and `Idempotency-Policy`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Optional => "optional",
            Self::Required => "required",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.label())
    }
}

/// A policy whose send mark goes with the claim, unless it says otherwise.
///
/// Under `once` a mark by itself is worth its write where something happens between claim and send:
/// a crash there is then known to be harmless. Here nothing does. As long as the one write is on its way, the
/// outcome of a crash is as open as it is during the other, and a new key waits for the store twice
/// instead of three times.
fn sent_at_once(policy: Arc<Policy>) -> Arc<Policy> {
    match policy.mark {
        Mark::ByClass => Arc::new(Policy { mark: Mark::WithClaim, ..Policy::clone(&policy) }),
        Mark::WithClaim | Mark::Apart => policy,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ALIAS: HeaderName = HeaderName::from_static("x-idempotency-key");
    const USUAL: HeaderName = HeaderName::from_static("idempotency-key");

    fn parts(uri: &str, lines: &[(HeaderName, &'static str)]) -> Parts {
        let mut request = http::Request::post(uri);
        for (name, value) in lines {
            request = request.header(name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    /// To many frameworks these are two operations.
    #[test]
    fn a_request_that_says_another_method_in_a_header_is_another_request() {
        let rule = Rule::new("r");
        let plain = rule.fingerprint_of(&parts("/", &[]), b"");
        for name in ["x-http-method-override", "x-http-method", "x-method-override"] {
            let other = parts("/", &[(HeaderName::from_static(name), "DELETE")]);
            assert_ne!(rule.fingerprint_of(&other, b""), plain, "{name}");
        }
    }

    #[test]
    fn a_key_is_found_under_any_of_the_names_quoted_or_bare() {
        let rule = Rule::new("r").key_headers([USUAL, ALIAS]);
        for lines in [
            &[(USUAL, "k")][..],
            &[(ALIAS, "k")],
            &[(USUAL, "\"k\"")],
            &[(USUAL, "k"), (ALIAS, "\"k\"")],
        ] {
            let key = rule.key(&parts("/", lines), b"").unwrap().unwrap();
            assert_eq!(key.as_str(), "k", "{lines:?}");
        }
        assert_eq!(rule.key(&parts("/", &[]), b""), Ok(None));
    }

    #[test]
    fn two_places_with_different_keys_hold_no_key() {
        let query = KeySource::Query("key".to_owned());
        let json = KeySource::Json("$.key".parse().unwrap());
        let headers = [USUAL, ALIAS].map(KeySource::Header);
        let rule = Rule::new("r").key_sources(headers.into_iter().chain([query, json]));
        let typed = (http::header::CONTENT_TYPE, "application/json");
        let body = br#"{"key":"a"}"#;
        for (uri, lines) in [
            ("/", &[(USUAL, "a"), (ALIAS, "b")][..]),
            ("/?key=a", &[(ALIAS, "b")]),
            ("/?key=b", std::slice::from_ref(&typed)),
            ("/", &[(USUAL, "b"), typed.clone()]),
        ] {
            let refused = rule.key(&parts(uri, lines), body);
            assert_eq!(refused, Err(SourceError::Disagree), "{uri} {lines:?}");
        }
        let all = parts("/?key=a", &[(USUAL, "a"), typed]);
        assert_eq!(rule.key(&all, body).unwrap().unwrap().as_str(), "a");
        let twice = rule.key(&parts("/", &[(USUAL, "a"), (USUAL, "a")]), b"");
        assert_eq!(twice, Err(oncekey_core::KeyError::Repeated.into()));
    }

    #[test]
    fn a_body_is_read_only_if_it_may_hold_a_key() {
        let json = KeySource::Json("$.key".parse().unwrap());
        let rule = Rule::new("r").key_sources([KeySource::Header(USUAL), json]);
        let typed = (http::header::CONTENT_TYPE, "application/json");
        for (lines, presence) in [
            (&[][..], Presence::Absent),
            (&[(USUAL, "k")], Presence::Present),
            (std::slice::from_ref(&typed), Presence::Perhaps),
            (&[typed.clone(), (USUAL, "k")], Presence::Present),
        ] {
            assert_eq!(rule.looks_for_key(&parts("/", lines)), presence, "{lines:?}");
        }
    }

    #[test]
    fn the_policy_field_says_mode_and_retention() {
        let policy = Policy { retention: Duration::from_secs(604_800), ..Policy::default() };
        let rule = Rule::new("r").required().policy(policy).unwrap();
        assert_eq!(rule.policy_field(), "required; ttl=604800");
    }

    #[test]
    fn a_policy_that_contradicts_itself_is_refused() {
        let policy = Policy { lease: Duration::ZERO, ..Policy::default() };
        assert!(Rule::new("r").policy(policy).is_err());
    }
}
