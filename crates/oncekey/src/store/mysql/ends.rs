//! What ends an attempt, and the send mark before it, in batches.
//!
//! All operations of a kind are one statement, a join of the table with the operations as rows, in the
//! order of their keys. What the server says about the number of rows is believed only if it fits;
//! otherwise the rows are read and the core judges each.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use oncekey_core::decide::{Act, Judgement, judge};
use oncekey_core::{ErrorKind, KeyId, Lease, Sent, StateKind, StoreError, Write};
use tokio::time::sleep;

use super::error::Trouble;
use super::session::{Session, Set};
use super::sql::{self, NOW, Tables, push_hex, push_optional};
use super::{remove, row};
use crate::store::parts::CompletionParts;

/// A write of an owner.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) lease: Lease,
    pub(super) end: End,
}

/// What is to be written about an attempt.
#[derive(Debug)]
pub(super) enum End {
    Send,
    /// With its body in the row.
    Complete(Box<CompletionParts>),
    Release,
    Unknown,
}

/// How often a batch is tried when locks are not to be had.
const ROUNDS: u32 = 5;
/// The first pause after that.
const PAUSE: Duration = Duration::from_millis(3);

/// How much later than the clock a fence may move the times of a completion: see `Times::of`.
const MOST_AHEAD: i64 = 24 * 60 * 60 * 1_000_000;

/// Statements, and which of them speak for which writings.
#[derive(Debug, Default)]
struct Script {
    statements: Vec<String>,
    /// A statement that makes all of these writings.
    joins: Vec<(usize, Vec<usize>)>,
    /// A statement that makes one.
    removals: Vec<(usize, usize)>,
}

impl Writing {
    fn act(&self) -> Act {
        match &self.end {
            End::Send => Act::Send,
            End::Complete(parts) => Act::Complete(parts.outcome),
            End::Release => Act::Release,
            End::Unknown => Act::Unknown,
        }
    }
}

/// Makes writes on different keys. The answers are in their order.
pub(super) async fn run(
    session: &mut Session,
    tables: &Tables,
    writings: &[&Writing],
) -> Result<Vec<Result<Write, StoreError>>, Trouble> {
    let script = Script::of(tables, writings);
    let mut round = 0;
    let sets = loop {
        match session.run(&script.statements).await {
            Ok(sets) => break sets,
            Err(trouble) if trouble.is_contention() && round + 1 < ROUNDS => {
                // Not the same for everybody: the owner token is as good as random.
                let [byte, ..] = *writings[0].lease.owner.as_bytes();
                let spread = PAUSE.mul_f64(f64::from(byte) / 256.0);
                sleep((PAUSE + spread) * 2_u32.pow(round)).await;
                round += 1;
            }
            Err(trouble) => return Err(trouble),
        }
    };
    let (mut answers, doubtful) = script.answers(&sets, writings.len());
    if !doubtful.is_empty() {
        judge_afresh(session, tables, writings, &doubtful, &mut answers).await?;
    }
    Ok(answers)
}

impl Script {
    fn of(tables: &Tables, writings: &[&Writing]) -> Self {
        let mut sorted: Vec<usize> = (0..writings.len()).collect();
        sorted.sort_by_key(|&place| writings[place].lease.id);
        let of_kind = |is_it: fn(&End) -> bool| -> Vec<usize> {
            sorted.iter().copied().filter(|&place| is_it(&writings[place].end)).collect()
        };
        let mut script = Self::default();
        script.add(format!("SET @n = {NOW}"));
        // A single change needs no transaction around it: a lone caller is spared two statements.
        let kind = |writing: &Writing| std::mem::discriminant(&writing.end);
        let is_one = !matches!(writings[0].end, End::Release)
            && writings.iter().all(|writing| kind(writing) == kind(writings[0]));
        if !is_one {
            script.add("BEGIN".to_owned());
        }
        script.join(of_kind(|end| matches!(end, End::Send)), writings, tables, send);
        script.join(of_kind(|end| matches!(end, End::Unknown)), writings, tables, unknown);
        script.join(of_kind(|end| matches!(end, End::Complete(_))), writings, tables, complete);
        let releases = of_kind(|end| matches!(end, End::Release));
        for &place in &releases {
            let Writing { lease, .. } = writings[place];
            script.removals.push((script.statements.len(), place));
            script.add(remove::held(tables, lease));
            script.add(remove::pieces(tables, &lease.id, lease.fence));
        }
        if let Some(fence) = releases.iter().map(|&place| writings[place].lease.fence).max() {
            script.add(remove::raise(tables, fence));
        }
        if !is_one {
            script.add("COMMIT".to_owned());
        }
        script
    }

