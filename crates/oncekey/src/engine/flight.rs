//! Calls for the same key in one process travel together: one leads, the others wait for it.
//!
//! A flight begins before the claim and ends when its leader knows the end. Whoever comes meanwhile
//! with the same request takes a seat. Seats are limited, for one key and in total, because a
//! duplicate storm must not take the memory that honest requests need.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use oncekey_core::policy::Limits;
use oncekey_core::{Fingerprint, KeyId, KeyIdHash};
use tokio::sync::Notify;

use super::reply::{Refused, Replayed, Reply};

/// All flights of a process.
#[derive(Debug)]
pub(super) struct Flights {
    shards: [Mutex<HashMap<KeyId, Arc<Flight>, KeyIdHash>>; SHARDS],
    seated: AtomicUsize,
}

/// One flight.
#[derive(Debug)]
pub(super) struct Flight {
    id: KeyId,
    fingerprint: Fingerprint,
    /// The id of the leading request.
    pub(super) request: Arc<str>,
    /// When the leader came, by uptime.
    pub(super) began: Duration,
    /// The leader's span: whoever follows links to it.
    pub(super) span: Option<tracing::Id>,
    seats: AtomicUsize,
    /// Whether the leader runs the work, or waits for another process that does.
    under_way: AtomicBool,
    settled: OnceLock<Settled>,
    bell: Notify,
}

/// How a flight ended, for those who waited.
#[derive(Clone, Debug)]
pub(super) enum Settled {
    /// With this answer.
    Answer(Box<Replayed>),
    /// Without one.
    Refused(Refused),
    /// The leader knows nothing that would do for the others: they ask again themselves.
    AskAgain,
}

/// What a call finds when it wants to join.
#[derive(Debug)]
pub(super) enum Joined {
    /// Nobody is there: this call leads.
    Leads(Lead),
    /// It waits for the leader.
    Follows(Seat),
    /// Somebody leads, but all seats are taken.
    Full(Arc<Flight>),
    /// Somebody leads with another request under the same key. Only the store can say which of the
    /// two came first, so this call asks it alone.
    Differs,
}

/// The right and the duty to settle a flight. Dropping it lets the others ask again.
#[derive(Debug)]
pub(super) struct Lead {
    flights: Arc<Flights>,
    flight: Arc<Flight>,
    landed: bool,
}

/// A place to wait. Dropping it gives the place back.
#[derive(Debug)]
pub(super) struct Seat {
    flights: Arc<Flights>,
    pub(super) flight: Arc<Flight>,
}

/// Threads rarely meet in one of sixteen maps, and sixteen empty maps weigh nothing.
const SHARDS: usize = 16;

impl Default for Flights {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), seated: AtomicUsize::new(0) }
    }
}

impl Flights {
    /// Joins the flight of `id`, or begins one with the name and time that `leader` gives.
    pub(super) fn join(
        self: &Arc<Self>,
        id: KeyId,
        fingerprint: Fingerprint,
        limits: &Limits,
        leader: impl FnOnce() -> (Arc<str>, Duration),
    ) -> Joined {
        let mut shard = self.shard(&id);
        let Some(flight) = shard.get(&id) else {
            let (request, began) = leader();
            let flight = Arc::new(Flight {
                id,
                fingerprint,
                request,
                began,
                span: tracing::Span::current().id(),
                seats: AtomicUsize::new(0),
                under_way: AtomicBool::new(false),
                settled: OnceLock::new(),
                bell: Notify::new(),
            });
            shard.insert(id, Arc::clone(&flight));
            return Joined::Leads(Lead { flights: Arc::clone(self), flight, landed: false });
        };
        if flight.fingerprint != fingerprint {
            return Joined::Differs;
        }
        // Taken under the lock of the shard, so that the limit of one key is exact. The total may
        // be passed by as many calls as there are shards.
        if flight.seats.load(Ordering::Relaxed) >= limits.waiters_per_key
            || self.seated.load(Ordering::Relaxed) >= limits.waiters
        {
            return Joined::Full(Arc::clone(flight));
        }
        flight.seats.fetch_add(1, Ordering::Relaxed);
        self.seated.fetch_add(1, Ordering::Relaxed);
        Joined::Follows(Seat { flights: Arc::clone(self), flight: Arc::clone(flight) })
    }

    /// How many calls wait.
    pub(super) fn waiting(&self) -> usize {
        self.seated.load(Ordering::Relaxed)
    }

