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
        script.join(of_kind(|end| matches!(end, End::Send)), writings, tables);
        script.join(of_kind(|end| matches!(end, End::Unknown)), writings, tables);
        script.join(of_kind(|end| matches!(end, End::Complete(_))), writings, tables);
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

    /// Adds writings of one kind as one statement.
    fn join(&mut self, places: Vec<usize>, writings: &[&Writing], tables: &Tables) {
        let those: Vec<&Writing> = places.iter().map(|&place| writings[place]).collect();
        let statement = match those[..] {
            [] => return,
            [one] => alone(tables, one),
            _ => joined(tables, &those),
        };
        self.joins.push((self.statements.len(), places));
        self.add(statement);
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

/// One writing. A join would make the server set up two temporary tables for it, which takes longer
/// than the change itself.
fn alone(tables: &Tables, Writing { lease, end }: &Writing) -> String {
    match end {
        End::Complete(parts) => complete_one(tables, lease, parts),
        End::Send | End::Unknown | End::Release => change_of(tables, lease, &change(end)),
    }
}

/// Changes one record, if its lease still holds it.
fn change_of(tables: &Tables, lease: &Lease, change: &str) -> String {
    let (id, owner) = (sql::hex(lease.id.as_bytes()), sql::hex(lease.owner.as_bytes()));
    format!(
        "UPDATE {} AS r {change} AND r.`key_id` = {id} AND r.`fence` = {} AND r.`owner` = {owner}",
        tables.records, lease.fence
    )
}

/// Completes one record.
pub(super) fn complete_one(tables: &Tables, lease: &Lease, parts: &CompletionParts) -> String {
    let values = values(parts);
    change_of(tables, lease, &completion(&values.each_ref().map(String::as_str)))
}

/// Writings of one kind, as rows of a table `v` that is joined with the records, in the order of their
/// keys. `STRAIGHT_JOIN` keeps the server from beginning with the records instead, which would lock
/// rows in another order.
fn joined(tables: &Tables, writings: &[&Writing]) -> String {
    let mut text = String::from("UPDATE (");
    for (nth, writing) in writings.iter().enumerate() {
        text.push_str(if nth == 0 { "SELECT " } else { " UNION ALL SELECT " });
        push_hex(&mut text, writing.lease.id.as_bytes());
        write!(text, " AS k, {} AS f, ", writing.lease.fence).expect("a string takes everything");
        push_hex(&mut text, writing.lease.owner.as_bytes());
        text.push_str(" AS o");
        if let End::Complete(parts) = &writing.end {
            for (value, name) in values(parts).iter().zip(GIVEN) {
                write!(text, ", {value} AS {name}").expect("a string takes everything");
            }
        }
    }
    let change = match &writings[0].end {
        End::Complete(_) => {
            completion(&GIVEN.map(|name| format!("v.{name}")).each_ref().map(String::as_str))
        }
        end @ (End::Send | End::Unknown | End::Release) => change(end),
    };
    let records = &tables.records;
    write!(
        text,
        ") AS v STRAIGHT_JOIN {records} AS r \
         ON r.`key_id` = v.k AND r.`fence` = v.f AND r.`owner` = v.o {change}"
    )
    .expect("a string takes everything");
    text
}

/// What a writing without values of its own sets in the records `r`, and when.
fn change(end: &End) -> String {
    let [running, unknown, parked] =
        [StateKind::Running, StateKind::Unknown, StateKind::Parked].map(StateKind::code);
    match end {
        End::Send => {
            let sent = Sent::Yes.code();
            format!("SET r.`sent` = {sent} WHERE r.`state` = {running}")
        }
        End::Unknown => format!(
            "SET r.`state` = {unknown}, r.`at` = @n WHERE r.`state` IN ({running}, {parked})"
        ),
        End::Complete(_) | End::Release => unreachable!("it is written in another way"),
    }
}

/// The names of [`values`] in a table `v`.
const GIVEN: [&str; 9] = ["s", "l", "c", "n", "u", "z", "h", "p", "b"];

/// What is given with a completion, as literals.
fn values(parts: &CompletionParts) -> [String; 9] {
    let mut status = String::new();
    push_optional(&mut status, parts.status);
    [
        sql::micros(parts.retention).to_string(),
        sql::micros(parts.linger).to_string(),
        status,
        parts.not_kept.to_string(),
        sql::hex(parts.outcome.as_bytes()),
        sql::hex(parts.seal.as_bytes()),
        sql::hex(&parts.headers),
        parts.pieces.to_string(),
        sql::hex(&parts.body),
    ]
}

/// What a completion with these [`values`] sets in the records `r`, and when. The times are those of
/// `Times::of`, by the server's clock.
fn completion(
    [retention, linger, status, not_kept, outcome, seal, headers, pieces, body]: &[&str; 9],
) -> String {
    let at = format!("GREATEST(@n, LEAST(r.`fence`, @n + {MOST_AHEAD}))");
    let done = StateKind::Done.code();
    let open = open_states();
    format!(
        "SET r.`state` = {done}, r.`at` = {at}, r.`expires` = {at} + {retention}, \
         r.`forget` = {at} + {retention} + {linger}, r.`due` = {at} + {retention}, \
         r.`status` = {status}, r.`not_kept` = {not_kept}, r.`outcome` = {outcome}, \
         r.`answer_seal` = {seal}, r.`headers` = {headers}, r.`pieces` = {pieces}, \
         r.`body` = {body} WHERE r.`state` IN ({open})"
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
