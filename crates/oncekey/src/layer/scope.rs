//! Whom a key belongs to, found in the request.
//!
//! Two principals who send the same key must never see each other's answers, so the scope is part
//! of the key's identity. It has to come from something that was *verified*: put the layer inside
//! of authentication, and take the scope from what authentication found out.
//!
//! A scope that cannot be found is a refusal. A request is never run in the shared scope because
//! its own could not be told.

use std::fmt;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderName, HeaderValue};
use oncekey_core::Scope;
use oncekey_core::key::ScopeError;
use sha2::{Digest as _, Sha256};

use crate::problem::{Code, Problem};

/// Where the scope of a request comes from.
///
/// Everything that shares a store has to find the same scope for the same principal: a principal
/// that is found in two ways has two sets of keys.
#[derive(Clone)]
#[must_use]
pub struct ScopeFrom(Arc<Find>);

/// The scope of a request could not be told. The request is refused with 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the scope of the request cannot be told")]
pub struct NoScope;

/// How a scope is found.
type Find = dyn Fn(&Parts) -> Result<Scope, NoScope> + Send + Sync;

impl ScopeFrom {
    /// The value of a header that something *in front of the layer* sets and that clients cannot
    /// forge, for example the tenant that a proxy found in a certificate.
    ///
    /// A request without the header, or with two of them, has no scope.
    pub fn header(name: HeaderName) -> Self {
        Self::parts(move |parts| {
            let mut lines = parts.headers.get_all(&name).iter();
            match (lines.next(), lines.next()) {
                (Some(only), None) => Ok(Scope::new(only)?),
                (None, _) | (Some(_), Some(_)) => Err(NoScope),
            }
        })
    }

    /// What a closure finds in the head of the request: extensions that authentication left
    /// there, headers, the address. State of the application is what the closure captures.
    pub fn parts(find: impl Fn(&Parts) -> Result<Scope, NoScope> + Send + Sync + 'static) -> Self {
        Self(Arc::new(find))
    }

    /// What a function makes of an extension that a middleware in front of the layer has set.
    /// A request without the extension has no scope.
    pub fn extension<T, F>(find: F) -> Self
    where
        T: Clone + Send + Sync + 'static,
        F: Fn(&T) -> Result<Scope, NoScope> + Send + Sync + 'static,
    {
        Self::parts(move |parts| parts.extensions.get::<T>().ok_or(NoScope).and_then(&find))
    }

    /// One scope for everybody, on purpose: for services with a single client, or where keys are
    /// made by the service itself. Whoever knows a key gets its answer.
    pub fn shared() -> Self {
        Self::parts(|_| Ok(Scope::shared()))
    }

    /// A digest of the `Authorization` header, or the shared scope if there is none. What a layer
    /// does that was told nothing.
    ///
    /// It keeps the holders of different credentials apart, but it takes the credential for the
    /// person: after a refresh of a token the same person has other keys, and a retry that
    /// straddles the refresh runs again. Cookies do not count.
    pub fn credential() -> Self {
        Self::parts(|parts| {
            let lines = parts.headers.get_all(AUTHORIZATION);
            if lines.iter().next().is_none() {
                return Ok(Scope::shared());
            }
            let digest = digest(lines.iter());
            Ok(Scope::of_parts(&[AUTHORIZATION.as_str().as_bytes(), &digest])?)
        })
    }

    /// A digest of a header with a credential that lasts, such as `X-Api-Key`. A request without
    /// the header, or with two of them, has no scope.
    pub fn hashed_header(name: HeaderName) -> Self {
        Self::parts(move |parts| {
            let mut lines = parts.headers.get_all(&name).iter();
            match (lines.next(), lines.next()) {
                (Some(only), None) if !only.is_empty() => {
                    let digest = digest(std::iter::once(only));
                    Ok(Scope::of_parts(&[name.as_str().as_bytes(), &digest])?)
                }
                (None, _) | (Some(_), _) => Err(NoScope),
            }
        })
    }

    /// Several together, such as a tenant and a user: the scope is the same only if all are.
    /// One that cannot be told makes the whole untold.
    pub fn all(parts: Vec<Self>) -> Self {
        Self::parts(move |head| {
            let found: Result<Vec<Scope>, NoScope> =
                parts.iter().map(|part| part.find(head)).collect();
            let found = found?;
            let bytes: Vec<&[u8]> = found.iter().map(Scope::as_bytes).collect();
            Ok(Scope::of_parts(&bytes)?)
        })
    }

    /// The scope of a request.
    ///
    /// # Errors
    /// If it cannot be told.
    pub fn find(&self, parts: &Parts) -> Result<Scope, NoScope> {
        (self.0)(parts)
    }
}

