//! The verbs of the store as SQL. Everything here runs inside one `IMMEDIATE` transaction of the
//! writer thread: what is read cannot change before it is written, by no thread and no process.

use std::time::Duration;

use oncekey_core::decide::{Act, Decision, Judgement, Standing, decide, judge};
use oncekey_core::saved::Outcome;
use oncekey_core::seal::{RECORD_FORMAT, Seal};
use oncekey_core::store::Times;
use oncekey_core::{
    Claim, Claimed, Grant, KeyId, Lease, Refusal, Renewal, Sent, State, StateKind, Timestamp, Write,
};
use rusqlite::{OptionalExtension, ToSql, params};

use super::error::Failure;
use super::purge;
use super::row::{self, Found};
use super::running::Running;
use super::settle::Ledger;
use super::statements::Statements;
use crate::store::parts::{self, CompletionParts};

/// Finds a record with everything that belongs to it. Two probes, one in each key map. What the
/// maps name and is not there, or is not what they name, is damage and not an absent key: so nothing
/// is filtered here.
const GET: &str = "
    SELECT {columns}
    FROM (SELECT record FROM oncekey_fresh WHERE hash = ?1
          UNION ALL SELECT record FROM oncekey_settled WHERE hash = ?1) AS m
    LEFT JOIN oncekey_records AS r ON r.id = m.record
    LEFT JOIN oncekey_answers AS a ON a.record = r.id";

/// Finds what a write is judged by.
const STANDING: &str = "
    SELECT r.id, r.format, r.state, r.fence, r.owner, r.sent, a.outcome
    FROM (SELECT record FROM oncekey_fresh WHERE hash = ?1
          UNION ALL SELECT record FROM oncekey_settled WHERE hash = ?1) AS m
    JOIN oncekey_records AS r ON r.id = m.record
    LEFT JOIN oncekey_answers AS a ON a.record = r.id
    WHERE r.key_id = ?2";

const PUT_NEW: &str = "
    INSERT INTO oncekey_records (key_id, format, state, fence, owner, class, sent, at, created,
        fingerprint_version, fingerprint, seal, places, key, scope, route, request)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)";

const PUT_OVER: &str = "
    UPDATE oncekey_records SET format = ?2, state = ?3, fence = ?4, owner = ?5, class = ?6,
        sent = ?7, at = ?8, created = ?9, fingerprint_version = ?10, fingerprint = ?11, seal = ?12,
        places = ?13, key = ?14, scope = ?15, route = ?16, request = ?17
    WHERE id = ?18 AND key_id = ?1";

const REMEMBER: &str = "INSERT INTO oncekey_fresh (hash, record) VALUES (?1, ?2)";
const RENEW: &str = "UPDATE oncekey_records SET at = ?2 WHERE id = ?1";
const SEND: &str = "UPDATE oncekey_records SET sent = ?2 WHERE id = ?1";
const SET_STATE: &str = "UPDATE oncekey_records SET state = ?2, at = ?3 WHERE id = ?1";

/// Ends the running attempt that has this row, if it still does. The condition is the line of
/// [`judge`] for it, with every column that a judgement reads: what it does not cover changes nothing,
/// and is looked for and judged.
const END_RUNNING: &str = "
    UPDATE oncekey_records SET state = ?2, at = ?3
    WHERE id = ?1 AND key_id = ?4 AND fence = ?5 AND owner = ?6 AND state = ?7 AND format = ?8
        AND sent IN (?9, ?10)";

pub(super) const COMPLETE: &str = "
    INSERT INTO oncekey_answers (record, expires, forget, due, status, not_kept, outcome, seal,
        headers, pieces, body)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";

pub(super) const PUT_PIECE: &str = "
    INSERT INTO oncekey_pieces (record, outcome, part, bytes) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (record, outcome, part) DO UPDATE SET bytes = excluded.bytes";

const COUNT_PIECES: &str = "
    SELECT count(*) FROM oncekey_pieces WHERE record = ?1 AND outcome = ?2 AND part < ?3";

const GET_PIECES: &str = "
    SELECT bytes FROM oncekey_pieces WHERE record = ?1 AND outcome = ?2 AND part < ?3
    ORDER BY part";

