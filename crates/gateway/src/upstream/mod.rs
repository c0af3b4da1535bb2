//! The API behind the gateway: connections to it, and what is known about a request that got no
//! answer.

mod answer;
mod chunks;
mod dial;
mod fault;
mod head;
mod inbox;
mod lettered;
mod line;
mod places;
mod pool;
#[cfg(test)]
mod script;
mod sending;
mod shared;
mod stream;
mod target;
mod trust;
mod upload;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use oncekey::layer::{RequestBody, Undelivered};
use tokio::time::timeout;

use self::dial::{Chosen, Dialler};
use self::line::Line;
use self::pool::Pool;
use self::shared::{SharedLine, Way, closed};
use crate::overheard::Overheard;

pub(crate) use self::answer::Answer;
pub(crate) use self::fault::Fault;
pub(crate) use self::pool::Care;
pub(crate) use self::stream::Stream;
pub(crate) use self::target::{Place, Speaks, Target, Tls, port_of};
pub(crate) use self::trust::Trust;

/// A request body on its way to the upstream: as it comes from the client, or read before.
pub(crate) type Outgoing = RequestBody<Overheard>;

/// An upstream. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub(crate) struct Upstream(Arc<Inner>);

struct Inner {
    dialler: Dialler,
    pool: Pool,
    shared: SharedLine,
    patience: Patience,
}

/// How long to wait for an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// For a connection.
    pub(crate) connect: Duration,
    /// For the head of an answer, from when the last byte of the request was sent; and for a place on a
    /// connection that has none.
    pub(crate) answer: Duration,
}

/// The one that is there, and a new one if that has ended. A server that closes both does not want to
/// be asked.
const CONNECTIONS: usize = 2;

/// Why there is no answer, and what is known about the request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// There is no connection to be had.
    #[error("no connection to the upstream")]
    Unreachable(#[source] io::Error),
    /// The connection broke.
    #[error("the connection to the upstream broke")]
    Broke(Undelivered, #[source] Fault),
    /// It took too long.
    #[error("the upstream did not answer in time")]
    Late(Undelivered),
    /// It speaks another protocol now, which nobody had asked for.
    #[error("the upstream switched to another protocol unasked")]
    Switched,
}

impl Upstream {
    /// An upstream that nobody has connected to yet. Needs a runtime.
    pub(crate) fn new(target: Target, trust: &Trust, patience: Patience) -> Self {
        let tls = trust.client(&target);
        let dialler = Dialler { target, tls, patience: patience.connect };
        let (pool, shared) = (Pool::new(), SharedLine::default());
        Self(Arc::new(Inner { dialler, pool, shared, patience }))
    }

    pub(crate) fn target(&self) -> &Target {
        &self.0.dialler.target
    }

    /// How long an answer may let wait for itself.
    pub(crate) fn patience(&self) -> Duration {
        self.0.patience.answer
    }

    /// Whether the upstream takes connections.
    pub(crate) async fn check(&self) -> io::Result<()> {
        self.0.dialler.dial().await.map(drop)
    }

    /// Sends a request, once. A connection that turns out to be dead before the request was put on
    /// it is replaced; nothing else is ever sent again.
    ///
    /// # Cancellation
    /// The request may have been sent.
    pub(crate) async fn send(
        &self,
        mut request: Box<Request<Outgoing>>,
        care: Care,
    ) -> Result<Response<Answer>, Failure> {
        let inner = &*self.0;
        if inner.dialler.target.speaks == Speaks::Http2 {
            // In a box, as everything that requests over HTTP/1 have no need of.
            return Box::pin(inner.send_http2(request)).await;
        }
        // Only whoever greets each other by TLS can have chosen it.
        if inner.dialler.target.tls == Tls::Encrypted
            && let Some(way) = inner.shared.open().await
        {
            match Box::pin(inner.share(way, request)).await {
                Ok(response) => return Ok(response),
                Err(Missed::Failed(failure)) => return Err(failure),
                Err(Missed::Untouched(again)) => request = again,
            }
        }
        if let Some(line) = inner.pool.take(care) {
            return inner.exchange(line, request).await;
        }
        let (stream, chosen) = inner.dialler.dial().await.map_err(Failure::Unreachable)?;
        let answered = match chosen {
            Chosen::Http2 => {
                let way = Box::pin(inner.shared.adopt(stream)).await?;
                Box::pin(inner.share(way, request)).await
            }
            Chosen::Unsaid => return inner.exchange(Line::new(stream), request).await,
        };
        answered.map_err(|missed| match missed {
            Missed::Failed(failure) => failure,
            Missed::Untouched(_) => closed(),
        })
    }
}

/// Why a request got no answer on one connection.
enum Missed {
    /// Nothing of it was written: it can go over another one.
    Untouched(Box<Request<Outgoing>>),
    Failed(Failure),
}

impl Inner {
    /// Sends a request over a connection that it has for itself.
    async fn exchange(
        &self,
        mut line: Box<Line>,
        request: Box<Request<Outgoing>>,
    ) -> Result<Response<Answer>, Failure> {
        let before = line.written();
        let answered = line.exchange(request, self.patience.answer).await;
        // What was not written by now never will be: nobody else drives the connection.
        let undelivered = match line.written() == before {
            true => Undelivered::NeverSent,
            false => Undelivered::NoAnswer,
        };
        match answered {
            Ok(response) => Ok(response.map(|()| Answer::of_line(line, &self.pool))),
            Err(Fault::Late) => Err(Failure::Late(undelivered)),
            Err(fault) => Err(Failure::Broke(undelivered, fault)),
        }
    }

    /// Sends a request to an upstream that speaks HTTP/2 unasked.
    async fn send_http2(
        &self,
        mut request: Box<Request<Outgoing>>,
    ) -> Result<Response<Answer>, Failure> {
        for _ in 0..CONNECTIONS {
            // Whoever waits for somebody else's connection waits no longer than for its own.
            let way = timeout(self.patience.connect, self.shared.dial(&self.dialler)).await;
            let late = || io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
            let way = way.map_err(|_| Failure::Unreachable(late()))??;
            match self.share(way, request).await {
                Ok(response) => return Ok(response),
                Err(Missed::Failed(failure)) => return Err(failure),
                Err(Missed::Untouched(again)) => request = again,
            }
        }
        Err(closed())
    }

    async fn share(
        &self,
        way: Way,
        request: Box<Request<Outgoing>>,
    ) -> Result<Response<Answer>, Missed> {
        way.exchange(request, self.dialler.target.tls, self.patience.answer).await
    }
}

impl Failure {
    /// What is known about the request.
    pub(crate) fn undelivered(&self) -> Undelivered {
        match self {
            Self::Unreachable(_) => Undelivered::NeverSent,
            Self::Broke(undelivered, _) | Self::Late(undelivered) => *undelivered,
            Self::Switched => Undelivered::NoAnswer,
        }
    }
}
