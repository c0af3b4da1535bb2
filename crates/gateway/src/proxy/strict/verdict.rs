//! What is known about a connection by those who do not read from it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use super::super::sieve::{Place, Violation};
use crate::lettering::Lettering;

/// Shared by the connection, which says why it ended, and by the server, which says whether
/// another protocol is spoken. Whoever serves the connection learns here what the server does not
/// tell about its requests.
#[derive(Clone, Debug, Default)]
pub(in crate::proxy) struct Verdict(Arc<Shared>);

/// Why nothing more is read from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) struct End {
    pub(in crate::proxy) why: Why,
    /// In a head, the connection owes an answer that nobody else will give. In a body, whoever got
    /// the head also got a broken body, and may have answered already.
    pub(in crate::proxy) place: Place,
}

/// What a client did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Why {
    Refused(Violation),
    SlowHead,
    SlowBody,
    /// `CONNECT`: this is no way to somewhere else.
    Tunnel,
}

/// What became of a request for another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    Upgraded,
    Declined,
}

#[derive(Debug, Default)]
struct Shared {
    end: OnceLock<End>,
    switch: Mutex<Switch>,
    letterings: Mutex<VecDeque<Option<Lettering>>>,
    /// Whether somebody wants to know if the client is still there.
    is_watched: AtomicBool,
    has_left: AtomicBool,
}

#[derive(Debug, Default)]
struct Switch {
    settled: Option<Settled>,
    waiting: Option<Waker>,
}

impl Verdict {
    /// Why the client was stopped, if it was.
    pub(in crate::proxy) fn end(&self) -> Option<End> {
        self.0.end.get().copied()
    }

    /// The server agreed to another protocol (101, or 2xx to `CONNECT`). What the client sent behind
    /// its request goes on as it is.
    ///
    /// One of the two has to be called once for every request that has an `Upgrade` field or the
    /// method `CONNECT`, and for no other: until then nothing behind that request is read.
    pub(in crate::proxy) fn upgraded(&self) {
        self.settle(Settled::Upgraded);
    }

    /// The server answered in HTTP/1. What the client sent behind its request is the next one.
    pub(in crate::proxy) fn declined(&self) {
        self.settle(Settled::Declined);
    }

    /// From now on the connection looks whether the client is still there, while it waits for an answer.
    pub(in crate::proxy) fn watch(&self) {
        self.0.is_watched.store(true, Ordering::Relaxed);
    }

    /// There is an answer: nobody asks any more, and nothing is read that nobody wants yet.
    pub(in crate::proxy) fn unwatch(&self) {
        self.0.is_watched.store(false, Ordering::Relaxed);
    }

    /// Whether the client was seen to end its side of the connection. One that only waits for its answer
    /// may do that, too, but hardly any does.
    pub(in crate::proxy) fn has_left(&self) -> bool {
        self.0.has_left.load(Ordering::Relaxed)
    }

    pub(super) fn is_watched(&self) -> bool {
        self.0.is_watched.load(Ordering::Relaxed)
    }

    pub(super) fn leave(&self) {
        self.0.has_left.store(true, Ordering::Relaxed);
    }

    /// Notes why the client was stopped. Only the first reason counts.
    pub(in crate::proxy) fn finish(&self, end: End) {
        let _ = self.0.end.set(end);
    }

    /// How the names of the next request are written. To be asked once for each request, in their
    /// order: the server hands on every head that came through here, or ends the connection.
    pub(in crate::proxy) fn lettering(&self) -> Option<Lettering> {
        let mut letterings = self.0.letterings.lock().unwrap_or_else(PoisonError::into_inner);
        letterings.pop_front().flatten()
    }

    /// Notes the same, for the heads that go on now.
    pub(super) fn note(&self, letterings: impl Iterator<Item = Option<Lettering>>) {
        let mut letterings = letterings.peekable();
        if letterings.peek().is_some() {
            let mut noted = self.0.letterings.lock().unwrap_or_else(PoisonError::into_inner);
            noted.extend(letterings);
        }
    }

    /// What the server decided, once; wakes the reader when it has.
    pub(super) fn poll_settled(&self, cx: &Context<'_>) -> Poll<Settled> {
        let mut switch = self.0.switch.lock().unwrap_or_else(PoisonError::into_inner);
        match switch.settled.take() {
            Some(settled) => Poll::Ready(settled),
            None => {
                switch.waiting = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn settle(&self, settled: Settled) {
        let waiting = {
            let mut switch = self.0.switch.lock().unwrap_or_else(PoisonError::into_inner);
            switch.settled = Some(settled);
            switch.waiting.take()
        };
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

impl Why {
    /// The status to answer with.
    pub(in crate::proxy) fn status(self) -> u16 {
        match self {
            Self::Refused(violation) => violation.status(),
            Self::SlowHead | Self::SlowBody => 408,
            Self::Tunnel => 405,
        }
    }

    /// Its name in logs and metrics.
    pub(in crate::proxy) fn label(self) -> &'static str {
        match self {
            Self::Refused(violation) => violation.label(),
            Self::SlowHead => "slow_head",
            Self::SlowBody => "slow_body",
            Self::Tunnel => "tunnel",
        }
    }

    /// What to tell the client.
    pub(in crate::proxy) fn text(self) -> &'static str {
        match self {
            Self::Refused(violation) => violation.text(),
            Self::SlowHead => "the head took too long",
            Self::SlowBody => "the body came too slowly",
            Self::Tunnel => "the method CONNECT asks for a tunnel, and this gateway opens none",
        }
    }
}