/// A claim with what can be computed before the writer thread is asked.
#[derive(Debug)]
pub(super) struct PreparedClaim {
    pub(super) claim: Claim,
    seal: Seal,
}

/// What came of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completed {
    /// It was applied or fenced.
    Wrote(Write),
    /// It could have been applied, but the record was erased meanwhile, and the pieces of its body
    /// with it. They must be written again.
    PiecesGone,
}

impl PreparedClaim {
    pub(super) fn new(claim: &Claim) -> Self {
        Self { seal: parts::seal_of(claim), claim: claim.clone() }
    }
}

pub(super) fn claim(
    statements: &Statements<'_>,
    prepared: &PreparedClaim,
    (ledger, running): (&mut Ledger, &mut Running),
    now: Timestamp,
) -> Result<Claimed, Failure> {
    let claim = &prepared.claim;
    let found = find(statements, &claim.id)?;
    match (decide(found.as_ref().map(Found::record), claim, now), found) {
        (Decision::Refuse(refusal), Some(found)) => {
            let is_replay = refusal == Refusal::Replay;
            let record = if is_replay { whole(statements, found)? } else { found.found.record };
            Ok(Claimed::Lost { refusal, record: Box::new(record), now })
        }
        (Decision::Run(Grant::Again), Some(found)) => {
            let until = now.after(claim.lease);
            statements.get(RENEW)?.execute(params![found.row, until.micros()])?;
            let lease = Lease { until, ..found.record().lease() };
            let earlier = Grant::Again.earlier(Some(found.record()));
            Ok(Claimed::Won { lease, grant: Grant::Again, earlier })
        }
        (Decision::Run(grant), found) => {
            let earlier = grant.earlier(found.as_ref().map(Found::record));
            let (lease, row) = grant_anew(statements, prepared, (grant, found), ledger, now)?;
            running.note(lease.id, row);
            Ok(Claimed::Won { lease, grant, earlier })
        }
        (Decision::Refuse(_), None) => unreachable!("a refusal is about a record"),
    }
}

/// Writes a new attempt, over the record that was found if there is one, and says which row it has.
fn grant_anew(
    statements: &Statements<'_>,
    prepared: &PreparedClaim,
    (grant, found): (Grant, Option<Found>),
    ledger: &mut Ledger,
    now: Timestamp,
) -> Result<(Lease, i64), Failure> {
    let PreparedClaim { claim, seal } = prepared;
    let before = found.as_ref().map(Found::record);
    let fence = ledger.next_fence(before.map(|record| record.fence), now)?;
    let lease = Lease { id: claim.id, fence, owner: claim.owner, until: now.after(claim.lease) };
    let columns = params![
        claim.id.as_bytes(),
        RECORD_FORMAT,
        StateKind::Running.code(),
        fence.number(),
        claim.owner.as_bytes(),
        claim.class.code(),
        claim.sent.or(grant.earlier(before)).code(),
        lease.until.micros(),
        grant.created(before, now).micros(),
        claim.fingerprint.version(),
        claim.fingerprint.digest(),
        seal.as_bytes(),
        claim.places.as_encoded(),
        claim.origin.key.as_bytes(),
        claim.origin.scope.as_bytes(),
        claim.origin.route.as_bytes(),
        claim.origin.request.as_bytes(),
    ];
    let row = put(statements, columns, &claim.id, found.map(|found| found.row), ledger)?;
    ledger.fence = fence.number();
    Ok((lease, row))
}

/// Writes the columns of a record, over the row that was found if there is one, and says which row
/// it has.
pub(super) fn put(
    statements: &Statements<'_>,
    columns: &[&dyn ToSql],
    id: &KeyId,
    over: Option<i64>,
    ledger: &mut Ledger,
) -> Result<i64, Failure> {
    if let Some(row) = over {
        let columns = [columns, params![row]].concat();
        statements.get(PUT_OVER)?.execute(&*columns)?;
        // Whatever an earlier generation or attempt has left behind.
        purge::forget_answer(statements, row)?;
        return Ok(row);
    }
    statements.get(PUT_NEW)?.execute(columns)?;
    let row = statements.last_insert_rowid();
    statements.get(REMEMBER)?.execute([row::hash_of(id), row])?;
    ledger.fresh += 1;
    Ok(row)
}

