//! The calls that are made to a store, whichever it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncekey::core::{Claim, Claimed, Completion, Lease, Refusal, Store, Write};
use oncekey_bench::stats::Sample;

use crate::cells::Verb;
use crate::drive::{Next, drive};
use crate::work::{self, Work};

/// What all callers of a store share.
#[derive(Debug)]
pub(crate) struct Calls {
    verb: Verb,
    callers: usize,
    store: Arc<dyn Store>,
    work: Work,
    completion: Completion,
    /// Claimed beforehand, for completions.
    leases: Vec<Lease>,
    /// Made beforehand: making a claim takes a tenth of the time of a replay. With another owner
    /// than the first, as a retry has.
    retries: Vec<Claim>,
    /// Of the contended keys: how many were asked for, and how many won.
    asked: AtomicUsize,
    won: AtomicUsize,
}

impl Calls {
    /// Calls of `verb` with the keys of `work`, of which `leases` are held, or which are all
    /// finished up to the number `replayed`.
    pub(crate) fn new(
        (verb, callers): (Verb, usize),
        store: Arc<dyn Store>,
        work: Work,
        leases: Vec<Lease>,
        replayed: usize,
    ) -> Self {
        Self {
            verb,
            callers,
            store,
            retries: (0..replayed).map(|number| work.claim(number, number + replayed)).collect(),
            work,
            completion: work::completion(),
            leases,
            asked: AtomicUsize::new(0),
            won: AtomicUsize::new(0),
        }
    }

    /// Has all callers call for `span`.
    pub(crate) async fn run(self, span: Duration) -> Sample {
        let shared = Arc::new(self);
        let call = {
            let shared = Arc::clone(&shared);
            move |ticket| {
                let shared = Arc::clone(&shared);
                async move { shared.call(ticket).await }
            }
        };
        let sample = drive(shared.callers, span, call).await;
        let (asked, won) = (&shared.asked, &shared.won);
        assert_eq!(won.load(Ordering::Relaxed), asked.load(Ordering::Relaxed), "one owner per key");
        sample
    }

    async fn call(&self, ticket: usize) -> Next {
        match self.verb {
            Verb::Claim => drop(claim(&*self.store, &self.work, ticket).await),
            Verb::Complete => {
                let Some(lease) = self.leases.get(ticket) else { return Next::Dry };
                complete(&*self.store, lease, &self.completion).await;
            }
            Verb::Pair => {
                let lease = claim(&*self.store, &self.work, ticket).await;
                complete(&*self.store, &lease, &self.completion).await;
            }
            Verb::Replay => self.replay(&self.retries[pick(ticket, self.retries.len())]).await,
            Verb::Contended => self.contend(ticket / self.callers, ticket).await,
        }
        Next::More
    }

    async fn replay(&self, retry: &Claim) {
        match self.store.claim(retry).await.expect("the store answers") {
            Claimed::Lost { refusal: Refusal::Replay, .. } => {}
            Claimed::Lost { refusal, .. } => panic!("no replay: {refusal:?}"),
            Claimed::Won { grant, .. } => panic!("a finished key was run again: {grant:?}"),
        }
    }

    async fn contend(&self, key: usize, owner: usize) {
        self.asked.fetch_max(key + 1, Ordering::Relaxed);
        let claimed = self.store.claim(&self.work.claim(key, owner)).await;
        if let Claimed::Won { .. } = claimed.expect("the store answers") {
            self.won.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Claims a new key, which must succeed.
pub(crate) async fn claim(store: &dyn Store, work: &Work, number: usize) -> Lease {
    match store.claim(&work.claim(number, number)).await.expect("the store answers") {
        Claimed::Won { lease, .. } => lease,
        Claimed::Lost { refusal, .. } => panic!("a new key was refused: {refusal:?}"),
    }
}

/// Completes a key, which must succeed.
pub(crate) async fn complete(store: &dyn Store, lease: &Lease, completion: &Completion) {
    let write = store.complete(lease, completion).await.expect("the store answers");
    assert_eq!(write, Write::Applied, "nobody else completes this key");
}

/// A number below `count` that looks random.
pub(crate) fn pick(ticket: usize, count: usize) -> usize {
    usize::try_from(work::mix(ticket as u64) % count as u64).unwrap_or(0)
}
