//! One key, three requests: the first runs, its retry gets the same answer, and another request
//! under the same key is refused.
//!
//! Run it with `cargo run -p oncekey --features sqlite --example first_claim`. It keeps its records
//! in `first_claim.db` in the current folder; run it again, and the first request is a retry too.

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write as _, stdout};

use oncekey::core::fingerprint::{FingerprintRules, Subject};
use oncekey::core::{
    Answer, Claim, Claimed, Completion, Fingerprint, Headers, Key, KeyId, Origin, Owner, Policy,
    Refusal, Saved, Scope, Sent, Store, Write,
};
use oncekey::store::sqlite::SqliteStore;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = SqliteStore::open("first_claim.db")?;
    for body in [
        r#"{"amount": 5, "currency": "EUR"}"#,
        r#"{"currency": "EUR", "amount": 5}"#,
        r#"{"currency": "EUR", "amount": 7}"#,
    ] {
        let answer = charge(&store, "order-1042", body).await?;
        writeln!(stdout(), "{body} -> {answer}")?;
    }
    Ok(())
}

/// Charges once, however often it is called with the same key and body.
async fn charge(store: &impl Store, key: &str, body: &str) -> Result<String, Box<dyn Error>> {
    let key = Key::parse_field(key.as_bytes())?;
    let request = Subject {
        method: "POST",
        path: b"/v1/charges",
        query: None,
        content_type: Some(b"application/json"),
        headers: &[],
        body: body.as_bytes(),
    };
    let (fingerprint, places) = Fingerprint::v1(&request, &FingerprintRules::default());
    let policy = Policy::default();
    let claim = Claim {
        id: KeyId::derive("shop", &Scope::new("tenant-7")?, &key, None),
        owner: random_owner()?,
        fingerprint,
        class: policy.class,
        lease: policy.lease,
        grace: policy.grace,
        sent: Sent::No,
        origin: Origin { key: key.as_str().into(), ..Origin::default() },
        places,
    };
    match store.claim(&claim).await? {
        Claimed::Won { lease, .. } => {
            // Written down before the first byte leaves: after a crash it tells "may have
            // happened" from "never began".
            if store.send(&lease).await? == Write::Fenced {
                return Ok("another attempt has taken over".to_owned());
            }
            let body = r#"{"id":"ch_1"}"#; // The work: here a real program calls its bank.
            let saved = Saved { status: 201, headers: Headers::new(), body: body.into() };
            let answer = Answer::Kept(saved);
            let (retention, linger) = (policy.retention, policy.linger);
            match store.complete(&lease, &Completion { answer, retention, linger }).await? {
                Write::Applied => Ok(format!("ran: 201 {body}")),
                Write::Fenced => Ok("ran, but another attempt has taken over".to_owned()),
            }
        }
        Claimed::Lost { refusal: Refusal::Replay, record, .. } => match record.state {
            oncekey::core::State::Done { answer: Answer::Kept(saved), .. } => {
                let body = String::from_utf8_lossy(&saved.body);
                Ok(format!("replayed: {} {body}", saved.status))
            }
            _ => unreachable!("a replay comes with its answer"),
        },
        Claimed::Lost { refusal: Refusal::Mismatch, record, .. } => {
            let places = record.places.differing(&claim.places).join(", ");
            Ok(format!("refused: the key belongs to another request, they differ in {places}"))
        }
        Claimed::Lost { refusal, .. } => Ok(format!("refused: {refusal:?}")),
    }
}

/// 128 bits that nobody else draws. They are drawn before the first try and kept for its retries.
fn random_owner() -> std::io::Result<Owner> {
    let mut bits = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bits)?;
    Ok(Owner::from_bytes(bits))
}
