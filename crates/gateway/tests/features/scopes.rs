use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::rig::Rig;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const KEY: &str = "Idempotency-Key: 8e03978e-40d5-43e8";
/// In the year 2096.
const LATE: u64 = 4_000_000_000;

fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits: Vec<u8> =
        bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    let digit = |six: &[u8]| {
        let number = (0..6).fold(0, |number, at| number << 1 | six.get(at).copied().unwrap_or(0));
        char::from(DIGITS[usize::from(number)])
    };
    bits.chunks(6).map(digit).collect()
}

fn token(head: &Value, claims: &Value) -> String {
    let part = |value: &Value| base64url(value.to_string().as_bytes());
    let signed = format!("{}.{}", part(head), part(claims));
    let mac = Hmac::<Sha256>::new_from_slice(SECRET).expect("any length");
    let signature = mac.chain_update(signed.as_bytes()).finalize().into_bytes();
    format!("Authorization: Bearer {signed}.{}", base64url(&signature))
}

fn secret(folder: &Path) {
    let path = folder.join("jwt.key");
    std::fs::write(&path, SECRET).expect("the key");
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("hidden");
}

#[test]
fn keys_belong_to_whom_a_verified_token_names() {
    let rig = Rig::with(|folder| {
        secret(folder);
        "[jwt]\nalgorithm = 'HS256'\nkey_file = 'jwt.key'\nissuer = 'us'\n[status]\npath = '/.keys/'\n\
         [defaults]\nscope = ['jwt:sub']\n[[route]]\nmatch = 'POST /pay'\nmode = 'required'\n"
            .to_owned()
    });
    let head = json!({ "alg": "HS256" });
    let of = |sub: &str, iat: u64| {
        token(&head, &json!({ "sub": sub, "iss": "us", "exp": LATE, "iat": iat }))
    };
    let first = rig.send("POST /pay", &[KEY, &of("acme", 1)], "1");
    let refreshed = rig.send("POST /pay", &[KEY, &of("acme", 2)], "1");
    assert_eq!((first.status(), refreshed.header("idempotent-replayed")), (200, Some("true")));
    let other = rig.send("POST /pay", &[KEY, &of("evil", 1)], "1");
    assert_eq!((other.status(), other.header("idempotent-replayed")), (200, None));
    for refused in [
        token(&head, &json!({ "sub": "acme", "iss": "us", "exp": 1 })),
        token(&head, &json!({ "sub": "acme", "iss": "them", "exp": LATE })),
        token(&json!({ "alg": "none" }), &json!({ "sub": "acme", "iss": "us", "exp": LATE })),
        format!("{}x", of("acme", 1)),
        "X-Nothing: 1".to_owned(),
    ] {
        let answer = rig.send("POST /pay", &[KEY, &refused], "1");
        assert_eq!(
            (answer.status(), &answer.json()["code"]),
            (403, &"idempotency_scope_missing".into())
        );
    }
    assert_eq!(rig.seen().len(), 2);
    // Status URLs are about the keys of whoever asks, too.
    let path = "GET /.keys/8e03978e-40d5-43e8";
    assert_eq!(rig.send(path, &[&of("acme", 3)], "").body, first.body);
    assert_eq!(rig.send(path, &[&of("nobody", 3)], "").status(), 404);
}
