//! Hears which keys have ended, by pub/sub.
//!
//! The scripts publish in the same step as they write. In a cluster, too, it is a plain `PUBLISH`:
//! every node passes it on to all others, so one subscription to any node hears everything. A
//! sharded channel would need 256 subscriptions, which move when slots do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use oncekey_core::wake::Hub;
use oncekey_core::{ErrorKind, KeyId, StoreError};
use redis::Client;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::link::Patience;
use super::reach::Reach;

/// How often a silent subscription is asked whether it is still there. A waiter that hears nothing
/// polls anyway.
const PULSE: Duration = Duration::from_secs(10);

/// How long to wait before a broken subscription is made again: long enough not to burden a server
/// that restarts.
const PAUSE: Duration = Duration::from_millis(200);

/// Listens for the ends of attempts. It starts with the first feed.
#[derive(Debug)]
pub(super) struct Watcher {
    hub: Arc<Hub>,
    patience: Patience,
    task: Mutex<Option<Listening>>,
}

#[derive(Debug)]
struct Listening {
    task: JoinHandle<()>,
    heard: watch::Receiver<bool>,
}

impl Watcher {
    pub(super) fn new(patience: Patience) -> Self {
        Self { hub: Arc::default(), patience, task: Mutex::new(None) }
    }

    /// The hub, once the store can be heard. If the subscription breaks later, feeds are told that
    /// they lagged as soon as it is made again.
    pub(super) async fn hub(&self, reach: &Arc<Reach>) -> Result<&Hub, StoreError> {
        let mut heard = self.listen(reach);
        let Patience { connect, answer } = self.patience;
        let is_heard = heard.wait_for(|is_heard| *is_heard);
        match tokio::time::timeout(connect + answer, is_heard).await {
            Ok(Ok(_)) => Ok(&self.hub),
            Ok(Err(_)) | Err(_) => Err(StoreError::new(
                ErrorKind::Unavailable,
                "the Redis server lets nobody subscribe: check that it runs, and that the user's \
                 rules allow SUBSCRIBE on the store's channel",
            )),
        }
    }

    fn listen(&self, reach: &Arc<Reach>) -> watch::Receiver<bool> {
        let mut listening = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Listening { task, heard }) = &*listening
            && !task.is_finished()
        {
            return heard.clone();
        }
        let (tell, heard) = watch::channel(false);
        let listener = Listener {
            reach: Arc::clone(reach),
            hub: Arc::clone(&self.hub),
            patience: self.patience,
            tell,
        };
        let task = tokio::spawn(listener.run());
        *listening = Some(Listening { task, heard: heard.clone() });
        heard
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let listening = self.task.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Listening { task, .. }) = listening {
            task.abort();
        }
    }
}

struct Listener {
    reach: Arc<Reach>,
    hub: Arc<Hub>,
    patience: Patience,
    tell: watch::Sender<bool>,
}

impl Listener {
    async fn run(self) {
        loop {
            for client in self.reach.servers.clients() {
                // Returns when the subscription is broken, or could not be made.
                self.hear(&client).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn hear(&self, client: &Client) -> Option<()> {
        let Patience { connect, answer } = self.patience;
        let subscribe = async {
            let mut subscription = client.get_async_pubsub().await?;
            subscription.subscribe(self.reach.names.channel()).await?;
            Ok::<_, redis::RedisError>(subscription)
        };
        let subscription = tokio::time::timeout(connect + answer, subscribe).await.ok()?.ok()?;
        // What ended since the last subscription was not heard.
        self.hub.lagged();
        self.tell.send_replace(true);
        let (mut sink, mut messages) = subscription.split();
        loop {
            match tokio::time::timeout(PULSE, messages.next()).await {
                Ok(Some(message)) => {
                    if let Ok(id) = message.get_payload_bytes().try_into() {
                        self.hub.finished(&[KeyId::from_bytes(id)]);
                    }
                }
                Ok(None) => return None,
                Err(_) => {
                    let pulse = tokio::time::timeout(answer, sink.ping::<redis::Value>()).await;
                    pulse.ok()?.ok()?;
                }
            }
        }
    }
}
