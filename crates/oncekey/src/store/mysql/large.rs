//! Bodies that are too large for a row. They are written in pieces before their completion, and read
//! back in order.

use oncekey_core::decide::{Act, Judgement, judge};
use oncekey_core::saved::Outcome;
use oncekey_core::{Answer, Completion, KeyId, Lease, Record, State, Timestamp, Write};

use super::error::{NULL, Trouble};
use super::session::Session;
use super::sql::{self, NOW, Tables};
use super::{ends, row};
use crate::store::parts::{Assembled, CompletionParts};

/// Bodies up to this size are in the row of their answer: a batch of them is still a small text.
const INLINE: usize = 64 * 1024;

/// The size of a piece. As text it is twice as long, which fits the smallest `max_allowed_packet`
/// that the store works with many times over; the largest body is 64 pieces, each a commit.
const PIECE: usize = 256 * 1024;

/// What came of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Completed {
    /// It was applied or fenced.
    Wrote(Write),
    /// It could have been applied, but the record was erased meanwhile, and the pieces of its body
    /// with it. They must be written again.
    PiecesGone,
}

/// The body of a completion, if it does not fit into the row.
pub(super) fn body_of(completion: &Completion) -> Option<&[u8]> {
    match &completion.answer {
        Answer::Kept(saved) if saved.body.len() > INLINE => Some(&saved.body),
        Answer::Kept(_) | Answer::Tombstone(_) => None,
    }
}

/// The pieces of a body that is too large for a row; of any other, none.
pub(super) fn pieces_of_body(body: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let body = if body.len() > INLINE { body } else { &[] };
    (0..).zip(body.chunks(PIECE))
}

/// Completes with a body that is too large for a row.
pub(super) async fn record(
    session: &mut Session,
    tables: &Tables,
    lease: &Lease,
    (completion, body): (&Completion, &[u8]),
) -> Result<Write, Trouble> {
    let outcome = completion.answer.outcome();
    loop {
        let Some(pieces) = write(session, tables, lease, &outcome, body).await? else {
            return Ok(Write::Fenced);
        };
        let parts = CompletionParts::new(lease, completion, pieces);
        match complete(session, tables, lease, &parts).await? {
            Completed::Wrote(write) => return Ok(write),
            // Once more for every erasure that comes in between.
            Completed::PiecesGone => {}
        }
    }
}

/// Writes a large body in pieces, and says in how many, or that the lease was lost.
async fn write(
    session: &mut Session,
    tables: &Tables,
    lease: &Lease,
    outcome: &Outcome,
    body: &[u8],
) -> Result<Option<u32>, Trouble> {
    let mut count = 0;
    for (part, bytes) in pieces_of_body(body) {
        // Judged like the completion itself, so that an attempt that was replaced does not fill the
        // disk. The lock keeps the record from going away before the piece is there.
        let text = format!(
            "INSERT INTO {} (`key_id`, `fence`, `outcome`, `part`, `bytes`) \
             SELECT r.`key_id`, r.`fence`, {}, {part}, {} FROM {} AS r WHERE {} \
             LOCK IN SHARE MODE ON DUPLICATE KEY UPDATE `bytes` = VALUES(`bytes`)",
            tables.pieces,
            sql::hex(outcome.as_bytes()),
            sql::hex(bytes),
            tables.records,
            ends::held(lease),
        );
        let sets = session.run(&[text]).await?;
        // The same piece again may count as nothing. The completion counts the pieces anyway.
        if sets.first().is_none_or(|set| set.matched == 0)
            && judged(session, tables, lease, outcome).await? == Judgement::Fenced
        {
            return Ok(None);
        }
        count += 1;
    }
    Ok(Some(count))
}

