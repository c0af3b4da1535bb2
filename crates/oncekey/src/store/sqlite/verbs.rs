//! The verbs of the store as SQL. Everything here runs inside one `IMMEDIATE` transaction of the
//! writer thread: what is read cannot change before it is written, by no thread and no process.

use std::time::Duration;

use oncekey_core::decide::{Act, Decision, Judgement, Standing, decide, judge};
use oncekey_core::saved::{NotKept, Outcome};
use oncekey_core::seal::{RECORD_FORMAT, Seal};
use oncekey_core::store::{Purged, Times};
use oncekey_core::{
    Answer, Claim, Claimed, Completion, Fence, Grant, KeyId, Lease, Owner, Refusal, Renewal, Sent,
    State, StateKind, Timestamp, Tombstone, Write,
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::error::Failure;
use super::row::{self, Found};

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

const CLAIM_NEW: &str = "
    INSERT INTO oncekey_records (key_id, format, state, fence, owner, class, sent, at, created,
        fingerprint_version, fingerprint, seal, places, key, scope, route, request)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)";

const CLAIM_OVER: &str = "
    UPDATE oncekey_records SET format = ?2, state = ?3, fence = ?4, owner = ?5, class = ?6,
        sent = ?7, at = ?8, created = ?9, fingerprint_version = ?10, fingerprint = ?11, seal = ?12,
        places = ?13, key = ?14, scope = ?15, route = ?16, request = ?17
    WHERE id = ?18 AND key_id = ?1";

const REMEMBER: &str = "INSERT INTO oncekey_fresh (hash, record) VALUES (?1, ?2)";
const RENEW: &str = "UPDATE oncekey_records SET at = ?2 WHERE id = ?1";
const SEND: &str = "UPDATE oncekey_records SET sent = ?2 WHERE id = ?1";
const SET_STATE: &str = "UPDATE oncekey_records SET state = ?2, at = ?3 WHERE id = ?1";

const COMPLETE: &str = "
    INSERT INTO oncekey_answers (record, expires, forget, due, status, not_kept, outcome, seal,
        headers, pieces, body)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";

const PUT_PIECE: &str = "
    INSERT INTO oncekey_pieces (record, outcome, part, bytes) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (record, outcome, part) DO UPDATE SET bytes = excluded.bytes";

const GET_PIECES: &str = "
    SELECT bytes FROM oncekey_pieces WHERE record = ?1 AND outcome = ?2 AND part < ?3
    ORDER BY part";

const DUE: &str = "
    SELECT a.record, a.expires, a.forget, a.status, a.not_kept, a.outcome, a.seal,
        r.key_id, r.fence, r.owner, r.state
    FROM oncekey_answers AS a JOIN oncekey_records AS r ON r.id = a.record
    WHERE a.due <= ?1 ORDER BY a.due";

const STRIP: &str = "
    UPDATE oncekey_answers SET due = forget, not_kept = ?2, seal = ?3, headers = x'',
        pieces = 0, body = x''
    WHERE record = ?1";

const FORGET_ANSWER: &str = "DELETE FROM oncekey_answers WHERE record = ?1";
const FORGET_PIECES: &str = "DELETE FROM oncekey_pieces WHERE record = ?1";
const FORGET_RECORD: &str = "DELETE FROM oncekey_records WHERE id = ?1";
const FORGET_FRESH: &str = "DELETE FROM oncekey_fresh WHERE hash = ?1 AND record = ?2";
const FORGET_SETTLED: &str = "DELETE FROM oncekey_settled WHERE hash = ?1 AND record = ?2";

/// A claim with what can be computed before the writer thread is asked.
#[derive(Debug)]
pub(super) struct PreparedClaim {
    pub(super) claim: Claim,
    places: Vec<u8>,
    seal: Seal,
}

/// A completion with what can be computed before the writer thread is asked.
#[derive(Debug)]
pub(super) struct PreparedCompletion {
    pub(super) completion: Completion,
    pub(super) outcome: Outcome,
    seal: Seal,
    headers: Vec<u8>,
    /// In how many pieces the body was written beforehand; zero if it goes with the answer.
    pub(super) pieces: u32,
}

/// What a transaction knows about the whole store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ledger {
    /// The highest fence ever granted.
    pub(super) fence: i64,
    /// How many keys are in the small map.
    pub(super) fresh: i64,
}

