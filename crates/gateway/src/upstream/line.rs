//! One HTTP/1.1 connection to an upstream.
//!
//! It is driven by whoever uses it: the task that waits for an answer also reads and writes. A task
//! of its own for each connection would cost two wake-ups for every request, and would hide from
//! us what was written when. hyper's client did it the same way until it was measured: it asks for
//! 72 KiB of memory for each answer if an answer may have more than a hundred lines, and hands
//! requests and answers over channels that have the same task at both ends.
//!
//! An answer counts wherever it comes: before the request has been written as a whole, too, for an
//! upstream may refuse a body that it has not read.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::{Body, Frame};
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::Outgoing;
use super::chunks::{Chunks, Next};
use super::fault::Fault;
use super::head::{After, Asked, Framing, Head};
use super::inbox::Inbox;
use super::sending::Sending;
use super::stream::Stream;
use crate::proxy::BodyError;

/// A connection with nothing or one request on it.
pub(super) struct Line<B = Outgoing> {
    stream: Stream,
    inbox: Inbox,
    sending: Sending<B>,
    reading: Reading,
    after: After,
    /// Why nothing more of the request could be written.
    unwritten: Option<io::Error>,
    /// Rings when an answer is late, or sooner: see [`Line::poll_late`].
    alarm: Option<Pin<Box<Sleep>>>,
    /// When it was last used.
    pub(super) idle_since: Instant,
}

/// Whether requests of a method have bodies.
///
/// Many servers do not read one where none belongs, and take it for the next request on the connection.
/// Whoever sends such a body would choose what is answered to somebody else, so nobody else's request is
/// put behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bodies {
    Usual,
    Odd,
}

/// How much of an answer was read.
#[derive(Debug)]
enum Reading {
    /// Its head is waited for.
    Head,
    /// So many bytes of its body are to come.
    Sized(u64),
    Chunked(Chunks),
    UntilClose,
    /// All of it.
    Ended,
    /// It is no answer any more.
    Switched,
    /// It broke off.
    Failed,
}

impl Bodies {
    fn of(method: &Method) -> Self {
        match *method {
            Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::DELETE => {
                Self::Odd
            }
            _ => Self::Usual,
        }
    }
}

