//! Who may drive a flow: starting, taking over, keeping the lease.

use std::time::Duration;

use bytes::Bytes;
use oncekey_core::{Headers, KeyId, Owner, Saved};

use super::gather::{Gather, What};
use super::store::{Row, TxError, TxStore, TxTrouble, Value};
use super::tables::Dialect;

/// What is asked for when a flow is started, or met again.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) id: KeyId,
    pub(crate) name: String,
    pub(crate) version: i64,
    /// The versions whose flows this code can go on with.
    pub(crate) accepts: (i64, i64),
    pub(crate) owner: Owner,
    /// How long the flow is owned; and how much later the completer may take it.
    pub(crate) lease: Duration,
    pub(crate) grace: Duration,
    pub(crate) fingerprint: [u8; 32],
    pub(crate) input: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) scope: Vec<u8>,
    pub(crate) begin: Begin,
}

/// When a flow that is not there yet is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// Before anything else.
    AtOnce,
    /// With its first step, if that comes within this time.
    WithFirstStep(Duration),
}

/// The right to drive a flow, and the proof that every later write carries.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) id: KeyId,
    pub(crate) fence: i64,
    pub(crate) owner: Owner,
    /// Counted at the claim, this one included.
    pub(crate) attempts: i64,
    /// How long the lease was when it was granted.
    pub(crate) lease: Duration,
    pub(crate) grace: Duration,
    /// Whether there may be steps from before.
    pub(crate) before: Before,
    /// Whether it is to be compensated.
    pub(crate) way: Way,
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) point: String,
}

impl Held {
    /// What every statement of an owner is judged by: id, fence, owner.
    pub(crate) fn proof(&self) -> [Value<'_>; 3] {
        let (id, owner) = (self.id.as_bytes(), self.owner.as_bytes());
        [Value::Bytes(id), Value::Int(self.fence), Value::Bytes(owner)]
    }
}

/// Whether an earlier attempt may have left something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// Not even the flow's own row: it is written with the first step.
    NoRow,
    Nothing,
    Something,
}

/// In which direction a flow is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Forward,
    Back,
}

/// What came of a claim.
#[derive(Debug)]
pub(crate) enum Claimed {
    Won(Box<Held>),
    /// It is finished, and this is what it said.
    Replay(Saved),
    /// Somebody else drives it, for so long at least; or it waits for its next attempt.
    Busy(Duration),
    /// The id was used with another input.
    Mismatch,
    /// It waits for a person.
    Parked(String),
    /// It was given up by a person.
    Dead(String),
    /// It was started by a version that this code does not go on with.
    Skew(i64),
}

/// States as they are stored.
pub(crate) mod state {
    pub(crate) const RUNNING: i64 = 1;
    pub(crate) const WAITING: i64 = 2;
    pub(crate) const DONE: i64 = 3;
    pub(crate) const PARKED: i64 = 4;
    pub(crate) const UNDOING: i64 = 5;
    pub(crate) const UNDONE: i64 = 6;
    pub(crate) const DEAD: i64 = 7;
}

/// A flow as it is stored.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) owner: [u8; 16],
    pub(crate) fence: i64,
    pub(crate) state: i64,
    pub(crate) lease: i64,
    pub(crate) now: i64,
    pub(crate) fingerprint: [u8; 32],
    pub(crate) name: String,
    pub(crate) version: i64,
    pub(crate) attempts: i64,
    pub(crate) point: String,
    pub(crate) reason: String,
    pub(crate) input: Vec<u8>,
    pub(crate) due: i64,
    pub(crate) pivot: String,
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) created: i64,
    pub(crate) reply: Option<Saved>,
}

impl Stored {
    fn read(row: &Row) -> Result<Self, TxError> {
        let reply = match (row.maybe_int(10)?, row.maybe_bytes(11)?, row.maybe_bytes(12)?) {
            (Some(status), Some(headers), Some(body)) => Some(Saved {
                status: u16::try_from(status).map_err(|_| TxError::damaged())?,
                headers: Headers::decode(headers).map_err(|_| TxError::damaged())?,
                body: Bytes::copy_from_slice(body),
            }),
            _ => None,
        };
        Ok(Self {
            owner: row.array(0)?,
            fence: row.int(1)?,
            state: row.int(2)?,
            lease: row.int(3)?,
            now: row.int(4)?,
            fingerprint: row.array(5)?,
            name: row.text(6)?.to_owned(),
            version: row.int(7)?,
            attempts: row.int(8)?,
            point: row.text(9)?.to_owned(),
            reason: row.text(13)?.to_owned(),
            input: row.bytes(14)?.to_vec(),
            due: row.int(15)?,
            pivot: row.text(16)?.to_owned(),
            data: row.maybe_bytes(17)?.map(<[u8]>::to_vec),
            created: row.int(18)?,
            reply,
        })
    }
}