    fn add(&mut self, statement: String) {
        self.statements.push(statement);
    }

    fn join(
        &mut self,
        places: Vec<usize>,
        writings: &[&Writing],
        tables: &Tables,
        statement: fn(&Tables, &[&Writing]) -> String,
    ) {
        if places.is_empty() {
            return;
        }
        let those: Vec<&Writing> = places.iter().map(|&place| writings[place]).collect();
        self.joins.push((self.statements.len(), places));
        self.add(statement(tables, &those));
    }

    /// What the server has said, and which writings that leaves in doubt.
    fn answers(self, sets: &[Set], count: usize) -> (Vec<Result<Write, StoreError>>, Vec<usize>) {
        let matched = |set: usize| sets.get(set).map_or(0, |set: &Set| set.matched);
        let mut answers: Vec<_> = (0..count).map(|_| Ok(Write::Applied)).collect();
        let mut doubtful = Vec::new();
        for (set, places) in self.joins {
            if usize::try_from(matched(set)) != Ok(places.len()) {
                doubtful.extend(places);
            }
        }
        for (set, place) in self.removals {
            // A release whose record is gone is fenced, whoever removed it.
            if matched(set) == 0 {
                answers[place] = Ok(Write::Fenced);
            }
        }
        (answers, doubtful)
    }
}

/// Reads what stands now and lets the core judge: what was applied just now looks like a repetition.
async fn judge_afresh(
    session: &mut Session,
    tables: &Tables,
    writings: &[&Writing],
    doubtful: &[usize],
    answers: &mut [Result<Write, StoreError>],
) -> Result<(), Trouble> {
    let ids = sql::list(doubtful.iter().map(|&place| &writings[place].lease.id));
    let text = format!("SELECT {} FROM {} WHERE `key_id` IN {ids}", row::STANDING, tables.records);
    let sets = session.run(&[text]).await?;
    let mut found = HashMap::new();
    for row in sets.first().map_or(&[][..], |set| &set.rows) {
        found.insert(row::key_id(row)?, row::standing(row));
    }
    for &place in doubtful {
        let Writing { lease, .. } = writings[place];
        answers[place] = match found.remove(&lease.id).transpose() {
            Err(damage) => Err(damage.into()),
            Ok(standing) => match judge(standing, lease, writings[place].act()) {
                Judgement::Already => Ok(Write::Applied),
                Judgement::Fenced => Ok(Write::Fenced),
                // It became possible after the statement ran.
                Judgement::Apply => Err(StoreError::new(
                    ErrorKind::Unavailable,
                    "the record has changed while it was written to: ask again",
                )),
            },
        };
    }
    Ok(())
}

