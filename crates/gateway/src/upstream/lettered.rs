//! Has hyper's server write the names of an answer as the upstream wrote them.
//!
//! That server does so if the answer has an extension that only hyper's own client can make: its type
//! has no public name. So hyper's client is shown a head with these names and nothing else, once for
//! each list of names, and what it makes of them is remembered. Rejected: writing the letters over
//! those that hyper has written, on the way to the socket; nobody there knows where a head begins.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::{Buf as _, Bytes};
use futures_util::FutureExt as _;
use http::{Extensions, Request};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::rt::{Read, ReadBufCursor, Write};

use super::head::{MAX_FIELDS, MAX_HEAD};
use crate::lettering::Lettering;

thread_local! {
    /// For each thread its own: the list is short, and nobody waits for anybody.
    static KNOWN: RefCell<HashMap<Lettering, Extensions>> = RefCell::default();
}

/// How many lists of names are remembered. A service has a few for each of its routes.
const MOST: usize = 256;
/// Which lists are not: those that are longer than the heads of most answers.
const LONGEST: usize = 2 * 1024;
/// How often hyper is asked at most; it needs two.
const TRIES: usize = 8;

/// What makes hyper write names in these letters.
pub(super) fn extensions(lettering: &Lettering) -> Extensions {
    let known = KNOWN.with_borrow(|known| known.get(lettering).cloned());
    known.unwrap_or_else(|| {
        let made = made(lettering).unwrap_or_default();
        if lettering.size() <= LONGEST {
            KNOWN.with_borrow_mut(|known| {
                // Whoever makes up names all the time gains nothing by it being remembered.
                if known.len() >= MOST {
                    known.clear();
                }
                known.insert(lettering.clone(), made.clone());
            });
        }
        made
    })
}

/// Asks hyper. Everything is in memory, so nothing here waits.
fn made(lettering: &Lettering) -> Option<Extensions> {
    // An answer of this status has no body, whatever its fields say.
    let mut head = b"HTTP/1.1 204 No Content\r\n".to_vec();
    for name in lettering.names() {
        head.extend_from_slice(name);
        head.extend_from_slice(b":\r\n");
    }
    head.extend_from_slice(b"\r\n");
    let handshake = http1::Builder::new()
        .preserve_header_case(true)
        .max_headers(MAX_FIELDS)
        .max_buf_size(usize::try_from(MAX_HEAD).unwrap_or(usize::MAX))
        .handshake(Shown { head: head.into(), asked: false });
    let (mut sender, mut connection) = handshake.now_or_never()?.ok()?;
    let mut answer = pin!(sender.send_request(Request::new(Empty::<Bytes>::new())));
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..TRIES {
        if let Poll::Ready(answer) = answer.as_mut().poll(&mut cx) {
            return Some(answer.ok()?.into_parts().0.extensions);
        }
        drop(Pin::new(&mut connection).poll(&mut cx));
    }
    None
}

/// A connection on which the answer lies ready, for whoever asks first.
struct Shown {
    head: Bytes,
    asked: bool,
}

impl Read for Shown {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.asked || this.head.is_empty() {
            return Poll::Pending;
        }
        let count = this.head.len().min(buffer.remaining());
        buffer.put_slice(&this.head[..count]);
        this.head.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl Write for Shown {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().asked = true;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lettering::Letters;

    fn lettering(names: &[String]) -> Lettering {
        let mut letters = Letters::default();
        names.iter().for_each(|name| letters.note(name.as_bytes()));
        letters.finish().unwrap()
    }

    /// hyper takes such a head, whatever its names mean, and however many there are.
    #[test]
    fn every_list_of_names_has_an_extension() {
        let many = (0..MAX_FIELDS).map(|at| format!("X-{at}")).collect();
        let framing = ["Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Trailer"];
        for names in [vec!["X".to_owned()], framing.map(str::to_owned).to_vec(), many] {
            for _ in 0..2 {
                assert_eq!(extensions(&lettering(&names)).len(), 1, "{}", names.len());
            }
        }
    }

    #[test]
    fn what_is_remembered_has_bounds() {
        for at in 0..3 * MOST {
            extensions(&lettering(&[format!("X-{at}")]));
        }
        extensions(&lettering(&["X".repeat(LONGEST + 1)]));
        KNOWN.with_borrow(|known| {
            assert!(known.len() <= MOST);
            assert!(known.keys().all(|lettering| lettering.size() <= LONGEST));
        });
    }
}