/// Completes with a body in pieces. The record is locked before they are counted, as an erasure locks
/// it before it removes them.
async fn complete(
    session: &mut Session,
    tables: &Tables,
    lease: &Lease,
    parts: &CompletionParts,
) -> Result<Completed, Trouble> {
    let [change, answer] = ends::complete_one(tables, lease, parts);
    let count = format!("SELECT COUNT(*) FROM {}", pieces_of(tables, lease, parts));
    let sets = match session.begin(&["BEGIN", &change, &answer, &count]).await {
        Err(trouble) if trouble.code() == Some(NULL) => {
            return match judged(session, tables, lease, &parts.outcome).await? {
                Judgement::Already => Ok(Completed::Wrote(Write::Applied)),
                Judgement::Fenced => Ok(Completed::Wrote(Write::Fenced)),
                Judgement::Apply => Ok(Completed::PiecesGone),
            };
        }
        ended => ended?,
    };
    let row = sets.get(3).and_then(|set| set.rows.first());
    let counted: u32 = row::number(row.ok_or(Trouble::damaged("a count"))?, 0)?;
    if counted != parts.pieces {
        session.roll_back().await?;
        return Ok(Completed::PiecesGone);
    }
    session.commit().await?;
    Ok(Completed::Wrote(Write::Applied))
}

/// Reads a record with its whole body, and the clock before it.
pub(super) async fn read(
    session: &mut Session,
    tables: &Tables,
    id: &KeyId,
) -> Result<(Option<Record>, Timestamp), Trouble> {
    // The record may be stripped, erased or replaced between the two reads: then it is read again. A
    // record that stays as it is and whose pieces do not fit is damaged.
    const ROUNDS: u32 = 3;
    let clock = format!("SELECT {NOW}");
    let find = format!(
        "SELECT {} FROM {} WHERE r.`key_id` = {}",
        row::COLUMNS,
        tables.whole,
        sql::hex(id.as_bytes())
    );
    for round in 1.. {
        let sets = session.run(&[&clock, &find]).await?;
        let now = row::moment(sets.first())?;
        let Some(found) = sets.get(1).and_then(|set| set.rows.first()) else {
            return Ok((None, now));
        };
        let found = row::read(found)?;
        if found.pieces == 0 {
            return Ok((Some(found.record), now));
        }
        match whole(session, tables, found).await {
            Ok(record) => return Ok((Some(record), now)),
            Err(Trouble::Row(_)) if round < ROUNDS => {}
            Err(trouble) => return Err(trouble),
        }
    }
    unreachable!("the last round returns")
}

async fn whole(
    session: &mut Session,
    tables: &Tables,
    found: Assembled,
) -> Result<Record, Trouble> {
    let State::Done { outcome, .. } = &found.record.state else { return Ok(found.record) };
    let text = format!(
        "SELECT `bytes` FROM {} WHERE `key_id` = {} AND `fence` = {} AND `outcome` = {} \
         AND `part` < {} ORDER BY `part`",
        tables.pieces,
        sql::hex(found.record.id.as_bytes()),
        found.record.fence,
        sql::hex(outcome.as_bytes()),
        found.pieces,
    );
    let sets = session.run(&[text]).await?;
    let mut body = Vec::new();
    for piece in sets.first().map_or(&[][..], |set| &set.rows) {
        body.extend_from_slice(row::blob(piece, 0)?);
    }
    Ok(found.with_body(body)?)
}

async fn judged(
    session: &mut Session,
    tables: &Tables,
    lease: &Lease,
    outcome: &Outcome,
) -> Result<Judgement, Trouble> {
    let text = format!(
        "SELECT {} FROM {} WHERE r.`key_id` = {}",
        row::STANDING,
        tables.whole,
        sql::hex(lease.id.as_bytes())
    );
    let sets = session.run(&[text]).await?;
    let found = sets.first().and_then(|set| set.rows.first()).map(row::standing).transpose()?;
    Ok(judge(found, lease, Act::Complete(*outcome)))
}

fn pieces_of(tables: &Tables, lease: &Lease, parts: &CompletionParts) -> String {
    format!(
        "{} WHERE `key_id` = {} AND `fence` = {} AND `outcome` = {} AND `part` < {}",
        tables.pieces,
        sql::hex(lease.id.as_bytes()),
        lease.fence,
        sql::hex(parts.outcome.as_bytes()),
        parts.pieces
    )
}
