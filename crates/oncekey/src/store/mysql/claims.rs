//! Claims, in batches.
//!
//! A free key is claimed by inserting its row: the unique index of key ids lets one of all claimants
//! through. Who
//! finds the row there reads it afresh, asks the core, and writes under a compare-and-set on what it
//! read. So there is no lock that is held while somebody thinks.
//!
//! How free keys are inserted, and what their fences are: see `insert.rs`.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mysql_async::Row;
use oncekey_core::decide::{Decision, decide};
use oncekey_core::seal::{RECORD_FORMAT, Seal};
use oncekey_core::{
    Claim, Claimed, ErrorKind, Fence, Grant, Lease, Record, Refusal, Sent, State, StateKind,
    StoreError, Timestamp,
};
use tokio::time::sleep;

use super::error::{DUPLICATE, OUT_OF_RANGE, Trouble};
use super::insert::{self, Mark};
use super::session::{COMMIT, Session, Set};
use super::sql::{self, NOW, Tables, push_hex};
use super::{remove, row};
use crate::store::parts::{self, Assembled, Damage};

/// A claim with what can be computed before the server is asked.
#[derive(Debug)]
pub(super) struct PreparedClaim {
    pub(super) claim: Claim,
    seal: Seal,
    likely: Likely,
}

/// Whether a key has a record already, as far as anybody can guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Likely {
    /// This process has met it.
    Known,
    /// It has not.
    New,
}

/// How many batches look before they insert. A record that nobody expected makes a whole batch
/// begin anew, so where there was one, the next batches are careful.
#[derive(Debug, Default)]
pub(super) struct Wariness(AtomicU32);

/// After so many batches it is forgotten. With a stranger's record in every tenth batch, most look
/// first; with one in a thousand, hardly any does.
const WARY_FOR: u32 = 16;

/// What came of a claim.
#[derive(Debug)]
pub(super) enum Came {
    /// It is decided.
    Decided(Claimed),
    /// It is refused with an answer whose body is in pieces, which is read on another connection so
    /// that nobody else in the batch waits for it.
    Far,
}

/// How often a batch is tried: somebody else may claim the same keys, or hold their locks. Every round
/// in which an insert fails finds somebody's row, so more than two are rare.
const ROUNDS: u32 = 6;

/// The first pause after a deadlock or a lock that was not to be had.
const PAUSE: Duration = Duration::from_millis(3);

/// The columns that every attempt writes.
pub(super) const COLUMNS: &str = "`key_id`, `format`, `state`, `fence`, `owner`, `class`, `sent`, `at`, \
    `created`, `fingerprint_version`, `fingerprint`, `seal`, `places`, `key`, `scope`, `route`, \
    `request`";

impl PreparedClaim {
    pub(super) fn new(claim: &Claim, likely: Likely) -> Self {
        Self { seal: parts::seal_of(claim), claim: claim.clone(), likely }
    }
}

impl Wariness {
    /// Whether a batch with these claims should look before it inserts.
    fn looks_first(&self, claims: &[&PreparedClaim]) -> bool {
        let relaxed = |left: u32| left.checked_sub(1);
        let is_wary = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, relaxed).is_ok();
        let is_known = claims.iter().any(|prepared| prepared.likely == Likely::Known);
        // A lone claim is most likely the first of its key, and disturbs nobody if it is not.
        is_known || (is_wary && claims.len() > 1)
    }

    fn was_surprised(&self) {
        self.0.store(WARY_FOR, Ordering::Relaxed);
    }
}

/// Decides claims on different keys. The answers are in their order.
pub(super) async fn run(
    session: &mut Session,
    tables: &Tables,
    wariness: &Wariness,
    claims: &[&PreparedClaim],
) -> Result<Vec<Result<Came, StoreError>>, Trouble> {
    let mut answers: Vec<Option<Result<Came, StoreError>>> = Vec::new();
    answers.resize_with(claims.len(), || None);
    // In the order of their keys, so that two batches never wait for each other.
    let mut open: Vec<usize> = (0..claims.len()).collect();
    open.sort_by_key(|&place| claims[place].claim.id);
    let looks_first = wariness.looks_first(claims);
    for round in 0..ROUNDS {
        let looked = if round > 0 || looks_first {
            look(session, tables, claims, &open, &mut answers).await
        } else {
            Ok(())
        };
        open.retain(|&place| answers[place].is_none());
        let ended = match looked {
            Ok(()) => {
                let mark = if round == 0 { Mark::Trusted } else { Mark::Read };
                insert::insert(session, tables, mark, (claims, &open), &mut answers).await
            }
            Err(trouble) => Err(trouble),
        };
        match ended {
            Ok(()) => break,
            Err(trouble) if matches!(trouble.code(), Some(DUPLICATE | OUT_OF_RANGE)) => {
                wariness.was_surprised();
            }
            Err(trouble) if trouble.is_contention() && round + 1 < ROUNDS => {
                pause(claims[0], round).await;
            }
            // What was granted is committed, and must not be asked for again as if it were not.
            Err(trouble) if answers.iter().any(is_won) => {
                for answer in &mut answers {
                    answer.get_or_insert_with(|| Err(trouble.after_commit()));
                }
                break;
            }
            Err(trouble) => return Err(trouble),
        }
    }
    Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(contended()))).collect())
}

