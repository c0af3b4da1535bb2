//! Giving a batch to the sinks: many at once, and one after the other within a key.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, mpsc, watch};
use tokio::task::JoinSet;

use super::message::{Form, Message};
use super::relay::{AfterDead, Inner};
use super::settle::{Ended, Settlement};
use super::sink::Delivery;

/// Messages that are delivered one after the other.
type Chain = Vec<Message>;

/// What the workers of one batch share.
struct Work {
    relay: Arc<Inner>,
    turns: Arc<Semaphore>,
    chains: Mutex<VecDeque<Chain>>,
    /// When the batch was asked for, by the clock that counts suspend: never later than the lease began.
    asked: Duration,
    stop: watch::Receiver<bool>,
    tell: mpsc::UnboundedSender<Settlement>,
}

/// Whether another message may be begun.
#[derive(Clone, Copy, PartialEq, Eq)]
enum May {
    Begin,
    /// The relay stops.
    Stop,
    /// The lease could lapse during the delivery, and then somebody else delivers, too.
    TooLate,
}

/// Delivers a batch and tells of each message what came of it, as soon as it is known. `tell` closes when
/// there is nothing left.
///
/// # Cancellation
/// Dropping the tasks drops the deliveries that are under way, and their messages come again when the lease
/// lapses.
pub(super) fn deliver(
    relay: &Arc<Inner>,
    turns: &Arc<Semaphore>,
    messages: Vec<Message>,
    asked: Duration,
    stop: &watch::Receiver<bool>,
    tell: &mpsc::UnboundedSender<Settlement>,
) -> JoinSet<()> {
    let chains = chains(messages);
    let workers = relay.at_once.min(chains.len());
    let work = Arc::new(Work {
        relay: Arc::clone(relay),
        turns: Arc::clone(turns),
        chains: Mutex::new(chains),
        asked,
        stop: stop.clone(),
        tell: tell.clone(),
    });
    let mut tasks = JoinSet::new();
    for _ in 0..workers {
        // Sinks do not get their panics this far. What a lost worker had comes again by its lease.
        let work = Arc::clone(&work);
        tasks.spawn(async move { work.run().await });
    }
    tasks
}

/// Messages of one key together and in their order, the others each for itself.
fn chains(messages: Vec<Message>) -> VecDeque<Chain> {
    let mut chains: VecDeque<Chain> = VecDeque::with_capacity(messages.len());
    let mut places: HashMap<String, usize> = HashMap::new();
    for message in messages {
        let key = message.order_key();
        if key.is_empty() {
            chains.push_back(vec![message]);
        } else if let Some(place) = places.get(key) {
            chains[*place].push(message);
        } else {
            places.insert(key.to_owned(), chains.len());
            chains.push_back(vec![message]);
        }
    }
    chains
}

impl Work {
    async fn run(&self) {
        loop {
            let _turn = self.turn().await;
            let Some(chain) = self.next() else { return };
            self.chain(chain).await;
        }
    }

    /// Waits until the lane has room for one more delivery. Nothing if the relay stops or the lease would
    /// not last: what is left is then given back.
    async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            turn = self.turns.acquire() => turn.ok(),
            _ = stop.wait_for(|stop| *stop) => None,
            () = tokio::time::sleep(self.relay.latest_begin().saturating_sub(self.passed())) => None,
        }
    }

    fn next(&self) -> Option<Chain> {
        self.chains.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Delivers a chain up to the first message that does not arrive. What stands behind it was not
    /// tried and is given back.
    async fn chain(&self, chain: Chain) {
        let mut behind = None;
        for message in chain {
            let ended = match behind {
                Some(after) => Ended::GivenBack { after },
                None => self.one(&message).await,
            };
            behind = behind.or(match &ended {
                Ended::Sent => None,
                Ended::Later { after, .. } | Ended::GivenBack { after } => Some(*after),
                Ended::Dead { .. } if self.relay.after_dead == AfterDead::GoOn => None,
                Ended::Dead { .. } => Some(Duration::ZERO),
            });
            let (seq, attempt) = (message.0.seq, message.0.attempt);
            // Nobody listens when the relay was dropped; then the lease lapses.
            let _ = self.tell.send(Settlement { seq, attempt, ended });
        }
    }

    fn passed(&self) -> Duration {
        self.relay.uptime.elapsed().saturating_sub(self.asked)
    }

    fn may(&self) -> May {
        match *self.stop.borrow() {
            true => May::Stop,
            false if self.passed() > self.relay.latest_begin() => May::TooLate,
            false => May::Begin,
        }
    }

    async fn one(&self, message: &Message) -> Ended {
        if self.may() != May::Begin {
            return Ended::GivenBack { after: Duration::ZERO };
        }
        let relay = &self.relay;
        let attempt = message.attempt();
        if message.0.form == Form::Damaged {
            return self.dead("none", "its row cannot be read".to_owned());
        }
        if attempt > relay.attempts {
            // Each attempt was counted, and none has settled it: whoever tries it dies.
            let why = "every attempt ended without a word".to_owned();
            return self.dead("none", why);
        }
        // Whatever has no route was not taken.
        let Some(route) = relay.route_of(message.topic()) else {
            return Ended::GivenBack { after: Duration::ZERO };
        };
        let delivery = caught(route.sink.deliver(message));
        let delivery = match tokio::time::timeout(relay.limit, delivery).await {
            Ok(delivery) => delivery,
            Err(_) => Delivery::retry("the sink took too long"),
        };
        match delivery {
            Delivery::Sent => {
                let route = route.pattern.clone();
                metrics::counter!("oncekey_outbox_delivered_total", "route" => route).increment(1);
                Ended::Sent
            }
            Delivery::Retry { after, why } => self.failed(&route.pattern, attempt, after, why),
            Delivery::Dead(why) => self.dead(&route.pattern, why),
        }
    }

    fn failed(&self, route: &str, attempt: i64, after: Option<Duration>, why: String) -> Ended {
        let route = route.to_owned();
        metrics::counter!("oncekey_outbox_failed_total", "route" => route.clone()).increment(1);
        if attempt >= self.relay.attempts {
            return self.dead(&route, why);
        }
        // Never sooner than the backoff: a receiver that says "at once" all the time would otherwise
        // use up all attempts in seconds.
        let after = after.unwrap_or_default().max(self.relay.backoff(attempt));
        Ended::Later { after, why }
    }

    fn dead(&self, route: &str, why: String) -> Ended {
        let route = route.to_owned();
        tracing::warn!(route, "a message became a dead letter");
        metrics::counter!("oncekey_outbox_dead_total", "route" => route).increment(1);
        Ended::Dead { why }
    }
}

/// What a sink says, or that it has panicked.
async fn caught(delivery: impl Future<Output = Delivery>) -> Delivery {
    let mut delivery = pin!(delivery);
    poll_fn(|context| {
        // After a panic the future is never polled again.
        match catch_unwind(AssertUnwindSafe(|| delivery.as_mut().poll(context))) {
            Ok(polled) => polled,
            Err(_) => Poll::Ready(Delivery::retry("the sink panicked")),
        }
    })
    .await
}
