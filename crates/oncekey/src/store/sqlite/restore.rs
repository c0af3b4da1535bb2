//! Writing a record that was made elsewhere, as it is.

use bytes::Bytes;
use oncekey_core::restore::{Lineage, Restored, supersedes};
use oncekey_core::saved::NotKept;
use oncekey_core::seal::{RECORD_FORMAT, Seal};
use oncekey_core::{Answer, Record, Sent, State, Tombstone};
use rusqlite::{Connection, OptionalExtension, params};

use super::error::Failure;
use super::settle::Ledger;
use super::statements::Statements;
use super::{PIECE, verbs};
use crate::store::parts::answer_codes;

const EPOCH: &str = "SELECT epoch FROM oncekey_epoch WHERE id = 1";

/// A record with what can be computed before the writer thread is asked.
#[derive(Debug)]
pub(super) struct PreparedRecord {
    pub(super) record: Record,
    seal: Seal,
    answer_seal: Option<Seal>,
}

impl PreparedRecord {
    pub(super) fn new(record: &Record) -> Self {
        Self {
            seal: Seal::expected_of_claim(record),
            answer_seal: Seal::expected_of_answer(record),
            record: record.clone(),
        }
    }

    /// How many bytes it adds to a transaction.
    pub(super) fn size(&self) -> usize {
        match &self.record.state {
            State::Done { answer: Answer::Kept(saved), .. } => saved.body.len(),
            State::Done { .. }
            | State::Running { .. }
            | State::Unknown { .. }
            | State::Parked { .. } => 0,
        }
    }
}

/// Writes the record, unless what stands is at least as new.
///
/// A large body is written here in all its pieces: nobody holds a lease under which they could be
/// written beforehand, and a body of 16 MiB keeps others waiting for some tens of milliseconds.
pub(super) fn restore(
    statements: &Statements<'_>,
    prepared: &PreparedRecord,
    ledger: &mut Ledger,
) -> Result<Restored, Failure> {
    let record = &prepared.record;
    let found = verbs::standing(statements, &record.id)?;
    if !supersedes(record, found.map(|(_, standing)| standing)) {
        return Ok(Restored::Kept);
    }
    // Past running there is no send mark any more, but the column has to hold one.
    let (at, sent) = match &record.state {
        State::Running { until, sent } => (until, *sent),
        State::Done { at, .. } => (at, Sent::Yes),
        State::Unknown { since } | State::Parked { since } => (since, Sent::Yes),
    };
    let columns = params![
        record.id.as_bytes(),
        RECORD_FORMAT,
        record.state.kind().code(),
        record.fence.number(),
        record.owner.as_bytes(),
        record.class.code(),
        sent.code(),
        at.micros(),
        record.created.micros(),
        record.fingerprint.version(),
        record.fingerprint.digest(),
        prepared.seal.as_bytes(),
        record.places.as_encoded(),
        record.origin.key.as_bytes(),
        record.origin.scope.as_bytes(),
        record.origin.route.as_bytes(),
        record.origin.request.as_bytes(),
    ];
    let row = verbs::put(statements, columns, &record.id, found.map(|(row, _)| row), ledger)?;
    if let Some(seal) = prepared.answer_seal {
        put_answer(statements, row, &record.state, seal)?;
    }
    // Raised for all keys: who knows which of them the record's store had granted higher ones for.
    ledger.fence = ledger.fence.max(record.fence.number());
    Ok(Restored::Written)
}

fn put_answer(
    statements: &Statements<'_>,
    row: i64,
    state: &State,
    seal: Seal,
) -> Result<(), Failure> {
    let State::Done { expires, forget, outcome, answer, .. } = state else { return Ok(()) };
    // A purge has nothing left to strip of an answer that has expired.
    let due = match answer {
        Answer::Tombstone(Tombstone { reason: NotKept::Expired, .. }) => forget,
        Answer::Tombstone(_) | Answer::Kept(_) => expires,
    };
    let (status, not_kept) = answer_codes(answer);
    let (headers, body) = match answer {
        Answer::Kept(saved) => (saved.headers.encode(), saved.body.clone()),
        Answer::Tombstone(_) => (Vec::new(), Bytes::new()),
    };
    let (mut pieces, mut inline) = (0_u32, body);
    if inline.len() > PIECE {
        for bytes in inline.chunks(PIECE) {
            let columns = params![row, outcome.as_bytes(), pieces, bytes];
            statements.get(verbs::PUT_PIECE)?.execute(columns)?;
            pieces += 1;
        }
        inline = Bytes::new();
    }
    statements.get(verbs::COMPLETE)?.execute(params![
        row,
        expires.micros(),
        forget.micros(),
        due.micros(),
        status,
        not_kept,
        outcome.as_bytes(),
        seal.as_bytes(),
        headers,
        pieces,
        &*inline,
    ])?;
    Ok(())
}

/// Which file this is.
pub(super) fn lineage(connection: &Connection) -> Result<Lineage, Failure> {
    let epoch: Option<Vec<u8>> =
        connection.prepare_cached(EPOCH)?.query_row([], |row| row.get(0)).optional()?;
    let epoch = epoch.ok_or(Failure::damaged("the epoch of the file is gone"))?;
    let hex: String = epoch.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Lineage::new(format!("sqlite-{hex}")))
}
