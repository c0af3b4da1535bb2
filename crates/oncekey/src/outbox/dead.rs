//! Dead letters, and how much there is.

use std::fmt;
use std::time::Duration;

use oncekey_core::Timestamp;

use super::message::MessageId;
use super::stage::Outbox;
use crate::flow::{TxError, TxStore, Value};

/// A message that was given up. Everything about it is kept.
#[derive(Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its id, which a replay keeps.
    pub id: MessageId,
    /// What it is about.
    pub topic: String,
    /// How often it was tried.
    pub attempts: i64,
    /// What the last attempt said.
    pub reason: String,
    /// When it was staged.
    pub created: Timestamp,
}

impl fmt::Debug for DeadLetter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "DeadLetter({}, {}, {} attempts)", self.id, self.topic, self.attempts)
    }
}

/// What came of a replay or a discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// It was done.
    Yes,
    /// There is no dead letter of this id.
    NotFound,
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Messages that wait, are being delivered, or are to be delivered later.
    pub waiting: u64,
    /// How long ago the oldest of them was staged.
    pub oldest: Duration,
    /// Dead letters.
    pub dead: u64,
}

impl<S: TxStore> Outbox<S> {
    /// The oldest dead letters.
    ///
    /// # Errors
    /// If the database cannot be asked.
    pub async fn dead_letters(&self, at_most: u32) -> Result<Vec<DeadLetter>, TxError> {
        let sql = &self.store.layout().outbox().sql;
        let rows = self.store.query_once(&sql.dead, &[Value::Int(at_most.into())]).await?;
        rows.iter()
            .map(|row| {
                Ok(DeadLetter {
                    id: MessageId(row.array(0)?),
                    topic: row.text(1)?.to_owned(),
                    attempts: row.int(2)?,
                    reason: row.text(3)?.to_owned(),
                    created: Timestamp::from_micros(row.int(4)?),
                })
            })
            .collect()
    }

    /// Lets a dead letter be delivered again, under its id and with all its attempts before it.
    ///
    /// # Errors
    /// If the database cannot be asked. It may be repeated.
    pub async fn replay(&self, id: MessageId) -> Result<Replayed, TxError> {
        let done = self.on(&self.store.layout().outbox().sql.replay, id).await?;
        self.wake();
        Ok(done)
    }

    /// Deletes a dead letter. Messages of its order key that wait behind it go on.
    ///
    /// # Errors
    /// If the database cannot be asked. It may be repeated.
    pub async fn discard(&self, id: MessageId) -> Result<Replayed, TxError> {
        self.on(&self.store.layout().outbox().sql.discard, id).await
    }

    async fn on(&self, sql: &std::sync::Arc<str>, id: MessageId) -> Result<Replayed, TxError> {
        match self.store.execute_once(sql, &[Value::Bytes(id.as_bytes())]).await? {
            0 => Ok(Replayed::NotFound),
            _ => Ok(Replayed::Yes),
        }
    }

    /// Counts what there is, and sets the gauges. It reads everything that waits: once a minute is
    /// often enough.
    ///
    /// # Errors
    /// If the database cannot be asked.
    pub async fn backlog(&self) -> Result<Backlog, TxError> {
        let sql = &self.store.layout().outbox().sql;
        let rows = self.store.query_once(&sql.waiting, &[]).await?;
        let row = rows.first().ok_or_else(TxError::damaged)?;
        let (waiting, created, now) = (row.int(0)?, row.int(1)?, row.int(2)?);
        let rows = self.store.query_once(&sql.dead_count, &[]).await?;
        let dead = rows.first().ok_or_else(TxError::damaged)?.int(0)?;
        let age = if waiting == 0 { 0 } else { now.saturating_sub(created) };
        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        let backlog = Backlog {
            waiting: count(waiting),
            oldest: Duration::from_micros(count(age)),
            dead: count(dead),
        };
        let float = |number: u64| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
        metrics::gauge!("oncekey_outbox_waiting").set(float(backlog.waiting));
        metrics::gauge!("oncekey_outbox_oldest_seconds").set(backlog.oldest.as_secs_f64());
        metrics::gauge!("oncekey_outbox_dead").set(float(backlog.dead));
        Ok(backlog)
    }
}
