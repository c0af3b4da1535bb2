//! One stream of batches: take, deliver, settle.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::claim::{Ask, Batch, take};
use super::deliver::deliver;
use super::relay::{Inner, Relayed};
use super::settle::{Settlement, settle};
use crate::flow::{TxError, TxStore};

/// One batch after the other; the next one is taken before the end of one that is slow.
#[derive(Clone)]
pub(super) struct Lane<S> {
    store: S,
    inner: Arc<Inner>,
    batch: usize,
    every: Duration,
    stop: watch::Receiver<bool>,
    /// As many as messages may be delivered at once, over all batches of this lane.
    turns: Arc<Semaphore>,
}

/// What was taken, by whom, and when it was asked for.
struct Owned {
    batch: Batch,
    owner: [u8; 16],
    asked: Duration,
}

/// How long a lane waits before it asks again a database that has failed.
const TROUBLE: Duration = Duration::from_secs(1);
/// How often a settlement is tried. After that the lease lapses and the messages come again.
const TRIES: u32 = 5;
/// How long what has ended waits for others, to be settled with them in one statement. A batch to a sink in
/// the same process takes about so long as a whole; a slow receiver does not notice it.
const LINGER: Duration = Duration::from_millis(5);
/// How long a lane waits for the end of a batch before it takes another one beside it. Earlier would put off
/// messages whose key is still being delivered, and each of those costs an update.
const PATIENCE: Duration = Duration::from_millis(50);

impl<S: TxStore> Lane<S> {
    pub(super) fn new(
        store: S,
        inner: Inner,
        batch: usize,
        every: Duration,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let turns = Arc::new(Semaphore::new(inner.at_once));
        Self { store, inner: Arc::new(inner), batch, every, stop, turns }
    }

    pub(super) async fn run(mut self) {
        let wake = Arc::clone(&self.store.layout().outbox().wake);
        let mut batches = JoinSet::new();
        while !*self.stop.borrow() {
            let pause = match self.taken().await {
                Ok(owned) if owned.batch.messages.is_empty() => {
                    // A full look that found nothing to deliver: what is due may stand behind it.
                    if owned.batch.looked_at() >= self.batch {
                        continue;
                    }
                    self.every
                }
                Ok(owned) => {
                    self.begin(owned, &mut batches).await;
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "staged messages could not be relayed");
                    TROUBLE
                }
            };
            tokio::select! {
                _ = self.stop.changed() => break,
                () = wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        while batches.join_next().await.is_some() {}
    }

    /// Starts a batch and waits until another one may be taken: when it has ended, or when it lasts and has
    /// left room beside it. One slow receiver does not hold up the others.
    async fn begin(&mut self, owned: Owned, batches: &mut JoinSet<()>) {
        let (tell, ended) = oneshot::channel::<()>();
        let lane = self.clone();
        batches.spawn(async move {
            let _tell = tell;
            if let Err(error) = lane.finish(owned).await {
                tracing::warn!(%error, "deliveries could not be settled: they will be repeated");
            }
        });
        let room = async {
            loop {
                tokio::time::sleep(PATIENCE).await;
                // Nobody waits for a turn: everything that was taken has been begun.
                if self.turns.available_permits() > 0 {
                    break;
                }
            }
        };
        tokio::select! {
            _ = ended => {}
            () = room => {}
            _ = self.stop.changed() => {}
        }
        while batches.try_join_next().is_some() {}
    }

    pub(super) async fn once(&self) -> Result<Relayed, TxError> {
        let owned = self.taken().await?;
        self.finish(owned).await
    }

    async fn taken(&self) -> Result<Owned, TxError> {
        let asked = self.inner.uptime.elapsed();
        let mut owner = [0; 16];
        self.inner.entropy.fill(&mut owner);
        let ask = Ask { owner, batch: self.batch, relay: &self.inner };
        Ok(Owned { batch: take(&self.store, &ask).await?, owner, asked })
    }

    /// Delivers a batch and settles what has ended while the rest is under way.
    async fn finish(&self, owned: Owned) -> Result<Relayed, TxError> {
        let Owned { batch, owner, asked } = owned;
        let Batch { messages, put_off, unrouted } = batch;
        let mut done = Relayed { taken: messages.len(), put_off, unrouted, ..Relayed::default() };
        let (tell, mut ended) = mpsc::unbounded_channel();
        // They end with this value, if somebody drops it.
        let _workers = deliver(&self.inner, &self.turns, messages, asked, &self.stop, &tell);
        drop(tell);
        let (mut group, mut trouble) = (Vec::new(), None);
        while ended.recv_many(&mut group, self.batch).await > 0 {
            let until = tokio::time::sleep(LINGER);
            let more = async { while ended.recv_many(&mut group, self.batch).await > 0 {} };
            tokio::select! {
                () = more => {}
                () = until => {}
            }
            let group = std::mem::take(&mut group);
            group.iter().for_each(|settlement| done.count(&settlement.ended));
            match self.settled(&owner, &group).await {
                Ok(met) => done.refused += group.len().saturating_sub(met),
                // The others go on: each that is settled is one that does not come twice.
                Err(error) => trouble = Some(error),
            }
        }
        if done.refused > 0 {
            let refused = u64::try_from(done.refused).unwrap_or(u64::MAX);
            metrics::counter!("oncekey_outbox_refused_total").increment(refused);
        }
        trouble.map_or(Ok(done), Err)
    }

    /// Settles, and again if the database cannot be reached: what has met its row is not met twice, so
    /// a settlement whose answer was lost counts as refused and is not wrong.
    async fn settled(&self, owner: &[u8; 16], all: &[Settlement]) -> Result<usize, TxError> {
        let mut pause = Duration::from_millis(20);
        for _ in 1..TRIES {
            match settle(&self.store, owner, all).await {
                Err(error) => tracing::warn!(%error, "deliveries could not be settled yet"),
                met => return met,
            }
            tokio::time::sleep(pause).await;
            pause *= 4;
        }
        settle(&self.store, owner, all).await
    }
}
