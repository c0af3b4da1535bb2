//! Verifies tokens (JWT, RFC 7519), to learn from them whom a key belongs to.
//!
//! The configuration says how tokens are signed. A token says it, too, and has to say the same: who
//! believes a token about its own signature can be lied to.

mod encoding;
mod keys;

use std::time::Duration;

use oncekey::clock::SystemClock;
use oncekey::core::Clock as _;
use serde::Deserialize;
use serde_json::Value;

use self::encoding::base64url;
use self::keys::Keys;
use crate::config::Jwt;

pub(crate) use self::keys::TokenKeyError;

/// Verifies tokens with the keys of one configuration.
#[derive(Debug)]
pub(crate) struct Verifier {
    keys: Keys,
    issuer: Option<String>,
    audience: Option<String>,
    leeway: Duration,
}

/// What of the head of a token counts.
#[derive(Deserialize)]
struct Head {
    alg: String,
    kid: Option<String>,
    /// Names of extensions that whoever reads the token has to understand. We know none.
    crit: Option<Value>,
}

impl Verifier {
    /// Reads the keys. They are read again when the configuration is.
    ///
    /// # Errors
    /// If there is no usable key.
    pub(crate) fn new(jwt: &Jwt) -> Result<Self, TokenKeyError> {
        Ok(Self {
            keys: Keys::read(&jwt.algorithm, &jwt.keys)?,
            issuer: jwt.issuer.clone(),
            audience: jwt.audience.clone(),
            leeway: jwt.leeway,
        })
    }

    /// The value of a claim, if the token is good now: a string, or a number as it is written.
    pub(crate) fn claim(&self, token: &str, name: &str) -> Option<String> {
        let now = SystemClock.now().micros().div_euclid(1_000_000);
        let claims = self.verified(token, now)?;
        match claims.get(name)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// The claims of a token that is good at `now`, in seconds since 1970.
    fn verified(&self, token: &str, now: i64) -> Option<Value> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (head, claims) = signed.split_once('.')?;
        let head: Head = serde_json::from_slice(&base64url(head)?).ok()?;
        if head.alg != self.keys.algorithm() || head.crit.is_some() {
            return None;
        }
        self.keys.verify(head.kid.as_deref(), signed.as_bytes(), &base64url(signature)?)?;
        let claims: Value = serde_json::from_slice(&base64url(claims)?).ok()?;
        (self.is_timely(&claims, now) && self.is_for_us(&claims)).then_some(claims)
    }

    /// A token without an end would be good for ever, and is not good at all.
    fn is_timely(&self, claims: &Value, now: i64) -> bool {
        let leeway = i64::try_from(self.leeway.as_secs()).unwrap_or(i64::MAX);
        let ends = claims.get("exp").and_then(seconds);
        let begins = match claims.get("nbf") {
            None => Some(i64::MIN),
            Some(moment) => seconds(moment),
        };
        ends.is_some_and(|end| now < end.saturating_add(leeway))
            && begins.is_some_and(|begin| now.saturating_add(leeway) >= begin)
    }

    fn is_for_us(&self, claims: &Value) -> bool {
        let is = |value: &Value, wanted: &String| value.as_str() == Some(wanted.as_str());
        let issuer = self.issuer.as_ref();
        let issued =
            issuer.is_none_or(|wanted| claims.get("iss").is_some_and(|iss| is(iss, wanted)));
        let audience = self.audience.as_ref();
        issued
            && audience.is_none_or(|wanted| match claims.get("aud") {
                Some(Value::Array(all)) => all.iter().any(|one| is(one, wanted)),
                Some(one) => is(one, wanted),
                None => false,
            })
    }
}

/// A moment in seconds; a part of a second is cut off.
fn seconds(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let text = value.as_number()?.to_string();
        text.split_once('.')?.0.parse().ok()
    })
}

#[cfg(test)]
mod tests;
