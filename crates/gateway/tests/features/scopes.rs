use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hmac::{Hmac, KeyInit as _, Mac as _};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::rig::{Rig, exchange};

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

/// T1: one value may be a user on one route and an organisation on another.
#[test]
fn a_status_url_shows_nobody_the_keys_of_another_kind_of_caller() {
    let route = |path: &str, scope: &str| {
        format!(
            "[[route]]\nmatch = 'POST /{path}'\nmode = 'required'\nscope = ['header:{scope}']\n"
        )
    };
    for defaults in ["shared", "header:x-user"] {
        let rig = Rig::with(|_| {
            let (users, orgs) = (route("users", "x-user"), route("orgs", "x-org"));
            let head = format!("[status]\npath = '/.keys/'\n[defaults]\nscope = ['{defaults}']\n");
            format!("{head}{users}{orgs}")
        });
        let answer = rig.send("POST /orgs", &[KEY, "X-Org: 42"], "1");
        let ask = |lines: &[&str]| rig.send("GET /.keys/8e03978e-40d5-43e8", lines, "");
        assert_eq!(ask(&["X-User: 42"]).status(), 404, "{defaults}");
        assert_eq!(ask(&["X-User: 42", "X-Org: 7"]).status(), 404, "{defaults}");
        assert_eq!(ask(&["X-User: 7", "X-Org: 42"]).body, answer.body, "{defaults}");
    }
}

/// A connection of the holder of one of the certificates in `tls/`. They are good until 2120.
fn tls(rig: &Rig, name: Option<&str>) -> rustls::StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(fixture("ca")).expect("a certificate"))
        .expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("versions").with_root_certificates(roots);
    let config = match name.map(fixture) {
        None => config.with_no_client_auth(),
        Some(path) => {
            let certificate = CertificateDer::from_pem_file(&path).expect("a certificate");
            let key = PrivateKeyDer::from_pem_file(&path).expect("a key");
            config.with_client_auth_cert(vec![certificate], key).expect("a pair")
        }
    };
    let server = "localhost".try_into().expect("a name");
    let connection = ClientConnection::new(Arc::new(config), server).expect("a client");
    rustls::StreamOwned::new(connection, TcpStream::connect(&rig.listen).expect("the gateway"))
}

fn fixture(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/features/tls");
    folder.join(format!("{name}.pem"))
}

#[test]
fn keys_belong_to_whom_a_certificate_names() {
    let rig = Rig::with(|folder| {
        let key = folder.join("server.pem");
        std::fs::copy(fixture("server"), &key).expect("the key");
        std::fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("hidden");
        format!(
            "tls = {{ cert_file = 'server.pem', key_file = 'server.pem', client_ca_file = '{}' }}\n\
             [[route]]\nmatch = 'POST /pay'\nmode = 'required'\nscope = ['mtls']\n",
            fixture("ca").display()
        )
    });
    let send = |name| exchange(tls(&rig, Some(name)), "POST /pay", &[KEY], "1");
    let first = send("acme");
    assert_eq!((first.status(), first.header("idempotent-replayed")), (200, None));
    // A new certificate for the same subject is the same caller.
    assert_eq!(send("acme2").header("idempotent-replayed"), Some("true"));
    let robot = send("robot");
    assert_eq!((robot.status(), robot.header("idempotent-replayed")), (200, None));
    assert_eq!(rig.seen().len(), 2);
    let mut nobody = tls(&rig, None);
    let mut answer = [0; 1];
    let asked = nobody.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(asked.and_then(|()| nobody.read_exact(&mut answer)).is_err(), "nobody is not served");
}
