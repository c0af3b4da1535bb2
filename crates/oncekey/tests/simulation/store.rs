//! The store as the nodes see it: the real one, behind a network that loses, delays and lies about
//! nothing but whether a question arrived.
//!
//! A question travels by itself: once asked, it reaches the store or is lost, whether or not its
//! node is paused, dead or no longer interested. What the store does with it is one step in the
//! log, and what the node hears of it is another.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use oncekey::core::browse::{Browse, Count, Filter, Listing, Page, Summary};
use oncekey::core::record::Text;
use oncekey::core::store::Purged;
use oncekey::core::wake::{Feed, Woken};
use oncekey::core::{
    Claim, Claimed, Clock, Completion, ErrorKind, KeyId, Lease, Owner, Record, Renewal, Store,
    StoreError, Wake, Write,
};
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use crate::bugs::Bug;
use crate::dice::SharedDice;
use crate::fate::{Effect, Fate, Reply, faulty, fine, outage};
use crate::log::{Ask, Log, Told, What, Who};
use crate::options::Options;
use crate::time::{SimTime, StoreClock};

/// What the simulation needs of a store.
pub(crate) trait Inner: Wake + Browse {}

impl<S: Wake + Browse> Inner for S {}

/// The store and the network in front of it, shared by everybody.
pub(crate) struct StoreSide {
    pub(crate) inner: Arc<dyn Inner>,
    pub(crate) clock: Arc<StoreClock>,
    pub(crate) log: Log,
    pub(crate) time: SimTime,
    pub(crate) dice: SharedDice,
    pub(crate) options: Arc<Options>,
    pub(crate) bug: Option<Bug>,
    /// Every key of the history, to look at all of them after a purge.
    pub(crate) keys: Vec<KeyId>,
    /// Which node each owner belongs to, for a planted bug.
    pub(crate) claimants: Mutex<BTreeMap<Owner, Who>>,
    pub(crate) weather: Mutex<Weather>,
    /// Nodes that something happens to at this very moment: while they wait for the store.
    pub(crate) ambushed: Mutex<Vec<usize>>,
    pub(crate) ambush: Notify,
}

/// What the network is like just now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Weather {
    Faulty,
    /// Nothing gets through until then.
    Outage(Duration),
    /// Nothing goes wrong any more.
    Healed,
}

/// A connection to the store.
#[derive(Clone)]
pub(crate) struct SimStore {
    side: Arc<StoreSide>,
    who: Who,
    line: Line,
}

/// Whether a connection leads anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Good,
    /// A planted bug: nothing ever gets through.
    Cut,
}

impl StoreSide {
    /// A connection for somebody.
    pub(crate) fn connect(self: &Arc<Self>, who: Who, line: Line) -> SimStore {
        SimStore { side: Arc::clone(self), who, line }
    }

    pub(crate) fn set_weather(&self, weather: Weather) {
        *self.weather.lock().unwrap_or_else(PoisonError::into_inner) = weather;
    }

    /// What stands there, seen from within.
    pub(crate) async fn look(&self, id: &KeyId) -> Option<Record> {
        self.clock.show();
        self.inner.get(id).await.ok().flatten()
    }

    /// Lets something happen to a node that has just asked, in some cases.
    fn ambush(&self, node: usize) {
        let per_thousand = self.options.chaos.ambushes;
        if per_thousand > 0 && self.dice.throw(|dice| dice.chance(per_thousand)) {
            self.ambushed.lock().unwrap_or_else(PoisonError::into_inner).push(node);
            self.ambush.notify_one();
        }
    }

    fn fate(&self) -> Fate {
        let weather = *self.weather.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.time.now();
        self.dice.throw(|dice| match weather {
            Weather::Healed => fine(dice, 1),
            Weather::Outage(until) if now < until => outage(dice),
            Weather::Faulty | Weather::Outage(_) => faulty(dice, &self.options),
        })
    }

