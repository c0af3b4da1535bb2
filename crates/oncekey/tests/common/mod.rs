//! What the hostile tests of the SQLite store share: seeded randomness, keys and answers, child
//! processes, and a look at the file behind the store's back.

#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod child;
pub(crate) mod file;
pub(crate) mod proxy;

use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use oncekey::core::saved::{Headers, Saved};
use oncekey::core::{
    Answer, Claim, Claimed, Class, Completion, Fingerprint, Grant, KeyId, Lease, Origin, Owner,
    Places, Sent, Store,
};

/// Longer than any test takes.
pub(crate) const LONG: Duration = Duration::from_secs(60 * 60);

/// A body that is written in several pieces, the last of them short.
pub(crate) const LARGE: usize = 200_000;

/// A small generator (SplitMix64): the same seed, the same run.
#[derive(Debug)]
pub(crate) struct Bits(u64);

impl Bits {
    pub(crate) const fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// An index into something of this length.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        let length = u64::try_from(length).expect("lengths fit 64 bits");
        usize::try_from(self.below(length)).expect("it is below a length")
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let drawn = self.next().to_le_bytes();
            chunk.copy_from_slice(&drawn[..chunk.len()]);
        }
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(&mut bytes);
        bytes
    }
}

/// The key id with this number.
pub(crate) fn key_id(number: u64) -> KeyId {
    KeyId::from_bytes(Bits::seeded(number).bytes())
}

/// The owner with this number.
pub(crate) fn owner(number: u64) -> Owner {
    Owner::from_bytes(Bits::seeded(!number).bytes())
}

/// A claim of key `key` by owner `by`, with a lease that outlasts the test. Every claim of a key is
/// the same request.
pub(crate) fn claim(key: u64, by: u64) -> Claim {
    Claim {
        id: key_id(key),
        owner: owner(by),
        fingerprint: Fingerprint::from_parts(1, Bits::seeded(key).bytes()),
        class: Class::Once,
        lease: LONG,
        grace: Duration::ZERO,
        sent: Sent::No,
        origin: Origin {
            key: format!("key-{key}").into(),
            scope: "tenant-1".into(),
            route: "POST /v1/charges".into(),
            request: format!("req-{by}").into(),
        },
        places: Places::default(),
    }
}

/// An answer with a body of this size that no other number gives.
pub(crate) fn answer(number: u64, size: usize) -> Answer {
    let mut headers = Headers::new();
    headers.push(b"x-number", number.to_string().as_bytes()).expect("digits are a header value");
    let mut body = vec![0; size];
    Bits::seeded(number).fill(&mut body);
    Answer::Kept(Saved { status: 201, headers, body: Bytes::from(body) })
}

/// A completion that is kept for longer than the test.
pub(crate) const fn completion(answer: Answer) -> Completion {
    Completion { answer, retention: LONG, linger: LONG }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Claims and must win.
pub(crate) async fn win(store: &impl Store, claim: &Claim) -> (Lease, Grant) {
    match store.claim(claim).await.expect("a claim is a decision, not an error") {
        Claimed::Won { lease, grant, .. } => (lease, grant),
        Claimed::Lost { refusal, .. } => panic!("the key is free, but refused as {refusal:?}"),
    }
}

/// Runs `work` on a runtime with threads of its own.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(3)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(work)
}

/// Says something that is seen even if the test passes.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stderr().lock();
    writeln!(out, "{line}").expect("standard error is open");
}
