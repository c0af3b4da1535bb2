//! One connection of a client, from its first byte to its last.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http::header::UPGRADE;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use oncekey::layer::Undelivered;
use oncekey::problem::{Code, Problem};
use tokio::io::{AsyncRead, AsyncWrite};

use super::front::{Front, Peer, Told, refuse};
use super::outlet::Outlet;
use super::paced::Paced;
use super::presence::Presence;
use super::sieve::Limits;
use super::streams;
use super::strict::{End, Executed, Pace, Strict, Verdict, document, note};
use super::tunnel::Tether;
use crate::stop::Stop;

/// Which HTTP a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Http1,
    Http2,
}

/// How long and how much a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadlines {
    /// From the first byte of a head to its last; also from a connection to its first request.
    pub(crate) head: Duration,
    /// How long a body may stand still.
    pub(crate) body: Duration,
    /// How long a connection may wait for its next request, and how long a client may take nothing of
    /// what it is sent.
    pub(crate) idle: Duration,
    /// Bytes of a head.
    pub(crate) max_head: usize,
}

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
    let io = Outlet::new(io, deadlines.idle);
    let ended = match dialect {
        Dialect::Http1 => serve_one(front, io, peer, deadlines, stop).await,
        Dialect::Http2 => streams::serve(front, io, peer, deadlines, stop).await,
    };
    if let Err(error) = ended {
        // Clients hang up all the time, and who did so is nobody's business.
        tracing::debug!(%error, "a connection ended early");
    }
}

async fn serve_one<I>(
    front: Arc<Front>,
    io: I,
    peer: Peer,
    deadlines: Deadlines,
    stop: Stop,
) -> hyper::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = Limits { head: deadlines.max_head, ..Limits::default() };
    let pace = Pace { head: deadlines.head, body: deadlines.body, ..Pace::default() };
    let io = Strict::new(io, limits, pace);
    let verdict = io.verdict();
    let said = verdict.clone();
    let peer = Peer { presence: Presence::seen_by(&verdict), ..peer };
    let place = Arc::clone(&peer.place);
    let tether = Tether { place, idle: deadlines.idle, stop: stop.clone() };
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (front, verdict, peer) = (Arc::clone(&front), verdict.clone(), peer.clone());
        if let Some(lettering) = verdict.lettering() {
            request.extensions_mut().insert(lettering);
        }
        let switches =
            request.headers().contains_key(UPGRADE) || request.method() == Method::CONNECT;
        if switches {
            request.extensions_mut().insert(tether.clone());
        }
        async move {
            let response = front.answer(peer, request.map(Paced::free)).await;
            if switches {
                settle(&verdict, response.status());
            }
            Ok::<_, Infallible>(blame(response, verdict.end()))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Counts from the end of the last answer: the sieve counts from the first byte of a head.
        .header_read_timeout(deadlines.idle)
        // A client may close its side and wait for the answer.
        .half_close(true)
        // What the upstream does not say, we do not say either.
        .auto_date_header(false)
        .max_buf_size(deadlines.max_head.max(SMALLEST_BUFFER))
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    let ended = until_stopped(connection, stop, |connection| connection.graceful_shutdown()).await;
    if let Some(end) = said.end() {
        note(end.why);
    }
    ended
}

/// hyper reads no less at once.
const SMALLEST_BUFFER: usize = 64 * 1024;

/// Says whether what a client sent behind its request is another protocol or the next request.
fn settle(verdict: &Verdict, status: StatusCode) {
    match status {
        StatusCode::SWITCHING_PROTOCOLS => verdict.upgraded(),
        _ => verdict.declined(),
    }
}

/// Says what was wrong with a body, where all that is known behind is that it broke off.
pub(super) fn blame(response: Response<Told>, end: Option<End>) -> Response<Told> {
    let extensions = response.extensions();
    let code = extensions.get::<Problem>().map(|problem| problem.code);
    match (end, code) {
        (Some(End { why, .. }), Some(Code::BodyIncomplete)) => {
            let executed = match extensions.get::<Undelivered>() {
                Some(Undelivered::NoAnswer) => Executed::Unknown,
                Some(Undelivered::NeverSent) | None => Executed::No,
            };
            refuse(why.status(), document(why, executed))
        }
        _ => response,
    }
}

async fn until_stopped<C, E>(
    connection: C,
    stop: Stop,
    shut_down: impl FnOnce(Pin<&mut C>),
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
