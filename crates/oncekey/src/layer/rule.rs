//! What a route asks of its clients and promises to them.
//!
//! A [`Rule`] says whether a key is needed, where it stands, which requests count as the same and
//! under which policy the work runs. The layer has one rule for everything, or asks a closure for
//! the rule of each request; a request without a rule passes through untouched.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use oncekey_core::policy::PolicyError;
use oncekey_core::{FingerprintRules, Key, KeyError, Policy};

use super::meters::Meters;
use super::scope::ScopeFrom;

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
    key_headers: Vec<HeaderName>,
    scope: Option<ScopeFrom>,
    policy_field: OnceLock<HeaderValue>,
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

/// What a rule finds in the headers of a request.
pub(super) enum Presence {
    /// None of the key headers is there.
    Absent,
    /// One of them is there, whatever is in it.
    Present,
}

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
            policy: Arc::default(),
            fingerprint: FingerprintRules::default(),
            counted: Vec::new(),
            methods: vec![Method::POST, Method::PATCH],
            key_headers: vec![HeaderName::from_static("idempotency-key")],
            scope: None,
            policy_field: OnceLock::new(),
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
    /// # Errors
    /// If the policy contradicts itself.
    pub fn policy(mut self, policy: impl Into<Arc<Policy>>) -> Result<Self, PolicyError> {
        self.policy = policy.into();
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
    pub fn key_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.key_headers = names.into_iter().collect();
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

    /// The headers that count, content encoding first.
    pub(super) fn counted_headers(&self) -> impl Iterator<Item = &HeaderName> {
        const ALWAYS: &HeaderName = &http::header::CONTENT_ENCODING;
        std::iter::once(ALWAYS).chain(self.counted.iter().filter(|name| *name != ALWAYS))
    }

    pub(super) fn is_for(&self, method: &Method) -> bool {
        self.methods.contains(method)
    }

    pub(super) fn looks_for_key(&self, headers: &HeaderMap) -> Presence {
        if self.key_headers.iter().any(|name| headers.contains_key(name)) {
            Presence::Present
        } else {
            Presence::Absent
        }
    }

    /// The key, from whichever of the headers has it.
    ///
    /// # Errors
    /// If a header does not hold one key, or two of them hold different ones.
    pub fn key(&self, headers: &HeaderMap) -> Result<Option<Key>, KeyError> {
        let mut found: Option<Key> = None;
        for name in &self.key_headers {
            let lines = headers.get_all(name).iter().map(HeaderValue::as_bytes);
            match (Key::from_field_lines(lines)?, &found) {
                (None, _) => {}
                (Some(key), None) => found = Some(key),
                // Whoever stands between us and the client may look at the other one.
                (Some(key), Some(first)) if key != *first => return Err(KeyError::Repeated),
                (Some(_), Some(_)) => {}
            }
        }
        Ok(found)
    }

    /// The value of `Idempotency-Policy`.
    pub(super) fn policy_field(&self) -> HeaderValue {
        let make = || {
            let text = format!("{}; ttl={}", self.mode.label(), self.policy.retention.as_secs());
            HeaderValue::try_from(text).expect("letters, digits and punctuation")
        };
        self.policy_field.get_or_init(make).clone()
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ALIAS: HeaderName = HeaderName::from_static("x-idempotency-key");
    const USUAL: HeaderName = HeaderName::from_static("idempotency-key");

    fn headers(lines: &[(HeaderName, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
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
            let key = rule.key(&headers(lines)).unwrap().unwrap();
            assert_eq!(key.as_str(), "k", "{lines:?}");
        }
        assert_eq!(rule.key(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn two_headers_with_different_keys_hold_no_key() {
        let rule = Rule::new("r").key_headers([USUAL, ALIAS]);
        let refused = rule.key(&headers(&[(USUAL, "a"), (ALIAS, "b")]));
        assert_eq!(refused, Err(KeyError::Repeated));
        assert_eq!(rule.key(&headers(&[(USUAL, "a"), (USUAL, "a")])), Err(KeyError::Repeated));
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
