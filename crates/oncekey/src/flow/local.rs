//! A handler that only writes to its own database: one transaction, and the key row is the receipt.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncekey_core::decide::Refusal;
use oncekey_core::saved::{NotKept, Tombstone};
use oncekey_core::seal::RECORD_FORMAT;
use oncekey_core::{
    Answer, Claim, Claimed, Class, Completion, Fingerprint, KeyId, Lease, Origin, Owner, Places,
    Record, Sent, State, StateKind, Store, StoreError, Timestamp,
};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::halt::Halt;
use super::outcome::{FlowKey, Outcome, Source};
use super::point::PhaseTx;
use super::reply::Reply;
use super::store::{Open, TxError, TxStore, TxTrouble, Value};
use super::tables::Dialect;
use crate::entropy::{Entropy, SystemEntropy};
use crate::store::parts::CompletionParts;

/// Handlers that are one transaction each.
///
/// The key is claimed in a key store whose tables are in the same database as the application's. The
/// last statement of the handler's transaction completes the record under the fence. So after a crash
/// either both are there, the rows and the answer, or neither is, and whoever comes next may begin: the
/// class of these records is `tx`.
///
/// Answers are kept as they are: without the engine there is no encryption.
pub struct Local<S: TxStore> {
    keys: Arc<dyn Store>,
    db: S,
    namespace: String,
    times: Times,
    entropy: Arc<dyn Entropy>,
    sql: Arc<Sql>,
}

/// How long things last.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// How long the handler has before another request may take its place. It is not renewed.
    pub lease: Duration,
    /// How long an answer is given again.
    pub retention: Duration,
    /// How long after that a late retry is told that it is too late.
    pub linger: Duration,
}

