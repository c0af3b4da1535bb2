//! What a person can do with a flow that does not get on by itself.

use std::time::Duration;

use oncekey_core::KeyId;
use serde::Serialize;

use super::checkpoint::{encode, shape};
use super::claim::{micros, state};
use super::drive::short;
use super::halt::Halt;
use super::intent::state as intent;
use super::point::{Kind, Step};
use super::registry::Flows;
use super::reply::Reply;
use super::store::{TxError, TxStore, TxTrouble, Value};

/// What came of it.
#[must_use = "a flow that somebody drives, or that is over, was not changed"]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resolved {
    /// It was done, and it is in the flow's history.
    Yes,
    /// The flow is running, finished, or not there: nothing was changed.
    No,
}

/// A flow in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its id.
    pub id: KeyId,
    /// Its name.
    pub name: String,
    /// The version that began it or drove it last.
    pub version: i64,
    /// How often it was begun.
    pub attempts: i64,
    /// Its last recovery point.
    pub point: String,
    /// Why it is where it is.
    pub reason: String,
}

/// Which flows are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stuck {
    /// Those that wait for a person.
    Parked,
    /// Those that were given up.
    Dead,
    /// Those that have been due for minutes and that nobody takes: no completer runs, or none that
    /// knows the flow and goes on with its version.
    Overdue,
}

/// How many flows a list has at the most.
const PAGE: i64 = 1_000;

/// Completers look every second: what has been due for so long is not seen by any of them, or there
/// are far too few.
const OVERDUE: Duration = Duration::from_secs(5 * 60);

/// Every one of these outdates the flow's owner: whoever still drives it writes nothing more.
impl<S: TxStore> Flows<S> {
    /// Flows that need a person, the oldest first, at most a thousand.
    ///
    /// # Errors
    /// If the database cannot be asked.
    pub async fn stuck(&self, which: Stuck) -> Result<Vec<Listed>, TxError> {
        let sql = self.0.store.layout().sql();
        let (statement, value) = match which {
            Stuck::Parked => (&sql.list, state::PARKED),
            Stuck::Dead => (&sql.list, state::DEAD),
            Stuck::Overdue => (&sql.overdue, micros(OVERDUE)),
        };
        let values = [Value::Int(value), Value::Int(PAGE)];
        let rows = self.0.store.query_once(statement, &values).await?;
        let listed = rows.iter().map(|row| {
            Ok(Listed {
                id: KeyId::from_bytes(row.array(0)?),
                name: row.text(1)?.to_owned(),
                version: row.int(2)?,
                attempts: row.int(4)?,
                point: row.text(5)?.to_owned(),
                reason: row.text(6)?.to_owned(),
            })
        });
        listed.collect()
    }

    /// Tries a flow again, with a fresh count of attempts and the same derived keys. A flow that was
    /// being taken back goes on being taken back.
    ///
    /// # Errors
    /// If the database cannot be asked.
    pub async fn retry(&self, id: &KeyId, note: &str) -> Result<Resolved, TxError> {
        self.resolved(id, "retried", note, async |flows, tx| {
            // Compensations that were left to a person are tried again, too.
            flows.revive_undo(tx, id).await?;
            let undoing = flows.is_undoing(tx, id).await?;
            let next = if undoing { state::UNDOING } else { state::WAITING };
            flows.set_state(tx, id, next, "").await
        })
        .await
    }

    /// Says what came of a step that cannot be taken, and lets the flow go on behind it. The value
    /// must be of the type that the code wants.
    ///
    /// # Errors
    /// If the value has no JSON form, if the step has been taken, or if the database cannot be asked.
    pub async fn skip<T: Serialize>(
        &self,
        id: &KeyId,
        step: impl Into<Step>,
        value: &T,
        note: &str,
    ) -> Result<Resolved, Halt> {
        let step = step.into();
        let output = encode(&step.name, value)?;
        let shape = shape::<T>();
        self.adopt(id, &step, (&shape, &output), "skipped", note).await
    }

    /// Ends a flow with this reply.
    ///
    /// # Errors
    /// If the database cannot be asked.
    pub async fn force(&self, id: &KeyId, reply: &Reply, note: &str) -> Result<Resolved, TxError> {
        let headers = reply.0.headers.encode();
        let owner = self.owner();
        self.resolved(id, "forced", note, async |flows, tx| {
            let values = [
                Value::Bytes(owner.as_bytes()),
                Value::Int(i64::from(reply.status())),
                Value::Bytes(&headers),
                Value::Bytes(reply.body()),
                Value::Text(""),
                Value::Bytes(id.as_bytes()),
            ];
            let sql = flows.0.store.layout().sql();
            S::execute(S::conn(tx), &sql.resolve_done, &values).await
        })
        .await
    }

    /// Gives a flow up. Its input, its history and the reason stay.
    ///
    /// # Errors
    /// If the database cannot be asked.
    pub async fn abandon(&self, id: &KeyId, note: &str) -> Result<Resolved, TxError> {
        self.resolved(id, "abandoned", note, async |flows, tx| {
            flows.set_state(tx, id, state::DEAD, note).await
        })
        .await
    }

