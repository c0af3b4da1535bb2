//! What the cases are told with: fresh keys, a store that never errs, and crowds.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Barrier;

use super::rig::Rig;
use crate::clock::Timestamp;
use crate::decide::{Grant, Refusal};
use crate::fingerprint::{Fingerprint, FingerprintRules, Subject};
use crate::key_id::KeyId;
use crate::policy::Class;
use crate::record::{Lease, Origin, Owner, Record, Sent};
use crate::saved::{Answer, Headers, Saved};
use crate::store::{Claim, Claimed, Completion, Purged, Renewal, Store, Write};

/// How long leases last. Long against [`MOMENT`], like all spans here.
pub(super) const LEASE: Duration = Duration::from_secs(600);
/// How long a lapsed lease is still respected.
pub(super) const GRACE: Duration = Duration::from_secs(120);
/// How long answers are kept.
pub(super) const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// How long they still say that it is too late.
pub(super) const LINGER: Duration = Duration::from_secs(60 * 60);
/// How far from a boundary the cases stay. Longer than any case takes: a real server's clock goes
/// on by itself meanwhile.
pub(super) const MOMENT: Duration = Duration::from_secs(60);
/// How many tasks make a crowd: enough that a store with two steps shows it.
pub(super) const CROWD: usize = 64;

/// A small generator (SplitMix64), so that the suite needs no crate for randomness and every run
/// is the same.
#[derive(Debug)]
pub(super) struct Bits(u64);

/// A store whose errors are failures of the test.
#[derive(Debug)]
pub(super) struct Probe<S>(Arc<S>);

/// A claim that was refused.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) refusal: Refusal,
    pub(super) record: Record,
    pub(super) now: Timestamp,
}

impl Bits {
    /// A generator for the case that calls it. Its place in the source is the seed, so that no two
    /// cases draw the same keys, even if they share a database.
    #[track_caller]
    pub(super) fn here() -> Self {
        let place = Location::caller();
        let name = place
            .file()
            .bytes()
            .fold(0_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self::seeded(name ^ (u64::from(place.line()) << 32))
    }

    pub(super) const fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        for chunk in bytes.chunks_mut(8) {
            let drawn = self.next().to_le_bytes();
            chunk.copy_from_slice(&drawn[..chunk.len()]);
        }
        bytes
    }

    pub(super) fn id(&mut self) -> KeyId {
        KeyId::from_bytes(self.bytes())
    }

    pub(super) fn owner(&mut self) -> Owner {
        Owner::from_bytes(self.bytes())
    }

    pub(super) fn fingerprint(&mut self) -> Fingerprint {
        Fingerprint::from_parts(1, self.bytes())
    }

    /// A claim of a fresh key by a fresh owner, in class `once`, nothing sent.
    pub(super) fn claim(&mut self) -> Claim {
        self.claim_as(Class::Once)
    }

    pub(super) fn claim_as(&mut self, class: Class) -> Claim {
        let body = format!("{{\"amount\":{},\"to\":[1,2]}}", self.next());
        let subject = Subject {
            method: "POST",
            path: b"/v1/charges",
            query: None,
            content_type: Some(b"application/json"),
            headers: &[],
            body: body.as_bytes(),
        };
        let (fingerprint, places) = Fingerprint::v1(&subject, &FingerprintRules::default());
        let request = self.next();
        Claim {
            id: self.id(),
            owner: self.owner(),
            fingerprint,
            class,
            lease: LEASE,
            grace: GRACE,
            sent: Sent::No,
            origin: Origin {
                key: format!("key-{request:016x}").into(),
                scope: "tenant-1".into(),
                route: "POST /v1/charges".into(),
                request: format!("req_{request:016x}").into(),
            },
            places,
        }
    }

    /// The same request by another owner.
    pub(super) fn rival(&mut self, claim: &Claim) -> Claim {
        Claim { owner: self.owner(), ..claim.clone() }
    }

    /// Another request under the same key, by another owner.
    pub(super) fn impostor(&mut self, claim: &Claim) -> Claim {
        Claim { owner: self.owner(), fingerprint: self.fingerprint(), ..claim.clone() }
    }

    /// As many rivals as it takes.
    pub(super) fn rivals(&mut self, claim: &Claim, count: usize) -> Vec<Claim> {
        (0..count).map(|_| self.rival(claim)).collect()
    }

    /// An answer that no other answer equals.
    pub(super) fn answer(&mut self) -> Answer {
        let mut headers = Headers::new();
        let number = self.next().to_string();
        headers.push(b"x-number", number.as_bytes()).expect("digits may stand in a header");
        Answer::Kept(Saved { status: 201, headers, body: Bytes::from(number) })
    }

    pub(super) fn completion(&mut self) -> Completion {
        completion(self.answer())
    }
}

/// A completion with the usual times.
pub(super) const fn completion(answer: Answer) -> Completion {
    Completion { answer, retention: RETENTION, linger: LINGER }
}

/// Lets all of them go at the same moment and gives back what came of each, in order.
pub(super) async fn race<T, F>(entrants: impl IntoIterator<Item = F>) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let entrants: Vec<F> = entrants.into_iter().collect();
    let barrier = Arc::new(Barrier::new(entrants.len()));
    let mut tasks = tokio::task::JoinSet::new();
    for (place, entrant) in entrants.into_iter().enumerate() {
        let barrier = Arc::clone(&barrier);
        tasks.spawn(async move {
            barrier.wait().await;
            (place, entrant.await)
        });
    }
    let mut finished = Vec::with_capacity(tasks.len());
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(result) => finished.push(result),
            // The failed assertion itself, so that the test shows it and not merely a lost task.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    finished.sort_by_key(|(place, _)| *place);
    finished.into_iter().map(|(_, result)| result).collect()
}

