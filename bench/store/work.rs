//! The requests that are measured: keys, claims and one answer of an ordinary size.

use std::time::Duration;

use oncekey::core::fingerprint::{FingerprintRules, Subject};
use oncekey::core::{
    Answer, Claim, Class, Completion, Fingerprint, Headers, KeyId, Origin, Owner, Places, Saved,
    Sent,
};

const BODY: &[u8] = br#"{"amount":4200,"currency":"eur","customer":"cus_8h2k1","capture":true}"#;

/// Makes claims. Two with different seeds never make the same key.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    seed: u64,
    fingerprint: Fingerprint,
    places: Places,
}

impl Work {
    pub(crate) fn new(seed: u64) -> Self {
        let subject = Subject {
            method: "POST",
            path: b"/v1/charges",
            query: None,
            content_type: Some(b"application/json"),
            headers: &[],
            body: BODY,
        };
        let (fingerprint, places) = Fingerprint::v1(&subject, &FingerprintRules::default());
        Self { seed, fingerprint, places }
    }

    /// The key with this number.
    pub(crate) fn key(&self, number: usize) -> KeyId {
        let mut bytes = [0; 32];
        let base = self.seed.wrapping_mul(1 << 40).wrapping_add(number as u64);
        for (part, chunk) in (0..4).zip(bytes.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&mix(base.wrapping_mul(4).wrapping_add(part)).to_be_bytes());
        }
        KeyId::from_bytes(bytes)
    }

    /// A claim of the key `number` by the owner `owner`.
    pub(crate) fn claim(&self, number: usize, owner: usize) -> Claim {
        let mut bits = [0; 16];
        bits[..8].copy_from_slice(&mix(owner as u64).to_be_bytes());
        bits[8..].copy_from_slice(&(owner as u64).to_be_bytes());
        Claim {
            id: self.key(number),
            owner: Owner::from_bytes(bits),
            fingerprint: self.fingerprint,
            class: Class::Once,
            lease: Duration::from_secs(30),
            grace: Duration::from_secs(2),
            sent: Sent::Yes,
            origin: Origin {
                key: format!("{:036}", number).into(),
                scope: "tenant-4711".into(),
                route: "POST /v1/charges".into(),
                request: format!("{:032}", owner).into(),
            },
            places: self.places.clone(),
        }
    }
}

/// An answer of 300 bytes with four header lines.
pub(crate) fn completion() -> Completion {
    completion_of(300)
}

/// An answer with a body of `size` bytes.
pub(crate) fn completion_of(size: usize) -> Completion {
    let mut headers = Headers::new();
    for (name, value) in [
        ("content-type", "application/json; charset=utf-8"),
        ("cache-control", "no-store"),
        ("location", "/v1/charges/ch_3Nf0k2eZvKYlo2C"),
        ("x-request-id", "0b9fc1b7a5d24c5e8f0d2a4b6c8e0f12"),
    ] {
        headers.push(name.as_bytes(), value.as_bytes()).expect("these are valid header lines");
    }
    let body = vec![b'7'; size].into();
    Completion {
        answer: Answer::Kept(Saved { status: 201, headers, body }),
        retention: Duration::from_secs(24 * 60 * 60),
        linger: Duration::from_secs(24 * 60 * 60),
    }
}

/// What is written for a key without a store: the columns that everybody has.
#[derive(Debug)]
pub(crate) struct Plain {
    pub(crate) scope: String,
    pub(crate) hash: Vec<u8>,
    pub(crate) code: i32,
    pub(crate) headers: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

impl Plain {
    pub(crate) fn new() -> Self {
        let (code, headers, body) = match completion().answer {
            Answer::Kept(saved) => {
                (i32::from(saved.status), saved.headers.encode(), saved.body.to_vec())
            }
            Answer::Tombstone(_) => (0, Vec::new(), Vec::new()),
        };
        Self { scope: "tenant-4711".to_owned(), hash: vec![7; 32], code, headers, body }
    }
}

/// A key as clients send it: as long as a UUID, and as random.
pub(crate) fn key_text(id: &KeyId) -> String {
    id.as_bytes().iter().take(18).map(|byte| format!("{byte:02x}")).collect()
}

/// A number that looks random, the same for the same input (the finaliser of SplitMix64).
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
