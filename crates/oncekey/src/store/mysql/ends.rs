//! What ends an attempt, and the send mark before it, in batches.
//!
//! All operations of a kind are one statement, in the order of their keys. What the server says about the
//! number of rows is believed only if it fits; otherwise the rows are read and the core judges each.
//!
//! Every condition names the format: what a newer version has written means something else, and is not
//! written over. It is found when the rows are read.
//!
//! A completion changes its record and inserts an answer, in one transaction. No answer may be stored
//! whose record was not there to be completed. So the insert is told how many rows the change before it
//! must have found, and is refused if it found fewer: the text ends there, nothing is committed, and the
//! batch is run again without those that the core says are fenced or done already.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use oncekey_core::decide::{Act, Judgement, judge};
use oncekey_core::seal::RECORD_FORMAT;
use oncekey_core::{ErrorKind, KeyId, Lease, Sent, StateKind, StoreError, Write};
use tokio::time::sleep;

use super::answer::{self, Times};
use super::error::{NULL, Trouble};
use super::session::{COMMIT, Session, Set};
use super::sql::{self, EVERYTHING, NOW, Tables, push_hex};
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
    /// With its body in the row of the answer.
    Complete(Box<CompletionParts>),
    Release,
    Unknown,
}

/// How often a batch is tried when locks are not to be had.
const ROUNDS: u32 = 5;
/// The first pause after that.
const PAUSE: Duration = Duration::from_millis(3);

/// Statements, and which of them speak for which writings.
#[derive(Debug, Default)]
struct Script {
    statements: Vec<String>,
    /// A statement that makes all of these writings, or some.
    changes: Vec<(usize, Vec<usize>)>,
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

    fn completion(&self) -> Option<(&Lease, &CompletionParts)> {
        match &self.end {
            End::Complete(parts) => Some((&self.lease, parts)),
            End::Send | End::Release | End::Unknown => None,
        }
    }
}

/// Makes writes on different keys. The answers are in their order.
pub(super) async fn run(
    session: &mut Session,
    tables: &Tables,
    writings: &[&Writing],
) -> Result<Vec<Result<Write, StoreError>>, Trouble> {
    let mut answers: Vec<Option<Result<Write, StoreError>>> = Vec::new();
    answers.resize_with(writings.len(), || None);
    // In the order of their keys, so that two batches never wait for each other.
    let mut open: Vec<usize> = (0..writings.len()).collect();
    open.sort_by_key(|&place| writings[place].lease.id);
    let mut round = 0;
    while !open.is_empty() && round < ROUNDS {
        let script = Script::of(tables, writings, &open);
        match session.run(&script.statements).await {
            Ok(sets) => {
                let doubtful = script.read(&sets, &mut answers);
                let judged = judge_afresh(session, tables, writings, &doubtful, &mut answers).await;
                // All of it is committed. Whoever has an answer has a true one, and the others must
                // not be run again as if nothing had happened.
                if let Err(trouble) = judged {
                    for place in doubtful {
                        answers[place].get_or_insert_with(|| Err(trouble.after_commit()));
                    }
                }
                break;
            }
            Err(trouble) if trouble.code() == Some(NULL) => {
                let is_completion =
                    |place: &usize| matches!(writings[*place].end, End::Complete(_));
                let completions: Vec<usize> = open.iter().copied().filter(is_completion).collect();
                judge_afresh(session, tables, writings, &completions, &mut answers).await?;
                open.retain(|&place| answers[place].is_none());
            }
            Err(trouble) if trouble.is_contention() && round + 1 < ROUNDS => {
                // Not the same for everybody: the owner token is as good as random.
                let [byte, ..] = *writings[0].lease.owner.as_bytes();
                let spread = PAUSE.mul_f64(f64::from(byte) / 256.0);
                sleep((PAUSE + spread) * 2_u32.pow(round)).await;
            }
            Err(trouble) => return Err(trouble),
        }
        round += 1;
    }
    Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(changed()))).collect())
}

