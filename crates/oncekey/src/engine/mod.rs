//! The one place where claim, run and complete happen.
//!
//! Everything that makes work safe to repeat calls [`Engine::answer`]: the layer, the gateway,
//! flows, webhooks and jobs. The order of a keyed request is: cache, coalesce, claim, mark as
//! sent, run, record, answer the owner and everybody who waited.
//!
//! Owned work runs in a task of its own. Whoever drops the future of [`Engine::answer`] stops
//! waiting for the answer and changes nothing else.

mod attempt;
mod backlog;
mod builder;
mod cache;
mod call;
mod caught;
mod claim;
mod end;
mod erase;
mod flight;
mod gate;
mod give_back;
mod health;
mod heart;
mod journal;
mod lead;
mod load;
mod look;
mod measured;
mod reap;
mod recall;
mod record;
mod redact;
mod reply;
mod request_id;
mod resolve;
mod rhythm;
mod ring;
mod run;
mod sentry;
mod shutdown;
mod spawn;
mod suspicion;
mod sweep;
mod together;
mod unwritten;
mod vault;
mod wait;
mod within;

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use oncekey_core::policy::InFlight;
use oncekey_core::{Clock, Key, KeyId, Pepper, Scope, Store, Timestamp};
use tokio::sync::oneshot;

use self::backlog::Backlog;
use self::cache::Finished;
use self::claim::come_back_after;
use self::flight::{Flight, Flights, Joined, Lead, Seat};
use self::gate::Gate;
use self::health::Health;
use self::heart::Heart;
use self::lead::Leader;
use self::measured::MeasuredStore;
use self::sentry::Sentry;
use self::suspicion::Suspicion;
use self::unwritten::Unwritten;
use self::vault::Vault;
use self::wait::Waits;
use crate::clock::Uptime;
use crate::entropy::Entropy;

#[cfg(feature = "tower")]
pub(crate) use self::recall::Recalled;

pub use self::attempt::{Attempt, NoSend};
pub use self::builder::{BuildError, Builder, Heartbeat};
pub use self::call::{Call, Exact, Finish};
pub use self::erase::ErasedScope;
pub use self::journal::JournalError;
pub use self::load::{Load, StoreHealth};
pub use self::look::Looked;
pub use self::reap::Reaper;
pub use self::reply::{Ran, Recorded, Refused, Replayed, Reply, Source, Unavailable};
pub use self::request_id::RequestId;
pub use self::resolve::{Doubt, Happened, Probe, Resolution, Resolved};
pub use self::ring::RingError;
pub use self::run::{Failure, Made, MadeBy, RunError, Runner};
pub use self::shutdown::Drained;
pub use self::spawn::{Spawn, TokioSpawn};
pub use self::sweep::{Sweeper, Swept};
pub use self::vault::{KeyRing, KeyRingError};

/// Runs work at most once for each key. Cheap to clone; all clones are one engine.
#[derive(Clone, Debug)]
pub struct Engine(Arc<Shared>);

/// What all clones of an engine share.
#[derive(Debug)]
struct Shared {
    store: Arc<MeasuredStore>,
    namespace: Box<str>,
    pepper: Option<Pepper>,
    clock: Arc<dyn Clock>,
    uptime: Arc<dyn Uptime>,
    entropy: Arc<dyn Entropy>,
    spawner: Arc<dyn Spawn>,
    flights: Arc<Flights>,
    heart: Arc<Heart>,
    suspicion: Arc<Suspicion>,
    waits: Arc<Waits>,
    health: Health,
    gate: Arc<Gate>,
    finished: Finished,
    vault: Vault,
    backlog: Option<Arc<Backlog>>,
    unwritten: Arc<Unwritten>,
    sentry: Option<Arc<Sentry>>,
    probe: Option<Arc<dyn Probe>>,
    patience: Duration,
}

impl Engine {
    /// Puts an engine together around a store.
    pub fn builder(store: Arc<dyn Store>) -> Builder {
        Builder::new(store)
    }

