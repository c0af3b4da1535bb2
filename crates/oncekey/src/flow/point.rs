//! Recovery points: what a step leaves behind, in the same commit as the application's rows.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use oncekey_core::{KeyId, Saved};

use super::announce::{Calls, Planned};
use super::at_end::{AtEnd, stage_plain};
use super::claim::{Held, Start};
use super::late::Late;
use super::store::{Open, TxError, TxStore, Value};
use super::tables::Dialect;
use super::unwritten::start_row;

/// A transaction of a phase: the application's native connection, and what can be staged beside it.
///
/// It has no `commit`: the flow commits it together with the recovery point. A `COMMIT` that is
/// smuggled in as a statement is noticed, and the flow is parked.
#[derive(Debug)]
pub struct PhaseTx<S: TxStore> {
    pub(crate) store: S,
    pub(crate) tx: S::Tx,
    pub(crate) flow: Option<KeyId>,
    /// Dropped when the transaction is over.
    #[cfg_attr(not(feature = "outbox"), allow(dead_code, reason = "only staging sets it"))]
    pub(crate) wake: Option<WakeAtEnd>,
    /// What is staged when the body has returned.
    pub(crate) at_end: Vec<AtEnd>,
    /// Calls that follow.
    pub(crate) calls: Calls,
}

/// Wakes the relay when it is dropped, which is when the transaction has ended, one way or another.
#[derive(Debug)]
pub(crate) struct WakeAtEnd(pub(crate) std::sync::Arc<tokio::sync::Notify>);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl<S: TxStore> Deref for PhaseTx<S> {
    type Target = S::Conn;

    fn deref(&self) -> &S::Conn {
        S::conn_ref(&self.tx)
    }
}

impl<S: TxStore> DerefMut for PhaseTx<S> {
    fn deref_mut(&mut self) -> &mut S::Conn {
        S::conn(&mut self.tx)
    }
}

impl<S: TxStore> PhaseTx<S> {
    pub(super) const fn new(store: S, tx: S::Tx, flow: Option<KeyId>) -> Self {
        Self { store, tx, flow, wake: None, at_end: Vec::new(), calls: Calls::None }
    }

    /// For a phase, which calls may follow.
    pub(super) fn of_phase(store: S, tx: S::Tx, flow: KeyId) -> Self {
        Self { calls: Calls::Of(Vec::new()), ..Self::new(store, tx, Some(flow)) }
    }

    /// The flow that the transaction belongs to, if it belongs to one.
    #[must_use]
    pub const fn flow_id(&self) -> Option<&KeyId> {
        self.flow.as_ref()
    }

    /// The store of the transaction.
    #[must_use]
    pub const fn store(&self) -> &S {
        &self.store
    }
}

/// A step by its name, and by its item if there are several of that name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Step {
    pub(crate) name: String,
    pub(crate) item: String,
}

impl Step {
    /// One of several steps of a name, by something that says which: never a position in a list that
    /// may change.
    #[must_use]
    pub fn item(name: impl Into<String>, item: &(impl ToString + ?Sized)) -> Self {
        Self { name: name.into(), item: item.to_string() }
    }

    /// The name as one text, for people.
    #[must_use]
    pub(crate) fn label(&self) -> String {
        match self.item.is_empty() {
            true => self.name.clone(),
            false => format!("{}[{}:{}]", self.name, self.item.len(), self.item),
        }
    }

    /// The name as one text that no other step has, for derived keys.
    pub(crate) fn exact(&self) -> String {
        format!("{}:{}/{}", self.name.len(), self.name, self.item)
    }

    /// The longest name and the longest item, in bytes: what the columns of all databases hold.
    pub(crate) const LONGEST: usize = 255;

    pub(crate) fn is_sound(&self) -> bool {
        !self.name.is_empty()
            && self.name.len() <= Self::LONGEST
            && self.item.len() <= Self::LONGEST
    }
}

impl From<&str> for Step {
    fn from(name: &str) -> Self {
        Self { name: name.to_owned(), item: String::new() }
    }
}

impl From<String> for Step {
    fn from(name: String) -> Self {
        Self { name, item: String::new() }
    }
}

/// What kind of step it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Phase,
    Effect,
    Pin,
    /// Said by a person, about a step of any kind.
    Given,
}

impl Kind {
    pub(crate) const fn code(self) -> i64 {
        match self {
            Self::Phase => 1,
            Self::Effect => 2,
            Self::Pin => 3,
            Self::Given => 4,
        }
    }
}

/// A step that was taken.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) kind: i64,
    pub(crate) shape: String,
    pub(crate) bound: Vec<u8>,
    pub(crate) output: Vec<u8>,
    /// Whose attempt wrote it; zero if a person did.
    pub(crate) fence: i64,
    pub(crate) at: i64,
}

/// What a step leaves behind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point<'p> {
    pub(crate) step: &'p Step,
    pub(crate) kind: Kind,
    pub(crate) shape: &'p str,
    pub(crate) bound: &'p [u8],
    pub(crate) output: &'p [u8],
}

