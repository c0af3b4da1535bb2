//! One HTTP/2 connection to an upstream, which carries many requests at once.

use std::error::Error as _;
use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::task::ready;
use std::time::Duration;
use std::{io, mem};

use http::header::{HOST, TE};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderValue, Request, Response, Uri, Version};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use oncekey::layer::Undelivered;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use super::answer::Answer;
use super::dial::Dialler;
use super::fault::Fault;
use super::head::MAX_HEAD;
use super::places::{Place, Places, Room};
use super::stream::Stream;
use super::target::Tls;
use super::upload::{Course, Upload};
use super::{Failure, Missed, Outgoing};

/// The connection, made when it is first needed and again when it has ended.
#[derive(Default)]
pub(super) struct SharedLine(Mutex<Option<Way>>);

/// A way to send requests over it. Cheap to clone.
#[derive(Clone)]
pub(super) struct Way {
    sender: http2::SendRequest<Upload>,
    /// Driven by a task of its own, and asked how many requests it takes. Nothing if it has ended.
    connection: Arc<StdMutex<Option<Connection>>>,
    places: Places,
    /// When something was last sent or heard; nothing if it is not used any more.
    used: Arc<StdMutex<Option<Instant>>>,
}

type Connection = http2::Connection<TokioIo<Stream>, Upload, TokioExecutor>;

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
        let connection = Arc::new(StdMutex::new(Some(connection)));
        tokio::spawn(drive(Arc::clone(&connection)));
        let used = Arc::new(StdMutex::new(Some(Instant::now())));
        Ok(Self { sender, connection, places: Places::default(), used })
    }

    /// Waits for a place; nothing if the connection is not used any more.
    async fn place(&self) -> Option<Place> {
        let room = || match &*lock(&self.connection) {
            Some(connection) if self.is_open() => Room::For(connection.current_max_send_streams()),
            Some(_) | None => Room::Closed,
        };
        self.places.take(room).await
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
        lock(&self.used)
    }

    /// Sends a request and waits for the head of the answer: so long for a place, and so long again from
    /// when the last piece of the request was taken.
    ///
    /// # Cancellation
    /// The stream is reset; the request may have been sent.
    pub(super) async fn exchange(
        mut self,
        request: Box<Request<Outgoing>>,
        tls: Tls,
        patience: Duration,
    ) -> Result<Response<Answer>, Missed> {
        let place = match timeout(patience, self.place()).await {
            Ok(Some(place)) => place,
            Ok(None) => return Err(Missed::Untouched(request)),
            Err(_) => return Err(Missed::Failed(Failure::Late(Undelivered::NeverSent))),
        };
        let course = Course::new(Some(place));
        let mut request = request.map(|body| Upload::new(body, &course));
        let host = address(&mut request, tls);
        self.touch();
        let mut exchange = pin!(self.sender.try_send_request(request));
        let answered = loop {
            let due = course.last() + patience;
            match timeout_at(due, &mut exchange).await {
                Ok(answered) => break answered,
                // Something of it was taken meanwhile.
                Err(_) if course.last() + patience > due => {}
                Err(_) => {
                    self.give_up();
                    // On a connection that is shared nobody can tell whether the frames of this
                    // request were among those that were written.
                    return Err(Missed::Failed(Failure::Late(Undelivered::NoAnswer)));
                }
            }
        };
        let mut error = match answered {
            Ok(response) => {
                self.touch();
                return Ok(response.map(|body| Answer::of_stream(body, course)));
            }
            Err(error) => error,
        };
        if let Some(request) = error.take_message() {
            let mut request = request.map(Upload::untouched);
            name_host(&mut request, host);
            return Err(Missed::Untouched(Box::new(request)));
        }
        let error = error.into_error();
        // Written bytes prove nothing here: others write, too, and what was not written yet may still
        // be, by the task of the connection, after the caller has heard that it failed.
        let undelivered = match is_disowned(&error) {
            true => Undelivered::NeverSent,
            false => Undelivered::NoAnswer,
        };
        let fault = course.broken().map_or(Fault::Http2(error), Fault::Body);
        Err(Missed::Failed(Failure::Broke(undelivered, fault)))
    }
}

/// Drives a connection to its end, which is told to everybody who waits on it.
async fn drive(connection: Arc<StdMutex<Option<Connection>>>) {
    let ended = poll_fn(|cx| {
        let mut slot = lock(&connection);
        if let Some(connection) = &mut *slot {
            drop(ready!(Pin::new(connection).poll(cx)));
        }
        slot.take().into()
    });
    // Its senders hear of the end when it goes, and that not under the lock.
    drop(ended.await);
}

fn lock<T>(mutex: &StdMutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Says where the request goes the way HTTP/2 does: in the place of `Host`, which it gives.
fn address<B>(request: &mut Request<B>, tls: Tls) -> Option<HeaderValue> {
    let scheme = match tls {
        Tls::Plain => Scheme::HTTP,
        Tls::Encrypted => Scheme::HTTPS,
    };
    let authority = Authority::try_from(request.headers().get(HOST)?.as_bytes()).ok()?;
    let path = request.uri().path_and_query()?.clone();
    let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(path).build();
    *request.uri_mut() = uri.ok()?;
    *request.version_mut() = Version::HTTP_2;
    let host = request.headers_mut().remove(HOST);
    // Trailers are passed on. Some servers of gRPC refuse whoever does not say so.
    request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
    host
}

/// Takes back what [`address`] did: the request may go over HTTP/1.
fn name_host<B>(request: &mut Request<B>, host: Option<HeaderValue>) {
    let Some(host) = host else { return };
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(Uri::default, Uri::from);
    *request.version_mut() = Version::HTTP_11;
    request.headers_mut().remove(TE);
    // The host stands first, as most clients write it: there are servers that want it there.
    let mut headers = HeaderMap::with_capacity(request.headers().len() + 1);
    headers.insert(HOST, host);
    headers.extend(mem::take(request.headers_mut()));
    *request.headers_mut() = headers;
}

/// What is said of a connection that was closed before anything was put on it.
pub(super) fn closed() -> Failure {
    Failure::Unreachable(io::Error::new(io::ErrorKind::ConnectionReset, "closed at once"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_given_back_is_what_it_was() {
        for path in ["/a?b=c", "*", "/"] {
            let given = || {
                Request::options(path)
                    .header("host", "api.example:8443")
                    .header("x", "1")
                    .header("cookie", "a")
                    .header("x", "2")
                    .body(())
                    .unwrap()
            };
            let mut request = given();
            let host = address(&mut request, Tls::Encrypted);
            assert_eq!(host.as_ref().unwrap(), "api.example:8443");
            assert_eq!(request.uri().authority().unwrap(), "api.example:8443");
            assert!(!request.headers().contains_key(HOST), "it is said elsewhere");
            name_host(&mut request, host);
            assert_eq!(request.uri(), given().uri(), "{path}");
            assert_eq!(request.headers(), given().headers(), "{path}");
            assert_eq!(request.headers().keys().next(), Some(&HOST));
            assert_eq!(request.version(), Version::HTTP_11);
        }
    }

    #[test]
    fn a_request_without_a_host_stays_as_it_is() {
        let mut request = Request::get("/a").header("te", "trailers").body(()).unwrap();
        let host = address(&mut request, Tls::Plain);
        name_host(&mut request, host);
        assert_eq!((request.uri().path(), request.headers().len()), ("/a", 1));
    }
}
