//! Wakes those who wait for keys that other processes finish.
//!
//! What this process finishes reaches its feeds at once. For the others there is NOTIFY, but never in
//! the transaction of a completion: it takes a lock of the whole database at commit, and completions
//! would queue behind each other. A task of its own sends it afterwards, for many keys at once, and
//! only while somebody wants to hear it: those who do write so into the mark `watched`, which every
//! completion reads along.
//!
//! A wake-up may be lost, with the connection or with a task that dies. So feeds are told to look
//! again whenever listening began anew, and every second while it does not work.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use oncekey_core::wake::Hub;
use oncekey_core::{KeyId, StoreError};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

use super::connect::{Dialler, Wire};
use super::error::from_postgres;
use super::pool::{Effect, Pool};
use super::sql::{NOW, Statement};

/// Tells of finished keys.
#[derive(Clone, Debug)]
pub(super) struct Herald {
    hub: Arc<Hub>,
    keys: mpsc::Sender<KeyId>,
    /// Whether keys were left out because the server is too slow for them.
    is_behind: Arc<AtomicBool>,
}

/// Listens for keys that others finish. Begins with the first feed.
#[derive(Debug)]
pub(super) struct Watcher {
    hub: Arc<Hub>,
    ear: Arc<Ear>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// What listening takes.
#[derive(Debug)]
struct Ear {
    /// `None` behind a pooler: then everybody looks again every second.
    dialler: Option<Arc<Dialler>>,
    pool: Arc<Pool>,
    channel: String,
    mark: Statement,
}

/// Keys that wait to be told. As many as a feed keeps: who has more to tell says so instead.
const WAITING: usize = 1_024;
/// The most keys in one notification: 64 letters each, and PostgreSQL takes fewer than 8 000.
const TOLD_AT_ONCE: usize = 100;
/// How long keys gather before they are told. A waiter does not notice, and the server sees at most
/// two hundred notifications a second from a process.
const GATHERING: Duration = Duration::from_millis(5);
/// What is told if keys were left out.
const LOOK_AGAIN: &str = "*";
/// How often feeds are told to look again while nobody listens, and the pause before listening is
/// tried again.
const PACE: Duration = Duration::from_secs(1);
/// How often the log says that listening does not work. An outage of an hour is sixty lines.
const TELLING: Duration = Duration::from_secs(60);
/// How long a mark says that somebody wants to hear, and how often it is renewed. Two may fail.
const MARKED: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));

impl Herald {
    /// Starts the task that tells other processes. It ends with the last herald.
    pub(super) fn start(hub: Arc<Hub>, pool: Arc<Pool>, schema: &str) -> Self {
        let (keys, told) = mpsc::channel(WAITING);
        let is_behind = Arc::new(AtomicBool::new(false));
        tokio::spawn(tell(told, pool, channel_of(schema), Arc::clone(&is_behind)));
        Self { hub, keys, is_behind }
    }

    /// These keys are finished.
    pub(super) fn finished(&self, ids: &[KeyId], is_watched: bool) {
        self.hub.finished(ids);
        if is_watched && ids.iter().any(|id| self.keys.try_send(*id).is_err()) {
            self.is_behind.store(true, Ordering::Relaxed);
        }
    }
}

async fn tell(
    mut keys: mpsc::Receiver<KeyId>,
    pool: Arc<Pool>,
    channel: String,
    is_behind: Arc<AtomicBool>,
) {
    let notify = Statement::plain("SELECT pg_notify($1, $2)", &[Type::TEXT, Type::TEXT]);
    let mut ids = Vec::with_capacity(TOLD_AT_ONCE);
    while keys.recv_many(&mut ids, TOLD_AT_ONCE).await > 0 {
        if ids.len() < TOLD_AT_ONCE {
            sleep(GATHERING).await;
            while ids.len() < TOLD_AT_ONCE
                && let Ok(id) = keys.try_recv()
            {
                ids.push(id);
            }
        }
        let payload = if is_behind.swap(false, Ordering::Relaxed) {
            LOOK_AGAIN.to_owned()
        } else {
            ids.iter().map(spell).collect()
        };
        ids.clear();
        if pool.ask(Effect::Harmless, &notify, &[&channel, &payload]).await.is_err() {
            // Whoever listens has probably lost its connection too; if not, it is told next time.
            is_behind.store(true, Ordering::Relaxed);
            sleep(PACE).await;
        }
    }
}

