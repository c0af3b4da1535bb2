//! One key, three requests: the first runs, its retry gets the same answer, and another request
//! under the same key is refused.
//!
//! Run it with `cargo run -p oncekey --features sqlite --example first_claim`. It keeps its records
//! in `first_claim.db` in the current folder; run it again, and the first request is a retry too.
#![allow(clippy::print_stdout, reason = "an example talks to the person at the terminal")]

use std::error::Error;
use std::fs::File;
use std::io::{self, Read};

use oncekey::core::fingerprint::{FingerprintRules, Subject};
use oncekey::core::{
    Answer, Claim, Claimed, Completion, Fingerprint, Headers, Key, KeyId, Origin, Owner, Policy,
    Refusal, Saved, Scope, Sent, State, Store, Write,
};
use oncekey::store::sqlite::SqliteStore;

const BODIES: [&str; 3] = [
    r#"{"amount": 5, "currency": "EUR"}"#,
    r#"{"currency": "EUR", "amount": 5}"#,
    r#"{"currency": "EUR", "amount": 7}"#,
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = SqliteStore::open("first_claim.db")?;
    for body in BODIES {
        println!("{body} -> {}", charge(&store, "order-1042", body).await?);
    }
    Ok(())
}

/// Charges once, however often it is called with the same key and the same body.
async fn charge(store: &impl Store, key: &str, body: &str) -> Result<String, Box<dyn Error>> {
    let policy = Policy::default();
    let claim = claim(&policy, key, body)?;
    match store.claim(&claim).await? {
        Claimed::Won { lease, .. } => {
            // Durable before the first byte leaves. After a crash it tells "may have happened"
            // from "never began".
            if store.send(&lease).await? == Write::Fenced {
                return Ok("another attempt has taken over".to_owned());
            }
            // The work. A real program would call its bank here.
            let saved = Saved { status: 201, headers: Headers::new(), body: r#"{"id":1}"#.into() };
            let text = show(&saved);
            let (retention, linger) = (policy.retention, policy.linger);
            let completion = Completion { answer: Answer::Kept(saved), retention, linger };
            match store.complete(&lease, &completion).await? {
                Write::Applied => Ok(format!("ran: {text}")),
                Write::Fenced => Ok("another attempt has taken over".to_owned()),
            }
        }
        Claimed::Lost { refusal: Refusal::Replay, record, .. } => {
            let State::Done { answer: Answer::Kept(saved), .. } = &record.state else {
                return Err("a replay comes with its answer".into());
            };
            Ok(format!("replayed: {}", show(saved)))
        }
        Claimed::Lost { refusal: Refusal::Mismatch, record, .. } => {
            let places = record.places.differing(&claim.places);
            Ok(format!("refused: another request has this key, {places:?} differ"))
        }
        Claimed::Lost { refusal, .. } => Ok(format!("refused: {refusal:?}")),
    }
}

/// What the store must know about a request.
fn claim(policy: &Policy, key: &str, body: &str) -> Result<Claim, Box<dyn Error>> {
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
    Ok(Claim {
        id: KeyId::derive("shop", &Scope::new("tenant-7")?, &key, None),
        owner: random_owner()?,
        fingerprint,
        class: policy.class,
        lease: policy.lease,
        grace: policy.grace,
        sent: Sent::No,
        origin: Origin { key: key.as_str().into(), ..Origin::default() },
        places,
    })
}

/// 128 random bits, drawn once per attempt and kept if the same call has to be made again.
fn random_owner() -> io::Result<Owner> {
    let mut bits = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bits)?;
    Ok(Owner::from_bytes(bits))
}

fn show(saved: &Saved) -> String {
    format!("{} {}", saved.status, String::from_utf8_lossy(&saved.body))
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str = include_str!("../../../README.md");

    #[test]
    fn the_readme_shows_this_program() {
        let source = include_str!("first_claim.rs");
        let start = source.find("use std::error").unwrap();
        let end = source.find("#[cfg(test)]").unwrap();
        let block = format!("```rust\n{}\n```", source[start..end].trim_end());
        assert!(README.contains(&block), "README.md shows another program:\n{block}");
    }

    #[tokio::test]
    async fn the_readme_shows_what_it_prints() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("first_claim.db")).unwrap();
        for body in BODIES {
            let answer = charge(&store, "order-1042", body).await.unwrap();
            let line = format!("\n{body} -> {answer}\n");
            assert!(README.contains(&line), "README.md does not show:{line}");
        }
    }
}
