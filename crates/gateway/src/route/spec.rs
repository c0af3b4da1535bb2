//! What a configuration says about a route, as plain data.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method};
use oncekey::core::{FingerprintRules, Policy};
use oncekey::layer::{KeySource, WeakKeys};

use super::pattern::{Methods, Pattern};
use super::rollout::Rollout;

/// Everything that may differ from route to route.
#[derive(Clone, Debug)]
pub(crate) struct RouteSpec {
    /// What people and metrics call it. Never anything that a client can choose.
    pub(crate) name: Arc<str>,
    pub(crate) pattern: Pattern,
    /// The methods of the pattern, or those of the settings if the pattern does not say.
    pub(crate) methods: Methods,
    pub(crate) mode: RouteMode,
    /// Where a key may stand, in the order in which it is looked for.
    pub(crate) keys: Vec<KeySource>,
    pub(crate) quality: WeakKeys,
    /// What makes up the scope; all of it together. Never empty.
    pub(crate) scope: Vec<ScopePart>,
    pub(crate) policy: Arc<Policy>,
    /// Without the pepper, which is a secret and comes later.
    pub(crate) fingerprint: FingerprintRules,
    /// Headers that must not change between attempts.
    pub(crate) counted: Vec<HeaderName>,
    /// The header in which the upstream gets the derived key.
    pub(crate) forward_key: Option<HeaderName>,
    /// A URL that knows what became of a request.
    pub(crate) probe: Option<String>,
    pub(crate) rollout: Rollout,
    pub(crate) completer: Completer,
}

/// What is done with the requests of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RouteMode {
    /// Nothing: they pass.
    Off,
    /// They pass unchanged, and it is noted what would have happened.
    Observe,
    /// Those with a key are protected.
    Optional,
    /// Those with a key are protected, the others refused.
    Required,
}

/// Something that tells whom a key belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScopePart {
    /// A header that something trusted in front of the gateway sets, as it is.
    Header(HeaderName),
    /// A header with a credential that lasts, hashed.
    ApiKey(HeaderName),
    /// A claim of a verified token.
    Jwt(String),
    /// The subject of the client's verified certificate.
    Mtls,
    /// The `Authorization` header, hashed: other keys after every refresh of a token.
    Credential,
    /// Everybody together, on purpose.
    Shared,
}

/// Whether requests that lost their owner are sent again without being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completer {
    /// For so long after the first attempt.
    For(Duration),
    Off,
}

/// Why a word does not name a source or a part of a scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpecError {
    #[error("`{0}` is not known here")]
    Unknown(String),
    #[error("`{0}` is not the name of a header")]
    Header(String),
    #[error("{0}")]
    JsonPath(#[from] oncekey::core::fingerprint::JsonPathError),
    #[error("a name follows the colon")]
    Empty,
    #[error("one member has one key: a path for keys has no wildcard")]
    Wildcard,
}

impl RouteMode {
    pub(crate) const ALL: [Self; 4] = [Self::Off, Self::Observe, Self::Optional, Self::Required];

    /// The word for it in configuration, logs and metrics.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Observe => "observe",
            Self::Optional => "optional",
            Self::Required => "required",
        }
    }

    /// The mode of the layer's rule.
    pub(crate) const fn of_rule(self) -> oncekey::layer::Mode {
        match self {
            Self::Off | Self::Observe => oncekey::layer::Mode::Off,
            Self::Optional => oncekey::layer::Mode::Optional,
            Self::Required => oncekey::layer::Mode::Required,
        }
    }
}

impl ScopePart {
    /// The header that it stands in, if it does.
    pub(crate) const fn header(&self) -> Option<&HeaderName> {
        match self {
            Self::Header(name) | Self::ApiKey(name) => Some(name),
            // Always protected.
            Self::Jwt(_) | Self::Credential | Self::Mtls | Self::Shared => None,
        }
    }
}

impl RouteSpec {
    /// The methods that can be protected. Safe ones never are.
    pub(crate) fn protected_methods(&self) -> Vec<Method> {
        match &self.methods {
            Methods::Only(methods) => {
                methods.iter().filter(|method| !method.is_safe()).cloned().collect()
            }
            Methods::Any | Methods::Unsaid => {
                vec![Method::POST, Method::PUT, Method::PATCH, Method::DELETE]
            }
        }
    }

    /// The headers among the sources of keys.
    pub(crate) fn key_headers(&self) -> Vec<HeaderName> {
        let header = |source: &KeySource| match source {
            KeySource::Header(name) => Some(name.clone()),
            KeySource::Json(_) | KeySource::Query(_) => None,
        };
        self.keys.iter().filter_map(header).collect()
    }
}

/// Reads where a key may stand: `header:NAME`, `json:$.path` or `query:NAME`.
pub(crate) fn key_source(text: &str) -> Result<KeySource, SpecError> {
    match text.split_once(':') {
        Some(("header", name)) => Ok(KeySource::Header(header(name)?)),
        Some(("json", path)) if path.contains('*') => Err(SpecError::Wildcard),
        Some(("json", path)) => Ok(KeySource::Json(path.parse()?)),
        Some(("query", "")) => Err(SpecError::Empty),
        Some(("query", name)) => Ok(KeySource::Query(name.to_owned())),
        Some(_) | None => Err(SpecError::Unknown(text.to_owned())),
    }
}

impl FromStr for ScopePart {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text.split_once(':') {
            Some(("header", name)) => Ok(Self::Header(header(name)?)),
            Some(("api-key", name)) => Ok(Self::ApiKey(header(name)?)),
            Some(("jwt", "")) => Err(SpecError::Empty),
            Some(("jwt", claim)) => Ok(Self::Jwt(claim.to_owned())),
            None if text == "mtls" => Ok(Self::Mtls),
            None if text == "credential" => Ok(Self::Credential),
            None if text == "shared" => Ok(Self::Shared),
            Some(_) | None => Err(SpecError::Unknown(text.to_owned())),
        }
    }
}

pub(super) fn header(name: &str) -> Result<HeaderName, SpecError> {
    match name {
        "" => Err(SpecError::Empty),
        name => name.parse().map_err(|_| SpecError::Header(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_in_a_header_a_member_or_the_query() {
        let of = key_source;
        let usual = KeySource::Header(HeaderName::from_static("idempotency-key"));
        assert_eq!(of("header:Idempotency-Key"), Ok(usual));
        assert_eq!(of("query:key"), Ok(KeySource::Query("key".to_owned())));
        assert!(matches!(of("json:$.idempotency_key"), Ok(KeySource::Json(_))));
        for wrong in ["", "header", "header:", "header:a b", "json:key", "json:$.*", "cookie:k"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_scope_is_told_by_its_parts() {
        let of = |text: &str| text.parse::<ScopePart>();
        assert_eq!(of("jwt:sub"), Ok(ScopePart::Jwt("sub".to_owned())));
        let header = HeaderName::from_static("x-api-key");
        assert_eq!(of("api-key:X-Api-Key"), Ok(ScopePart::ApiKey(header)));
        assert_eq!(of("shared"), Ok(ScopePart::Shared));
        for wrong in ["", "jwt:", "shared:x", "cookie", "header:"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
