//! Writing messages into the caller's transaction.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::message::{BadMessage, MessageId, Staged};
use super::sql::{MANY, Statements};
use crate::entropy::Entropy as _;
use crate::flow::{AtEnd, Dialect, Halt, PhaseTx, TxError, TxStore, Value, WakeAtEnd};

/// The outbox of a database: stages in transactions of the application, and looks after dead letters.
#[derive(Clone, Debug)]
pub struct Outbox<S: TxStore> {
    pub(super) store: S,
}

/// Why nothing was staged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// The message cannot be staged.
    #[error(transparent)]
    Bad(#[from] BadMessage),
    /// The database refused. A conflict means that the whole transaction may be tried again.
    #[error(transparent)]
    Store(#[from] TxError),
}

impl From<StageError> for Halt {
    fn from(error: StageError) -> Self {
        match error {
            StageError::Bad(bad) => Self::park(bad.to_string()),
            StageError::Store(error) => error.into(),
        }
    }
}

impl<S: TxStore> Outbox<S> {
    /// The outbox beside the flows of this store.
    #[must_use]
    pub const fn new(store: S) -> Self {
        Self { store }
    }

    /// Stages a message in a transaction that the application has begun on this connection. It is sent
    /// if and only if that commits. Call [`wake`](Self::wake) after the commit, or let the relay find it
    /// by polling.
    ///
    /// # Errors
    /// If the message cannot be staged, or the database refuses.
    pub async fn stage(&self, conn: &mut S::Conn, staged: Staged) -> Result<MessageId, StageError> {
        let ids = self.stage_all(conn, vec![staged]).await?;
        ids.into_iter().next().ok_or_else(|| TxError::damaged().into())
    }

    /// Stages several messages, fifty in a statement.
    ///
    /// # Errors
    /// As of [`stage`](Self::stage). Nothing is staged if one of them cannot be; after an error of the
    /// database some may be in the transaction, which is then to be rolled back.
    pub async fn stage_all(
        &self,
        conn: &mut S::Conn,
        staged: Vec<Staged>,
    ) -> Result<Vec<MessageId>, StageError> {
        put(&self.store, conn, None, staged).await
    }

    /// Wakes a relay in this process. Others find the message by polling.
    pub fn wake(&self) {
        self.store.layout().outbox().wake.notify_one();
    }
}

impl<S: TxStore> PhaseTx<S> {
    /// Stages a message with a body in JSON. It is sent if and only if the phase commits.
    ///
    /// # Errors
    /// If the body has no form in JSON or the database refuses.
    pub async fn stage(
        &mut self,
        topic: impl Into<String>,
        body: &(impl Serialize + ?Sized),
    ) -> Result<MessageId, Halt> {
        let staged = Staged::new(topic, body).map_err(StageError::from)?;
        self.stage_with(staged).await
    }

    /// The same, with everything that can be said about a message.
    ///
    /// # Errors
    /// As of [`stage`](Self::stage).
    pub async fn stage_with(&mut self, staged: Staged) -> Result<MessageId, Halt> {
        let conn = S::conn(&mut self.tx);
        let flow = self.flow.as_ref().map(|id| id.as_bytes().as_slice());
        let ids = put(&self.store, conn, flow, vec![staged]).await?;
        let wake = &self.store.layout().outbox().wake;
        self.wake.get_or_insert_with(|| WakeAtEnd(Arc::clone(wake)));
        ids.into_iter().next().ok_or_else(|| TxError::damaged().into())
    }

    /// Leaves a message with a body in JSON for the end of the phase: it is staged when the body of the phase
    /// has returned, and sent if and only if the phase commits. At the end of a flow on PostgreSQL this is a
    /// round trip less than [`stage`](Self::stage). A savepoint that is rolled back does not take it back.
    ///
    /// # Errors
    /// If the body has no form in JSON.
    pub fn stage_at_end(
        &mut self,
        topic: impl Into<String>,
        body: &(impl Serialize + ?Sized),
    ) -> Result<MessageId, Halt> {
        let staged = Staged::new(topic, body).map_err(StageError::from)?;
        staged.check().map_err(StageError::from)?;
        let headers = serde_json::to_vec(&staged.headers)
            .map_err(|_| StageError::from(BadMessage::Header))?;
        let mut id = [0; 16];
        let outbox = self.store.layout().outbox();
        outbox.entropy.fill(&mut id);
        self.at_end.push(AtEnd { id, topic: staged.topic, headers, body: staged.body });
        self.wake.get_or_insert_with(|| WakeAtEnd(Arc::clone(&outbox.wake)));
        Ok(MessageId(id))
    }
}

/// How many rows the order keys share in MySQL. Two keys of one row wait for each other and are not
/// wrong; with so many, it is rare.
const SLOTS: u64 = 4_096;

/// The lock of an order key: a number that PostgreSQL locks by, or a row of the slots.
fn lock_of(dialect: Dialect, key: &str) -> i64 {
    let mut digest = Sha256::new();
    digest.update(b"oncekey/order-key/1\0");
    digest.update(key);
    let digest: [u8; 32] = digest.finalize().into();
    let number = digest.iter().take(8).fold(0_u64, |number, byte| (number << 8) | u64::from(*byte));
    match dialect {
        Dialect::Mysql => i64::try_from(number % SLOTS).unwrap_or(0),
        Dialect::Sqlite | Dialect::Postgres => number.cast_signed(),
    }
}

async fn put<S: TxStore>(
    store: &S,
    conn: &mut S::Conn,
    flow: Option<&[u8]>,
    mut staged: Vec<Staged>,
) -> Result<Vec<MessageId>, StageError> {
    for message in &mut staged {
        message.check()?;
        if message.id.is_none() {
            let mut id = [0; 16];
            store.layout().outbox().entropy.fill(&mut id);
            message.id = Some(MessageId(id));
        }
    }
    let layout = store.layout();
    let sql = &layout.outbox().sql;
    queue_up::<S>(conn, sql, layout.dialect(), &staged).await?;
    for message in staged.iter().filter(|message| !message.collapse.is_empty()) {
        S::execute(conn, &sql.collapse, &[Value::Text(&message.collapse)]).await?;
    }
    let mut rows = Vec::with_capacity(staged.len());
    for message in &staged {
        let headers = serde_json::to_vec(&message.headers).map_err(|_| BadMessage::Header)?;
        rows.push((message, headers));
    }
    for chunk in rows.chunks(MANY) {
        let values: Vec<_> = chunk.iter().map(|row| values(flow, row)).collect();
        if chunk.len() == MANY {
            S::execute(conn, &sql.stage_many, &values.concat()).await?;
            continue;
        }
        for values in values {
            S::execute(conn, &sql.stage, &values).await?;
        }
    }
    Ok(staged.iter().filter_map(|message| message.id).collect())
}

/// Waits for whoever has staged under the same order keys before a number is drawn, so that messages of
/// a key become visible in the order of their numbers. In one order, so that two who stage several keys
/// at once do not wait for each other.
async fn queue_up<S: TxStore>(
    conn: &mut S::Conn,
    sql: &Statements,
    dialect: Dialect,
    staged: &[Staged],
) -> Result<(), TxError> {
    let Some(queue_up) = &sql.queue_up else { return Ok(()) };
    let keys = staged.iter().map(|message| message.order_key.as_str());
    let mut locks: Vec<_> =
        keys.filter(|key| !key.is_empty()).map(|key| lock_of(dialect, key)).collect();
    locks.sort_unstable();
    locks.dedup();
    for lock in locks {
        S::execute(conn, queue_up, &[Value::Int(lock)]).await?;
    }
    Ok(())
}

/// No owner: nobody has taken it.
const NOBODY: [u8; 16] = [0; 16];

fn values<'v>(
    flow: Option<&'v [u8]>,
    (message, headers): &'v (&'v Staged, Vec<u8>),
) -> [Value<'v>; 9] {
    let id = message.id.as_ref().map_or(&NOBODY, MessageId::as_bytes);
    [
        Value::Bytes(id),
        flow.map_or(Value::NoBytes, Value::Bytes),
        Value::Text(&message.topic),
        Value::Text(&message.order_key),
        Value::Text(&message.collapse),
        Value::Bytes(headers),
        Value::Bytes(&message.body),
        Value::Int(micros(message.after)),
        Value::Bytes(&NOBODY),
    ]
}

/// A length of time as the database counts it.
pub(super) fn micros(time: Duration) -> i64 {
    // A century is as good as never, and can be added to the time.
    const LONGEST: i64 = 100 * 365 * 86_400 * 1_000_000;
    i64::try_from(time.as_micros()).unwrap_or(LONGEST).min(LONGEST)
}