impl Watcher {
    pub(super) fn new(
        hub: Arc<Hub>,
        dialler: Option<Arc<Dialler>>,
        pool: Arc<Pool>,
        schema: &str,
    ) -> Self {
        let (marked, _) = MARKED;
        let text = format!(
            "UPDATE {schema}.oncekey_meta SET number = {NOW} + {}
             WHERE name = 'watched' AND number < {NOW} + {}",
            marked.as_micros(),
            // If somebody else has just renewed it, that will do.
            (marked / 2).as_micros(),
        );
        let mark = Statement::plain(&text, &[]);
        let ear = Arc::new(Ear { dialler, pool, channel: channel_of(schema), mark });
        Self { hub, ear, task: Mutex::default() }
    }

    /// Somebody began to watch.
    pub(super) fn wake_up(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.is_none() {
            *task = Some(tokio::spawn(listen(Arc::clone(&self.ear), Arc::clone(&self.hub))));
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            task.abort();
        }
    }
}

async fn listen(ear: Arc<Ear>, hub: Arc<Hub>) {
    let mut last_told: Option<Instant> = None;
    loop {
        if hub.is_watched()
            && let Some(dialler) = &ear.dialler
        {
            let Err(error) = ear.listen(dialler, &hub).await;
            if last_told.is_none_or(|told| told.elapsed() > TELLING) {
                last_told = Some(Instant::now());
                tracing::warn!(%error, "no wake-ups from other processes for now: waiters poll");
            }
        }
        hub.lagged();
        sleep(PACE).await;
    }
}

impl Ear {
    /// Listens until the connection is lost.
    async fn listen(
        &self,
        dialler: &Dialler,
        hub: &Hub,
    ) -> Result<std::convert::Infallible, StoreError> {
        let (client, wire) = dialler.connect().await?;
        let hearing = std::pin::pin!(hear(wire, hub));
        let marking = std::pin::pin!(self.keep_marked(client, hub));
        match select(hearing, marking).await {
            Either::Left((error, _)) => Err(from_postgres(error)),
            Either::Right((ended, _)) => ended,
        }
    }

    /// Begins to listen, and lets everybody know for as long as somebody does.
    async fn keep_marked(
        &self,
        client: Client,
        hub: &Hub,
    ) -> Result<std::convert::Infallible, StoreError> {
        let begin = format!("LISTEN {}", self.channel);
        client.batch_execute(&begin).await.map_err(from_postgres)?;
        let (_, pace) = MARKED;
        let mut is_first = true;
        loop {
            if hub.is_watched() {
                self.pool.ask(Effect::Harmless, &self.mark, &[]).await?;
            }
            if is_first {
                // What was finished before we listened; and a moment later what was under way when
                // the mark was written, and did not see it.
                hub.lagged();
                sleep(PACE).await;
                hub.lagged();
                is_first = false;
            }
            sleep(pace).await;
        }
    }
}

/// Serves the connection and passes on what is heard.
async fn hear(mut wire: Wire, hub: &Hub) -> tokio_postgres::Error {
    loop {
        match poll_fn(|context| wire.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notification(told))) => match ids_of(told.payload()) {
                Some(ids) => hub.finished(&ids),
                None => hub.lagged(),
            },
            Some(Ok(_)) => {}
            Some(Err(error)) => return error,
            // Closed by us alone, and we do not.
            None => std::future::pending().await,
        }
    }
}

/// A name of its own for every schema. Channels belong to a database, so that need not be in it.
fn channel_of(schema: &str) -> String {
    use sha2::{Digest as _, Sha256};
    let digest = Sha256::digest(schema.as_bytes());
    let letters: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("oncekey_{letters}")
}

fn spell(id: &KeyId) -> String {
    id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The keys in a notification; `None` if it says, or if one must assume, that some are missing.
fn ids_of(payload: &str) -> Option<Vec<KeyId>> {
    let digits: Vec<u8> = payload
        .chars()
        .map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok()))
        .collect::<Option<_>>()?;
    if digits.is_empty() || !digits.len().is_multiple_of(64) {
        return None;
    }
    let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    let ids = bytes.chunks(32).map(|id| id.try_into().ok().map(KeyId::from_bytes));
    ids.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_heard() {
        let ids = [KeyId::from_bytes([0xa5; 32]), KeyId::from_bytes([0x0f; 32])];
        let payload: String = ids.iter().map(spell).collect();
        assert_eq!(ids_of(&payload), Some(ids.to_vec()));
        for odd in [LOOK_AGAIN, "", "ab", &payload[1..], "zz"] {
            assert_eq!(ids_of(odd), None, "{odd}");
        }
        const { assert!(64 * TOLD_AT_ONCE < 8_000) };
    }

    #[test]
    fn every_schema_has_a_channel_of_its_own() {
        assert_ne!(channel_of("oncekey"), channel_of("oncekey2"));
        assert!(channel_of(&"x".repeat(63)).len() < 63);
    }
}