impl<B> Line<B>
where
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    pub(super) fn new(stream: Stream) -> Box<Self> {
        Box::new(Self {
            stream,
            inbox: Inbox::default(),
            sending: Sending::default(),
            reading: Reading::Ended,
            after: After::Next,
            unwritten: None,
            alarm: None,
            idle_since: Instant::now(),
        })
    }

    /// Whether a request can be put on it now: the last one and its answer came to their ends, and
    /// nothing came behind them.
    pub(super) fn is_free(&self) -> bool {
        let is_over = matches!(self.reading, Reading::Ended) && self.sending.is_done();
        is_over && self.after == After::Next && self.unwritten.is_none() && self.inbox.is_empty()
    }

    /// The same, and the other side is still there and silent, as far as anybody can tell. Without a
    /// system call, unless the runtime has heard something.
    pub(super) fn is_open(&mut self, cx: &mut Context<'_>) -> bool {
        let mut byte = [0];
        let mut read = ReadBuf::new(&mut byte);
        // An end, a failure or an answer to nothing: there is no use for any of them.
        self.is_free() && Pin::new(&mut self.stream).poll_read(cx, &mut read).is_pending()
    }

    /// How many bytes were ever written to it.
    pub(super) fn written(&self) -> u64 {
        self.stream.written()
    }

    /// Forgets the memory that the last answer needed.
    pub(super) fn rest(&mut self) {
        self.inbox.rest();
    }

    /// Sends a request and waits for the head of the answer, at most so long.
    ///
    /// # Cancellation
    /// Half a request may have been written, as [`Line::written`] says. Such a connection is never
    /// free again.
    pub(super) async fn exchange(
        &mut self,
        request: Box<Request<B>>,
        patience: Duration,
    ) -> Result<Response<()>, Fault> {
        let (before, asked) = (self.written(), Asked::of(request.method()));
        // From the last byte that was written: a client may take its time as long as it keeps its pace.
        let (mut written, mut due) = (before, Instant::now() + patience);
        let bodies = Bodies::of(request.method());
        self.reading = Reading::Head;
        self.sending.start(request);
        let answered = poll_fn(|cx| {
            if let Poll::Ready(answered) = self.poll_head(cx, before, asked) {
                return Poll::Ready(answered);
            }
            let now = Instant::now();
            if self.written() != written {
                (written, due) = (self.written(), now + patience);
            }
            // An upstream that says something all the time leaves the alarm no turn.
            if now >= due {
                return Poll::Ready(Err(Fault::Late));
            }
            self.poll_late(cx, due).map(|()| Err(Fault::Late))
        });
        let answered = answered.await;
        if bodies == Bodies::Odd && self.sending.had_body() {
            self.after = After::Close;
        }
        answered
    }

    /// Whether it is too late for an answer.
    ///
    /// Setting an alarm and taking it back takes a lock that all connections share. So it stays as it
    /// was set for an earlier request, rings too early, and is only then put forward.
    fn poll_late(&mut self, cx: &mut Context<'_>, due: Instant) -> Poll<()> {
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if alarm.deadline() > due {
            alarm.as_mut().reset(due);
        }
        loop {
            ready!(alarm.as_mut().poll(cx));
            if alarm.deadline() >= due {
                return Poll::Ready(());
            }
            alarm.as_mut().reset(due);
        }
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        before: u64,
        asked: Asked,
    ) -> Poll<Result<Response<()>, Fault>> {
        self.send(cx)?;
        if self.written() == before
            && let Some(error) = self.unwritten.take()
        {
            // What comes now is no answer to this request.
            return Poll::Ready(Err(Fault::Io(error)));
        }
        let read = ready!(self.inbox.poll_head(cx, &mut self.stream, asked));
        let Head { response, framing, after } = read.map_err(|fault| self.blame(fault))?;
        self.after = after;
        self.reading = match framing {
            Framing::Empty => Reading::Ended,
            Framing::Sized(length) => Reading::Sized(length),
            Framing::Chunked => Reading::Chunked(Chunks::default()),
            Framing::UntilClose => Reading::UntilClose,
            Framing::Switched if !self.sending.is_done() => {
                return Poll::Ready(Err(Fault::SwitchedEarly));
            }
            Framing::Switched => Reading::Switched,
        };
        Poll::Ready(Ok(response))
    }

    /// Writes what can be written of the request. That the upstream takes no more of it is no fault
    /// yet: it may have answered.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<(), Fault> {
        if self.sending.is_done() {
            return Ok(());
        }
        match self.sending.poll(cx, &mut self.stream) {
            Poll::Pending | Poll::Ready(Ok(())) => Ok(()),
            Poll::Ready(Err(Fault::Io(error))) => {
                self.sending.give_up();
                self.unwritten = Some(error);
                Ok(())
            }
            Poll::Ready(Err(fault)) => {
                self.reading = Reading::Failed;
                Err(fault)
            }
        }
    }

    /// What is to be said of a read that failed: why the request was not written, if it was not.
    fn blame(&mut self, fault: Fault) -> Fault {
        self.reading = Reading::Failed;
        match (fault, self.unwritten.take()) {
            (Fault::Ended | Fault::Io(_), Some(error)) => Fault::Io(error),
            (fault, _) => fault,
        }
    }

    /// Reads what comes next of the body, and writes what is left of the request meanwhile.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        if self.is_ended() {
            return Poll::Ready(None);
        }
        if let Err(fault) = self.send(cx) {
            return Poll::Ready(Some(Err(fault)));
        }
        loop {
            match self.next() {
                Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                Ok(None) if self.is_ended() => return Poll::Ready(None),
                Ok(None) => {}
                Err(fault) => return Poll::Ready(Some(Err(self.blame(fault)))),
            }
            let fault = match ready!(self.inbox.poll_fill(cx, &mut self.stream)) {
                Ok(1..) => continue,
                Ok(0) if matches!(self.reading, Reading::UntilClose) => {
                    self.reading = Reading::Ended;
                    return Poll::Ready(None);
                }
                Ok(0) => Fault::Ended,
                Err(error) => Fault::Io(error),
            };
            return Poll::Ready(Some(Err(self.blame(fault))));
        }
    }

    /// What comes next of the body, as far as it was read.
    fn next(&mut self) -> Result<Option<Frame<Bytes>>, Fault> {
        let held = self.inbox.held().len();
        match &mut self.reading {
            Reading::Head | Reading::Ended | Reading::Switched | Reading::Failed => Ok(None),
            Reading::Sized(_) | Reading::UntilClose if held == 0 => Ok(None),
            Reading::UntilClose => Ok(Some(Frame::data(self.inbox.take(held)))),
            Reading::Sized(left) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(held);
                *left -= here as u64;
                if *left == 0 {
                    self.reading = Reading::Ended;
                }
                Ok(Some(Frame::data(self.inbox.take(here))))
            }
            Reading::Chunked(chunks) => match chunks.next(self.inbox.held())? {
                Next::Data(here) => {
                    chunks.took(here);
                    Ok(Some(Frame::data(self.inbox.take(here))))
                }
                Next::End(trailers) => {
                    self.reading = Reading::Ended;
                    Ok(trailers.map(|trailers| Frame::trailers(*trailers)))
                }
                Next::More => Ok(None),
            },
        }
    }

    /// The whole body, if it lies here.
    pub(super) fn whole(&mut self) -> Option<Bytes> {
        match self.reading {
            Reading::Ended => Some(Bytes::new()),
            Reading::Sized(length) => {
                let length = usize::try_from(length).ok()?;
                (length <= self.inbox.held().len()).then(|| {
                    self.reading = Reading::Ended;
                    self.inbox.take(length)
                })
            }
            Reading::Head
            | Reading::Chunked(_)
            | Reading::UntilClose
            | Reading::Switched
            | Reading::Failed => None,
        }
    }

    /// Whether there is nothing more to read of the answer.
    pub(super) fn is_ended(&self) -> bool {
        matches!(self.reading, Reading::Ended | Reading::Switched | Reading::Failed)
    }

    /// How many bytes of the body are to come, if it was said.
    pub(super) fn left(&self) -> Option<u64> {
        match self.reading {
            Reading::Sized(left) => Some(left),
            Reading::Ended | Reading::Switched => Some(0),
            Reading::Head | Reading::Chunked(_) | Reading::UntilClose | Reading::Failed => None,
        }
    }

    /// The way to say more, and what has come behind the answer, if the connection has become
    /// something else.
    pub(super) fn switched(self) -> Option<(Stream, Bytes)> {
        let Self { stream, inbox, reading, .. } = self;
        matches!(reading, Reading::Switched).then(|| (stream, inbox.into_bytes()))
    }
}

#[cfg(test)]
mod tests;
