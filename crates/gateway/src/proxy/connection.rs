//! One connection of a client, from its first byte to its last.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::front::{Front, Peer};
use crate::stop::Stop;

/// Which HTTP a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Http1,
    Http2,
}

/// How long and how much a client may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// From a connection, or the end of an answer, to the end of the next head.
    pub(crate) head: Duration,
}

/// What common servers allow for one client, and more than any client needs.
const STREAMS: u32 = 100;
/// The headers of one request on HTTP/2, as many as on HTTP/1.
const HEAD: u32 = 64 * 1024;
/// A client that does not answer a ping for this long has gone.
const PING: Duration = Duration::from_secs(20);

/// Serves a connection until one of both sides ends it. Once `stop` is raised, what is under way is
/// answered and nothing more is taken.
pub(super) async fn serve<I>(
    front: Arc<Front>,
    io: I,
    (peer, dialect): (Peer, Dialect),
    deadlines: Deadlines,
    stop: Stop,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let front = Arc::clone(&front);
        async move { Ok::<_, std::convert::Infallible>(front.answer(peer, request).await) }
    });
    let ended = match dialect {
        Dialect::Http1 => {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(deadlines.head)
                // A client may close its side and wait for the answer.
                .half_close(true)
                .preserve_header_case(true)
                // What the upstream does not say, we do not say either.
                .auto_date_header(false)
                .serve_connection(TokioIo::new(io), service)
                .with_upgrades();
            until_stopped(connection, stop, |connection| connection.graceful_shutdown()).await
        }
        Dialect::Http2 => {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .max_header_list_size(HEAD)
                .keep_alive_interval(PING)
                .keep_alive_timeout(PING)
                .auto_date_header(false)
                .serve_connection(TokioIo::new(io), service);
            until_stopped(connection, stop, |connection| connection.graceful_shutdown()).await
        }
    };
    if let Err(error) = ended {
        // Clients hang up all the time, and who did so is nobody's business.
        tracing::debug!(%error, "a connection ended early");
    }
}

async fn until_stopped<C, E>(
    connection: C,
    stop: Stop,
    shut_down: impl FnOnce(std::pin::Pin<&mut C>),
) -> Result<(), E>
where
    C: Future<Output = Result<(), E>>,
{
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        ended = &mut connection => return ended,
        () = stop.raised() => {}
    }
    shut_down(connection.as_mut());
    connection.await
}