pub(super) fn renew(
    statements: &Statements<'_>,
    leases: &[Lease],
    span: Duration,
    now: Timestamp,
) -> Result<Vec<Renewal>, Failure> {
    let until = now.after(span);
    let renewed = |lease: &Lease| match judged(statements, lease, Act::Renew) {
        Ok((Judgement::Apply | Judgement::Already, row)) => {
            statements.get(RENEW)?.execute(params![row, until.micros()])?;
            Ok(Renewal::Until(until))
        }
        Ok((Judgement::Fenced, _)) => Ok(Renewal::Lost),
        // A damaged row must not cost the leases behind it, whose owners are alive.
        Err(failure) if failure.is_about_one_record() => Ok(Renewal::Lost),
        Err(failure) => Err(failure),
    };
    leases.iter().map(renewed).collect()
}

pub(super) fn send(statements: &Statements<'_>, lease: &Lease) -> Result<Write, Failure> {
    write(statements, lease, Act::Send, |row| {
        statements.get(SEND)?.execute(params![row, Sent::Yes.code()])?;
        Ok(())
    })
}

pub(super) fn complete(
    statements: &Statements<'_>,
    lease: &Lease,
    prepared: &CompletionParts,
    running: &mut Running,
    now: Timestamp,
) -> Result<Completed, Failure> {
    let times = prepared.times(lease.fence, now);
    // Whether the pieces of a body are there has to be known before anything is written.
    if prepared.pieces == 0
        && let Some(row) = running.take(&lease.id)
        && end_running(statements, lease, row, &times)? == 1
    {
        return answer(statements, row, prepared, &times);
    }
    let row = match judged(statements, lease, Act::Complete(prepared.outcome))? {
        (Judgement::Apply, row) => row,
        (Judgement::Already, _) => return Ok(Completed::Wrote(Write::Applied)),
        (Judgement::Fenced, _) => return Ok(Completed::Wrote(Write::Fenced)),
    };
    if prepared.pieces > 0 {
        let whole = params![row, prepared.outcome.as_bytes(), prepared.pieces];
        let count: u32 = statements.get(COUNT_PIECES)?.query_row(whole, |found| found.get(0))?;
        if count != prepared.pieces {
            return Ok(Completed::PiecesGone);
        }
    }
    let done = StateKind::Done.code();
    statements.get(SET_STATE)?.execute(params![row, done, times.at.micros()])?;
    answer(statements, row, prepared, &times)
}

/// Ends the attempt if it still runs in this row, and says how many did: one or none. One statement instead
/// of two, the first of which looked through two maps and two tables, and was a seventh of what the
/// writer does for a new key.
fn end_running(
    statements: &Statements<'_>,
    lease: &Lease,
    row: i64,
    times: &Times,
) -> rusqlite::Result<usize> {
    statements.get(END_RUNNING)?.execute(params![
        row,
        StateKind::Done.code(),
        times.at.micros(),
        lease.id.as_bytes(),
        lease.fence.number(),
        lease.owner.as_bytes(),
        StateKind::Running.code(),
        RECORD_FORMAT,
        Sent::No.code(),
        Sent::Yes.code(),
    ])
}

/// Writes the answer of a record whose state says already that it is done.
fn answer(
    statements: &Statements<'_>,
    row: i64,
    prepared: &CompletionParts,
    times: &Times,
) -> Result<Completed, Failure> {
    statements.get(COMPLETE)?.execute(params![
        row,
        times.expires.micros(),
        times.forget.micros(),
        times.expires.micros(),
        prepared.status,
        prepared.not_kept,
        prepared.outcome.as_bytes(),
        prepared.seal.as_bytes(),
        prepared.headers,
        prepared.pieces,
        &*prepared.body,
    ])?;
    Ok(Completed::Wrote(Write::Applied))
}