    fn shard(&self, id: &KeyId) -> MutexGuard<'_, HashMap<KeyId, Arc<Flight>, KeyIdHash>> {
        let shard = usize::from(id.as_bytes()[0]) % SHARDS;
        // Nothing in here panics half-way through a change.
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lead {
    /// Tells those who do not want to wait that the work is under way, here or elsewhere.
    pub(super) fn announce(&self) {
        self.flight.under_way.store(true, Ordering::Release);
        self.flight.bell.notify_waiters();
    }

    /// Ends the flight and answers everybody who waits. What they get is made only if somebody does.
    pub(super) fn settle(mut self, settled: impl FnOnce() -> Settled) {
        self.land(settled);
    }

    fn land(&mut self, settled: impl FnOnce() -> Settled) {
        if std::mem::replace(&mut self.landed, true) {
            return;
        }
        let flight = &self.flight;
        // From here on nobody finds it: whoever comes now leads a flight of its own, and finds in
        // the store what this one left there.
        self.flights.shard(&flight.id).remove(&flight.id);
        if flight.seats.load(Ordering::Acquire) > 0 && flight.settled.set(settled()).is_ok() {
            flight.bell.notify_waiters();
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.land(|| Settled::AskAgain);
    }
}

impl Seat {
    /// Waits for the end of the flight. Dropping the future loses nothing.
    pub(super) async fn settled(&self) -> &Settled {
        self.heard(|flight| flight.settled.get()).await
    }

    /// Waits until the leader knows that the work is under way (`None`), or has settled the flight.
    /// Dropping the future loses nothing.
    pub(super) async fn decided(&self) -> Option<&Settled> {
        self.heard(|flight| match flight.settled.get() {
            Some(settled) => Some(Some(settled)),
            None => flight.under_way.load(Ordering::Acquire).then_some(None),
        })
        .await
    }

    /// Looks every time the bell rings.
    async fn heard<'f, T>(&'f self, look: impl Fn(&'f Flight) -> Option<T>) -> T {
        loop {
            let mut rung = std::pin::pin!(self.flight.bell.notified());
            // Registered before the look, so that a bell between the two is heard.
            rung.as_mut().enable();
            if let Some(seen) = look(&self.flight) {
                return seen;
            }
            rung.await;
        }
    }
}

impl Settled {
    /// What one who waited is told; `None` if it has to ask again.
    pub(super) fn reply<T>(&self) -> Option<Reply<T>> {
        match self {
            Self::Answer(replayed) => Some(Reply::Replayed((**replayed).clone())),
            Self::Refused(refused) => Some(Reply::Refused(refused.clone())),
            Self::AskAgain => None,
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.flight.seats.fetch_sub(1, Ordering::Relaxed);
        self.flights.seated.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { request_body: 1, saved_body: 1, saved_headers: 1, waiters_per_key: 2, waiters: 3 };

    fn id(number: u8) -> KeyId {
        KeyId::from_bytes([number; 32])
    }

    fn join(flights: &Arc<Flights>, key: u8, request: u8) -> Joined {
        let fingerprint = Fingerprint::from_parts(1, [request; 32]);
        flights.join(id(key), fingerprint, &LIMITS, || ("req".into(), Duration::ZERO))
    }

    #[tokio::test]
    async fn everybody_who_waits_hears_the_end() {
        let flights = Arc::new(Flights::default());
        let Joined::Leads(lead) = join(&flights, 1, 1) else { panic!("the first leads") };
        let Joined::Follows(early) = join(&flights, 1, 1) else { panic!("the second follows") };
        let waiting =
            tokio::spawn(async move { matches!(early.settled().await, Settled::AskAgain) });
        tokio::task::yield_now().await;
        let Joined::Follows(late) = join(&flights, 1, 1) else { panic!("the third follows") };
        lead.settle(|| Settled::AskAgain);
        assert!(waiting.await.unwrap());
        assert!(matches!(late.settled().await, Settled::AskAgain));
        drop(late);
        assert_eq!(flights.waiting(), 0);
        assert!(matches!(join(&flights, 1, 1), Joined::Leads(_)), "a new flight can begin");
    }

    /// I43: seats are limited, for one key and for all of them together.
    #[test]
    fn seats_are_limited_and_given_back() {
        let flights = Arc::new(Flights::default());
        let _first = join(&flights, 1, 1);
        let seats = [join(&flights, 1, 1), join(&flights, 1, 1)];
        assert!(matches!(join(&flights, 1, 1), Joined::Full(_)), "two for one key");
        let _other = join(&flights, 2, 1);
        let _third = join(&flights, 2, 1);
        assert!(matches!(join(&flights, 2, 1), Joined::Full(_)), "three in total");
        drop(seats);
        assert!(matches!(join(&flights, 2, 1), Joined::Follows(_)));
    }

    /// I23: another request under the same key is never given the first one's answer.
    #[test]
    fn another_request_does_not_join() {
        let flights = Arc::new(Flights::default());
        let _first = join(&flights, 1, 1);
        assert!(matches!(join(&flights, 1, 2), Joined::Differs));
    }

    #[test]
    fn a_leader_that_is_dropped_lets_the_others_ask_again() {
        let flights = Arc::new(Flights::default());
        let lead = join(&flights, 1, 1);
        let Joined::Follows(seat) = join(&flights, 1, 1) else { panic!("the second follows") };
        drop(lead);
        assert!(matches!(seat.flight.settled.get(), Some(Settled::AskAgain)));
        assert!(matches!(join(&flights, 1, 1), Joined::Leads(_)));
    }
}
