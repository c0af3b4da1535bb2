//! Whom the keys of a route belong to, found in the head of a request.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::request::Parts;
use oncekey::core::Scope;
use oncekey::layer::{NoScope, ScopeFrom};

use super::spec::ScopePart;
use crate::token::Verifier;

/// The name of a client in its certificate, which was verified when it connected. An extension of
/// its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientName(pub(crate) Arc<str>);

/// The scope of a request that was kept, as it was found when the request came. An extension that only
/// the completer sets, and that only its rules look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptScope(pub(crate) Scope);

/// The scope of a request that was kept. Any other request has none.
pub(super) fn kept_scope() -> ScopeFrom {
    ScopeFrom::extension(|kept: &KeptScope| Ok(kept.0.clone()))
}

/// Everything that the parts name, together. Nothing named means the credential, with the warning
/// that the configuration gives. Without a verifier nobody has a claim.
pub(crate) fn scope_of(parts: &[ScopePart], tokens: Option<&Arc<Verifier>>) -> ScopeFrom {
    match parts {
        [] => ScopeFrom::credential(),
        [only] => part(only, tokens),
        several => ScopeFrom::all(several.iter().map(|one| part(one, tokens)).collect()),
    }
}

fn part(part: &ScopePart, tokens: Option<&Arc<Verifier>>) -> ScopeFrom {
    match part {
        ScopePart::Header(name) => ScopeFrom::header(name.clone()),
        ScopePart::ApiKey(name) => ScopeFrom::hashed_header(name.clone()),
        ScopePart::Credential => ScopeFrom::credential(),
        ScopePart::Shared => ScopeFrom::shared(),
        ScopePart::Mtls => ScopeFrom::extension(|name: &ClientName| Ok(Scope::new(&*name.0)?)),
        ScopePart::Jwt(claim) => {
            let (claim, tokens) = (claim.clone(), tokens.cloned());
            ScopeFrom::parts(move |head| {
                let claimed = tokens.as_ref().zip(bearer(head));
                let value = claimed.and_then(|(tokens, token)| tokens.claim(token, &claim));
                Ok(Scope::new(value.ok_or(NoScope)?)?)
            })
        }
    }
}

/// The token of the one `Authorization: Bearer` line.
fn bearer(head: &Parts) -> Option<&str> {
    let mut lines = head.headers.get_all(AUTHORIZATION).iter();
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn a_certificate_tells_whose_a_key_is_and_its_absence_tells_nothing() {
        let scope = scope_of(&[ScopePart::Mtls], None);
        let mut head = Request::new(()).into_parts().0;
        assert!(scope.find(&head).is_err());
        head.extensions.insert(ClientName("CN=acme".into()));
        assert_eq!(scope.find(&head), Ok(Scope::new("CN=acme").unwrap()));
    }

    #[test]
    fn a_claim_that_nobody_verified_is_none() {
        let scope = scope_of(&[ScopePart::Jwt("sub".to_owned())], None);
        let request = Request::builder().header(AUTHORIZATION, "Bearer a.b.c");
        assert!(scope.find(&request.body(()).unwrap().into_parts().0).is_err());
    }

    #[test]
    fn one_token_is_found_whatever_its_scheme_is_spelled_like() {
        for (lines, token) in [
            (&["Bearer a.b.c"][..], Some("a.b.c")),
            (&["bearer  a.b.c "], Some("a.b.c")),
            (&["Basic a"], None),
            (&["a.b.c"], None),
            (&["Bearer a", "Bearer b"], None),
            (&[], None),
        ] {
            let mut request = Request::builder();
            for line in lines {
                request = request.header(AUTHORIZATION, *line);
            }
            let head = request.body(()).unwrap().into_parts().0;
            assert_eq!(bearer(&head), token, "{lines:?}");
        }
    }
}