/// Writes a piece of a large body before its completion. Judged like the completion itself, so
/// that an attempt that was replaced does not fill the disk.
pub(super) fn piece(
    statements: &Statements<'_>,
    lease: &Lease,
    outcome: Outcome,
    part: u32,
    bytes: &[u8],
) -> Result<Write, Failure> {
    write(statements, lease, Act::Complete(outcome), |row| {
        let columns = params![row, outcome.as_bytes(), part, bytes];
        statements.get(PUT_PIECE)?.execute(columns)?;
        Ok(())
    })
}

pub(super) fn release(
    statements: &Statements<'_>,
    lease: &Lease,
    ledger: &mut Ledger,
) -> Result<Write, Failure> {
    write(statements, lease, Act::Release, |row| purge::forget(statements, &lease.id, row, ledger))
}

pub(super) fn unknown(
    statements: &Statements<'_>,
    lease: &Lease,
    now: Timestamp,
) -> Result<Write, Failure> {
    write(statements, lease, Act::Unknown, |row| {
        let unknown = StateKind::Unknown.code();
        statements.get(SET_STATE)?.execute(params![row, unknown, now.micros()])?;
        Ok(())
    })
}

/// Reads a record and, if its body is in pieces, leaves it there.
pub(super) fn find(statements: &Statements<'_>, id: &KeyId) -> Result<Option<Found>, Failure> {
    let mut statement = statements.get(get_statement())?;
    let hash = row::hash_of(id);
    let mut rows = statement.query([hash])?;
    while let Some(row) = rows.next()? {
        let found = row::read(row)?;
        if found.record().id == *id {
            return Ok(Some(found));
        }
        // Two digests may begin with the same eight bytes. Nothing else may be found here.
        if row::hash_of(&found.record().id) != hash {
            return Err(Failure::damaged("the key map names the record of another key"));
        }
    }
    Ok(None)
}

/// Reads the pieces that a record may still lack and checks the whole.
pub(super) fn whole(
    statements: &Statements<'_>,
    found: Found,
) -> Result<oncekey_core::Record, Failure> {
    let Found { row: number, found } = found;
    let State::Done { outcome, .. } = &found.record.state else {
        return Ok(found.record);
    };
    if found.pieces == 0 {
        return Ok(found.record);
    }
    let mut statement = statements.get(GET_PIECES)?;
    let mut rows = statement.query(params![number, outcome.as_bytes(), found.pieces])?;
    let mut body = Vec::new();
    while let Some(row) = rows.next()? {
        let piece = row.get_ref(0)?.as_blob().map_err(|_| Failure::damaged("a piece"))?;
        body.extend_from_slice(piece);
    }
    Ok(found.with_body(body)?)
}

/// Judges `act` and, if it may be, lets `change` make the change.
fn write(
    statements: &Statements<'_>,
    lease: &Lease,
    act: Act,
    change: impl FnOnce(i64) -> Result<(), Failure>,
) -> Result<Write, Failure> {
    match judged(statements, lease, act)? {
        (Judgement::Apply, row) => change(row).map(|()| Write::Applied),
        (Judgement::Already, _) => Ok(Write::Applied),
        (Judgement::Fenced, _) => Ok(Write::Fenced),
    }
}

/// What [`judge`] says about the record as it stands, and its row.
pub(super) fn judged(
    statements: &Statements<'_>,
    lease: &Lease,
    act: Act,
) -> Result<(Judgement, i64), Failure> {
    let found = standing(statements, &lease.id)?;
    let row = found.map_or(0, |(row, _)| row);
    Ok((judge(found.map(|(_, standing)| standing), lease, act), row))
}

/// The record as it stands, without the rest of it, and its row.
pub(super) fn standing(
    statements: &Statements<'_>,
    id: &KeyId,
) -> Result<Option<(i64, Standing)>, Failure> {
    statements
        .get(STANDING)?
        .query_row(params![row::hash_of(id), id.as_bytes()], |found| {
            Ok((found.get(0)?, row::standing(found, 1)))
        })
        .optional()?
        .map(|(row, standing)| Ok((row, standing?)))
        .transpose()
}

fn get_statement() -> &'static str {
    static STATEMENT: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| GET.replace("{columns}", row::COLUMNS));
    &STATEMENT
}