/// The operations as rows of a table `v` that is joined with the records, in the order of their keys.
/// `STRAIGHT_JOIN` keeps the server from beginning with the records instead, which would lock rows in
/// another order.
fn joined(tables: &Tables, writings: &[&Writing], more: impl Fn(&mut String, &Writing)) -> String {
    let mut rows = String::from("UPDATE (");
    for (nth, writing) in writings.iter().enumerate() {
        rows.push_str(if nth == 0 { "SELECT " } else { " UNION ALL SELECT " });
        push_hex(&mut rows, writing.lease.id.as_bytes());
        write!(rows, " AS k, {} AS f, ", writing.lease.fence).expect("a string takes everything");
        push_hex(&mut rows, writing.lease.owner.as_bytes());
        rows.push_str(" AS o");
        more(&mut rows, writing);
    }
    let records = &tables.records;
    write!(
        rows,
        ") AS v STRAIGHT_JOIN {records} AS r \
         ON r.`key_id` = v.k AND r.`fence` = v.f AND r.`owner` = v.o "
    )
    .expect("a string takes everything");
    rows
}

fn send(tables: &Tables, writings: &[&Writing]) -> String {
    let joined = joined(tables, writings, |_, _| {});
    let (sent, running) = (Sent::Yes.code(), StateKind::Running.code());
    format!("{joined} SET r.`sent` = {sent} WHERE r.`state` = {running}")
}

fn unknown(tables: &Tables, writings: &[&Writing]) -> String {
    let joined = joined(tables, writings, |_, _| {});
    let [unknown, running, parked] =
        [StateKind::Unknown, StateKind::Running, StateKind::Parked].map(StateKind::code);
    format!(
        "{joined} SET r.`state` = {unknown}, r.`at` = @n WHERE r.`state` IN ({running}, {parked})"
    )
}

fn complete(tables: &Tables, writings: &[&Writing]) -> String {
    let joined = joined(tables, writings, |out, writing| {
        let End::Complete(parts) = &writing.end else { return };
        push_completion(out, parts);
    });
    format!("{joined} {}", completion())
}

/// Appends a completion as columns of `v`.
pub(super) fn push_completion(out: &mut String, parts: &CompletionParts) {
    let (retention, linger) = (sql::micros(parts.retention), sql::micros(parts.linger));
    write!(out, ", {retention} AS s, {linger} AS l, ").expect("a string takes everything");
    push_optional(out, parts.status);
    write!(out, " AS c, {} AS n, ", parts.not_kept).expect("a string takes everything");
    push_hex(out, parts.outcome.as_bytes());
    out.push_str(" AS u, ");
    push_hex(out, parts.seal.as_bytes());
    out.push_str(" AS z, ");
    push_hex(out, &parts.headers);
    write!(out, " AS h, {} AS p, ", parts.pieces).expect("a string takes everything");
    push_hex(out, &parts.body);
    out.push_str(" AS b");
}

/// What a completion sets, and when: `r` are the records, `v` the completions. The times are those of
/// `Times::of`, by the server's clock.
pub(super) fn completion() -> String {
    let at = format!("GREATEST(@n, LEAST(r.`fence`, @n + {MOST_AHEAD}))");
    let done = StateKind::Done.code();
    let open = open_states();
    format!(
        "SET r.`state` = {done}, r.`at` = {at}, r.`expires` = {at} + v.s, \
         r.`forget` = {at} + v.s + v.l, r.`due` = {at} + v.s, r.`status` = v.c, \
         r.`not_kept` = v.n, r.`outcome` = v.u, r.`answer_seal` = v.z, r.`headers` = v.h, \
         r.`pieces` = v.p, r.`body` = v.b WHERE r.`state` IN ({open})"
    )
}

/// The states from which an attempt can end.
pub(super) fn open_states() -> String {
    let [running, unknown, parked] =
        [StateKind::Running, StateKind::Unknown, StateKind::Parked].map(StateKind::code);
    format!("{running}, {unknown}, {parked}")
}

/// The condition under which a lease still holds a record that is not done.
pub(super) fn held(lease: &Lease) -> String {
    let id: &KeyId = &lease.id;
    format!(
        "`key_id` = {} AND `fence` = {} AND `owner` = {} AND `state` IN ({})",
        sql::hex(id.as_bytes()),
        lease.fence,
        sql::hex(lease.owner.as_bytes()),
        open_states()
    )
}
