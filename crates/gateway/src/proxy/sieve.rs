//! What a client sends over HTTP/1, stopped at the first byte that is not strictly right.
//!
//! Two servers that find the end of a message at different places can be made to see different
//! requests (T8). The HTTP library behind this forgives some of what makes them differ: a line that
//! ends with LF alone, a length beside chunks, a length said twice. So it gets only what everybody
//! reads in the same way (I37). This is a pure state machine over raw bytes: it knows where messages
//! begin and end, and nothing of sockets, time or what requests mean.
//!
//! A head goes on only when its last byte was seen and all of it was approved, because nobody must
//! act on a head that is refused later. The same holds for the line before a chunk and for
//! trailers. Bodies pass as they come.

mod authority;
mod bytes;
mod chunks;
mod field;
mod framing;
mod head;
mod lines;
mod names;
mod request;
#[cfg(test)]
pub(super) mod tests;
mod violation;

pub(super) use self::authority::is_authority;
use self::chunks::Chunks;
pub(super) use self::framing::length;
use self::head::{After, Body, Head};
pub(super) use self::names::is_protected;
pub(super) use self::request::{check_method, check_path};
pub(super) use self::violation::Violation;
use crate::lettering::Lettering;

/// Follows the messages of one connection, from the client to us.
#[derive(Debug)]
pub(super) struct Sieve {
    limits: Limits,
    state: State,
    /// What comes behind the message that is being read.
    after: After,
    /// How the names of the heads are written that have gone on since somebody asked.
    letterings: Vec<Option<Lettering>>,
}

/// How much a client may send of what has no natural end. Bodies are also capped by routes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes of a request line, with its line end.
    pub(super) line: usize,
    /// Bytes of a head, with its request line and its empty line.
    pub(super) head: usize,
    /// Field lines of a head.
    pub(super) fields: usize,
    /// Bytes of a body, without what frames it.
    pub(super) body: u64,
    /// Bytes of the line before a chunk.
    pub(super) chunk_line: usize,
    /// Bytes of all chunk extensions of a body together.
    pub(super) extensions: usize,
    /// Bytes of the trailers of a body.
    pub(super) trailers: usize,
    /// Field lines of the trailers of a body.
    pub(super) trailer_fields: usize,
}

/// What may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Passed {
    /// So many of the bytes that were shown. The others have to be shown again, with more.
    pub(super) bytes: usize,
    /// Set if nothing behind those bytes will ever go on.
    pub(super) refused: Option<Violation>,
}

/// Where in the conversation a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Before the first byte of a request, or behind the last byte of one.
    Between,
    /// In a head.
    Head,
    /// In a body or its trailers.
    Body,
    /// Behind a request that asks for another protocol. What comes now is held back until somebody
    /// calls [`Sieve::upgraded`] or [`Sieve::declined`].
    Waiting,
    /// Behind the last request of the connection. Nothing goes on any more.
    Last,
    /// In another protocol. Everything goes on.
    Open,
}

#[derive(Debug)]
enum State {
    Head(Head),
    /// In a body with so many bytes to come.
    Sized(u64),
    Chunked(Chunks),
    Waiting,
    Last,
    Open,
    Refused {
        violation: Violation,
        place: Place,
    },
}

/// What to do with the bytes at the front.
enum Step {
    /// More of them are needed.
    Hold,
    /// So many, at least one, may go on.
    Pass(usize),
    /// The same, and the body ends with them.
    End(usize),
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // Twice what common servers take: signed addresses are long.
            line: 16 * 1024,
            // A head is the most that is held back for a connection.
            head: 64 * 1024,
            // As many as hyper reads without asking for memory; it refuses more by itself, and
            // does not say why. Apache takes as many.
            fields: 100,
            // Fits every integer that others count bytes with.
            body: i64::MAX.unsigned_abs(),
            // Extensions are used by nearly nobody. Room for a signature, and a tenth of the price
            // of the chunk itself for a body that is cut into small ones.
            chunk_line: 512,
            extensions: 8 * 1024,
            // Trailers hold digests and timings, a handful of short lines.
            trailers: 8 * 1024,
            trailer_fields: 32,
        }
    }
}

