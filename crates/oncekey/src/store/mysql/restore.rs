//! Records that come from elsewhere, and which database this is.

use std::fmt::Write as _;

use mysql_async::Row;
use oncekey_core::restore::{Restored, supersedes};
use oncekey_core::saved::{NotKept, Outcome};
use oncekey_core::seal::{RECORD_FORMAT, Seal};
use oncekey_core::{Answer, Record, Sent, State};

use super::error::Trouble;
use super::session::Session;
use super::sql::{self, EVERYTHING, Tables, push_hex, push_optional};
use super::{answer, claims, large, row};
use crate::store::parts::answer_codes;

/// Writes a record as it is, unless a newer one is there.
///
/// The record that is there is locked while the two are compared. If there is none, the unique index
/// refuses the second of two that come at once, and the caller asks again.
pub(super) async fn restore(
    session: &mut Session,
    tables: &Tables,
    record: &Record,
) -> Result<Restored, Trouble> {
    let key = sql::hex(record.id.as_bytes());
    let find = format!(
        "SELECT {} FROM {} WHERE r.`key_id` = {key} FOR UPDATE",
        row::STANDING,
        tables.whole
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
    // From here on the row is ours until the end, so what is there of answers belongs to nobody else.
    let mut statements = vec![insert(tables, record)];
    let fences = [Some(record.fence), found.map(|found| found.fence)];
    for fence in fences.into_iter().flatten() {
        let answer = format!("`key_id` = {key} AND `fence` = {fence}");
        statements.push(format!("DELETE FROM {} WHERE {answer}", tables.answers));
    }
    statements.push(format!("DELETE FROM {} WHERE `key_id` = {key}", tables.pieces));
    statements.extend(insert_answer(tables, record));
    session.begin(&statements).await?;
    for piece in pieces_of(record) {
        session.begin(&[insert_piece(tables, record, piece)]).await?;
    }
    session.commit().await?;
    Ok(Restored::Written)
}

/// The name that the tables got when they were made, and that of the server.
pub(super) async fn life(session: &mut Session, tables: &Tables) -> Result<String, Trouble> {
    let epoch = format!("SELECT LOWER(HEX(`epoch`)) FROM {} WHERE `id` = 1", tables.clock);
    // MySQL has the first, newer versions of MariaDB have the second. All have the third, which the
    // servers of a replication must have different from each other. They come in alphabetical order.
    let server = "SHOW GLOBAL VARIABLES WHERE `Variable_name` IN \
                  ('server_uuid', 'server_uid', 'server_id')";
    let sets = session.run(&[&*epoch, server]).await?;
    let text = |row: &Row, column: usize| {
        let bytes = row::blob(row, column).ok()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    let epoch = sets.first().and_then(|set| text(set.rows.first()?, 0));
    let epoch = epoch.ok_or(Trouble::damaged("the epoch of the tables is gone"))?;
    let server = sets.get(1).and_then(|set| text(set.rows.last()?, 1));
    Ok(format!("{epoch}/{}", server.unwrap_or_default()))
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

fn insert(tables: &Tables, record: &Record) -> String {
    let (at, sent) = match &record.state {
        State::Running { until, sent } => (until, *sent),
        State::Done { at, .. } => (at, Sent::Yes),
        State::Unknown { since } | State::Parked { since } => (since, Sent::Yes),
    };
    let mut out = format!("INSERT INTO {} ({}, `born`) VALUES (", tables.records, claims::COLUMNS);
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
    write!(out, ", {created})").expect(EVERYTHING);
    out
}

/// The answer of a record that is done.
fn insert_answer(tables: &Tables, record: &Record) -> Option<String> {
    let State::Done { expires, forget, outcome, answer, .. } = &record.state else { return None };
    let seal = Seal::expected_of_answer(record)?;
    let (status, not_kept) = answer_codes(answer);
    let pieces = pieces_of(record).count();
    let (headers, body) = match answer {
        Answer::Kept(saved) if pieces == 0 => (saved.headers.encode(), &saved.body[..]),
        Answer::Kept(saved) => (saved.headers.encode(), &[][..]),
        Answer::Tombstone(_) => (Vec::new(), &[][..]),
    };
    // What has expired for good waits for nothing but being forgotten.
    let due = if not_kept == NotKept::Expired.code() { forget } else { expires };
    let mut out = format!("INSERT INTO {} ({}) VALUES (", tables.answers, answer::COLUMNS);
    write!(out, "{}, ", record.fence).expect(EVERYTHING);
    push_hex(&mut out, record.id.as_bytes());
    let times = [expires, forget, due].map(|time| time.micros());
    let [expires, forget, due] = times;
    write!(out, ", {expires}, {forget}, {due}, ").expect(EVERYTHING);
    push_optional(&mut out, status);
    write!(out, ", {not_kept}, ").expect(EVERYTHING);
    for bytes in [&outcome.as_bytes()[..], seal.as_bytes(), &headers] {
        push_hex(&mut out, bytes);
        out.push_str(", ");
    }
    write!(out, "{pieces}, ").expect(EVERYTHING);
    push_hex(&mut out, body);
    out.push(')');
    Some(out)
}
