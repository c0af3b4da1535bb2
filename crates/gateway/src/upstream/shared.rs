//! One HTTP/2 connection to an upstream, which carries many requests at once.

use std::io;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use oncekey::layer::Undelivered;
use tokio::sync::Mutex;

use super::dial::Dialler;
use super::stream::Stream;
use super::{Failure, Outgoing};

type Sender = http2::SendRequest<Outgoing>;

/// The connection, made when it is first needed and again when it has ended.
#[derive(Default)]
pub(super) struct SharedLine(Mutex<Option<Sender>>);

impl SharedLine {
    /// Whether there is a connection: an upstream that chose HTTP/2 once is not asked again.
    pub(super) async fn is_open(&self) -> bool {
        self.0.lock().await.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    /// A way to send requests; over `stream`, if somebody has connected already.
    pub(super) async fn sender(
        &self,
        dialler: &Dialler,
        stream: Option<Stream>,
    ) -> Result<Sender, Failure> {
        // Held while connecting, so that many requests at once make one connection.
        let mut slot = self.0.lock().await;
        if let Some(sender) = slot.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let stream = match stream {
            Some(stream) => stream,
            None => dialler.dial().await.map_err(Failure::Unreachable)?.0,
        };
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(hyper_util::rt::TokioTimer::new())
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, connection) =
            handshake.map_err(|error| Failure::Broke(Undelivered::NeverSent, error))?;
        // What ends it is told to everybody who waits on it.
        tokio::spawn(async move { drop(connection.await) });
        *slot = Some(sender.clone());
        Ok(sender)
    }
}

/// Sends a request and waits for the head of the answer.
pub(super) async fn exchange(
    mut sender: Sender,
    request: Request<Outgoing>,
) -> Result<Response<Incoming>, Failure> {
    if let Err(error) = sender.ready().await {
        return Err(Failure::Broke(Undelivered::NeverSent, error));
    }
    match sender.try_send_request(request).await {
        Ok(response) => Ok(response),
        Err(mut error) => match error.take_message() {
            Some(_) => {
                let gone = io::Error::new(io::ErrorKind::ConnectionReset, "closed before use");
                Err(Failure::Unreachable(gone))
            }
            None => Err(Failure::Broke(Undelivered::NoAnswer, error.into_error())),
        },
    }
}