impl<S> Clone for Probe<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Store> Probe<S> {
    pub(super) fn of(rig: &impl Rig<Store = S>) -> Self {
        Self(rig.store())
    }

    /// Closes the store and opens it again.
    pub(super) async fn reopened(self, rig: &impl Rig<Store = S>) -> Self {
        drop(self);
        Self(rig.reopen().await)
    }

    pub(super) fn store(&self) -> &S {
        &self.0
    }

    pub(super) async fn claim(&self, claim: &Claim) -> Claimed {
        self.0.claim(claim).await.expect("a claim is a decision, not an error")
    }

    /// Claims and must win, for this reason.
    pub(super) async fn win(&self, claim: &Claim, expected: Grant, promise: &str) -> Lease {
        let (lease, grant) = self.win_somehow(claim, promise).await;
        assert_eq!(grant, expected, "{promise}");
        lease
    }

    /// Claims a key that has been used and forgotten. Whether its old record is still there is the
    /// store's business.
    pub(super) async fn win_anew(&self, claim: &Claim, promise: &str) -> Lease {
        let (lease, grant) = self.win_somehow(claim, promise).await;
        assert!(matches!(grant, Grant::Fresh | Grant::Reused), "{promise}: {grant:?}");
        lease
    }

    async fn win_somehow(&self, claim: &Claim, promise: &str) -> (Lease, Grant) {
        match self.claim(claim).await {
            Claimed::Won { lease, grant, .. } => {
                assert_eq!(lease.id, claim.id, "a lease is for the key that was claimed");
                assert_eq!(lease.owner, claim.owner, "a lease is for the owner that claimed");
                (lease, grant)
            }
            Claimed::Lost { refusal, .. } => panic!("{promise}: refused as {refusal:?}"),
        }
    }

    /// Claims and must be refused.
    pub(super) async fn lose(&self, claim: &Claim, promise: &str) -> Lost {
        match self.claim(claim).await {
            Claimed::Won { grant, .. } => panic!("{promise}: granted as {grant:?}"),
            Claimed::Lost { refusal, record, now } => Lost { refusal, record: *record, now },
        }
    }

    /// Claims and must be refused for this reason.
    pub(super) async fn refused(&self, claim: &Claim, expected: Refusal, promise: &str) -> Record {
        let lost = self.lose(claim, promise).await;
        assert_eq!(lost.refusal, expected, "{promise}");
        lost.record
    }

    /// Claims and must be told that another attempt owns the key.
    pub(super) async fn in_progress(&self, claim: &Claim, promise: &str) -> Lost {
        let lost = self.lose(claim, promise).await;
        assert!(matches!(lost.refusal, Refusal::InProgress(_)), "{promise}: {:?}", lost.refusal);
        lost
    }

    pub(super) async fn renew(&self, leases: &[Lease], span: Duration) -> Vec<Renewal> {
        self.0.renew(leases, span).await.expect("a renewal answers for each lease")
    }

    pub(super) async fn send(&self, lease: &Lease) -> Write {
        self.0.send(lease).await.expect("a send mark is applied or fenced")
    }

    pub(super) async fn complete(&self, lease: &Lease, completion: &Completion) -> Write {
        self.0.complete(lease, completion).await.expect("a completion is applied or fenced")
    }

    pub(super) async fn release(&self, lease: &Lease) -> Write {
        self.0.release(lease).await.expect("a release is applied or fenced")
    }

    pub(super) async fn unknown(&self, lease: &Lease) -> Write {
        self.0.unknown(lease).await.expect("an unknown outcome is applied or fenced")
    }

    pub(super) async fn get(&self, id: &KeyId) -> Option<Record> {
        self.0.get(id).await.expect("a record can be read")
    }

    pub(super) async fn record(&self, id: &KeyId, promise: &str) -> Record {
        self.get(id).await.unwrap_or_else(|| panic!("{promise}: there is no record"))
    }

    pub(super) async fn purge(&self, limit: usize) -> Purged {
        self.0.purge(limit).await.expect("a purge is never an error")
    }

    /// Claims a fresh key and completes it.
    pub(super) async fn finish(&self, claim: &Claim, completion: &Completion) -> Lease {
        let lease = self.win(claim, Grant::Fresh, "a fresh key is granted").await;
        let write = self.complete(&lease, completion).await;
        assert_eq!(write, Write::Applied, "the owner completes its work");
        lease
    }

    /// Tries every write with `lease`, none of which may change anything.
    pub(super) async fn fenced_everywhere(&self, lease: &Lease, bits: &mut Bits, promise: &str) {
        let before = self.get(&lease.id).await;
        assert_eq!(self.send(lease).await, Write::Fenced, "{promise}: send");
        assert_eq!(self.renew(&[*lease], LEASE).await, [Renewal::Lost], "{promise}: renew");
        let completion = bits.completion();
        assert_eq!(self.complete(lease, &completion).await, Write::Fenced, "{promise}: complete");
        assert_eq!(self.unknown(lease).await, Write::Fenced, "{promise}: unknown");
        assert_eq!(self.release(lease).await, Write::Fenced, "{promise}: release");
        assert_eq!(self.get(&lease.id).await, before, "{promise}: the record changed");
    }
}
