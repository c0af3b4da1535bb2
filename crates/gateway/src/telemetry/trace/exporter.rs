//! Sends spans to a collector, many at a time.
//!
//! Requests never wait for it: what finds no room is counted and thrown away, and so is what the
//! collector does not take. Nothing is sent twice.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt as _, Limited};
use oncekey::layer::RequestBody;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::proto::{self, Span, Value};
use crate::upstream::{Care, Upstream};

/// Takes spans. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Exporter(mpsc::Sender<Message>);

/// Where spans go.
pub(super) struct Collector {
    pub(super) upstream: Upstream,
    pub(super) path: PathAndQuery,
    pub(super) host: HeaderValue,
    /// What is said of this program.
    pub(super) resource: Vec<(&'static str, Value)>,
}

#[derive(Debug)]
enum Message {
    Span(Box<Span>),
    /// Everything before this is to be sent now, and then somebody wants to know.
    Flush(oneshot::Sender<()>),
}

/// Why a batch was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    Unreachable,
    Refused(u16),
}

/// Half a second of a gateway that does all it can, and some two megabytes.
const ROOM: usize = 4_096;
/// Half a megabyte: small enough for every collector.
const BATCH: usize = 1_024;
/// How old a span may get before it is sent. Nobody who looks at traces notices.
const EVERY: Duration = Duration::from_secs(1);
/// How long a collector may take for a batch.
const PATIENCE: Duration = Duration::from_secs(10);
/// Its answers say next to nothing.
const LARGEST: usize = 64 * 1024;

impl Exporter {
    /// Starts to send to a collector. Needs a runtime.
    pub(super) fn start(collector: Collector) -> Self {
        let (spans, waiting) = mpsc::channel(ROOM);
        tokio::spawn(collector.run(waiting));
        Self(spans)
    }

    pub(super) fn take(&self, span: Span) {
        if self.0.try_send(Message::Span(Box::new(span))).is_err() {
            lost(1, "queue_full");
        }
    }

    /// Waits until everything that was taken has been sent, or lost.
    pub(super) async fn flush(&self, within: Duration) {
        let (done, flushed) = oneshot::channel();
        let flush = async {
            if self.0.send(Message::Flush(done)).await.is_ok() {
                drop(flushed.await);
            }
        };
        drop(timeout(within, flush).await);
    }
}

impl Collector {
    async fn run(self, mut waiting: mpsc::Receiver<Message>) {
        let mut batch = Vec::new();
        let mut due = Instant::now() + EVERY;
        loop {
            let message = tokio::select! {
                message = waiting.recv() => message,
                () = sleep_until(due), if !batch.is_empty() => {
                    self.send(&mut batch).await;
                    continue;
                }
            };
            match message {
                Some(Message::Span(span)) => {
                    if batch.is_empty() {
                        due = Instant::now() + EVERY;
                    }
                    batch.push(*span);
                    if batch.len() >= BATCH {
                        self.send(&mut batch).await;
                    }
                }
                Some(Message::Flush(done)) => {
                    self.send(&mut batch).await;
                    // Whoever wanted to know may have given up.
                    let _ = done.send(());
                }
                None => return,
            }
        }
    }

    async fn send(&self, batch: &mut Vec<Span>) {
        if batch.is_empty() {
            return;
        }
        let sent = timeout(PATIENCE, self.post(proto::request(&self.resource, batch))).await;
        match sent.unwrap_or(Err(Lost::Unreachable)) {
            Ok(()) => {}
            Err(Lost::Unreachable) => {
                tracing::warn!(spans = batch.len(), "the collector of traces does not answer");
                lost(batch.len(), "unreachable");
            }
            Err(Lost::Refused(status)) => {
                tracing::warn!(spans = batch.len(), status, "the collector refuses traces");
                lost(batch.len(), "refused");
            }
        }
        batch.clear();
    }

    async fn post(&self, body: Vec<u8>) -> Result<(), Lost> {
        let mut request = Request::new(RequestBody::from(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from(self.path.clone());
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let agent = concat!("oncekey/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        let answer = self.upstream.send(Box::new(request), Care::Usual).await;
        let (head, body) = answer.map_err(|_| Lost::Unreachable)?.into_parts();
        // Read to its end, so that the connection can be used again.
        drop(Limited::new(body, LARGEST).collect().await);
        match head.status.is_success() {
            true => Ok(()),
            false => Err(Lost::Refused(head.status.as_u16())),
        }
    }
}

fn lost(spans: usize, reason: &'static str) {
    let spans = u64::try_from(spans).unwrap_or(u64::MAX);
    metrics::counter!("oncekey_spans_lost_total", "reason" => reason).increment(spans);
}