    /// An engine with every default around a store.
    ///
    /// # Errors
    /// If the thread that renews leases cannot be started.
    pub fn new(store: Arc<dyn Store>) -> Result<Engine, BuildError> {
        Builder::new(store).build()
    }

    /// The id of the record of `key` in `scope`.
    #[must_use]
    pub fn key_id(&self, scope: &Scope, key: &Key) -> KeyId {
        KeyId::derive(&self.0.namespace, scope, key, self.0.pepper.as_ref())
    }

    /// A new request id.
    #[must_use]
    pub fn request_id(&self) -> RequestId {
        RequestId::new(self.0.clock.now(), &*self.0.entropy)
    }

    /// The uptime.
    #[cfg(feature = "tower")]
    pub(crate) fn uptime(&self) -> Duration {
        self.0.uptime.elapsed()
    }

    /// Random bits.
    #[cfg(feature = "tower")]
    pub(crate) fn chance(&self) -> [u8; 16] {
        let mut bits = [0; 16];
        self.0.entropy.fill(&mut bits);
        bits
    }

    /// Runs `work` if nobody did, and says what came of it.
    ///
    /// `work` calls [`Attempt::send`] before its first foreign call. It runs in a task of its own
    /// and may be run here, or not at all. A call that is shared already is not copied.
    ///
    /// # Cancellation
    /// Dropping the future stops the waiting, not the work.
    pub async fn answer<T, W, F>(&self, call: impl Into<Arc<Call>>, work: W) -> Reply<T>
    where
        T: Send + 'static,
        W: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Finish<T>> + Send + 'static,
    {
        let call = call.into();
        let began = self.0.uptime.elapsed();
        if let Some(reply) = self.0.answer_from_memory(&call, &call.id, began) {
            return reply;
        }
        self.answer_anew(call, began, work).await
    }

    /// The same for a call of which memory knew nothing at `began`, by uptime, a moment ago.
    ///
    /// # Cancellation
    /// Dropping the future stops the waiting, not the work.
    pub(crate) async fn answer_anew<T, W, F>(
        &self,
        call: Arc<Call>,
        began: Duration,
        work: W,
    ) -> Reply<T>
    where
        T: Send + 'static,
        W: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Finish<T>> + Send + 'static,
    {
        let (shared, id) = (&self.0, call.id);
        debug_assert_eq!(id, self.key_id(&call.scope, &call.key), "the id of scope and key");
        let mut now = began;
        let mut patience = None;
        loop {
            let joined = shared
                .flights
                .join(id, call.fingerprint, &call.policy.limits, || (call.request.shared(), began));
            let seat = match joined {
                Joined::Leads(flight) => {
                    return self.lead((call, began, now), Some(flight), work).await;
                }
                Joined::Differs => return self.lead((call, began, now), None, work).await,
                Joined::Full(flight) => return Reply::Refused(shared.busy(&call, &flight, began)),
                Joined::Follows(seat) => seat,
            };
            let followed = match call.policy.in_flight {
                InFlight::Wait(longest) => {
                    let patience = patience
                        .get_or_insert_with(|| Box::pin(tokio::time::sleep(longest)))
                        .as_mut();
                    Box::pin(shared.follow(&call, &seat, patience, began)).await
                }
                InFlight::Conflict | InFlight::Accepted => {
                    Box::pin(shared.look_ahead(&call, &seat, began)).await
                }
            };
            if let Some(reply) = followed {
                return reply;
            }
            now = shared.uptime.elapsed();
        }
    }