impl Default for Times {
    fn default() -> Self {
        // Those of routes. A transaction that takes longer than the lease blocks others anyway.
        Self {
            lease: Duration::from_secs(30),
            retention: Duration::from_secs(24 * 60 * 60),
            linger: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// Larger answers become tombstones: what is in the row of a key travels with every replay.
const LARGEST: usize = 1 << 20;
/// How often a transaction is tried when others are in the way.
const TRIES: u32 = 8;

/// The completion of a record, from inside of the application's transaction.
struct Sql {
    /// Finds the row, where rows are not found by their key id.
    find: Arc<str>,
    complete: Arc<str>,
    answer: Arc<str>,
}

impl Sql {
    fn new(db: &impl TxStore) -> Self {
        let of = |text: &str| db.layout().statement(text);
        let done = StateKind::Done.code();
        // What may still be completed: whatever is not done.
        let [running, unknown, parked] =
            [StateKind::Running, StateKind::Unknown, StateKind::Parked].map(StateKind::code);
        let held = format!(
            "key_id = ? AND fence = ? AND owner = ? AND format = {RECORD_FORMAT} \
             AND state IN ({running}, {unknown}, {parked})"
        );
        // The times are those of the core: a fence that is ahead of the clock counts, by a day.
        let at = "greatest(n.now, least(r.fence, n.now + 86400000000))";
        let set = format!(
            "expires = {at} + ?, forget = {at} + ?, due = {at} + ?, status = ?, not_kept = ?, \
             outcome = ?, answer_seal = ?, headers = ?, body = ?"
        );
        let complete = match db.layout().dialect() {
            Dialect::Postgres => format!(
                "UPDATE {{records}} AS r SET state = {done}, at = {at}, {set} \
                 FROM (SELECT {{now}} AS now OFFSET 0) AS n WHERE {held} \
                 AND current_setting('oncekey.phase', true) = 'on'"
            ),
            Dialect::Mysql => format!(
                "UPDATE {{records}} AS r JOIN (SELECT {{now}} AS now) AS n \
                 SET state = {done}, at = {at} WHERE {held}"
            ),
            Dialect::Sqlite => {
                format!("UPDATE {{records}} SET state = {done}, at = ? WHERE id = ?")
            }
        };
        let answer = match db.layout().dialect() {
            // By the time that the record has just been given.
            Dialect::Mysql => {
                "INSERT INTO {answers} (fence, key_id, expires, forget, due, status, not_kept, \
                 outcome, seal, headers, body, pieces) SELECT r.fence, r.key_id, r.at + ?, \
                 r.at + ?, r.at + ?, ?, ?, ?, ?, ?, ?, 0 FROM {records} AS r WHERE r.key_id = ?"
            }
            Dialect::Postgres | Dialect::Sqlite => {
                "INSERT INTO {answers} (record, expires, forget, due, status, not_kept, outcome, \
                 seal, headers, pieces, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?)"
            }
        };
        Self {
            find: of(&format!(
                "SELECT r.id, {{now}} FROM (SELECT record FROM {{fresh}} WHERE hash = ? \
                 UNION ALL SELECT record FROM {{settled}} WHERE hash = ?) AS m \
                 JOIN {{records}} AS r ON r.id = m.record WHERE {held}"
            )),
            complete: of(&complete),
            answer: of(answer),
        }
    }
}

/// Runs a handler that only writes to its own database, in one transaction with the record of its key.
///
/// `body` makes the code of one try, `|| async |tx: &mut PhaseTx<_>| …`: a closure that is called more
/// than once and borrows the transaction could not be sent between threads otherwise. It may be called
/// several times, if other transactions are in the way (40001, 40P01, 1213, 1205,
/// `SQLITE_BUSY`); what it wrote before is rolled back each time. Its reply is stored with its rows.
/// [`Halt::Stop`] rolls its rows back and stores the reply alone.
///
/// # Errors
/// What `body` returns besides; then the key is free again. [`Halt::Fenced`] if another request took
/// its place. [`Halt::Retry`] if the database cannot be asked: whether it was done, the same request
/// finds out.
///
/// # Cancellation
/// Dropping it rolls back and frees the key. While the commit is under way it may be done all the same, and
/// while the claim is under way the key may stay busy until its lease lapses.
pub async fn tx<S, I, M, F>(
    local: &Local<S>,
    key: &FlowKey,
    input: &I,
    body: M,
) -> Result<Outcome, Halt>
where
    S: TxStore,
    I: Serialize + ?Sized,
    M: Fn() -> F,
    F: AsyncFnOnce(&mut PhaseTx<S>) -> Result<Reply, Halt>,
{
    let claim = local.claim(key, input)?;
    let lease = match local.keys.claim(&claim).await.map_err(unasked)? {
        Claimed::Won { lease, .. } => lease,
        Claimed::Lost { refusal, record, now } => return refused(refusal, &record, now),
    };
    let mut guard = Guard { keys: Arc::clone(&local.keys), lease: Some(lease) };
    let ended = local.transactions(&lease, &body).await;
    match ended {
        Ok(reply) => {
            guard.lease = None;
            Ok(Outcome::Replied { reply, source: Source::Fresh })
        }
        Err(halt @ Halt::Park(_)) => {
            // Somebody ended the transaction: what was written is there, and the answer is not.
            guard.lease = None;
            local.keys.unknown(&lease).await.map(drop).map_err(unasked)?;
            Err(halt)
        }
        Err(halt) => {
            guard.lease = None;
            local.keys.release(&lease).await.map(drop).map_err(unasked)?;
            Err(halt)
        }
    }
}

impl<S: TxStore> Local<S> {
    /// Handlers on this database. The tables of `keys` must be in it: the same schema for PostgreSQL,
    /// the same prefix for MySQL, the same file for SQLite (`Placement::Shared`).
    #[must_use]
    pub fn new(keys: Arc<dyn Store>, db: S, namespace: impl Into<String>) -> Self {
        let sql = Arc::new(Sql::new(&db));
        let (namespace, times) = (namespace.into(), Times::default());
        Self { keys, db, namespace, times, entropy: Arc::new(SystemEntropy::default()), sql }
    }

    /// How long things last.
    #[must_use]
    pub fn times(mut self, times: Times) -> Self {
        self.times = times;
        self
    }

    fn claim<I: Serialize + ?Sized>(&self, key: &FlowKey, input: &I) -> Result<Claim, Halt> {
        let input =
            serde_json::to_vec(input).map_err(|_| Halt::park("the input has no form in JSON"))?;
        let mut digest = Sha256::new();
        digest.update(b"oncekey/local-input/1\0");
        digest.update(&input);
        let mut owner = [0; 16];
        self.entropy.fill(&mut owner);
        Ok(Claim {
            id: KeyId::derive(&self.namespace, &key.scope, &key.key, None),
            owner: Owner::from_bytes(owner),
            fingerprint: Fingerprint::from_parts(1, digest.finalize().into()),
            class: Class::Tx,
            lease: self.times.lease,
            grace: Duration::ZERO,
            sent: Sent::No,
            origin: Origin {
                key: key.key.as_bytes().into(),
                scope: key.scope.as_bytes().into(),
                ..Origin::default()
            },
            places: Places::default(),
        })
    }

    /// Tries the transaction until nobody is in the way.
    async fn transactions<M, F>(&self, lease: &Lease, body: &M) -> Result<Reply, Halt>
    where
        M: Fn() -> F,
        F: AsyncFnOnce(&mut PhaseTx<S>) -> Result<Reply, Halt>,
    {
        let mut pause = Duration::from_millis(2);
        for _ in 1..TRIES {
            match self.transaction(lease, body()).await {
                // What a conflict comes to, and nothing else.
                Err(Halt::Retry { after: Some(_), .. }) => {}
                ended => return ended,
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        self.transaction(lease, body()).await
    }

    async fn transaction<F>(&self, lease: &Lease, body: F) -> Result<Reply, Halt>
    where
        F: AsyncFnOnce(&mut PhaseTx<S>) -> Result<Reply, Halt>,
    {
        let mut tx = self.begun().await?;
        let reply = match tx.run(body).await {
            Ok(reply) => reply,
            Err(Halt::Stop(reply)) => {
                S::rollback(tx.tx).await?;
                tx = self.begun().await?;
                reply
            }
            Err(halt) => {
                let _ = S::rollback(tx.tx).await;
                return Err(halt);
            }
        };
        let completion = self.completion(&reply);
        let parts = CompletionParts::new(lease, &completion, 0);
        let open = S::still_open(S::conn(&mut tx.tx)).await?;
        let met = match open {
            Open::Ended => 0,
            Open::Yes | Open::AskedLater => self.complete(&mut tx.tx, lease, &parts).await?,
        };
        if met == 0 {
            let _ = S::rollback(tx.tx).await;
            let mine = self.stands(lease).await?;
            return match (open, mine) {
                (_, Some(State::Done { outcome, .. })) if outcome == parts.outcome => Ok(reply),
                (Open::Ended, _) | (Open::AskedLater, Some(State::Running { .. })) => {
                    Err(Halt::park(
                        "somebody ended the transaction of the handler: nobody knows what it wrote",
                    ))
                }
                (Open::Yes | Open::AskedLater, _) => Err(Halt::Fenced),
            };
        }
        let Err(error) = S::commit(tx.tx).await else { return Ok(reply) };
        // A failed COMMIT is unknown, not failed.
        match self.stands(lease).await? {
            Some(State::Done { outcome, .. }) if outcome == parts.outcome => Ok(reply),
            // It may still be under way: the next try waits for its lock, and then finds it done.
            Some(State::Running { .. }) => {
                Err(Halt::Retry { after: Some(Duration::ZERO), why: error.to_string() })
            }
            Some(_) | None => Err(Halt::Fenced),
        }
    }

    async fn begun(&self) -> Result<PhaseTx<S>, Halt> {
        let tx = self.db.begin().await?;
        Ok(PhaseTx::new(self.db.clone(), tx, None))
    }

    fn completion(&self, reply: &Reply) -> Completion {
        let size = reply.0.body.len() + reply.0.headers.as_encoded().len();
        let answer = match size > LARGEST {
            false => Answer::Kept(reply.0.clone()),
            true => Answer::Tombstone(Tombstone {
                status: Some(reply.status()),
                reason: NotKept::TooLarge,
            }),
        };
        Completion { answer, retention: self.times.retention, linger: self.times.linger }
    }

    async fn complete(
        &self,
        tx: &mut S::Tx,
        lease: &Lease,
        parts: &CompletionParts,
    ) -> Result<u64, TxError> {
        let conn = S::conn(tx);
        let micros = super::claim::micros;
        let status = parts.status.map_or(Value::NoInt, |status| Value::Int(i64::from(status)));
        let proof = [
            Value::Bytes(lease.id.as_bytes()),
            Value::Int(lease.fence.number()),
            Value::Bytes(lease.owner.as_bytes()),
        ];
        let answer = [
            status,
            Value::Int(i64::from(parts.not_kept)),
            Value::Bytes(parts.outcome.as_bytes()),
            Value::Bytes(parts.seal.as_bytes()),
            Value::Bytes(&parts.headers),
            Value::Bytes(&parts.body),
        ];
        let retention = micros(parts.retention);
        let spans = [retention, retention.saturating_add(micros(parts.linger)), retention];
        let spans = spans.map(Value::Int);
        match self.db.layout().dialect() {
            Dialect::Postgres => {
                let values = [&spans[..], &answer[..], &proof[..]].concat();
                return S::execute(conn, &self.sql.complete, &values).await;
            }
            Dialect::Mysql => {
                if S::execute(conn, &self.sql.complete, &proof).await? == 0 {
                    return Ok(0);
                }
                let values = [&spans[..], &answer[..], &proof[..1]].concat();
                return S::execute(conn, &self.sql.answer, &values).await;
            }
            Dialect::Sqlite => {}
        }
        let [a, b, c, d, e, f, g, h, ..] = *lease.id.as_bytes();
        let hash = Value::Int(i64::from_be_bytes([a, b, c, d, e, f, g, h]));
        let values = [&[hash, hash][..], &proof[..]].concat();
        let rows = S::query(conn, &self.sql.find, &values).await?;
        let Some(row) = rows.first() else { return Ok(0) };
        let (id, now) = (Value::Int(row.int(0)?), Timestamp::from_micros(row.int(1)?));
        let times = parts.times(lease.fence, now);
        let done = [Value::Int(times.at.micros()), id];
        S::execute(conn, &self.sql.complete, &done).await?;
        let spans = [times.expires, times.forget, times.expires].map(|at| Value::Int(at.micros()));
        let values = [&[id][..], &spans[..], &answer[..]].concat();
        S::execute(conn, &self.sql.answer, &values).await
    }

    /// What has become of the record, if it is still this attempt's.
    async fn stands(&self, lease: &Lease) -> Result<Option<State>, Halt> {
        let record = self.keys.get(&lease.id).await.map_err(unasked)?;
        Ok(record.filter(|record| record.is_held_by(lease)).map(|record| record.state))
    }
}

/// Frees the key of a handler that was dropped. Its transaction has been rolled back, or is done: then
/// this changes nothing.
struct Guard {
    keys: Arc<dyn Store>,
    lease: Option<Lease>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let (Some(lease), Ok(runtime)) = (self.lease, tokio::runtime::Handle::try_current()) else {
            return;
        };
        let keys = Arc::clone(&self.keys);
        runtime.spawn(async move { keys.release(&lease).await.map(drop) });
    }
}

fn refused(refusal: Refusal, record: &Record, now: Timestamp) -> Result<Outcome, Halt> {
    Ok(match (refusal, &record.state) {
        (Refusal::Mismatch, _) => Outcome::Mismatch,
        (Refusal::Replay, State::Done { answer: Answer::Kept(saved), .. }) => {
            Outcome::Replied { reply: Reply(saved.clone()), source: Source::Replayed }
        }
        (Refusal::InProgress(until), _) => {
            let left = until.micros().saturating_sub(now.micros());
            let retry_after = Duration::from_micros(u64::try_from(left).unwrap_or(0));
            Outcome::InProgress { retry_after }
        }
        (Refusal::Parked, _) => Outcome::Parked { reason: "it waits for a person".to_owned() },
        (Refusal::Unknown, _) => Outcome::Parked { reason: "nobody knows what it did".to_owned() },
        (Refusal::Replay | Refusal::NotRetained | Refusal::Expired, _) => Outcome::NotRetained,
    })
}

fn unasked(error: StoreError) -> Halt {
    TxError::new(TxTrouble::Unavailable, error).into()
}

impl<S: TxStore> fmt::Debug for Local<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Local").field("db", &self.db).finish_non_exhaustive()
    }
}
