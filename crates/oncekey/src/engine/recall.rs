//! Replays: from memory, or from a record that goes into memory.

use std::sync::Arc;
use std::time::Duration;

use oncekey_core::{Answer, Grant, KeyId, Record, Saved, State, Timestamp};

use super::attempt::Held;
use super::cache::{Entry, Read, original};
use super::call::Exact;
use super::claim::Win;
use super::reply::{Refused, Replayed, Reply, Source};
use super::{Call, Engine, Shared};

/// What memory knows about the key of a request.
#[cfg(feature = "tower")]
pub(crate) enum Recalled {
    /// The answer to the very same request.
    Same(Box<Replayed>),
    /// Something, but whether the requests are the same is for their fingerprints to say.
    Other,
    /// Nothing, at this moment by uptime.
    Nothing(Duration),
}

impl Engine {
    /// Answers a request from what was given a moment ago, if it was, and if the request is the same
    /// byte for byte: most retries are, and then nobody needs a fingerprint. A call brings its bytes
    /// along as [`Call::exact`].
    #[must_use]
    pub fn recall(&self, id: &KeyId, exact: Exact) -> Option<Replayed> {
        let now = self.0.uptime.elapsed();
        let entry = self.0.finished.find(id, now, self.0.suspicion.steps())?;
        (entry.exact == Some(exact)).then(|| entry.replay(now))
    }

    /// The same, for somebody who goes on to [`answer_anew`](Self::answer_anew) if nothing is known.
    #[cfg(feature = "tower")]
    pub(crate) fn look_back(&self, id: &KeyId, exact: Exact) -> Recalled {
        let now = self.0.uptime.elapsed();
        match self.0.finished.find(id, now, self.0.suspicion.steps()) {
            Some(entry) if entry.exact == Some(exact) => {
                Recalled::Same(Box::new(entry.replay(now)))
            }
            Some(_) => Recalled::Other,
            None => Recalled::Nothing(now),
        }
    }
}

impl Shared {
    /// Answers from what was read a moment ago.
    pub(super) fn answer_from_memory<T>(
        &self,
        call: &Call,
        id: &KeyId,
        now: Duration,
    ) -> Option<Reply<T>> {
        let entry = self.finished.find(id, now, self.suspicion.steps())?;
        if entry.fingerprint == call.fingerprint {
            return Some(Reply::Replayed(entry.replay(now)));
        }
        Some(Reply::Refused(Refused::Mismatch {
            differs: entry.places.differing(&call.places),
            original: Arc::clone(&entry.original),
            first_used: entry.created,
        }))
    }

    /// Replays a finished record, and keeps it in memory.
    pub(super) fn replay(
        &self,
        call: &Call,
        record: &Record,
        (now, asked, erasures): (Timestamp, Duration, u64),
    ) -> Win {
        let State::Done { at, expires, answer: Answer::Kept(saved), .. } = &record.state else {
            return Win::Refused(Refused::Damaged);
        };
        let Some(saved) = self.opened(record, saved) else {
            return Win::Refused(Refused::Damaged);
        };
        let original = original(record);
        let replayed = Replayed {
            saved: saved.clone(),
            source: Source::Record,
            age: now.since(*at),
            ttl: expires.since(now),
            original: Arc::clone(&original),
            fence: Some(record.fence),
        };
        // Counted from the question and not from the answer, which may have been long under way:
        // so the store's clock, as memory reckons it, is never behind the real one (I27).
        let read = Read { store: now, uptime: asked, steps: self.suspicion.steps() };
        let entry = Entry {
            fingerprint: record.fingerprint,
            exact: call.exact,
            places: record.places.clone(),
            created: record.created,
            original,
            fence: record.fence,
            saved,
            at: *at,
            expires: *expires,
            read,
        };
        self.finished.keep(record.id, entry, erasures);
        Win::Replayed(Box::new(replayed))
    }

    /// Keeps an answer in memory that the store has just taken. The store was asked at `now` and
    /// has not said when it recorded it, so the times are reckoned from the claim and never late:
    /// what memory replays, the store would replay too (I27).
    pub(super) fn remember(&self, held: &Held, saved: Saved, now: Duration, erasures: u64) {
        let (Some(grip), call) = (&held.grip, &held.call) else { return };
        let claimed = match grip.grant {
            Grant::Fresh | Grant::Reused => grip.lease.until.before(grip.span),
            // When this generation began is not known here.
            Grant::Again | Grant::TakenOver => return,
        };
        let at = claimed.after(now.saturating_sub(held.began));
        let entry = Entry {
            fingerprint: call.fingerprint,
            exact: call.exact,
            places: call.places.clone(),
            created: claimed,
            original: call.request.shared(),
            fence: grip.lease.fence,
            saved,
            at,
            expires: at.after(call.policy.retention),
            read: Read { store: claimed, uptime: grip.asked, steps: grip.steps },
        };
        self.finished.keep(held.id, entry, erasures);
    }
}
