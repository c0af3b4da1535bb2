//! Records that come from elsewhere, and which database this is.

use std::fmt::Write as _;

use oncekey_core::restore::{Lineage, Restored, supersedes};
use oncekey_core::saved::{NotKept, Outcome};
use oncekey_core::seal::{RECORD_FORMAT, Seal};
use oncekey_core::{Answer, Record, Sent, State};

use super::error::Trouble;
use super::session::Session;
use super::sql::{self, Tables, push_hex, push_optional};
use super::{large, row};
use crate::store::parts::answer_codes;

/// Writes a record as it is, unless a newer one is there.
///
/// The record that is there is locked while the two are compared. If there is none, the primary key
/// refuses the second of two that come at once, and the caller asks again.
pub(super) async fn restore(
    session: &mut Session,
    tables: &Tables,
    record: &Record,
) -> Result<Restored, Trouble> {
    let key = sql::hex(record.id.as_bytes());
    let find = format!(
        "SELECT {} FROM {} WHERE `key_id` = {key} FOR UPDATE",
        row::STANDING,
        tables.records
    );
    let sets = session.begin(&["BEGIN", &find]).await?;
    let found = sets.get(1).and_then(|set| set.rows.first());
    let found = match found.map(row::standing).transpose() {
        Ok(found) => found,
        Err(damage) => {
            session.roll_back().await?;
            return Err(damage.into());
        }
    };
    if !supersedes(record, found) {
        session.roll_back().await?;
        return Ok(Restored::Kept);
    }
    // Only what was compared is deleted: between the question and this statement, a key that had no
    // record may have got one, which no lock kept away, and it would go without having been asked.
    if found.is_some() {
        session.begin(&[format!("DELETE FROM {} WHERE `key_id` = {key}", tables.records)]).await?;
    }
    // From here on the row is ours until the end, so the pieces that are there belong to nobody else.
    let pieces = pieces_of(record).count();
    let alone = format!("DELETE FROM {} WHERE `key_id` = {key}", tables.pieces);
    session.begin(&[insert(tables, record, pieces), alone]).await?;
    for piece in pieces_of(record) {
        session.begin(&[insert_piece(tables, record, piece)]).await?;
    }
    session.commit().await?;
    Ok(Restored::Written)
}

/// The name that the tables got when they were made, and that of the server.
pub(super) async fn lineage(session: &mut Session, tables: &Tables) -> Result<Lineage, Trouble> {
    let epoch = format!("SELECT LOWER(HEX(`epoch`)) FROM {} WHERE `id` = 1", tables.clock);
    // MySQL has the first, MariaDB the second.
    let server = "SHOW GLOBAL VARIABLES WHERE `Variable_name` IN ('server_uuid', 'server_uid')";
    let sets = session.run(&[&*epoch, server]).await?;
    let text = |set: usize, column: usize| {
        let row = sets.get(set).and_then(|set| set.rows.first())?;
        let bytes = row::blob(row, column).ok()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    let epoch = text(0, 0).ok_or(Trouble::damaged("the epoch of the tables is gone"))?;
    Ok(Lineage::new(format!("{epoch}/{}", text(1, 1).unwrap_or_default())))
}

/// A piece of a large body: of which answer, which part, and its bytes.
type Piece<'r> = (&'r Outcome, u32, &'r [u8]);

fn pieces_of(record: &Record) -> impl Iterator<Item = Piece<'_>> {
    let answer = match &record.state {
        State::Done { answer, outcome, .. } => Some((outcome, answer)),
        State::Running { .. } | State::Unknown { .. } | State::Parked { .. } => None,
    };
    let large = answer.and_then(|(outcome, answer)| match answer {
        Answer::Kept(saved) => Some((outcome, &saved.body)),
        Answer::Tombstone(_) => None,
    });
    large.into_iter().flat_map(|(outcome, body)| {
        large::pieces_of_body(body).map(move |(part, bytes)| (outcome, part, bytes))
    })
}

fn insert_piece(tables: &Tables, record: &Record, (outcome, part, bytes): Piece<'_>) -> String {
    format!(
        "INSERT INTO {} (`key_id`, `fence`, `outcome`, `part`, `bytes`) \
         VALUES ({}, {}, {}, {part}, {})",
        tables.pieces,
        sql::hex(record.id.as_bytes()),
        record.fence,
        sql::hex(outcome.as_bytes()),
        sql::hex(bytes)
    )
}

fn insert(tables: &Tables, record: &Record, pieces: usize) -> String {
    let (at, sent) = match &record.state {
        State::Running { until, sent } => (until, *sent),
        State::Done { at, .. } => (at, Sent::Yes),
        State::Unknown { since } | State::Parked { since } => (since, Sent::Yes),
    };
    let mut out = format!("INSERT INTO {} ({}, `due`) VALUES (", tables.records, row::COLUMNS);
    push_hex(&mut out, record.id.as_bytes());
    let state = record.state.kind().code();
    write!(out, ", {RECORD_FORMAT}, {state}, {}, ", record.fence).expect(EVERYTHING);
    push_hex(&mut out, record.owner.as_bytes());
    let (class, sent, version) = (record.class.code(), sent.code(), record.fingerprint.version());
    let (at, created) = (at.micros(), record.created.micros());
    write!(out, ", {class}, {sent}, {at}, {created}, {version}").expect(EVERYTHING);
    for bytes in [
        &record.fingerprint.digest()[..],
        Seal::expected_of_claim(record).as_bytes(),
        record.places.as_encoded(),
        record.origin.key.as_bytes(),
        record.origin.scope.as_bytes(),
        record.origin.route.as_bytes(),
        record.origin.request.as_bytes(),
    ] {
        out.push_str(", ");
        push_hex(&mut out, bytes);
    }
    push_answer(&mut out, record, pieces);
    out.push(')');
    out
}

fn push_answer(out: &mut String, record: &Record, pieces: usize) {
    let (State::Done { expires, forget, outcome, answer, .. }, Some(seal)) =
        (&record.state, Seal::expected_of_answer(record))
    else {
        out.push_str(&", NULL".repeat(10));
        return;
    };
    let (status, not_kept) = answer_codes(answer);
    write!(out, ", {}, {}, ", expires.micros(), forget.micros()).expect(EVERYTHING);
    push_optional(out, status);
    write!(out, ", {not_kept}, ").expect(EVERYTHING);
    push_hex(out, outcome.as_bytes());
    out.push_str(", ");
    push_hex(out, seal.as_bytes());
    let (headers, body) = match answer {
        Answer::Kept(saved) if pieces == 0 => (saved.headers.encode(), &saved.body[..]),
        Answer::Kept(saved) => (saved.headers.encode(), &[][..]),
        Answer::Tombstone(_) => (Vec::new(), &[][..]),
    };
    out.push_str(", ");
    push_hex(out, &headers);
    write!(out, ", {pieces}, ").expect(EVERYTHING);
    push_hex(out, body);
    // What has expired for good waits for nothing but being forgotten.
    let due = if not_kept == NotKept::Expired.code() { forget } else { expires };
    write!(out, ", {}", due.micros()).expect(EVERYTHING);
}

/// Why writing to a string cannot fail.
const EVERYTHING: &str = "a string takes everything";