    /// Leads to the end, in a task of its own as soon as there is something to wait for. The call came
    /// at `began`, and it is `now`, both by uptime.
    ///
    /// Work that ends at its first poll cannot be cut short by anybody, so it needs no task: a
    /// replay from memory or from a local file costs no trip through the scheduler.
    async fn lead<T, W, F>(
        &self,
        (call, began, now): (Arc<Call>, Duration, Duration),
        flight: Option<Lead>,
        work: W,
    ) -> Reply<T>
    where
        T: Send + 'static,
        W: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Finish<T>> + Send + 'static,
    {
        let shared = Arc::clone(&self.0);
        let tracked = shared.gate.track();
        let asked = Arc::clone(&call);
        let leader = Leader { shared, call, flight, tracked, began, now };
        let mut story = Box::pin(leader.lead(work));
        match std::future::poll_fn(|context| Poll::Ready(story.as_mut().poll(context))).await {
            Poll::Ready(reply) => reply,
            // Nothing is awaited between the poll and here, so nobody can drop the story.
            Poll::Pending => self.detach(story, asked).await,
        }
    }

    /// Gives a story to a task of its own and waits for its end.
    async fn detach<T, F>(&self, story: Pin<Box<F>>, call: Arc<Call>) -> Reply<T>
    where
        T: Send + 'static,
        F: Future<Output = Reply<T>> + Send + 'static,
    {
        let (caller, reply) = oneshot::channel();
        let route = Arc::clone(&call.route);
        self.0.spawner.spawn(Box::pin(async move {
            // Nobody there: the caller has gone, and the answer is in the store.
            if caller.send(story.await).is_err() {
                let route = metrics::SharedString::from_shared(route);
                metrics::counter!("oncekey_client_aborts_total", "route" => route, "stage" => "waiting")
                    .increment(1);
            }
        }));
        // The task is gone only if its runtime is, or if something outside of the work panicked. How far it
        // came nobody knows: "nothing was executed" would be a guess, and a client that believes it takes
        // a new key.
        reply.await.unwrap_or_else(|_| {
            Reply::Refused(Refused::Unknown { original: call.request.shared() })
        })
    }
}

impl Shared {
    /// What the store's clock shows, as far as we have seen it. Before the first answer ours stands
    /// in for it.
    fn store_now(&self) -> Timestamp {
        let seen = self.suspicion.store_time(self.uptime.elapsed());
        seen.unwrap_or_else(|| self.clock.now())
    }

    /// Waits for the leader of a flight. `None` if the call has to ask again itself.
    async fn follow<T>(
        &self,
        call: &Call,
        seat: &Seat,
        patience: std::pin::Pin<&mut tokio::time::Sleep>,
        began: Duration,
    ) -> Option<Reply<T>> {
        tracing::Span::current().follows_from(seat.flight.span.clone());
        let settled = tokio::select! {
            biased;
            settled = seat.settled() => settled,
            () = patience => return Some(Reply::Refused(self.busy(call, &seat.flight, began))),
        };
        settled.reply()
    }

    /// Waits until the leader of a flight knows whether the work is under way. If so, whoever does not want
    /// to wait is told so. The leader may as well find that the work was done long ago, and then
    /// nobody is told that it is under way.
    async fn look_ahead<T>(&self, call: &Call, seat: &Seat, began: Duration) -> Option<Reply<T>> {
        match seat.decided().await {
            None => Some(Reply::Refused(self.busy(call, &seat.flight, began))),
            Some(settled) => settled.reply(),
        }
    }

    /// Another call of this process is at it.
    fn busy(&self, call: &Call, flight: &Flight, began: Duration) -> Refused {
        let now = self.uptime.elapsed();
        let retry_after = come_back_after(now.saturating_sub(flight.began));
        let original = Some(Arc::clone(&flight.request));
        match call.policy.in_flight {
            InFlight::Accepted => Refused::Accepted { retry_after, original },
            InFlight::Wait(_) | InFlight::Conflict => {
                Refused::InProgress { retry_after, waited: now.saturating_sub(began), original }
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.heart.end();
        if let Some(backlog) = &self.backlog {
            backlog.end();
        }
        if let Some(sentry) = &self.sentry {
            sentry.end();
        }
    }
}
