//! Giving a batch to the sinks: many at once, and one after the other within a key.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
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
    chains: Mutex<VecDeque<Chain>>,
    /// When the batch was asked for, by the clock that counts suspend: never later than the lease began.
    asked: Duration,
    stop: watch::Receiver<bool>,
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

/// Delivers a batch.
///
/// # Cancellation
/// Deliveries that are under way are dropped, and their messages come again when the lease lapses.
pub(super) async fn deliver(
    relay: &Arc<Inner>,
    messages: Vec<Message>,
    asked: Duration,
    stop: watch::Receiver<bool>,
) -> Vec<Settlement> {
    let chains = chains(messages);
    let workers = relay.at_once.min(chains.len());
    let chains = Mutex::new(chains);
    let work = Arc::new(Work { relay: Arc::clone(relay), chains, asked, stop });
    let mut tasks = JoinSet::new();
    for _ in 0..workers {
        let work = Arc::clone(&work);
        tasks.spawn(async move { work.run().await });
    }
    let mut settled = Vec::new();
    while let Some(done) = tasks.join_next().await {
        // Sinks do not get their panics this far. What a lost worker had comes again by its lease.
        settled.extend(done.unwrap_or_default());
    }
    settled
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
    async fn run(&self) -> Vec<Settlement> {
        let mut settled = Vec::new();
        while let Some(chain) = self.next() {
            self.chain(chain, &mut settled).await;
        }
        settled
    }

    fn next(&self) -> Option<Chain> {
        self.chains.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Delivers a chain up to the first message that does not arrive. What stands behind it was not
    /// tried and is given back.
    async fn chain(&self, chain: Chain, settled: &mut Vec<Settlement>) {
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
            settled.push(Settlement { seq, attempt, ended });
        }
    }

    fn may(&self) -> May {
        let passed = self.relay.uptime.elapsed().saturating_sub(self.asked);
        match *self.stop.borrow() {
            true => May::Stop,
            false if passed + self.relay.limit > self.relay.lease => May::TooLate,
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
        let Some(route) = relay.route_of(message.topic()) else {
            return self.failed("none", attempt, None, "no sink takes this topic".to_owned());
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
        let after = after.unwrap_or_else(|| self.relay.backoff(attempt));
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