impl Ledger {
    /// The next fence. One that does not rise cannot be granted: the ledger is damaged, because no
    /// clock counts microseconds up to the end of the numbers.
    fn next_fence(self, found: Option<Fence>, now: Timestamp) -> Result<Fence, Failure> {
        const WRONG: Failure = Failure::Damaged("the highest fence that was granted");
        // Zero is what a new file begins with.
        let previous = match self.fence {
            0 => None,
            number => Some(Fence::from_number(number).ok_or(WRONG)?),
        };
        // Normally the ledger is ahead of every record; a damaged one may not be.
        let previous = previous.max(found);
        let next = Fence::next(previous, now);
        if previous < Some(next) { Ok(next) } else { Err(WRONG) }
    }
}

impl PreparedClaim {
    pub(super) fn new(claim: &Claim) -> Self {
        let Claim { id, owner, fingerprint, class, origin, places, .. } = claim;
        Self {
            places: places.encode(),
            seal: Seal::of_claim(id, owner, fingerprint, *class, (origin, places)),
            claim: claim.clone(),
        }
    }
}

impl PreparedCompletion {
    pub(super) fn new(lease: &Lease, completion: &Completion, pieces: u32) -> Self {
        let outcome = completion.answer.outcome();
        let headers = match &completion.answer {
            Answer::Kept(saved) => saved.headers.encode(),
            Answer::Tombstone(_) => Vec::new(),
        };
        let seal = Seal::of_answer(lease, &outcome, &outcome);
        Self { completion: completion.clone(), outcome, seal, headers, pieces }
    }

    /// How many bytes the completion itself adds to a transaction.
    pub(super) fn inline_size(&self) -> usize {
        match &self.completion.answer {
            Answer::Kept(saved) if self.pieces == 0 => saved.body.len() + self.headers.len(),
            Answer::Kept(_) | Answer::Tombstone(_) => self.headers.len(),
        }
    }
}

pub(super) fn claim(
    connection: &Connection,
    prepared: &PreparedClaim,
    ledger: &mut Ledger,
    now: Timestamp,
) -> Result<Claimed, Failure> {
    let claim = &prepared.claim;
    let found = find(connection, &claim.id)?;
    match (decide(found.as_ref().map(|found| &found.record), claim, now), found) {
        (Decision::Refuse(refusal), Some(found)) => {
            let is_replay = refusal == Refusal::Replay;
            let record = if is_replay { whole(connection, found)? } else { found.record };
            Ok(Claimed::Lost { refusal, record: Box::new(record), now })
        }
        (Decision::Run(Grant::Again), Some(found)) => {
            let until = now.after(claim.lease);
            connection.prepare_cached(RENEW)?.execute(params![found.row, until.micros()])?;
            let lease = Lease { until, ..found.record.lease() };
            let earlier = Grant::Again.earlier(Some(&found.record));
            Ok(Claimed::Won { lease, grant: Grant::Again, earlier })
        }
        (Decision::Run(grant), found) => {
            let earlier = grant.earlier(found.as_ref().map(|found| &found.record));
            let lease = grant_anew(connection, prepared, (grant, found), ledger, now)?;
            Ok(Claimed::Won { lease, grant, earlier })
        }
        (Decision::Refuse(_), None) => unreachable!("a refusal is about a record"),
    }
}

/// Writes a new attempt, over the record that was found if there is one.
fn grant_anew(
    connection: &Connection,
    prepared: &PreparedClaim,
    (grant, found): (Grant, Option<Found>),
    ledger: &mut Ledger,
    now: Timestamp,
) -> Result<Lease, Failure> {
    let PreparedClaim { claim, places, seal } = prepared;
    let before = found.as_ref().map(|found| &found.record);
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
        places,
        claim.origin.key.as_bytes(),
        claim.origin.scope.as_bytes(),
        claim.origin.route.as_bytes(),
        claim.origin.request.as_bytes(),
    ];
    if let Some(Found { row, .. }) = found {
        let columns = [columns, params![row]].concat();
        connection.prepare_cached(CLAIM_OVER)?.execute(&*columns)?;
        // Whatever an earlier generation or attempt has left behind.
        connection.prepare_cached(FORGET_ANSWER)?.execute([row])?;
        connection.prepare_cached(FORGET_PIECES)?.execute([row])?;
    } else {
        connection.prepare_cached(CLAIM_NEW)?.execute(columns)?;
        let row = connection.last_insert_rowid();
        connection.prepare_cached(REMEMBER)?.execute([row::hash_of(&claim.id), row])?;
        ledger.fresh += 1;
    }
    ledger.fence = fence.number();
    Ok(lease)
}

pub(super) fn renew(
    connection: &Connection,
    leases: &[Lease],
    span: Duration,
    now: Timestamp,
) -> Result<Vec<Renewal>, Failure> {
    let until = now.after(span);
    let renewed = |lease: &Lease| match judged(connection, lease, Act::Renew)? {
        (Judgement::Apply | Judgement::Already, row) => {
            connection.prepare_cached(RENEW)?.execute(params![row, until.micros()])?;
            Ok(Renewal::Until(until))
        }
        (Judgement::Fenced, _) => Ok(Renewal::Lost),
    };
    leases.iter().map(renewed).collect()
}