fn is_won(answer: &Option<Result<Came, StoreError>>) -> bool {
    matches!(answer, Some(Ok(Came::Decided(Claimed::Won { .. }))))
}

/// Reads the records of the claims that are still open and answers whatever is no insert.
async fn look(
    session: &mut Session,
    tables: &Tables,
    claims: &[&PreparedClaim],
    open: &[usize],
    answers: &mut [Option<Result<Came, StoreError>>],
) -> Result<(), Trouble> {
    let ids = sql::list(open.iter().map(|&place| &claims[place].claim.id));
    let clock = format!("SELECT {NOW}, `fence` FROM {} WHERE `id` = 1", tables.clock);
    let find = format!("SELECT {} FROM {} WHERE r.`key_id` IN {ids}", row::COLUMNS, tables.whole);
    let sets = session.run(&[clock, find]).await?;
    let (now, mark) = clock_of(sets.first())?;
    for found in sets.get(1).map_or(&[][..], |set| &set.rows) {
        let id = row::key_id(found)?;
        let place = open.iter().copied().find(|&place| claims[place].claim.id == id);
        let Some(place) = place else { continue };
        answers[place] = decide_on(session, tables, claims[place], found, (now, mark)).await?;
    }
    Ok(())
}

/// Decides one claim on the row that was found. `None` if the row has changed since it was read.
async fn decide_on(
    session: &mut Session,
    tables: &Tables,
    prepared: &PreparedClaim,
    found: &Row,
    (now, mark): (Timestamp, Option<Fence>),
) -> Result<Option<Result<Came, StoreError>>, Trouble> {
    let Assembled { record, pieces, .. } = match row::read(found) {
        Ok(found) => found,
        Err(damage) => return Ok(Some(Err(damage.into()))),
    };
    let claim = &prepared.claim;
    let grant = match decide(Some(&record), claim, now) {
        Decision::Refuse(Refusal::Replay) if pieces > 0 => return Ok(Some(Ok(Came::Far))),
        Decision::Refuse(refusal) => {
            let lost = Claimed::Lost { refusal, record: Box::new(record), now };
            return Ok(Some(Ok(Came::Decided(lost))));
        }
        Decision::Run(grant) => grant,
    };
    let until = Timestamp::from_micros(now.micros() + sql::micros(claim.lease));
    let earlier = grant.earlier(Some(&record));
    let lease = match grant {
        Grant::Again => Lease { until, ..record.lease() },
        Grant::Fresh | Grant::Reused | Grant::TakenOver => {
            // A record that was restored may be older than one of this key that is gone.
            let before = Some(record.fence).max(mark);
            let fence = Fence::next(before, now);
            if Some(fence) <= before {
                // It concerns this key alone.
                let end = Damage::Damaged("a fence at the end of the numbers");
                return Ok(Some(Err(end.into())));
            }
            Lease { id: claim.id, fence, owner: claim.owner, until }
        }
    };
    let assignments = match grant {
        Grant::Again => format!("`at` = {}", until.micros()),
        Grant::Fresh | Grant::Reused | Grant::TakenOver => {
            over(prepared, &lease, claim.sent.or(earlier), grant.created(Some(&record), now))
        }
    };
    let condition = as_read(&record);
    let change = format!("UPDATE {} SET {assignments} WHERE {condition}", tables.records);
    let sets = if record.state.kind() == StateKind::Done {
        // With its record, the answer has lost what it belongs to.
        let answer = remove::answer(tables, &record.id, record.fence);
        session.run(&["BEGIN", &change, &answer, COMMIT]).await?.into_iter().skip(1).collect()
    } else {
        session.run(&[change]).await?
    };
    if sets.first().is_none_or(|set: &Set| set.matched != 1) {
        return Ok(None);
    }
    if grant != Grant::Again {
        forget_pieces(session, tables, &record).await;
    }
    Ok(Some(Ok(Came::Decided(Claimed::Won { lease, grant, earlier }))))
}

