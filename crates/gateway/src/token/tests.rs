use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::json;
use sha2::Sha256;
use tempfile::TempDir;

use super::encoding::to_base64url;
use super::*;
use crate::config::JwtKeys;

const NOW: i64 = 1_800_000_000;
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

type Sign = dyn Fn(&[u8]) -> Vec<u8>;

/// Somebody who signs tokens, and the file that we verify them with.
struct Signer {
    sign: Box<Sign>,
    algorithm: &'static str,
    keys: JwtKeys,
    _folder: TempDir,
}

fn file(folder: &TempDir, name: &str, text: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn pem(der: &[u8]) -> String {
    let text = to_base64url(der).replace('-', "+").replace('_', "/");
    let padding = "=".repeat((4 - text.len() % 4) % 4);
    let lines: Vec<String> = (text + &padding)
        .as_bytes()
        .chunks(64)
        .map(|line| String::from_utf8(line.to_vec()).unwrap())
        .collect();
    format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", lines.join("\n"))
}

fn shared() -> Signer {
    let folder = tempfile::tempdir().unwrap();
    let keys = JwtKeys::One(file(&folder, "secret", SECRET));
    let sign = |signed: &[u8]| hs256(SECRET, signed);
    Signer { sign: Box::new(sign), algorithm: "HS256", keys, _folder: folder }
}

fn hs256(secret: &[u8], signed: &[u8]) -> Vec<u8> {
    let mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
    mac.chain_update(signed).finalize().into_bytes().to_vec()
}

fn rsa() -> Signer {
    let folder = tempfile::tempdir().unwrap();
    let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let der = pair.public_key().as_der().unwrap();
    let keys = JwtKeys::One(file(&folder, "public.pem", pem(der.as_ref()).as_bytes()));
    let sign = move |signed: &[u8]| {
        let mut signature = vec![0; pair.public_modulus_len()];
        pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed, &mut signature).unwrap();
        signature
    };
    Signer { sign: Box::new(sign), algorithm: "RS256", keys, _folder: folder }
}

fn curve() -> Signer {
    let folder = tempfile::tempdir().unwrap();
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let point = pair.public_key().as_ref().to_vec();
    let set = json!({ "keys": [
        { "kty": "OKP", "crv": "Ed25519", "x": "AA" },
        { "kty": "EC", "crv": "P-256", "kid": "k1", "alg": "ES256", "use": "sig",
          "x": to_base64url(&point[1..33]), "y": to_base64url(&point[33..]) },
    ]});
    let keys = JwtKeys::Set(file(&folder, "jwks.json", set.to_string().as_bytes()));
    let sign =
        move |signed: &[u8]| pair.sign(&SystemRandom::new(), signed).unwrap().as_ref().to_vec();
    Signer { sign: Box::new(sign), algorithm: "ES256", keys, _folder: folder }
}

impl Signer {
    fn verifier(&self) -> Verifier {
        let text = |text: &str| Some(text.to_owned());
        Verifier::new(&Jwt {
            algorithm: self.algorithm.to_owned(),
            keys: self.keys.clone(),
            issuer: text("https://login"),
            audience: text("payments"),
            leeway: Duration::from_secs(30),
        })
        .unwrap()
    }