impl Script {
    /// What makes the writings at these places, which are in the order of their keys.
    fn of(tables: &Tables, writings: &[&Writing], open: &[usize]) -> Self {
        let of_kind = |is_it: fn(&End) -> bool| -> Vec<usize> {
            open.iter().copied().filter(|&place| is_it(&writings[place].end)).collect()
        };
        let mut script = Self::default();
        let (sends, unknowns) =
            (of_kind(|end| matches!(end, End::Send)), of_kind(|end| matches!(end, End::Unknown)));
        let completions = of_kind(|end| matches!(end, End::Complete(_)));
        // A lone completion reads the clock itself: every statement more is a tenth of a millisecond.
        if !unknowns.is_empty() || completions.len() > 1 {
            script.add(format!("SET @n = {NOW}"));
        }
        // A single change needs no transaction around it: a lone caller is spared two statements.
        let is_one = sends.len() == open.len() || unknowns.len() == open.len();
        if !is_one {
            script.add("BEGIN".to_owned());
        }
        script.change(sends, writings, tables);
        script.change(unknowns, writings, tables);
        script.complete(completions, writings, tables);
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
            script.add(COMMIT.to_owned());
        }
        script
    }

    fn add(&mut self, statement: String) {
        self.statements.push(statement);
    }

    /// Adds send marks, or doubts, as one statement.
    fn change(&mut self, places: Vec<usize>, writings: &[&Writing], tables: &Tables) {
        let those: Vec<&Writing> = places.iter().map(|&place| writings[place]).collect();
        let statement = match those[..] {
            [] => return,
            // A join would make the server set up two temporary tables, which takes longer than the
            // change itself.
            [Writing { lease, end }] => change_of(tables, lease, &change(end)),
            [Writing { end, .. }, ..] => joined(tables, &those, &change(end)),
        };
        self.changes.push((self.statements.len(), places));
        self.add(statement);
    }

    /// Adds completions: a change of their records, and their answers.
    fn complete(&mut self, places: Vec<usize>, writings: &[&Writing], tables: &Tables) {
        let those: Vec<(&Lease, &CompletionParts)> =
            places.iter().filter_map(|&place| writings[place].completion()).collect();
        let statements = match those[..] {
            [] => return,
            [(lease, parts)] => complete_one(tables, lease, parts),
            _ => {
                let times = Times::of(those.iter().copied());
                self.add(times.set());
                let change = completed(tables, those.iter().map(|(lease, _)| *lease));
                [change, answer::insert_all(tables, those.iter().copied(), &times)]
            }
        };
        self.changes.push((self.statements.len(), places));
        self.statements.extend(statements);
    }

    /// Takes down what the server has said, and says which writings that leaves in doubt.
    fn read(self, sets: &[Set], answers: &mut [Option<Result<Write, StoreError>>]) -> Vec<usize> {
        let matched = |set: usize| sets.get(set).map_or(0, |set: &Set| set.matched);
        let mut doubtful = Vec::new();
        for (set, places) in self.changes {
            if usize::try_from(matched(set)) == Ok(places.len()) {
                places.into_iter().for_each(|place| answers[place] = Some(Ok(Write::Applied)));
            } else {
                doubtful.extend(places);
            }
        }
        for (set, place) in self.removals {
            if matched(set) == 0 {
                doubtful.push(place);
            } else {
                answers[place] = Some(Ok(Write::Applied));
            }
        }
        doubtful
    }
}

/// Reads what stands now and lets the core judge: what was applied just now looks like a repetition.
/// What could be applied has no answer then.
async fn judge_afresh(
    session: &mut Session,
    tables: &Tables,
    writings: &[&Writing],
    doubtful: &[usize],
    answers: &mut [Option<Result<Write, StoreError>>],
) -> Result<(), Trouble> {
    if doubtful.is_empty() {
        return Ok(());
    }
    let ids = sql::list(doubtful.iter().map(|&place| &writings[place].lease.id));
    let text = format!("SELECT {} FROM {} WHERE r.`key_id` IN {ids}", row::STANDING, tables.whole);
    let sets = session.run(&[text]).await?;
    let mut found = HashMap::new();
    for row in sets.first().map_or(&[][..], |set| &set.rows) {
        found.insert(row::key_id(row)?, row::standing(row));
    }
    for &place in doubtful {
        let Writing { lease, .. } = writings[place];
        answers[place] = match found.remove(&lease.id).transpose() {
            Err(damage) => Some(Err(damage.into())),
            Ok(standing) => match judge(standing, lease, writings[place].act()) {
                Judgement::Already => Some(Ok(Write::Applied)),
                Judgement::Fenced => Some(Ok(Write::Fenced)),
                Judgement::Apply => None,
            },
        };
    }
    Ok(())
}

/// A write became possible after it was tried, and was not made.
fn changed() -> StoreError {
    StoreError::new(
        ErrorKind::Unavailable,
        "the record has changed while it was written to: ask again",
    )
}

/// Changes one record, if its lease still holds it.
fn change_of(tables: &Tables, lease: &Lease, change: &str) -> String {
    let (id, owner) = (sql::hex(lease.id.as_bytes()), sql::hex(lease.owner.as_bytes()));
    format!(
        "UPDATE {} AS r {change} AND r.`key_id` = {id} AND r.`fence` = {} AND r.`owner` = {owner}",
        tables.records, lease.fence
    )
}