/// The clock and the high-water mark, which is nothing as long as no record has gone.
fn clock_of(set: Option<&Set>) -> Result<(Timestamp, Option<Fence>), Trouble> {
    let row = set.and_then(|set| set.rows.first());
    let row = row.ok_or(Trouble::NoMark)?;
    let now = Timestamp::from_micros(row::number(row, 0)?);
    Ok((now, Fence::from_number(row::number(row, 1)?)))
}

/// What a new attempt writes over an old record.
fn over(prepared: &PreparedClaim, lease: &Lease, sent: Sent, created: Timestamp) -> String {
    let mut values = String::new();
    push_values(
        &mut values,
        prepared,
        &lease.fence.to_string(),
        sent,
        [&lease.until.micros().to_string(), &created.micros().to_string()],
    );
    let mut text = String::new();
    // Not the key id, which is the first and stays.
    for (column, value) in COLUMNS.split(", ").zip(values.split(", ")).skip(1) {
        let comma = if text.is_empty() { "" } else { ", " };
        write!(text, "{comma}{column} = {value}").expect("a string takes everything");
    }
    text
}

/// Holds as long as nobody has written to the record: no takeover, no end, no renewal, no send mark.
fn as_read(record: &Record) -> String {
    let (at, sent) = match record.state {
        State::Running { until, sent } => (until, Some(sent)),
        State::Done { at, .. } => (at, None),
        State::Unknown { since } | State::Parked { since } => (since, None),
    };
    let mut text = format!(
        "`key_id` = {} AND `fence` = {} AND `owner` = {} AND `format` = {RECORD_FORMAT} \
         AND `state` = {} AND `at` = {}",
        sql::hex(record.id.as_bytes()),
        record.fence,
        sql::hex(record.owner.as_bytes()),
        record.state.kind().code(),
        at.micros(),
    );
    if let Some(sent) = sent {
        write!(text, " AND `sent` = {}", sent.code()).expect("a string takes everything");
    }
    text
}

/// Removes what earlier attempts have left of large bodies. If it fails, the rows refer to nothing
/// that counts, and go with the record.
async fn forget_pieces(session: &mut Session, tables: &Tables, over: &Record) {
    let text = format!(
        "DELETE FROM {} WHERE `key_id` = {} AND `fence` <= {}",
        tables.pieces,
        sql::hex(over.id.as_bytes()),
        over.fence
    );
    if let Err(trouble) = session.run(&[text]).await {
        tracing::debug!(?trouble, "pieces of an earlier attempt are left behind");
    }
}

/// Appends the values of [`COLUMNS`].
pub(super) fn push_values(
    out: &mut String,
    PreparedClaim { claim, seal, .. }: &PreparedClaim,
    fence: &str,
    sent: Sent,
    [at, created]: [&str; 2],
) {
    push_hex(out, claim.id.as_bytes());
    let running = StateKind::Running.code();
    write!(out, ", {RECORD_FORMAT}, {running}, {fence}, ").expect("a string takes everything");
    push_hex(out, claim.owner.as_bytes());
    let (class, sent, version) = (claim.class.code(), sent.code(), claim.fingerprint.version());
    write!(out, ", {class}, {sent}, {at}, {created}, {version}")
        .expect("a string takes everything");
    for bytes in [
        &claim.fingerprint.digest()[..],
        seal.as_bytes(),
        claim.places.as_encoded(),
        claim.origin.key.as_bytes(),
        claim.origin.scope.as_bytes(),
        claim.origin.route.as_bytes(),
        claim.origin.request.as_bytes(),
    ] {
        out.push_str(", ");
        push_hex(out, bytes);
    }
}

/// Twice as long every time, and not the same for everybody: the owner token is as good as random.
async fn pause(PreparedClaim { claim, .. }: &PreparedClaim, round: u32) {
    let [byte, ..] = claim.owner.as_bytes();
    let spread = PAUSE.mul_f64(f64::from(*byte) / 256.0);
    sleep((PAUSE + spread) * 2_u32.pow(round)).await;
}

fn contended() -> StoreError {
    StoreError::new(
        ErrorKind::Unavailable,
        "others claim and release this key faster than it can be decided: ask again",
    )
}