    fn token(&self, head: &Value, claims: &Value) -> String {
        let part = |value: &Value| to_base64url(value.to_string().as_bytes());
        let signed = format!("{}.{}", part(head), part(claims));
        let signature = to_base64url(&(self.sign)(signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

fn claims() -> Value {
    json!({ "sub": "acme", "iss": "https://login", "aud": ["other", "payments"], "exp": NOW + 60 })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn without(name: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove(name);
    claims
}

#[test]
fn a_token_is_good_if_everything_about_it_is() {
    for signer in [shared(), rsa(), curve()] {
        let verifier = signer.verifier();
        let head = json!({ "alg": signer.algorithm, "typ": "JWT" });
        let good = |claims: &Value| verifier.verified(&signer.token(&head, claims), NOW).is_some();
        for (claims, expected) in [
            (claims(), true),
            (with("aud", json!("payments")), true),
            (with("exp", json!(NOW - 29)), true),
            (with("exp", json!(NOW - 30)), false),
            (with("exp", json!("soon")), false),
            (without("exp"), false),
            (with("nbf", json!(NOW + 30)), true),
            (with("nbf", json!(NOW + 31)), false),
            (with("nbf", json!("later")), false),
            (with("iss", json!("https://evil")), false),
            (without("iss"), false),
            (with("aud", json!("others")), false),
            (without("aud"), false),
        ] {
            assert_eq!(good(&claims), expected, "{} {claims}", signer.algorithm);
        }
    }
}

/// A token cannot choose how it is verified.
#[test]
fn a_token_with_another_algorithm_is_no_token() {
    for signer in [shared(), rsa(), curve()] {
        let verifier = signer.verifier();
        for alg in ["none", "None", "", "HS256", "RS256", "ES256", "HS512"] {
            let token = signer.token(&json!({ "alg": alg }), &claims());
            let expected = alg == signer.algorithm;
            assert_eq!(verifier.verified(&token, NOW).is_some(), expected, "{alg}");
        }
        let unsigned = signer.token(&json!({ "alg": "none" }), &claims());
        let (signed, _) = unsigned.rsplit_once('.').unwrap();
        assert_eq!(verifier.verified(&format!("{signed}."), NOW), None);
        let odd = signer.token(&json!({ "alg": signer.algorithm, "crit": ["b64"] }), &claims());
        assert_eq!(verifier.verified(&odd, NOW), None);
    }
}

/// Who knows the public key cannot sign with it as if it were a shared secret.
#[test]
fn a_public_key_is_no_secret() {
    let signer = rsa();
    let JwtKeys::One(path) = &signer.keys else { panic!("one key") };
    let public = std::fs::read(path).unwrap();
    let part = |value: &Value| to_base64url(value.to_string().as_bytes());
    for alg in ["HS256", "RS256"] {
        let signed = format!("{}.{}", part(&json!({ "alg": alg })), part(&claims()));
        let forged = format!("{signed}.{}", to_base64url(&hs256(&public, signed.as_bytes())));
        assert_eq!(signer.verifier().verified(&forged, NOW), None, "{alg}");
    }
}

#[test]
fn a_token_that_was_changed_anywhere_is_no_token() {
    for signer in [shared(), curve()] {
        let verifier = signer.verifier();
        let token = signer.token(&json!({ "alg": signer.algorithm }), &claims());
        for at in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(verifier.verified(&changed, NOW), None, "changed at {at}");
        }
        for part in ["", ".", "..", "a.b", "a.b.c", &token[1..], &format!("{token}=")] {
            assert_eq!(verifier.verified(part, NOW), None, "{part}");
        }
    }
}

#[test]
fn a_token_that_names_its_key_is_held_to_it() {
    let signer = curve();
    let token = |kid: &str| signer.token(&json!({ "alg": "ES256", "kid": kid }), &claims());
    assert!(signer.verifier().verified(&token("k1"), NOW).is_some());
    assert!(signer.verifier().verified(&token("k2"), NOW).is_none());
}

#[test]
fn claims_are_texts_or_numbers() {
    let signer = shared();
    let mut claims = claims();
    claims["exp"] = json!(4_000_000_000_u64);
    claims["n"] = json!(42);
    claims["list"] = json!(["x"]);
    let token = signer.token(&json!({ "alg": "HS256" }), &claims);
    let claim = |name: &str| signer.verifier().claim(&token, name);
    assert_eq!(claim("sub").as_deref(), Some("acme"));
    assert_eq!(claim("n").as_deref(), Some("42"));
    assert_eq!((claim("list"), claim("nothing")), (None, None));
}

#[test]
fn keys_that_cannot_be_used_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused =
        |algorithm: &str, keys: JwtKeys| Keys::read(algorithm, &keys).unwrap_err().to_string();
    let short = file(&folder, "short", b"hunter2");
    assert!(refused("HS256", JwtKeys::One(short.clone())).contains("shorter than 32 bytes"));
    assert!(refused("RS256", JwtKeys::One(short)).contains("public key in PEM"));
    let set = file(&folder, "set.json", br#"{"keys":[{"kty":"oct","k":"AA"}]}"#);
    assert!(refused("HS256", JwtKeys::Set(set.clone())).contains("has no key for HS256"));
    assert!(refused("ES256", JwtKeys::Set(set)).contains("has no key for ES256"));
    let open = file(&folder, "open.json", br#"{"keys":[]}"#);
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(refused("HS256", JwtKeys::Set(open.clone())).contains("everybody on this machine"));
    assert!(refused("RS256", JwtKeys::Set(open)).contains("has no key for RS256"));
    assert!(refused("none", JwtKeys::Set(PathBuf::new())).contains("not an algorithm"));
}