/// Completes one record: the change, and then the answer, in one transaction. The change puts its time
/// into `@n`, from where the answer has it. If the change finds no record, the answer is refused.
pub(super) fn complete_one(tables: &Tables, lease: &Lease, parts: &CompletionParts) -> [String; 2] {
    let at = format!("@n := {}", answer::at(NOW, format_args!("r.`fence`")));
    let change = format!("{} WHERE {}", completion(&at), known(&open_states()));
    [change_of(tables, lease, &change), answer::insert_one(tables, lease, parts)]
}

/// Completes records. Nothing is set that differs from one to the next, so this takes a third of the
/// time of a join with the answers as rows. The index is named because the one of states is tempting
/// when little is open, and would lock records in another order.
fn completed<'w>(tables: &Tables, leases: impl Iterator<Item = &'w Lease>) -> String {
    let mut text = format!(
        "UPDATE {} AS r FORCE INDEX (`key_id`) {} WHERE {} \
         AND (r.`key_id`, r.`fence`, r.`owner`) IN (",
        tables.records,
        completion(&answer::at("@n", format_args!("r.`fence`"))),
        known(&open_states())
    );
    for (nth, Lease { id, fence, owner, .. }) in leases.enumerate() {
        text.push_str(if nth == 0 { "(" } else { ", (" });
        push_hex(&mut text, id.as_bytes());
        write!(text, ", {fence}, ").expect(EVERYTHING);
        push_hex(&mut text, owner.as_bytes());
        text.push(')');
    }
    text.push(')');
    text
}

/// What a completion at this time sets in the records `r`.
fn completion(at: &str) -> String {
    format!("SET r.`state` = {}, r.`at` = {at}", StateKind::Done.code())
}

/// Writings of one kind, as rows of a table `v` that is joined with the records, in the order of their
/// keys. `STRAIGHT_JOIN` keeps the server from beginning with the records instead, which would lock
/// rows in another order. The index is named because the server would rather read a small table as a
/// whole, and wait for the locks of all of its rows.
fn joined(tables: &Tables, writings: &[&Writing], change: &str) -> String {
    let mut text = String::from("UPDATE (");
    for (nth, Writing { lease, .. }) in writings.iter().enumerate() {
        text.push_str(if nth == 0 { "SELECT " } else { " UNION ALL SELECT " });
        push_hex(&mut text, lease.id.as_bytes());
        write!(text, " AS k, {} AS f, ", lease.fence).expect(EVERYTHING);
        push_hex(&mut text, lease.owner.as_bytes());
        text.push_str(" AS o");
    }
    let records = &tables.records;
    write!(
        text,
        ") AS v STRAIGHT_JOIN {records} AS r FORCE INDEX (`key_id`) \
         ON r.`key_id` = v.k AND r.`fence` = v.f AND r.`owner` = v.o {change}"
    )
    .expect(EVERYTHING);
    text
}

/// What a writing without values of its own sets in the records `r`, and when.
fn change(end: &End) -> String {
    let [running, unknown, parked] =
        [StateKind::Running, StateKind::Unknown, StateKind::Parked].map(StateKind::code);
    match end {
        End::Send => {
            let sent = Sent::Yes.code();
            format!("SET r.`sent` = {sent} WHERE {}", known(&running.to_string()))
        }
        End::Unknown => {
            let open = known(&format!("{running}, {parked}"));
            format!("SET r.`state` = {unknown}, r.`at` = @n WHERE {open}")
        }
        End::Complete(_) | End::Release => unreachable!("it is written in another way"),
    }
}

/// The condition that the records `r` are in one of these states, and mean what this version means.
fn known(states: &str) -> String {
    format!("r.`format` = {RECORD_FORMAT} AND r.`state` IN ({states})")
}

/// The states from which an attempt can end.
fn open_states() -> String {
    let [running, unknown, parked] =
        [StateKind::Running, StateKind::Unknown, StateKind::Parked].map(StateKind::code);
    format!("{running}, {unknown}, {parked}")
}

/// The condition under which a lease still holds a record that is not done.
pub(super) fn held(lease: &Lease) -> String {
    let id: &KeyId = &lease.id;
    format!(
        "`key_id` = {} AND `fence` = {} AND `owner` = {} AND `format` = {RECORD_FORMAT} \
         AND `state` IN ({})",
        sql::hex(id.as_bytes()),
        lease.fence,
        sql::hex(lease.owner.as_bytes()),
        open_states()
    )
}