    /// Does what was asked, if the fate says so, and answers.
    async fn serve(
        self: Arc<Self>,
        call: (u32, Who),
        question: Arc<Ask>,
        fate: Fate,
        asker: oneshot::Sender<Arc<Told>>,
    ) {
        let nothing_known = Arc::new(Told::Failed(ErrorKind::Ambiguous));
        pass(fate.before).await;
        let told = match fate.effect {
            Effect::Now => self.commit(call, &question).await,
            Effect::Never | Effect::Later(_) => Arc::clone(&nothing_known),
        };
        pass(fate.after).await;
        let told = match fate.reply {
            Reply::True => told,
            Reply::Unavailable => Arc::new(Told::Failed(ErrorKind::Unavailable)),
            Reply::Ambiguous => self.lie_about_a_lost_reply(&question, &told, nothing_known),
        };
        // Whoever asked may be gone, which changes nothing here.
        let _ = asker.send(told);
        if let Effect::Later(delay) = fate.effect {
            sleep(delay).await;
            self.commit(call, &question).await;
        }
    }

    async fn commit(&self, (call, by): (u32, Who), question: &Ask) -> Arc<Told> {
        self.clock.show();
        let now = self.clock.now();
        let bent = self.bend(by, question).await;
        let question = bent.as_ref().unwrap_or(question);
        let told = Arc::new(perform(&*self.inner, question).await);
        self.spoil(question).await;
        let ids = match question {
            Ask::Renew(leases, _) => leases.iter().map(|lease| lease.id).collect(),
            Ask::Purge(_) => self.keys.clone(),
            Ask::Claim(_)
            | Ask::Send(_)
            | Ask::Complete(..)
            | Ask::Release(_)
            | Ask::Unknown(_)
            | Ask::Get(_) => question.id().into_iter().collect(),
        };
        let mut after = Vec::new();
        for id in ids {
            after.push((id, self.inner.get(&id).await.ok().flatten()));
        }
        self.log.note(What::Committed { call, told: Arc::clone(&told), now, after });
        self.lie(question, told)
    }
}

impl SimStore {
    async fn ask(&self, question: Ask) -> Result<Told, StoreError> {
        let Self { side, who, line } = self;
        let call = side.log.number();
        let question = Arc::new(question);
        side.log.note(What::Asked { call, by: *who, ask: Arc::clone(&question) });
        if let Ask::Claim(claim) = &*question {
            let mut claimants = side.claimants.lock().unwrap_or_else(PoisonError::into_inner);
            claimants.insert(claim.owner, *who);
        }
        let (answer, answered) = oneshot::channel();
        let fate = match line {
            Line::Good => side.fate(),
            Line::Cut => side.dice.throw(outage),
        };
        tokio::spawn(Arc::clone(side).serve((call, *who), question, fate, answer));
        if let Who::Node(life) = who {
            side.ambush(life.node);
        }
        let told = match answered.await {
            Ok(told) => match told.failed() {
                Some(kind) => Err(kind),
                None => Ok(told),
            },
            Err(_) => Err(ErrorKind::Ambiguous),
        };
        side.log.note(What::Heard { call, told: told.clone() });
        let told = told.map_err(|kind| StoreError::new(kind, "simulated"))?;
        Ok(Arc::unwrap_or_clone(told))
    }

    /// Waits for a read to get through, or fails as it would.
    async fn read_through(&self) -> Result<(), StoreError> {
        let fate = self.side.fate();
        sleep(fate.before + fate.after).await;
        self.side.clock.show();
        match fate.reply {
            Reply::True => Ok(()),
            Reply::Unavailable | Reply::Ambiguous => {
                Err(StoreError::new(ErrorKind::Unavailable, "simulated"))
            }
        }
    }

    async fn write(&self, question: Ask) -> Result<Write, StoreError> {
        let Told::Wrote(write) = self.ask(question).await? else {
            unreachable!("the store answers a write as such")
        };
        Ok(write)
    }
}

