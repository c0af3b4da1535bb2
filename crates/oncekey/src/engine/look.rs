//! Asking what became of a key, without any effect.

use std::sync::Arc;

use oncekey_core::{Answer, KeyId, Origin, Record, State, Store as _, StoreError};

use super::cache::original;
use super::reply::{Refused, Replayed, Source};
use super::{Engine, Shared};

/// What is known about a key.
#[derive(Debug)]
pub enum Looked {
    /// Somebody is at it. The id of the request that is.
    Running(Arc<str>),
    /// It is done, and here is its answer.
    Done(Box<Replayed>),
    /// It is over, and there is no answer.
    Without(Refused),
}

impl Engine {
    /// What is known about a key; `None` if nobody has used it, or it is free again.
    ///
    /// # Errors
    /// If the store could not be asked.
    pub async fn look(&self, id: &KeyId) -> Result<Option<Looked>, StoreError> {
        let Some(record) = self.0.store.get(id).await? else { return Ok(None) };
        Ok(Some(self.looked(&record)))
    }

    /// As [`look`](Self::look), for somebody who may see the records of some routes only: `None` also if
    /// `admits` does not take the route of the record.
    ///
    /// # Errors
    /// If the store could not be asked.
    pub async fn look_under(
        &self,
        id: &KeyId,
        admits: impl Fn(&str) -> bool,
    ) -> Result<Option<Looked>, StoreError> {
        let Some(record) = self.0.store.get(id).await? else { return Ok(None) };
        // Never encrypted, so that it can be told though a key of the ring is missing.
        let route = str::from_utf8(record.origin.route.as_bytes());
        Ok(route.is_ok_and(admits).then(|| self.looked(&record)))
    }

    fn looked(&self, record: &Record) -> Looked {
        let original = original(record);
        match &record.state {
            State::Running { .. } => Looked::Running(original),
            State::Unknown { .. } => Looked::Without(Refused::Unknown { original }),
            State::Parked { .. } => Looked::Without(Refused::Parked { original }),
            State::Done { .. } => self.finished(record, original),
        }
    }

    /// The whole record of a key, with origin and answer decrypted, for operators.
    ///
    /// What cannot be decrypted stays as it is stored.
    ///
    /// # Errors
    /// If the store could not be asked.
    pub async fn inspect(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        let Some(mut record) = self.0.store.get(id).await? else { return Ok(None) };
        let opened = match &record.state {
            State::Done { answer: Answer::Kept(saved), .. } => self.0.opened(&record, saved),
            State::Done { .. }
            | State::Running { .. }
            | State::Unknown { .. }
            | State::Parked { .. } => None,
        };
        if let Some(origin) = self.0.origin_of(&record) {
            record.origin = origin;
        }
        if let (State::Done { answer, .. }, Some(saved)) = (&mut record.state, opened) {
            *answer = Answer::Kept(saved);
        }
        Ok(Some(record))
    }

    fn finished(&self, record: &Record, original: Arc<str>) -> Looked {
        let State::Done { at, expires, answer, .. } = &record.state else {
            return Looked::Running(original);
        };
        // The store's clock, as far as we have seen it. Before the first claim ours stands in for
        // it: this is a look, which decides nothing.
        let seen = self.0.suspicion.store_time(self.0.uptime.elapsed());
        let now = seen.unwrap_or_else(|| self.0.clock.now());
        if *expires <= now {
            return Looked::Without(Refused::Expired { original });
        }
        match answer {
            Answer::Kept(saved) => match self.0.opened(record, saved) {
                Some(saved) => Looked::Done(Box::new(Replayed {
                    saved,
                    source: Source::Record,
                    age: now.since(*at),
                    ttl: expires.since(now),
                    original,
                    fence: Some(record.fence),
                })),
                None => Looked::Without(Refused::Damaged),
            },
            Answer::Tombstone(tombstone) => Looked::Without(Refused::NotRetained {
                status: tombstone.status,
                reason: tombstone.reason,
                original,
            }),
        }
    }
}

impl Shared {
    /// Where the request of a record came from; `None` if that cannot be decrypted.
    pub(super) fn origin_of(&self, record: &Record) -> Option<Origin> {
        let opened = self.vault.open_origin(&self.namespace, self.pepper.as_ref(), record);
        if let Err(error) = &opened {
            tracing::warn!(%error, fence = %record.fence, "the origin of a record cannot be read");
        }
        opened.ok()
    }
}