impl fmt::Debug for ScopeFrom {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ScopeFrom")
    }
}

impl NoScope {
    pub(super) fn problem(self) -> Problem {
        let mut problem = Problem::new(
            Code::ScopeMissing,
            "It cannot be told whom the Idempotency-Key belongs to. Nothing was executed.",
        );
        problem.hint = Some(
            "Send the credentials by which this operation knows its callers, once. Its operator knows \
             which header that is.",
        );
        problem
    }
}

impl From<ScopeError> for NoScope {
    fn from(_: ScopeError) -> Self {
        Self
    }
}

/// A digest, because scopes are stored with the records, for operators; credentials must not be.
fn digest<'v>(lines: impl Iterator<Item = &'v HeaderValue>) -> [u8; 32] {
    let mut digest = Sha256::new();
    for line in lines {
        digest.update((line.len() as u64).to_be_bytes());
        digest.update(line);
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(lines: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder();
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_header_is_a_scope_only_if_it_is_there_once_and_not_empty() {
        let tenant = ScopeFrom::header(HeaderName::from_static("x-tenant"));
        let found = tenant.find(&parts(&[("x-tenant", "acme")])).unwrap();
        assert_eq!(found, Scope::new("acme").unwrap());
        for lines in [&[][..], &[("x-tenant", "")], &[("x-tenant", "a"), ("x-tenant", "a")]] {
            assert_eq!(tenant.find(&parts(lines)), Err(NoScope), "{lines:?}");
        }
    }

    #[test]
    fn an_extension_that_is_missing_is_no_scope() {
        #[derive(Clone)]
        struct Principal(&'static str);
        let scope = ScopeFrom::extension(|who: &Principal| Ok(Scope::new(who.0)?));
        let mut parts = parts(&[]);
        assert_eq!(scope.find(&parts), Err(NoScope));
        parts.extensions.insert(Principal("ann"));
        assert_eq!(scope.find(&parts), Ok(Scope::new("ann").unwrap()));
        parts.extensions.insert(Principal(""));
        assert_eq!(scope.find(&parts), Err(NoScope), "an empty principal is nobody");
    }

    #[test]
    fn a_credential_in_a_header_is_hashed_and_has_to_be_there() {
        let scope = ScopeFrom::hashed_header(HeaderName::from_static("x-api-key"));
        let (ann, bob) =
            (scope.find(&parts(&[("x-api-key", "a")])), scope.find(&parts(&[("x-api-key", "b")])));
        assert_ne!(ann, bob);
        let secret = scope.find(&parts(&[("x-api-key", "sk_live_1")])).unwrap();
        assert!(!secret.as_bytes().windows(7).any(|window| window == b"sk_live"));
        for lines in [&[][..], &[("x-api-key", "")], &[("x-api-key", "a"), ("x-api-key", "a")]] {
            assert_eq!(scope.find(&parts(lines)), Err(NoScope), "{lines:?}");
        }
    }

    #[test]
    fn several_parts_are_told_apart_by_each_of_them() {
        let header = |name| ScopeFrom::header(HeaderName::from_static(name));
        let both = ScopeFrom::all(vec![header("x-tenant"), header("x-user")]);
        let of = |tenant, user| both.find(&parts(&[("x-tenant", tenant), ("x-user", user)]));
        assert_eq!(of("a", "b"), of("a", "b"));
        assert_ne!(of("a", "b"), of("b", "a"));
        assert_ne!(of("ab", "c"), of("a", "bc"), "parts have lengths");
        assert_eq!(both.find(&parts(&[("x-tenant", "a")])), Err(NoScope));
    }

    /// T1: holders of different credentials are kept apart even if nobody configured a scope.
    #[test]
    fn credentials_are_kept_apart_and_never_stored() {
        let scope = ScopeFrom::credential();
        let of = |lines: &[(&str, &str)]| scope.find(&parts(lines)).unwrap();
        let (ann, bob) =
            (of(&[("authorization", "Bearer a")]), of(&[("authorization", "Bearer b")]));
        assert_ne!(ann, bob);
        assert_eq!(ann, of(&[("authorization", "Bearer a"), ("cookie", "c")]));
        assert_eq!(of(&[("cookie", "c")]), Scope::shared());
        assert_ne!(of(&[("authorization", "")]), Scope::shared());
        let split = of(&[("authorization", "Bearer"), ("authorization", " a")]);
        assert_ne!(split, ann);
        let stored = ann.as_bytes();
        assert!(!stored.windows(8).any(|window| window == b"Bearer a"));
    }
}
