//! What many flows say to the database outside of their own transactions, said at once.
//!
//! A flow's start, its intents and the outcomes of its calls are single statements, each a transaction
//! of its own: a round trip, a commit, and two more round trips for a pool that looks after its
//! connections. With many flows in flight that adds up. So those that come while others are
//! under way gather, and go together as one statement over a list. Whoever is alone leaves at once, with
//! the plain statement.
//!
//! Only on PostgreSQL: SQLite has one writer and no round trips, and MySQL tells nobody which rows of a
//! list it met.

#[cfg(test)]
#[cfg(all(feature = "postgres", feature = "flow-tokio-postgres"))]
mod tests;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use oncekey_core::{ErrorKind, KeyId, StoreError};

use super::store::{TxError, TxStore, TxTrouble, Value};
use super::tables::Dialect;
use crate::store::group::{Answers, Backend, Company, Failure, Group, Limits, Mixing, Operation};

/// The way to the database that the flows of a program share.
#[derive(Debug)]
pub(crate) struct Gather<S: TxStore> {
    store: S,
    group: OnceLock<Group<Said>>,
}

/// One statement of one flow.
#[derive(Debug)]
pub(crate) struct Said {
    what: What,
    id: KeyId,
    values: Vec<Owned>,
}

/// Which statement it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// What came of a call. First: somebody may be waiting for the whole flow.
    Outcome,
    Intend,
    Start,
    /// Whether a flow is there. What is met then is that it is not, and the time.
    Look,
}

/// A value that waits for company.
#[derive(Debug)]
enum Owned {
    Int(i64),
    Bytes(Vec<u8>),
    Text(String),
}

/// What a statement met: nothing, or a row with a number in it.
type Met = Result<Option<i64>, TxError>;

/// Three lists under way, and nobody waits for company: with two that waited, flows waited for each other
/// while the server had nothing to do (with 32 in flight 0.43 of what a request without any safety does,
/// instead of 0.46). Sixty-four short rows are a few milliseconds of the server's time; larger ones go in
/// shorter lists. A queue that is never full before the pool gives up, because every flow is a task of
/// the caller's already. What waits longer than the lease of a flow is of no use to it any more.
const LIMITS: Limits = Limits {
    writers: 3,
    batch: 64,
    bytes: 256 * 1024,
    queue: 100_000,
    company: Company::None,
    mixing: Mixing::Apart,
    patience: Duration::from_secs(30),
    connect: Duration::from_secs(30),
    run: Duration::from_secs(30),
};

impl<S: TxStore> Gather<S> {
    pub(crate) const fn new(store: S) -> Self {
        Self { store, group: OnceLock::new() }
    }

    pub(crate) const fn store(&self) -> &S {
        &self.store
    }