pub(super) fn send(connection: &Connection, lease: &Lease) -> Result<Write, Failure> {
    write(connection, lease, Act::Send, |row| {
        connection.prepare_cached(SEND)?.execute(params![row, Sent::Yes.code()])?;
        Ok(())
    })
}

pub(super) fn complete(
    connection: &Connection,
    lease: &Lease,
    prepared: &PreparedCompletion,
    now: Timestamp,
) -> Result<Write, Failure> {
    let PreparedCompletion { completion, outcome, seal, headers, pieces } = prepared;
    write(connection, lease, Act::Complete(*outcome), |row| {
        let Times { at, expires, forget } = completion.times(lease.fence, now);
        let (status, not_kept) = row::answer_columns(&completion.answer);
        let body: &[u8] = match &completion.answer {
            Answer::Kept(saved) if *pieces == 0 => &saved.body,
            Answer::Kept(_) | Answer::Tombstone(_) => &[],
        };
        let done = StateKind::Done.code();
        connection.prepare_cached(SET_STATE)?.execute(params![row, done, at.micros()])?;
        connection.prepare_cached(COMPLETE)?.execute(params![
            row,
            expires.micros(),
            forget.micros(),
            expires.micros(),
            status,
            not_kept,
            outcome.as_bytes(),
            seal.as_bytes(),
            headers,
            pieces,
            body,
        ])?;
        Ok(())
    })
}

/// Writes a piece of a large body before its completion. Judged like the completion itself, so
/// that an attempt that was replaced does not fill the disk.
pub(super) fn piece(
    connection: &Connection,
    lease: &Lease,
    outcome: Outcome,
    part: u32,
    bytes: &[u8],
) -> Result<Write, Failure> {
    write(connection, lease, Act::Complete(outcome), |row| {
        let columns = params![row, outcome.as_bytes(), part, bytes];
        connection.prepare_cached(PUT_PIECE)?.execute(columns)?;
        Ok(())
    })
}

pub(super) fn release(
    connection: &Connection,
    lease: &Lease,
    ledger: &mut Ledger,
) -> Result<Write, Failure> {
    write(connection, lease, Act::Release, |row| forget(connection, &lease.id, row, ledger))
}

pub(super) fn unknown(
    connection: &Connection,
    lease: &Lease,
    now: Timestamp,
) -> Result<Write, Failure> {
    write(connection, lease, Act::Unknown, |row| {
        let unknown = StateKind::Unknown.code();
        connection.prepare_cached(SET_STATE)?.execute(params![row, unknown, now.micros()])?;
        Ok(())
    })
}

pub(super) fn purge(
    connection: &Connection,
    limit: usize,
    ledger: &mut Ledger,
    now: Timestamp,
) -> Result<Purged, Failure> {
    let mut due = due(connection, limit, now)?;
    // In the order of the key maps, so that neighbours are removed together.
    due.sort_by_key(|(lease, ..)| row::hash_of(&lease.id));
    let mut purged = Purged::default();
    for (lease, row, forget_at, status, outcome) in due {
        if forget_at <= now {
            forget(connection, &lease.id, row, ledger)?;
            purged.forgotten += 1;
        } else {
            let reason = NotKept::Expired;
            let stands = Answer::Tombstone(Tombstone { status, reason }).outcome();
            let seal = Seal::of_answer(&lease, &outcome, &stands);
            let columns = params![row, reason.code(), seal.as_bytes()];
            connection.prepare_cached(STRIP)?.execute(columns)?;
            connection.prepare_cached(FORGET_PIECES)?.execute([row])?;
            purged.stripped += 1;
        }
    }
    Ok(purged)
}

/// A lease of the newest attempt, its row, when to forget it, its status and its outcome.
type Due = (Lease, i64, Timestamp, Option<u16>, Outcome);

fn due(connection: &Connection, limit: usize, now: Timestamp) -> Result<Vec<Due>, Failure> {
    let mut statement = connection.prepare_cached(DUE)?;
    let mut rows = statement.query([now.micros()])?;
    let mut due = Vec::new();
    while due.len() < limit
        && let Some(row) = rows.next()?
    {
        // A damaged row stays for people to look at, and must not keep the others from going.
        due.extend(read_due(row, now));
    }
    Ok(due)
}