impl<'p> Point<'p> {
    /// The columns of the step, without the fence.
    fn row(self) -> [Value<'p>; 6] {
        [
            Value::Text(&self.step.name),
            Value::Text(&self.step.item),
            Value::Int(self.kind.code()),
            Value::Text(self.shape),
            Value::Bytes(self.bound),
            Value::Bytes(self.output),
        ]
    }

    /// The columns of the step in a statement that does not look at the proof.
    fn whole_row(self, held: &'p Held) -> [Value<'p>; 8] {
        let [name, item, kind, shape, bound, output] = self.row();
        let [id, fence, _] = held.proof();
        [id, name, item, kind, shape, bound, output, fence]
    }

    /// The columns of the step and the proof, for a statement that writes the step only if the proof holds.
    pub(crate) fn held_row(self, held: &'p Held) -> [Value<'p>; 9] {
        let [name, item, kind, shape, bound, output] = self.row();
        let [id, fence, owner] = held.proof();
        [name, item, kind, shape, bound, output, id, fence, owner]
    }
}

/// What came of the last statement of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advanced {
    /// The recovery point is written and will be committed with the rest.
    Yes,
    /// Somebody else has the flow: roll everything back.
    Fenced,
    /// Somebody ended the transaction inside the phase.
    Smuggled,
}

/// Writes a recovery point, what is late and what is announced under the fence, as the last thing in a
/// transaction. With it the flow itself, if it is not written yet: then nothing is late.
pub(crate) async fn advance<S: TxStore>(
    store: &S,
    tx: &mut S::Tx,
    held: &Held,
    point: Point<'_>,
    start: Option<&Start>,
    (late, calls): (&[Arc<Late>], &[Planned]),
) -> Result<Advanced, TxError> {
    let sql = store.layout().sql();
    let conn = S::conn(tx);
    if S::still_open(conn).await? == Open::Ended {
        return Ok(Advanced::Smuggled);
    }
    let [id, fence, owner] = held.proof();
    if store.layout().dialect() == Dialect::Postgres {
        if let Some(start) = start
            && begin(store, conn, (start, held), point, calls).await? == Begun::Yes
        {
            return announce(store, conn, held, calls.get(1..).unwrap_or_default()).await;
        }
        let (met, calls) = match (late, calls) {
            ([], []) => (S::execute(conn, &sql.hold_and_put, &point.held_row(held)).await?, calls),
            ([others @ .., last], []) => {
                put_late(store, conn, held, others).await?;
                let values = [&held.proof()[..], &last.point().row(), &point.row()].concat();
                (S::execute(conn, &sql.hold_and_put_two, &values).await?, calls)
            }
            (late, [first, others @ ..]) => {
                put_late(store, conn, held, late).await?;
                let values = [&held.proof()[..], &first.row(), &point.row()].concat();
                (S::execute(conn, &sql.hold_put_and_intend, &values).await?, others)
            }
        };
        if met == 0 {
            return why(store, conn, held, start).await;
        }
        return announce(store, conn, held, calls).await;
    }
    if let Some(start) = start {
        S::execute(conn, &sql.start_as, &start_row(start, held)).await?;
    }
    let proof = [Value::Text(&point.step.name), id, fence, owner];
    if S::execute(conn, &sql.advance, &proof).await? == 0 {
        return Ok(Advanced::Fenced);
    }
    put_late(store, conn, held, late).await?;
    S::execute(conn, &sql.put_step, &point.whole_row(held)).await?;
    announce(store, conn, held, calls).await
}

/// Whether a flow was written with its first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    Yes,
    /// It is there already, somebody ended the transaction, or it is too late. If another step of the same
    /// attempt has written it, this one goes on as any other.
    No,
}

/// Writes a flow, its first step and the first call that it announces.
async fn begin<S: TxStore>(
    store: &S,
    conn: &mut S::Conn,
    (start, held): (&Start, &Held),
    point: Point<'_>,
    calls: &[Planned],
) -> Result<Begun, TxError> {
    let sql = store.layout().sql();
    let row = start_row(start, held);
    let met = match calls.first() {
        None => S::execute(conn, &sql.start_and_put, &[&row[..], &point.row()].concat()).await?,
        Some(first) => {
            let values = [&row[..], &first.row(), &point.row()].concat();
            S::execute(conn, &sql.start_put_and_intend, &values).await?
        }
    };
    Ok(if met == 0 { Begun::No } else { Begun::Yes })
}

/// Writes intents into a transaction that is surely the one that was begun.
async fn announce<S: TxStore>(
    store: &S,
    conn: &mut S::Conn,
    held: &Held,
    calls: &[Planned],
) -> Result<Advanced, TxError> {
    for call in calls {
        if S::execute(conn, &store.layout().sql().intend, &call.whole_row(held)).await? == 0 {
            return Ok(Advanced::Fenced);
        }
    }
    Ok(Advanced::Yes)
}