/// What may be done with a flow that is there already. Pure: the decision table of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    TakeOver,
    Mismatch,
    Replay,
    /// For so many microseconds at least.
    Busy(i64),
    Parked,
    Dead,
    Skew,
}

/// Whether a flow whose owner is gone may be taken before the completer's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// A client asks again: it takes at once what its owner has lost.
    None,
    /// The completer keeps to the times.
    Due,
}

/// The lease of a flow whose attempt was ended, and not lost.
const PAUSES: i64 = 0;

fn decide(stored: &Stored, start: &Start, patience: Patience) -> Decision {
    if stored.fingerprint != start.fingerprint || stored.name != start.name {
        return Decision::Mismatch;
    }
    match stored.state {
        state::DONE | state::UNDONE => Decision::Replay,
        state::PARKED => Decision::Parked,
        state::DEAD => Decision::Dead,
        _ if stored.lease > stored.now => Decision::Busy(stored.lease - stored.now),
        // A failed attempt is followed by its pause, whoever asks: a client that hammers would
        // otherwise use up all attempts in a moment.
        _ if (patience == Patience::Due || stored.lease == PAUSES) && stored.due > stored.now => {
            Decision::Busy(stored.due - stored.now)
        }
        _ if !(start.accepts.0..=start.accepts.1).contains(&stored.version) => Decision::Skew,
        _ => Decision::TakeOver,
    }
}

/// Starts a flow or meets it again.
///
/// After an error nobody knows whether it was claimed: asking again with the same owner says so.
pub(crate) async fn claim<S: TxStore>(
    gather: &Gather<S>,
    start: &Start,
    patience: Patience,
) -> Result<Claimed, TxError> {
    let begun = match start.begin {
        Begin::AtOnce => begin_anew(gather, start).await?,
        Begin::WithFirstStep(_) => look_for_room(gather, start).await?,
    };
    if let Some(held) = begun {
        return Ok(Claimed::Won(Box::new(held)));
    }
    let store = gather.store();
    for _ in 0..ROUNDS {
        let mut tx = store.begin().await?;
        let sql = store.layout().sql();
        let id = Value::Bytes(start.id.as_bytes());
        let rows = S::query(S::conn(&mut tx), &sql.look_and_hold, &[id]).await?;
        let Some(row) = rows.first() else {
            // It was there a moment ago: somebody has removed a finished flow.
            S::rollback(tx).await?;
            if let Some(held) = begin_anew(gather, start).await? {
                return Ok(Claimed::Won(Box::new(held)));
            }
            continue;
        };
        let stored = Stored::read(row)?;
        let mine = stored.owner == *start.owner.as_bytes() && stored.state == state::RUNNING;
        if mine {
            S::rollback(tx).await?;
            return Ok(Claimed::Won(Box::new(held_of(start, stored, Before::Something))));
        }
        let decision = decide(&stored, start, patience);
        if decision != Decision::TakeOver {
            S::rollback(tx).await?;
            return Ok(refused(decision, stored));
        }
        let values = [
            Value::Bytes(start.owner.as_bytes()),
            Value::Int(micros(start.lease)),
            Value::Int(micros(start.lease + start.grace)),
            Value::Int(start.version),
            id,
            Value::Int(stored.fence),
            Value::Bytes(&stored.owner),
            Value::Int(stored.lease),
        ];
        if S::execute(S::conn(&mut tx), &sql.take_over, &values).await? == 1 {
            let rows = S::query(S::conn(&mut tx), &sql.look, &[id]).await?;
            let stored = Stored::read(rows.first().ok_or_else(TxError::damaged)?)?;
            S::commit(tx).await?;
            return Ok(Claimed::Won(Box::new(held_of(start, stored, Before::Something))));
        }
        S::rollback(tx).await?;
    }
    Ok(Claimed::Busy(start.lease))
}

/// How often a claim looks again when the row changed under it. Each time somebody else made progress.
const ROUNDS: u32 = 5;

