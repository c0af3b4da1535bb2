//! Finished requests as they happen, for whoever watches.
//!
//! The proxy publishes, whoever listens gets. Nobody waits for a listener: one that is too slow is
//! told how many it missed. There are no keys or bodies in an event, and no path in what leaves the
//! process: paths may name people.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse as _;
use axum::response::sse::{Event as Line, KeepAlive, Sse};
use futures_util::stream;
use oncekey::core::{KeyId, Timestamp};
use oncekey::problem::moment::rfc3339_millis;
use serde::{Serialize, Serializer};
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::page::Answer;
use super::problem::{Code, Problem};
use super::state::Admin;

/// Where finished requests are told. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    sender: Sender<Arc<Event>>,
    seats: Arc<Semaphore>,
}

/// A request that has ended.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Event {
    /// When it ended.
    #[serde(serialize_with = "moment")]
    pub(crate) ts: Timestamp,
    /// One of the methods that have a name of their own in metrics, or `other`.
    pub(crate) method: &'static str,
    /// The name of the route.
    #[serde(serialize_with = "word")]
    pub(crate) route: Arc<str>,
    /// The path, for the terminal of whoever develops on this machine. It is not sent to anybody.
    #[serde(skip)]
    pub(crate) path: Box<str>,
    /// The status that the client got.
    pub(crate) status: u16,
    /// How it ended, as in metrics.
    pub(crate) outcome: &'static str,
    /// How long it took.
    #[serde(rename = "duration_ms", serialize_with = "millis")]
    pub(crate) duration: Duration,
    /// Which key, without saying what it is; none if there was no key.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "short")]
    pub(crate) key_hash: Option<KeyId>,
    /// What is worth pointing out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mark: Option<Mark>,
}

/// What is worth pointing out about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mark {
    /// It got a saved answer: its work did not run again.
    Replayed,
    /// It got the answer of a request that was running.
    Coalesced,
    /// It ran though it was done before: observe mode does not stop it.
    Duplicate,
    /// It ran under a new key though the same content ran a moment ago under another one.
    Hollow,
    /// It ran without a key though the same content ran a moment ago without one.
    Repeated,
}

/// Events that a slow listener may be behind. A second of a busy node, a quarter of a megabyte.
const BEHIND: usize = 1_024;
/// Listeners at once: a few dashboards and terminals.
const SEATS: usize = 16;
/// Proxies on the way cut a connection that says nothing for a minute, some sooner.
const STILL_HERE: Duration = Duration::from_secs(15);

impl Default for Events {
    fn default() -> Self {
        let (sender, _) = tokio::sync::broadcast::channel(BEHIND);
        Self { sender, seats: Arc::new(Semaphore::new(SEATS)) }
    }
}

impl Events {
    /// Whether anybody listens.
    pub(crate) fn has_listeners(&self) -> bool {
        self.sender.receiver_count() > 0
    }

    /// Listens from now on, within this process.
    pub(crate) fn listen(&self) -> Receiver<Arc<Event>> {
        self.sender.subscribe()
    }

    /// Tells whoever listens. `event` is made only if somebody does.
    pub(crate) fn publish(&self, event: impl FnOnce() -> Event) {
        if self.has_listeners() {
            // The last one may have left in between.
            drop(self.sender.send(Arc::new(event())));
        }
    }
}

pub(super) async fn stream(State(admin): State<Arc<Admin>>) -> Answer {
    let seat = Arc::clone(&admin.events.seats).try_acquire_owned().map_err(|_| {
        Problem::new(Code::Busy, format!("{SEATS} others are listening: close one of them"))
    })?;
    let listener = Listener { receiver: admin.events.listen(), _seat: seat };
    let lines = stream::unfold(listener, async |mut listener| {
        let line = listener.next().await?;
        Some((Ok::<_, Infallible>(line), listener))
    });
    let alive = KeepAlive::new().interval(STILL_HERE);
    Ok(Sse::new(lines).keep_alive(alive).into_response())
}

struct Listener {
    receiver: Receiver<Arc<Event>>,
    _seat: OwnedSemaphorePermit,
}

impl Listener {
    /// The next line; `None` when nothing will come any more.
    async fn next(&mut self) -> Option<Line> {
        match self.receiver.recv().await {
            Ok(event) => Some(line("request", &*event)),
            Err(RecvError::Lagged(missed)) => Some(line("missed", &json!({ "events": missed }))),
            Err(RecvError::Closed) => None,
        }
    }
}

fn line(name: &str, data: &impl Serialize) -> Line {
    // JSON has no line break, so it cannot end a line of the stream.
    Line::default().event(name).data(serde_json::to_string(data).unwrap_or_default())
}

fn moment<S: Serializer>(moment: &Timestamp, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&rfc3339_millis(*moment))
}

fn word<S: Serializer>(word: &Arc<str>, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(word)
}

fn millis<S: Serializer>(span: &Duration, out: S) -> Result<S::Ok, S::Error> {
    let micros = u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
    out.serialize_f64(f64::from(micros) / 1_000.0)
}

#[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
fn short<S: Serializer>(id: &Option<KeyId>, out: S) -> Result<S::Ok, S::Error> {
    let text = id.map(|id| id.to_string()).unwrap_or_default();
    out.serialize_str(text.get(..8).unwrap_or_default())
}