    /// Has one statement said, alone or in company.
    ///
    /// After [`TxTrouble::Unavailable`] nobody knows whether it was: whoever asks looks first, as after
    /// a crash. Dropping the future does not take it back. Its fence decides, whenever it is said.
    pub(crate) async fn say(&self, what: What, id: KeyId, values: &[Value<'_>]) -> Met {
        if self.store.layout().dialect() != Dialect::Postgres {
            return alone(&self.store, what, values).await;
        }
        let values = values.iter().map(Owned::from).collect();
        let group =
            self.group.get_or_init(|| Group::start(&Arc::new(Server(self.store.clone())), LIMITS));
        let answer = group.ask(Said { what, id, values }).await;
        answer.unwrap_or_else(|error| Err(TxError::new(TxTrouble::Unavailable, error)))
    }
}

/// Has it said by itself.
async fn alone<S: TxStore>(store: &S, what: What, values: &[Value<'_>]) -> Met {
    let sql = store.layout().sql();
    match what {
        What::Start => {
            let rows = store.query_once(&sql.start, values).await?;
            rows.first().map(|row| row.int(0)).transpose()
        }
        What::Look => {
            let rows = store.query_once(&sql.absent, values).await?;
            rows.first().map(|row| row.int(0)).transpose()
        }
        What::Intend => Ok(met(store.execute_once(&sql.intend, values).await?)),
        What::Outcome => Ok(met(store.execute_once(&sql.outcome, values).await?)),
    }
}

const fn met(rows: u64) -> Option<i64> {
    if rows == 0 { None } else { Some(1) }
}

struct Server<S>(S);

impl<S: TxStore> Backend for Server<S> {
    type Op = Said;
    /// The pool has them.
    type Connection = ();

    async fn connect(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn run(&self, _: &mut (), batch: &[Said]) -> Result<Answers<Said>, Failure> {
        let [first, ..] = batch else { return Ok(Vec::new()) };
        if batch.len() == 1 {
            let values: Vec<_> = first.values.iter().map(Value::from).collect();
            return Ok(vec![Ok(alone(&self.0, first.what, &values).await)]);
        }
        let rows: Vec<serde_json::Value> = batch.iter().map(Said::to_json).collect();
        let list = serde_json::Value::from(rows).to_string();
        let many = self.0.layout().sql().many(first.what);
        let met = self.0.query_once(many, &[Value::Text(&list)]).await.map_err(failure)?;
        let mut by_id = std::collections::HashMap::with_capacity(met.len());
        for row in met {
            let (Ok(id), Ok(number)) = (row.array(0), row.int(1)) else {
                return Err(failure(TxError::damaged()));
            };
            by_id.insert(KeyId::from_bytes(id), number);
        }
        Ok(batch.iter().map(|said| Ok(Ok(by_id.get(&said.id).copied()))).collect())
    }
}

/// What was refused is said one by one, and everybody hears what is said to them.
fn failure(error: TxError) -> Failure {
    let kind = error.kind();
    let error = StoreError::new(ErrorKind::Unavailable, error.to_string()).with_source(error);
    match kind {
        TxTrouble::Unavailable | TxTrouble::Damaged => Failure::Unknown(error),
        TxTrouble::Conflict | TxTrouble::Duplicate | TxTrouble::Refused => Failure::Refused(error),
    }
}

impl Operation for Said {
    type Reply = Met;

    const RANKS: usize = 4;

    fn rank(&self) -> usize {
        match self.what {
            What::Outcome => 0,
            What::Intend => 1,
            What::Start => 2,
            What::Look => 3,
        }
    }

    fn ids(&self) -> impl Iterator<Item = KeyId> {
        std::iter::once(self.id)
    }

    fn size(&self) -> usize {
        let size = |value: &Owned| match value {
            Owned::Int(_) => 8,
            Owned::Bytes(bytes) => bytes.len() * 2,
            Owned::Text(text) => text.len(),
        };
        self.values.iter().map(size).sum()
    }
}

impl Said {
    /// A row of the list: bytes are written in hexadecimal digits.
    fn to_json(&self) -> serde_json::Value {
        let value = |value: &Owned| match value {
            Owned::Int(number) => serde_json::Value::from(*number),
            Owned::Bytes(bytes) => serde_json::Value::from(hex(bytes)),
            Owned::Text(text) => serde_json::Value::from(text.as_str()),
        };
        self.values.iter().map(value).collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |half: u8| char::from(DIGITS[usize::from(half)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

impl From<&Value<'_>> for Owned {
    fn from(value: &Value<'_>) -> Self {
        match *value {
            Value::Int(number) => Self::Int(number),
            Value::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
            Value::Text(text) => Self::Text(text.to_owned()),
            Value::NoInt | Value::NoBytes => unreachable!("none of the three has empty columns"),
        }
    }
}

impl<'v> From<&'v Owned> for Value<'v> {
    fn from(value: &'v Owned) -> Self {
        match value {
            Owned::Int(number) => Self::Int(*number),
            Owned::Bytes(bytes) => Self::Bytes(bytes),
            Owned::Text(text) => Self::Text(text),
        }
    }
}
