//! Asking what became of a key, without any effect.

use oncekey_core::{Answer, KeyId, Record, State, StoreError};

use super::Engine;
use super::cache::original;
use super::reply::{Refused, Replayed, Source};

/// What is known about a key.
#[derive(Debug)]
pub enum Looked {
    /// Somebody is at it. The id of the request that is.
    Running(String),
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
        let original = original(&record);
        Ok(Some(match &record.state {
            State::Running { .. } => Looked::Running(original),
            State::Unknown { .. } => Looked::Without(Refused::Unknown { original }),
            State::Parked { .. } => Looked::Without(Refused::Parked { original }),
            State::Done { .. } => self.finished(&record, original),
        }))
    }

    fn finished(&self, record: &Record, original: String) -> Looked {
        let State::Done { at, expires, answer, .. } = &record.state else {
            return Looked::Running(original);
        };
        // The store's clock, as far as we have seen it; before the first claim its own times do.
        let now = self.0.suspicion.store_time(self.0.uptime.elapsed()).unwrap_or(*at);
        if *expires <= now {
            return Looked::Without(Refused::Expired { original });
        }
        match answer {
            Answer::Kept(saved) => Looked::Done(Box::new(Replayed {
                saved: saved.clone(),
                source: Source::Record,
                age: now.since(*at),
                ttl: expires.since(now),
                original,
                fence: record.fence,
            })),
            Answer::Tombstone(tombstone) => Looked::Without(Refused::NotRetained {
                status: tombstone.status,
                reason: tombstone.reason,
                original,
            }),
        }
    }
}