async fn begin_anew<S: TxStore>(
    gather: &Gather<S>,
    start: &Start,
) -> Result<Option<Held>, TxError> {
    let store = gather.store();
    let sql = store.layout().sql();
    let id = Value::Bytes(start.id.as_bytes());
    let values = [
        id,
        Value::Text(&start.name),
        Value::Int(start.version),
        Value::Bytes(start.owner.as_bytes()),
        Value::Int(micros(start.lease)),
        Value::Int(micros(start.lease + start.grace)),
        Value::Bytes(&start.fingerprint),
        Value::Bytes(&start.input),
        Value::Bytes(&start.key),
        Value::Bytes(&start.scope),
    ];
    let fence = match store.layout().dialect() {
        Dialect::Sqlite | Dialect::Postgres => {
            match gather.say(What::Start, start.id, &values).await? {
                Some(fence) => fence,
                None => return Ok(None),
            }
        }
        Dialect::Mysql => {
            store.execute_once(&sql.start, &values).await?;
            let rows = store.query_once(&sql.look, &[id]).await?;
            let Some(row) = rows.first() else { return Ok(None) };
            let stored = Stored::read(row)?;
            if stored.owner != *start.owner.as_bytes() || stored.attempts != 1 {
                return Ok(None);
            }
            stored.fence
        }
    };
    Ok(Some(new_held(start, fence, Before::Nothing)))
}

/// The right to begin a flow that nobody has begun: its first step finds out whether it still is so.
async fn look_for_room<S: TxStore>(
    gather: &Gather<S>,
    start: &Start,
) -> Result<Option<Held>, TxError> {
    let id = Value::Bytes(start.id.as_bytes());
    let now = gather.say(What::Look, start.id, &[id]).await?;
    Ok(now.map(|now| new_held(start, now, Before::NoRow)))
}

fn new_held(start: &Start, fence: i64, before: Before) -> Held {
    Held {
        id: start.id,
        fence,
        owner: start.owner,
        attempts: 1,
        lease: start.lease,
        grace: start.grace,
        before,
        way: Way::Forward,
        data: None,
        point: "started".to_owned(),
    }
}

fn held_of(start: &Start, stored: Stored, before: Before) -> Held {
    Held {
        id: start.id,
        fence: stored.fence,
        owner: start.owner,
        attempts: stored.attempts,
        lease: start.lease,
        grace: start.grace,
        before,
        way: if stored.state == state::UNDOING { Way::Back } else { Way::Forward },
        data: stored.data,
        point: stored.point,
    }
}

fn refused(decision: Decision, stored: Stored) -> Claimed {
    match decision {
        Decision::Mismatch => Claimed::Mismatch,
        // What was compensated says what it said when it stopped.
        Decision::Replay => match stored.reply {
            Some(saved) => Claimed::Replay(saved),
            None => Claimed::Dead("it is finished, but has no reply".to_owned()),
        },
        Decision::Busy(left) => {
            Claimed::Busy(Duration::from_micros(u64::try_from(left).unwrap_or(0)))
        }
        Decision::Parked => Claimed::Parked(stored.reason),
        Decision::Dead => Claimed::Dead(stored.reason),
        Decision::Skew => Claimed::Skew(stored.version),
        Decision::TakeOver => unreachable!("a takeover is no refusal"),
    }
}

/// A flow as it stands.
pub(crate) async fn look<S: TxStore>(store: &S, id: &KeyId) -> Result<Option<Stored>, TxError> {
    let sql = store.layout().sql();
    let rows = store.query_once(&sql.look, &[Value::Bytes(id.as_bytes())]).await?;
    rows.first().map(Stored::read).transpose()
}

/// Extends the lease. `Fenced` if somebody else has the flow, or it is over.
pub(crate) async fn renew<S: TxStore>(store: &S, held: &Held) -> Result<Kept, TxError> {
    let sql = store.layout().sql();
    let values = [
        Value::Int(micros(held.lease)),
        Value::Int(micros(held.lease + held.grace)),
        Value::Bytes(held.id.as_bytes()),
        Value::Int(held.fence),
        Value::Bytes(held.owner.as_bytes()),
    ];
    Ok(Kept::of(store.execute_once(&sql.renew, &values).await?))
}

/// What came of a write of an owner.
#[must_use = "a fenced write changed nothing"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Yes,
    /// Somebody else has the flow, or it is over.
    Fenced,
}

impl Kept {
    pub(crate) const fn of(rows: u64) -> Self {
        if rows == 0 { Self::Fenced } else { Self::Yes }
    }
}

/// A span in microseconds, at most 10 000 years: it is added to clock readings.
pub(crate) fn micros(span: Duration) -> i64 {
    const MOST: i64 = 10_000 * 365 * 86_400 * 1_000_000;
    i64::try_from(span.as_micros()).unwrap_or(MOST).min(MOST)
}

/// Whether a failed commit or statement may be asked about again.
pub(crate) fn may_pass(error: &TxError) -> bool {
    matches!(error.kind(), TxTrouble::Conflict | TxTrouble::Unavailable)
}