#[async_trait]
impl Store for SimStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let Told::Claimed(claimed) = self.ask(Ask::Claim(claim.clone())).await? else {
            unreachable!("the store answers a claim as such")
        };
        Ok(claimed)
    }

    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError> {
        let Told::Renewed(renewals) = self.ask(Ask::Renew(leases.to_vec(), span)).await? else {
            unreachable!("the store answers a renewal as such")
        };
        Ok(renewals)
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.write(Ask::Send(*lease)).await
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        self.write(Ask::Complete(*lease, completion.clone())).await
    }

    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.write(Ask::Release(*lease)).await
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.write(Ask::Unknown(*lease)).await
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        let Told::Found(found) = self.ask(Ask::Get(*id)).await? else {
            unreachable!("the store answers a read as such")
        };
        Ok(found.map(|record| *record))
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        let Told::Purged(purged) = self.ask(Ask::Purge(limit)).await? else {
            unreachable!("the store answers a purge as such")
        };
        Ok(purged)
    }
}

#[async_trait]
impl Wake for SimStore {
    async fn watch(&self) -> Result<Box<dyn Feed>, StoreError> {
        let feed = self.side.inner.watch().await?;
        Ok(Box::new(ForgetfulFeed { feed, dice: self.side.dice.clone() }))
    }
}

/// Reading in bulk changes nothing, so it is not in the log; but it fails like everything else.
#[async_trait]
impl Browse for SimStore {
    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError> {
        self.read_through().await?;
        self.side.inner.list(filter, page).await
    }

    async fn count(&self, filter: &Filter, cap: usize) -> Result<Count, StoreError> {
        self.read_through().await?;
        self.side.inner.count(filter, cap).await
    }

    async fn find(&self, key: &Text, limit: usize) -> Result<Vec<Summary>, StoreError> {
        self.read_through().await?;
        self.side.inner.find(key, limit).await
    }
}

/// Loses some wake-ups, and says so.
#[derive(Debug)]
struct ForgetfulFeed {
    feed: Box<dyn Feed>,
    dice: SharedDice,
}

#[async_trait]
impl Feed for ForgetfulFeed {
    async fn next(&mut self) -> Woken {
        match self.feed.next().await {
            Woken::Finished(_) if self.dice.throw(|dice| dice.chance(50)) => Woken::Lagged,
            woken @ (Woken::Finished(_) | Woken::Lagged | Woken::Closed) => woken,
        }
    }
}

async fn perform(store: &dyn Inner, question: &Ask) -> Told {
    let told = match question {
        Ask::Claim(claim) => store.claim(claim).await.map(Told::Claimed),
        Ask::Renew(leases, span) => store.renew(leases, *span).await.map(Told::Renewed),
        Ask::Send(lease) => store.send(lease).await.map(Told::Wrote),
        Ask::Complete(lease, completion) => {
            store.complete(lease, completion).await.map(Told::Wrote)
        }
        Ask::Release(lease) => store.release(lease).await.map(Told::Wrote),
        Ask::Unknown(lease) => store.unknown(lease).await.map(Told::Wrote),
        Ask::Get(id) => store.get(id).await.map(|found| Told::Found(found.map(Box::new))),
        Ask::Purge(limit) => store.purge(*limit).await.map(Told::Purged),
    };
    told.unwrap_or_else(|error| Told::Failed(error.kind()))
}

/// Lets time pass. A timer costs more than everything else here, so none is set for nothing.
async fn pass(span: Duration) {
    match span.is_zero() {
        true => tokio::task::yield_now().await,
        false => sleep(span).await,
    }
}

impl fmt::Debug for StoreSide {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "StoreSide({:?})", self.inner)
    }
}

impl fmt::Debug for SimStore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "SimStore({:?})", self.who)
    }
}