impl Sieve {
    #[must_use]
    pub(super) fn new(limits: Limits) -> Self {
        let state = State::Head(Head::default());
        Self { limits, state, after: After::Next, letterings: Vec::new() }
    }

    /// Looks at `bytes`: those that the last call did not let pass, and what came since. However
    /// the client's bytes are cut, the same ones pass.
    ///
    /// The caller keeps what is held back, so that a read that holds whole messages is not copied.
    /// Nothing is looked at twice, except some bytes around a cut.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Passed {
        let mut passed = 0;
        while passed < bytes.len() {
            match self.step(&bytes[passed..]) {
                Ok(Step::Hold) => break,
                Ok(Step::Pass(count)) => passed += count,
                Ok(Step::End(count)) => {
                    passed += count;
                    self.end_message();
                }
                Err(violation) => {
                    self.refuse(violation);
                    return Passed { bytes: passed, refused: Some(violation) };
                }
            }
        }
        Passed { bytes: passed, refused: None }
    }

    /// Where the client is; if it was refused, where that happened.
    pub(super) fn place(&self) -> Place {
        match &self.state {
            State::Head(head) if head.is_begun() => Place::Head,
            State::Head(_) => Place::Between,
            State::Sized(_) | State::Chunked(_) => Place::Body,
            State::Waiting => Place::Waiting,
            State::Last => Place::Last,
            State::Open => Place::Open,
            State::Refused { place, .. } => *place,
        }
    }

    /// The server agreed to the other protocol: from here on everything passes. Means nothing
    /// unless the client is [`Place::Waiting`], so that a mistake cannot open the sieve.
    pub(super) fn upgraded(&mut self) {
        if matches!(self.state, State::Waiting) {
            self.state = State::Open;
        }
    }

    /// The server stays with HTTP/1: what was held back is the next request. Means nothing unless
    /// the client is [`Place::Waiting`].
    pub(super) fn declined(&mut self) {
        if matches!(self.state, State::Waiting) {
            self.state = State::Head(Head::default());
        }
    }

    /// For each head that has gone on since the last call, in their order, how its names are written.
    pub(super) fn letterings(&mut self) -> impl Iterator<Item = Option<Lettering>> {
        self.letterings.drain(..)
    }

    fn step(&mut self, held: &[u8]) -> Result<Step, Violation> {
        match &mut self.state {
            State::Head(head) => {
                let Some(approved) = head.read(held, &self.limits)? else {
                    return Ok(Step::Hold);
                };
                self.after = approved.after;
                self.letterings.push(approved.lettering);
                match approved.body {
                    Body::Empty => return Ok(Step::End(approved.bytes)),
                    Body::Sized(bytes) => self.state = State::Sized(bytes),
                    Body::Chunked => self.state = State::Chunked(Chunks::default()),
                }
                Ok(Step::Pass(approved.bytes))
            }
            State::Sized(left) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(held.len());
                *left -= u64::try_from(here).unwrap_or(*left);
                Ok(if *left == 0 { Step::End(here) } else { Step::Pass(here) })
            }
            State::Chunked(chunks) => chunks.step(held, &self.limits),
            State::Waiting | State::Last => Ok(Step::Hold),
            State::Open => Ok(Step::Pass(held.len())),
            State::Refused { violation, .. } => Err(*violation),
        }
    }

    fn refuse(&mut self, violation: Violation) {
        // The first byte of a head can be its last one.
        let place = match self.place() {
            Place::Between => Place::Head,
            place @ (Place::Head | Place::Body | Place::Waiting | Place::Last | Place::Open) => {
                place
            }
        };
        self.state = State::Refused { violation, place };
    }

    fn end_message(&mut self) {
        self.state = match self.after {
            After::Next => State::Head(Head::default()),
            After::Switch => State::Waiting,
            After::Nothing => State::Last,
        };
    }
}
