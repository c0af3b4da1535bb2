//! The last words to a client that was stopped.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::StatusCode;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::sieve::Place;
use super::verdict::{End, Why};

/// An answer to what the server behind never saw, and an end that lets the client read it.
#[derive(Debug, Default)]
pub(super) struct Farewell {
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Unsaid,
    Saying(Bytes),
    Said,
    /// How much may still be read and thrown away.
    Closed(usize),
}

/// What a client has sent and nobody read makes the system cut the connection, and the client may
/// never see the answer. So some of it is read. More than that is somebody who does not listen.
const DISCARDED: usize = 256 * 1024;

impl Farewell {
    /// Says it, if there is something to say, and ends the connection.
    pub(super) fn poll_say<IO: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut IO,
        end: Option<End>,
    ) -> Poll<io::Result<()>> {
        loop {
            match &mut self.state {
                State::Unsaid => {
                    self.state = end.and_then(answer).map_or(State::Said, State::Saying);
                }
                State::Saying(rest) if rest.is_empty() => {
                    ready!(Pin::new(&mut *io).poll_flush(cx))?;
                    self.state = State::Said;
                }
                State::Saying(rest) => {
                    let written = ready!(Pin::new(&mut *io).poll_write(cx, rest))?;
                    rest.advance(written);
                }
                State::Said => {
                    ready!(Pin::new(&mut *io).poll_shutdown(cx))?;
                    self.state = State::Closed(if end.is_some() { DISCARDED } else { 0 });
                }
                State::Closed(left) => {
                    let mut scratch = [const { MaybeUninit::uninit() }; 4_096];
                    let mut read = ReadBuf::uninit(&mut scratch);
                    // Only what is there already: nobody waits for a client that was stopped.
                    match (*left, Pin::new(&mut *io).poll_read(cx, &mut read)) {
                        (1.., Poll::Ready(Ok(()))) if !read.filled().is_empty() => {
                            *left = left.saturating_sub(read.filled().len());
                        }
                        (_, Poll::Ready(_) | Poll::Pending) => return Poll::Ready(Ok(())),
                    }
                }
            }
        }
    }
}

/// What is said. Nothing if somebody else answers: whoever got the head of a request whose body is
/// wrong, or if the client said nothing at all.
fn answer(end: End) -> Option<Bytes> {
    match (end.place, end.why) {
        (Place::Between, Why::SlowHead) => return None,
        (Place::Between | Place::Head | Place::Waiting | Place::Last, _) => {}
        (Place::Body | Place::Open, _) => return None,
    }
    let status = status(end.why);
    let body = document(end.why, Executed::No);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        oncekey::problem::MEDIA_TYPE,
        body.len(),
    );
    Some(Bytes::from(head + &body))
}

/// What is known about a request that was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Executed {
    /// Nobody has seen it.
    No,
    /// A part of it has gone on.
    Unknown,
}

/// What a client that was stopped is told.
pub(in crate::proxy) fn document(why: Why, executed: Executed) -> String {
    let status = status(why);
    let (word, sentence) = match executed {
        Executed::No => ("no", "Nothing was executed."),
        Executed::Unknown => ("unknown", "A part of it had been passed on already."),
    };
    json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or("Error"),
        "status": status.as_u16(),
        "detail": format!("The request was refused: {}. {sentence}", why.text()),
        "code": why.label(),
        "executed": word,
        "retryable": false,
    })
    .to_string()
}

/// Counts a client that was stopped, and says so in the log.
pub(in crate::proxy) fn note(why: Why) {
    metrics::counter!("oncekey_requests_refused_total", "reason" => why.label()).increment(1);
    tracing::info!(reason = why.label(), "a client was stopped");
}

fn status(why: Why) -> StatusCode {
    StatusCode::from_u16(why.status()).unwrap_or(StatusCode::BAD_REQUEST)
}