/// Writes late outcomes into a transaction. On PostgreSQL each is fenced by itself, because nobody knows yet
/// whether this is still the transaction that was begun; elsewhere the fence was looked at before.
async fn put_late<S: TxStore>(
    store: &S,
    conn: &mut S::Conn,
    held: &Held,
    late: &[Arc<Late>],
) -> Result<(), TxError> {
    let sql = &store.layout().sql().put_late;
    for late in late {
        match store.layout().dialect() {
            Dialect::Postgres => S::execute(conn, sql, &late.point().held_row(held)).await?,
            Dialect::Sqlite | Dialect::Mysql => {
                S::execute(conn, sql, &late.point().whole_row(held)).await?
            }
        };
    }
    Ok(())
}

/// Stores the reply, what is late and what was left for the end, and ends the flow, as the last thing in a
/// transaction.
pub(crate) async fn finish<S: TxStore>(
    store: &S,
    tx: &mut S::Tx,
    held: &Held,
    (reply, messages): (&Saved, &[AtEnd]),
    late: &[Arc<Late>],
) -> Result<Advanced, TxError> {
    let sql = store.layout().sql();
    let conn = S::conn(tx);
    if S::still_open(conn).await? == Open::Ended {
        return Ok(Advanced::Smuggled);
    }
    let headers = reply.headers.encode();
    let values = [
        Value::Int(i64::from(reply.status)),
        Value::Bytes(&headers),
        Value::Bytes(&reply.body),
        Value::Bytes(held.id.as_bytes()),
        Value::Int(held.fence),
        Value::Bytes(held.owner.as_bytes()),
    ];
    let is_postgres = store.layout().dialect() == Dialect::Postgres;
    let flow = Some(held.id.as_bytes().as_slice());
    let met = if is_postgres {
        // One late outcome and one message go with the statement, the others before it.
        let (others, late) = all_but_one(late);
        put_late(store, conn, held, others).await?;
        let (others, message) = all_but_one(messages);
        stage_plain(store, conn, flow, others).await?;
        let late = late.map(|late| late.point().row());
        let message = message.map(AtEnd::row);
        let of_late = late.as_ref().map_or(&[][..], |row| row);
        let of_message = message.as_ref().map_or(&[][..], |row| row);
        let values = [&values[..], of_late, of_message].concat();
        match (late, message) {
            (None, None) => S::execute(conn, &sql.finish, &values).await?,
            (None, Some(_)) => S::execute(conn, &sql.finish_and_stage, &values).await?,
            (Some(_), Some(_)) => S::execute(conn, &sql.finish_put_and_stage, &values).await?,
            (Some(_), None) => {
                let rows = S::query(conn, &sql.finish_and_put, &values).await?;
                u64::from(rows.first().map_or(Ok(0), |row| row.int(0))? > 0)
            }
        }
    } else {
        let met = S::execute(conn, &sql.finish, &values).await?;
        if met > 0 {
            put_late(store, conn, held, late).await?;
            stage_plain(store, conn, flow, messages).await?;
        }
        met
    };
    match met {
        0 if is_postgres => why(store, conn, held, None).await,
        0 => Ok(Advanced::Fenced),
        _ => Ok(Advanced::Yes),
    }
}

fn all_but_one<T>(all: &[T]) -> (&[T], Option<&T>) {
    all.split_last().map_or((all, None), |(last, others)| (others, Some(last)))
}

/// Why the fenced statement met no row: the fence, or a transaction that somebody ended.
async fn why<S: TxStore>(
    store: &S,
    conn: &mut S::Conn,
    held: &Held,
    start: Option<&Start>,
) -> Result<Advanced, TxError> {
    let sql = store.layout().sql();
    let found = async |conn: &mut S::Conn, sql, values: &[Value<'_>]| {
        let rows = S::query(conn, sql, values).await?;
        Ok::<_, TxError>(rows.first().map_or(Ok(0), |row| row.int(0))? > 0)
    };
    let still_ours = found(conn, &sql.held, &held.proof()).await?;
    // Of a flow that is not written there is no row to tell.
    let smuggled = still_ours || (start.is_some() && !found(conn, &sql.is_open, &[]).await?);
    Ok(if smuggled { Advanced::Smuggled } else { Advanced::Fenced })
}

/// The steps that a flow has taken.
pub(crate) async fn steps<S: TxStore>(
    store: &S,
    id: &KeyId,
) -> Result<HashMap<Step, Taken>, TxError> {
    let sql = store.layout().sql();
    let rows = store.query_once(&sql.steps, &[Value::Bytes(id.as_bytes())]).await?;
    rows.iter()
        .map(|row| {
            let step = Step { name: row.text(0)?.to_owned(), item: row.text(1)?.to_owned() };
            let taken = Taken {
                kind: row.int(2)?,
                shape: row.text(3)?.to_owned(),
                bound: row.bytes(4)?.to_vec(),
                output: row.bytes(5)?.to_vec(),
                fence: row.int(6)?,
                at: row.int(7)?,
            };
            Ok((step, taken))
        })
        .collect()
}