/// `None` if the row is not what was written, as far as can be told without reading the answer.
fn read_due(row: &Row<'_>, now: Timestamp) -> Option<Due> {
    let moment = |column| row.get(column).ok().map(Timestamp::from_micros);
    let (expires, forget_at) = (moment(1)?, moment(2)?);
    let (status, not_kept): (Option<u16>, u8) = (row.get(3).ok()?, row.get(4).ok()?);
    let given = Outcome::from_bytes(row.get(5).ok()?);
    let lease = Lease {
        id: KeyId::from_bytes(row.get(7).ok()?),
        fence: Fence::from_number(row.get(8).ok()?)?,
        owner: Owner::from_bytes(row.get(9).ok()?),
        until: now,
    };
    let stands = match not_kept {
        0 => given,
        code => {
            let reason = NotKept::from_code(code)?;
            Answer::Tombstone(Tombstone { status, reason }).outcome()
        }
    };
    let sound = expires <= now
        && expires <= forget_at
        && row.get(10) == Ok(StateKind::Done.code())
        && row.get(6).map(Seal::from_bytes) == Ok(Seal::of_answer(&lease, &given, &stands));
    sound.then_some((lease, row.get(0).ok()?, forget_at, status, given))
}

/// Reads a record and, if its body is in pieces, leaves it there.
pub(super) fn find(connection: &Connection, id: &KeyId) -> Result<Option<Found>, Failure> {
    // Formatted once per connection and text: the cache is keyed by the statement itself.
    let mut statement = connection.prepare_cached(get_statement())?;
    let hash = row::hash_of(id);
    let mut rows = statement.query([hash])?;
    while let Some(row) = rows.next()? {
        let found = row::read(row)?;
        if found.record.id == *id {
            return Ok(Some(found));
        }
        // Two digests may begin with the same eight bytes. Nothing else may be found here.
        if row::hash_of(&found.record.id) != hash {
            return Err(Failure::Damaged("the key map names the record of another key"));
        }
    }
    Ok(None)
}

/// Reads the pieces that a record may still lack and checks the whole.
pub(super) fn whole(
    connection: &Connection,
    found: Found,
) -> Result<oncekey_core::Record, Failure> {
    let State::Done { outcome, .. } = &found.record.state else {
        return Ok(found.record);
    };
    if found.pieces == 0 {
        return Ok(found.record);
    }
    let mut statement = connection.prepare_cached(GET_PIECES)?;
    let mut rows = statement.query(params![found.row, outcome.as_bytes(), found.pieces])?;
    let mut body = Vec::new();
    while let Some(row) = rows.next()? {
        let piece = row.get_ref(0)?.as_blob().map_err(|_| Failure::Damaged("a piece"))?;
        body.extend_from_slice(piece);
    }
    found.with_body(body)
}

/// Judges `act` and, if it may be, lets `change` make the change.
fn write(
    connection: &Connection,
    lease: &Lease,
    act: Act,
    change: impl FnOnce(i64) -> Result<(), Failure>,
) -> Result<Write, Failure> {
    match judged(connection, lease, act)? {
        (Judgement::Apply, row) => change(row).map(|()| Write::Applied),
        (Judgement::Already, _) => Ok(Write::Applied),
        (Judgement::Fenced, _) => Ok(Write::Fenced),
    }
}

/// What [`judge`] says about the record as it stands, and its row.
pub(super) fn judged(
    connection: &Connection,
    lease: &Lease,
    act: Act,
) -> Result<(Judgement, i64), Failure> {
    let standing: Option<(i64, Standing)> = connection
        .prepare_cached(STANDING)?
        .query_row(params![row::hash_of(&lease.id), lease.id.as_bytes()], |found| {
            Ok((found.get(0)?, row::standing(found, 1)))
        })
        .optional()?
        .map(|(row, standing)| Ok::<_, Failure>((row, standing?)))
        .transpose()?;
    let row = standing.map_or(0, |(row, _)| row);
    Ok((judge(standing.map(|(_, standing)| standing), lease, act), row))
}

fn forget(
    connection: &Connection,
    id: &KeyId,
    row: i64,
    ledger: &mut Ledger,
) -> Result<(), Failure> {
    let place = [row::hash_of(id), row];
    connection.prepare_cached(FORGET_ANSWER)?.execute([row])?;
    connection.prepare_cached(FORGET_PIECES)?.execute([row])?;
    connection.prepare_cached(FORGET_RECORD)?.execute([row])?;
    if connection.prepare_cached(FORGET_FRESH)?.execute(place)? > 0 {
        ledger.fresh -= 1;
    } else {
        connection.prepare_cached(FORGET_SETTLED)?.execute(place)?;
    }
    Ok(())
}

fn get_statement() -> &'static str {
    static STATEMENT: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| GET.replace("{columns}", row::COLUMNS));
    &STATEMENT
}
