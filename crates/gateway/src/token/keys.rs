//! The keys that tokens are verified with.

use std::fs;
use std::path::{Path, PathBuf};

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use sha2::Sha256;

use super::encoding::base64url;
use crate::config::{JwtKeys, read_secret};

/// All keys of one algorithm.
#[derive(Debug)]
pub(super) struct Keys {
    algorithm: &'static str,
    keys: Vec<Named>,
}

/// A key, and its name if it has one.
#[derive(Debug)]
struct Named {
    id: Option<String>,
    key: Key,
}

enum Key {
    Secret(Vec<u8>),
    /// A public key in DER, whatever its algorithm.
    Der(Vec<u8>),
    /// A public RSA key as a set writes it.
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    /// A point on P-256, uncompressed.
    Point(Vec<u8>),
}

/// Why tokens cannot be verified.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenKeyError {
    #[error("{0}")]
    Secret(String),
    #[error("the secret in {0} is shorter than 32 bytes, so it can be guessed from any token")]
    Short(PathBuf),
    #[error("cannot read {0}: it holds a public key in PEM")]
    Pem(PathBuf, #[source] rustls::pki_types::pem::Error),
    #[error("cannot read {0}")]
    File(PathBuf, #[source] std::io::Error),
    #[error("{0} is no JSON Web Key Set")]
    Set(PathBuf, #[source] serde_json::Error),
    #[error("{0} has no key for {1}")]
    NoKey(PathBuf, &'static str),
    #[error("`{0}` is not an algorithm: use HS256, RS256 or ES256")]
    Algorithm(String),
}

/// RFC 7518, section 3.2: as long as the digest.
const SHORTEST_SECRET: usize = 32;

/// A key of a set (RFC 7517); what it lacks makes it a key of another kind.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    k: Option<String>,
    n: Option<String>,
    e: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Jwk>,
}

impl Keys {
    pub(super) fn read(algorithm: &str, keys: &JwtKeys) -> Result<Self, TokenKeyError> {
        const KNOWN: [&str; 3] = ["HS256", "RS256", "ES256"];
        let known = KNOWN.into_iter().find(|known| *known == algorithm);
        let algorithm = known.ok_or_else(|| TokenKeyError::Algorithm(algorithm.to_owned()))?;
        let keys = match (algorithm, keys) {
            ("HS256", JwtKeys::One(path)) => vec![Named { id: None, key: secret(path)? }],
            (_, JwtKeys::One(path)) => {
                let der = SubjectPublicKeyInfoDer::from_pem_file(path)
                    .map_err(|error| TokenKeyError::Pem(path.clone(), error))?;
                vec![Named { id: None, key: Key::Der(der.as_ref().to_vec()) }]
            }
            (_, JwtKeys::Set(path)) => set(path, algorithm)?,
        };
        Ok(Self { algorithm, keys })
    }

    pub(super) const fn algorithm(&self) -> &'static str {
        self.algorithm
    }

    /// Whether one of the keys made this signature. A token that names its key is held to it.
    pub(super) fn verify(&self, id: Option<&str>, signed: &[u8], signature: &[u8]) -> Option<()> {
        let fits = |named: &&Named| match (&named.id, id) {
            (Some(known), Some(wanted)) => known == wanted,
            (None, _) | (_, None) => true,
        };
        let mut fitting = self.keys.iter().filter(fits);
        fitting.find_map(|named| named.key.verify(self.algorithm, signed, signature))
    }
}

impl Key {
    fn verify(&self, algorithm: &str, signed: &[u8], signature: &[u8]) -> Option<()> {
        match (self, algorithm) {
            (Self::Secret(secret), "HS256") => {
                let mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
                mac.chain_update(signed).verify_slice(signature).ok()
            }
            (Self::Der(der), "RS256") => {
                let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, der);
                key.verify(signed, signature).ok()
            }
            (Self::Rsa(key), "RS256") => {
                key.verify(&RSA_PKCS1_2048_8192_SHA256, signed, signature).ok()
            }
            (Self::Der(point) | Self::Point(point), "ES256") => {
                let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
                key.verify(signed, signature).ok()
            }
            (Self::Secret(_) | Self::Der(_) | Self::Rsa(_) | Self::Point(_), _) => None,
        }
    }
}

fn secret(path: &Path) -> Result<Key, TokenKeyError> {
    let secret = read_secret(path).map_err(TokenKeyError::Secret)?;
    match secret.len() < SHORTEST_SECRET {
        true => Err(TokenKeyError::Short(path.to_owned())),
        false => Ok(Key::Secret(secret)),
    }
}

/// The keys of a set that are for this algorithm. Others may be there: sets are shared.
fn set(path: &Path, algorithm: &'static str) -> Result<Vec<Named>, TokenKeyError> {
    let text = match algorithm {
        // Its keys are shared secrets: whoever reads them can sign.
        "HS256" => read_secret(path).map_err(TokenKeyError::Secret)?,
        _ => fs::read(path).map_err(|error| TokenKeyError::File(path.to_owned(), error))?,
    };
    let set: Set = serde_json::from_slice(&text)
        .map_err(|error| TokenKeyError::Set(path.to_owned(), error))?;
    let is_for = |jwk: &&Jwk| {
        jwk.alg.as_deref().is_none_or(|alg| alg == algorithm)
            && jwk.purpose.as_deref().is_none_or(|purpose| purpose == "sig")
    };
    let named = |jwk: &Jwk| Some(Named { id: jwk.kid.clone(), key: jwk.key(algorithm)? });
    let keys: Vec<Named> = set.keys.iter().filter(is_for).filter_map(named).collect();
    match keys.is_empty() {
        true => Err(TokenKeyError::NoKey(path.to_owned(), algorithm)),
        false => Ok(keys),
    }
}

impl Jwk {
    fn key(&self, algorithm: &str) -> Option<Key> {
        let bytes = |text: &Option<String>| base64url(text.as_deref()?);
        match (algorithm, self.kty.as_str()) {
            ("HS256", "oct") => {
                bytes(&self.k).filter(|key| key.len() >= SHORTEST_SECRET).map(Key::Secret)
            }
            ("RS256", "RSA") => {
                Some(Key::Rsa(RsaPublicKeyComponents { n: bytes(&self.n)?, e: bytes(&self.e)? }))
            }
            ("ES256", "EC") if self.crv.as_deref() == Some("P-256") => {
                let (x, y) = (bytes(&self.x)?, bytes(&self.y)?);
                (x.len() == 32 && y.len() == 32)
                    .then(|| Key::Point([&[4], &x[..], &y[..]].concat()))
            }
            (_, _) => None,
        }
    }
}

/// Never shows a secret.
impl std::fmt::Debug for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Secret(_) => "Secret",
            Self::Der(_) => "Der",
            Self::Rsa(_) => "Rsa",
            Self::Point(_) => "Point",
        })
    }
}
