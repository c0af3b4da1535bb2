//! One HTTP/2 connection to an upstream, which carries many requests at once.

use std::error::Error as _;
use std::io;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::{HOST, TE};
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use oncekey::layer::Undelivered;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::dial::Dialler;
use super::fault::Fault;
use super::head::MAX_HEAD;
use super::stream::Stream;
use super::target::Tls;
use super::{Failure, Missed, Outgoing};

/// The connection, made when it is first needed and again when it has ended.
#[derive(Default)]
pub(super) struct SharedLine(Mutex<Option<Way>>);

/// A way to send requests over it. Cheap to clone.
#[derive(Clone)]
pub(super) struct Way {
    sender: http2::SendRequest<Outgoing>,
    /// When something was last sent or heard; nothing if it is not used any more.
    used: Arc<StdMutex<Option<Instant>>>,
}

/// How long a connection is used after its last request. Firewalls and balancers forget one that is
/// silent, some after a minute, and then nobody can tell whether the next request arrives. Pings
/// would keep it alive, but servers of gRPC hang up on whoever sends more than one in five minutes.
const IDLE: Duration = Duration::from_secs(30);

impl SharedLine {
    /// The connection, if there is one: an upstream that chose HTTP/2 once is not asked again.
    pub(super) async fn open(&self) -> Option<Way> {
        self.0.lock().await.as_ref().filter(|way| way.is_open()).cloned()
    }

    /// The connection; over `stream`, if nobody was faster.
    pub(super) async fn adopt(&self, stream: Stream) -> Result<Way, Failure> {
        let mut slot = self.0.lock().await;
        match slot.as_ref().filter(|way| way.is_open()) {
            Some(way) => Ok(way.clone()),
            None => Ok(slot.insert(Way::over(stream).await?).clone()),
        }
    }

    /// The connection, made if there is none. Only for upstreams that speak HTTP/2 unasked.
    pub(super) async fn dial(&self, dialler: &Dialler) -> Result<Way, Failure> {
        // Held while connecting, so that many requests at once make one connection.
        let mut slot = self.0.lock().await;
        if let Some(way) = slot.as_ref().filter(|way| way.is_open()) {
            return Ok(way.clone());
        }
        let (stream, _) = dialler.dial().await.map_err(Failure::Unreachable)?;
        Ok(slot.insert(Way::over(stream).await?).clone())
    }
}

impl Way {
    async fn over(stream: Stream) -> Result<Self, Failure> {
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_header_list_size(MAX_HEAD)
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, connection) = handshake
            .map_err(|error| Failure::Broke(Undelivered::NeverSent, Fault::Http2(error)))?;
        // What ends it is told to everybody who waits on it.
        tokio::spawn(async move { drop(connection.await) });
        let used = Arc::new(StdMutex::new(Some(Instant::now())));
        Ok(Self { sender, used })
    }

    fn is_open(&self) -> bool {
        let is_fresh = self.used().is_some_and(|last| last.elapsed() < IDLE);
        is_fresh && !self.sender.is_closed()
    }

    /// Sends nothing more over it: whoever did got no answer, and perhaps nobody is there. Requests
    /// that are under way stay.
    pub(super) fn give_up(&self) {
        *self.used() = None;
    }

    /// It was just used.
    fn touch(&self) {
        let mut used = self.used();
        *used = used.map(|_| Instant::now());
    }

    fn used(&self) -> MutexGuard<'_, Option<Instant>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and waits for the head of the answer.
    ///
    /// # Cancellation
    /// The stream is reset; the request may have been sent.
    pub(super) async fn exchange(
        mut self,
        mut request: Box<Request<Outgoing>>,
        tls: Tls,
    ) -> Result<Response<Incoming>, Missed> {
        if self.sender.ready().await.is_err() {
            return Err(Missed::Untouched(request));
        }
        address(&mut request, tls);
        self.touch();
        let mut error = match self.sender.try_send_request(*request).await {
            Ok(response) => {
                self.touch();
                return Ok(response);
            }
            Err(error) => error,
        };
        if let Some(request) = error.take_message() {
            return Err(Missed::Untouched(Box::new(request)));
        }
        let error = error.into_error();
        // Written bytes prove nothing here: others write, too, and what was not written yet may still
        // be, by the task of the connection, after the caller has heard that it failed.
        let undelivered = match is_disowned(&error) {
            true => Undelivered::NeverSent,
            false => Undelivered::NoAnswer,
        };
        Err(Missed::Failed(Failure::Broke(undelivered, Fault::Http2(error))))
    }
}

/// Whether the upstream says that it did nothing with the request: it refused the stream (RFC 9113,
/// section 8.7).
///
/// A server that ends the connection names the last stream that it looked at, and those after it were
/// not touched either. But hyper reports the end of the connection in the same words for a request of
/// which it has just put the head on its way, and that is written all the same.
fn is_disowned(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| {
        let refused = cause.reason() == Some(h2::Reason::REFUSED_STREAM);
        cause.is_remote() && cause.is_reset() && refused
    })
}

/// Says where the request goes the way HTTP/2 does: in the place of `Host`.
fn address(request: &mut Request<Outgoing>, tls: Tls) {
    let scheme = match tls {
        Tls::Plain => Scheme::HTTP,
        Tls::Encrypted => Scheme::HTTPS,
    };
    let host = request.headers().get(HOST);
    let authority = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let path = request.uri().path_and_query().cloned();
    let (Some(authority), Some(path)) = (authority, path) else { return };
    let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(path).build();
    let Ok(uri) = uri else { return };
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(HOST);
    // Trailers are passed on. Some servers of gRPC refuse whoever does not say so.
    request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
}

/// What is said of a connection that was closed before anything was put on it.
pub(super) fn closed() -> Failure {
    Failure::Unreachable(io::Error::new(io::ErrorKind::ConnectionReset, "closed at once"))
}
