//! Signatures of Standard Webhooks, version 1.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::encoding::{base64, unbase64};

/// A secret that a sender of webhooks shares with a receiver.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

/// A secret that protects nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret is `whsec_` and 24 to 64 bytes in base64")]
pub struct BadSecret;

impl Secret {
    /// Reads `whsec_` and the bytes in base64, as receivers are given it.
    ///
    /// # Errors
    /// If it is something else, or has fewer than 24 or more than 64 bytes. An empty secret in
    /// particular would let everybody sign.
    pub fn parse(text: &str) -> Result<Self, BadSecret> {
        let bytes = text.strip_prefix("whsec_").and_then(unbase64).ok_or(BadSecret)?;
        Self::from_bytes(bytes)
    }

    /// The bytes themselves.
    ///
    /// # Errors
    /// If they are fewer than 24 or more than 64.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Self, BadSecret> {
        let bytes = Zeroizing::new(bytes.into());
        if (24..=64).contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(BadSecret) }
    }

    /// The value of `webhook-signature` for a message: `v1,` and a MAC over id, time and body.
    #[must_use]
    pub fn sign(&self, id: &str, seconds: i64, body: &[u8]) -> String {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("a MAC takes a key of any length");
        mac.update(format!("{id}.{seconds}.").as_bytes());
        mac.update(body);
        format!("v1,{}", base64(&mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Standard Webhooks, calculated with another program.
    #[test]
    fn a_message_is_signed_as_others_sign_it() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = br#"{"test": 2432232314}"#;
        let signature = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_that_protects_nothing_is_refused() {
        for text in ["", "whsec_", "whsec_AAAA", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_!"] {
            assert_eq!(Secret::parse(text).map(drop), Err(BadSecret), "{text}");
        }
        let long = format!("whsec_{}", base64(&[1; 65]));
        assert_eq!(Secret::parse(&long).map(drop), Err(BadSecret));
    }
}