    /// Says that an effect was taken back by hand, and lets a flow go on that is on the way back.
    ///
    /// A compensation whose time with the other side is over is not called again, however often the
    /// flow is retried: a person looks there, and says so here.
    ///
    /// # Errors
    /// If the database cannot be asked.
    pub async fn was_undone(
        &self,
        id: &KeyId,
        step: impl Into<Step>,
        note: &str,
    ) -> Result<Resolved, TxError> {
        let step = step.into();
        let note = format!("{}: {note}", step.label());
        self.resolved(id, "undone by hand", &note, async |flows, tx| {
            if !flows.is_undoing(tx, id).await? {
                return Ok(0);
            }
            let sql = flows.0.store.layout().statement(
                "UPDATE {effects} SET state = 3, last_at = {now}, reason = '' WHERE flow_id = ? \
                 AND name = ? AND item = ? AND undo_name <> '' AND state IN (1, 2, 4)",
            );
            let values =
                [Value::Bytes(id.as_bytes()), Value::Text(&step.name), Value::Text(&step.item)];
            if S::execute(S::conn(tx), &sql, &values).await? == 0 {
                return Ok(0);
            }
            flows.set_state(tx, id, state::UNDOING, "").await
        })
        .await
    }

    /// Writes the outcome of a step for a flow that nobody drives, and lets it go on.
    pub(crate) async fn adopt(
        &self,
        id: &KeyId,
        step: &Step,
        (shape, output): (&str, &[u8]),
        what: &str,
        note: &str,
    ) -> Result<Resolved, Halt> {
        let resolved = self
            .resolved(id, what, &format!("{}: {note}", step.label()), async |flows, tx| {
                let sql = flows.0.store.layout().sql();
                let owner = flows.owner();
                let values = [Value::Bytes(owner.as_bytes()), Value::Bytes(id.as_bytes())];
                if S::execute(S::conn(tx), &sql.resume, &values).await? == 0 {
                    return Ok(0);
                }
                let effect = [
                    Value::Int(intent::DONE),
                    Value::Text(""),
                    Value::Bytes(id.as_bytes()),
                    Value::Text(&step.name),
                    Value::Text(&step.item),
                ];
                let is_effect = S::execute(S::conn(tx), &sql.settle_any, &effect).await? > 0;
                let kind = if is_effect { Kind::Effect } else { Kind::Given };
                let values = [
                    Value::Bytes(id.as_bytes()),
                    Value::Text(&step.name),
                    Value::Text(&step.item),
                    Value::Int(kind.code()),
                    Value::Text(shape),
                    Value::Bytes(&[]),
                    Value::Bytes(output),
                    Value::Int(0),
                ];
                S::execute(S::conn(tx), &sql.adopt, &values).await
            })
            .await;
        match resolved {
            Err(error) if error.kind() == TxTrouble::Duplicate => Ok(Resolved::No),
            resolved => Ok(resolved?),
        }
    }

    /// Makes a change and its entry in the history, in one transaction.
    async fn resolved<F>(
        &self,
        id: &KeyId,
        what: &str,
        note: &str,
        change: F,
    ) -> Result<Resolved, TxError>
    where
        F: AsyncFnOnce(&Self, &mut S::Tx) -> Result<u64, TxError>,
    {
        let sql = self.0.store.layout().sql();
        let mut tx = self.0.store.begin().await?;
        if change(self, &mut tx).await? == 0 {
            S::rollback(tx).await?;
            return Ok(Resolved::No);
        }
        let note = short(note);
        let values =
            [Value::Bytes(id.as_bytes()), Value::Int(0), Value::Text(what), Value::Text(&note)];
        S::execute(S::conn(&mut tx), &sql.event, &values).await?;
        S::commit(tx).await?;
        Ok(Resolved::Yes)
    }

    async fn set_state(
        &self,
        tx: &mut S::Tx,
        id: &KeyId,
        state: i64,
        reason: &str,
    ) -> Result<u64, TxError> {
        let (owner, reason) = (self.owner(), short(reason));
        let values = [
            Value::Int(state),
            Value::Bytes(owner.as_bytes()),
            Value::Int(0),
            Value::Text(&reason),
            Value::Bytes(id.as_bytes()),
        ];
        S::execute(S::conn(tx), &self.0.store.layout().sql().resolve, &values).await
    }

    async fn is_undoing(&self, tx: &mut S::Tx, id: &KeyId) -> Result<bool, TxError> {
        let sql = self.0.store.layout().sql();
        let rows =
            S::query(S::conn(tx), &sql.look_and_hold, &[Value::Bytes(id.as_bytes())]).await?;
        // What has a reply before its end is on the way back, parked or not.
        rows.first().map_or(Ok(false), |row| Ok(row.maybe_int(10)?.is_some()))
    }

    async fn revive_undo(&self, tx: &mut S::Tx, id: &KeyId) -> Result<(), TxError> {
        let sql = self.0.store.layout().statement(
            "UPDATE {effects} SET state = 1, undo_calls = 0 WHERE flow_id = ? AND state = 4",
        );
        S::execute(S::conn(tx), &sql, &[Value::Bytes(id.as_bytes())]).await?;
        Ok(())
    }
}
