//! What a person may do to a record.
//!
//! | verb | from | leads to | what can go wrong if the person is wrong |
//! |---|---|---|---|
//! | resolve | unknown, parked, running with a lapsed lease | done, or free | the client is told what is not true |
//! | release | unknown, parked, running with a lapsed lease | free | the work runs twice |
//! | expire | done | done, past its retention | the work runs twice, once it is forgotten |
//! | erase | any | the same, blank | nothing runs again; the answer is gone |
//!
//! Nothing is taken from an owner that is alive: its lease is judged by the store's clock, and every
//! write carries its fence, so an owner that comes back later is refused.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use oncekey::core::erase::Erased;
use oncekey::core::policy::DEFAULT_GRACE;
use oncekey::core::saved::NotKept;
use oncekey::core::{
    Answer as Kept, Fence, KeyId, Policy, Record, Restore as _, Restored, State as Stands,
    Store as _, Timestamp, Tombstone, Write,
};
use oncekey::engine::{Resolution, Resolved};
use serde::Deserialize;
use serde_json::json;

use super::super::audit::{Deed, audited};
use super::super::body::{Reason, Sent};
use super::super::guard::Caller;
use super::super::page::{self, Answer};
use super::super::problem::{Code, Problem};
use super::super::state::Admin;
use super::answer::GivenAnswer;
use super::show::{look, store_now};
use super::{RecordId, view};
use crate::completer::Keeper;

/// Why.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Reasoned {
    reason: Reason,
}

/// Why, and that the right record is meant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Confirmed {
    reason: Reason,
    confirm: Option<String>,
}

/// What became of the work, and why that is known.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Resolve {
    reason: Reason,
    outcome: Outcome,
    answer: Option<GivenAnswer>,
    confirm: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Succeeded,
    Failed,
    NotExecuted,
}

/// How many digits of a key id confirm it: enough that no other record on the screen has them.
const CONFIRM: usize = 8;

pub(in super::super) async fn resolve(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    RecordId(id): RecordId,
    Sent(resolve): Sent<Resolve>,
) -> Answer {
    let saved = resolve.answer.map(GivenAnswer::saved).transpose()?;
    let deed = Deed::new(caller, "resolve", Some(resolve.reason)).to(id);
    let (outcome, confirm) = (resolve.outcome, resolve.confirm);
    audited(&admin, deed, async move |admin| {
        let resolution = match (outcome, saved) {
            (Outcome::Succeeded, Some(saved)) => Resolution::Succeeded(saved),
            (Outcome::Failed, Some(saved)) => Resolution::Failed(saved),
            (Outcome::NotExecuted, None) => {
                confirmed(&admin, &id, confirm.as_deref(), in_doubt).await?;
                Resolution::Release
            }
            (Outcome::Succeeded | Outcome::Failed, None) => {
                return Err(Problem::invalid("`answer` is missing: clients will get it"));
            }
            (Outcome::NotExecuted, Some(_)) => {
                return Err(Problem::invalid("work that did not happen has no `answer`"));
            }
        };
        let (record, now) = look(&admin, &id).await?;
        refuse_alive(&admin, &record, now)?;
        give_up(&admin, &record).await?;
        settle(&admin, &id, resolution).await
    })
    .await
}

pub(in super::super) async fn release(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    RecordId(id): RecordId,
    Sent(Confirmed { reason, confirm }): Sent<Confirmed>,
) -> Answer {
    let deed = Deed::new(caller, "release", Some(reason)).to(id);
    audited(&admin, deed, async move |admin| {
        let record = confirmed(&admin, &id, confirm.as_deref(), not_done).await?;
        give_up(&admin, &record).await?;
        settle(&admin, &id, Resolution::Release).await
    })
    .await
}

pub(in super::super) async fn expire(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    RecordId(id): RecordId,
    Sent(Confirmed { reason, confirm }): Sent<Confirmed>,
) -> Answer {
    let deed = Deed::new(caller, "expire", Some(reason)).to(id);
    audited(&admin, deed, async move |admin| {
        confirmed(&admin, &id, confirm.as_deref(), retained).await?;
        // As it is stored, encrypted or not: it is written back.
        let stored = admin.ask(admin.store.get(&id)).await?.ok_or_else(gone)?;
        let over = over(stored, store_now(&admin).await?)?;
        if admin.ask(admin.store.restore(&over)).await? == Restored::Kept {
            return Err(conflict("somebody was quicker: look at it again"));
        }
        // Also takes the answer out of this process's memory, from which it would be replayed.
        let _: Erased = admin.ask(admin.engine.erase(&admin.store, &id)).await?;
        page::json(&json!({ "id": id.to_string(), "state": "done", "expired": true }))
    })
    .await
}

pub(in super::super) async fn erase(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    RecordId(id): RecordId,
    Sent(Reasoned { reason }): Sent<Reasoned>,
) -> Answer {
    let deed = Deed::new(caller, "erase", Some(reason)).to(id);
    audited(&admin, deed, async move |admin| {
        // The request that was kept for it holds more that is personal than its answer.
        let keeper = Keeper::new(admin.engine.clone(), admin.store.clone());
        admin.ask(keeper.forget(&id)).await?;
        let erased = match admin.ask(admin.engine.erase(&admin.store, &id)).await? {
            Erased::Blank => "blank",
            // An answer may still come: it has to be erased again.
            Erased::Unfinished => "unfinished",
            Erased::Absent => return Err(gone()),
        };
        page::json(&json!({ "id": id.to_string(), "erased": erased }))
    })
    .await
}

/// Whether a change is possible for a record at this time.
type Possible = fn(&Record, Timestamp) -> Result<(), Problem>;

/// The record, if nobody works on it and whoever asks has said which one. What cannot be done is
/// refused first: nobody should have to confirm it.
async fn confirmed(
    admin: &Admin,
    id: &KeyId,
    confirm: Option<&str>,
    possible: Possible,
) -> Result<Record, Problem> {
    let (record, now) = look(admin, id).await?;
    refuse_alive(admin, &record, now)?;
    possible(&record, now)?;
    let digits = id.to_string();
    let digits = digits.get(..CONFIRM).unwrap_or_default();
    if !confirm.is_some_and(|confirm| confirm.eq_ignore_ascii_case(digits)) {
        let detail = "after this the work may run again: look at `record`, and if you are sure \
                      send `confirm` with the first 8 digits of the id";
        let view = view::record(&record, now);
        return Err(Problem::new(Code::ConfirmationRequired, detail).with("record", view));
    }
    Ok(record)
}

/// For a resolution.
fn in_doubt(record: &Record, _: Timestamp) -> Result<(), Problem> {
    match record.state {
        Stands::Done { .. } => Err(conflict("it is not in doubt: it is done, or gone")),
        Stands::Running { .. } | Stands::Unknown { .. } | Stands::Parked { .. } => Ok(()),
    }
}

/// For a release.
fn not_done(record: &Record, _: Timestamp) -> Result<(), Problem> {
    match record.state {
        Stands::Done { .. } => {
            Err(conflict("it is done and answers retries: to end that, use expire"))
        }
        Stands::Running { .. } | Stands::Unknown { .. } | Stands::Parked { .. } => Ok(()),
    }
}

/// For the end of a retention.
fn retained(record: &Record, now: Timestamp) -> Result<(), Problem> {
    match record.state {
        Stands::Done { expires, .. } if expires <= now => {
            Err(conflict("its retention is over already"))
        }
        Stands::Done { .. } => Ok(()),
        Stands::Running { .. } | Stands::Unknown { .. } | Stands::Parked { .. } => {
            Err(conflict("it has not ended: only finished records expire"))
        }
    }
}

/// Refuses to take work from an owner that is alive. Its lease is respected for as long as its route says:
/// the owner may go on for that time, because its clock differs. A route that respects less is not believed,
/// since the record may be older than that setting.
fn refuse_alive(admin: &Admin, record: &Record, now: Timestamp) -> Result<(), Problem> {
    if let Stands::Running { until, .. } = record.state
        && until.after(policy_of(admin, record).grace.max(DEFAULT_GRACE)) > now
    {
        let detail = "its owner is alive and renews its lease: wait until it has ended, or end the \
                      process that runs it and wait for the lease to lapse";
        let view = view::record(record, now);
        return Err(Problem::new(Code::LeaseAlive, detail).with("record", view));
    }
    Ok(())
}

/// Work whose owner is gone becomes what it is, unknown, as the sweeper would make it: only then can
/// somebody say what became of it. Whatever else is left alone.
async fn give_up(admin: &Admin, record: &Record) -> Result<(), Problem> {
    if !matches!(record.state, Stands::Running { .. }) {
        return Ok(());
    }
    match admin.ask(admin.store.unknown(&record.lease())).await? {
        Write::Fenced => Err(conflict("somebody was quicker: look at it again")),
        Write::Applied => Ok(()),
    }
}

async fn settle(admin: &Admin, id: &KeyId, resolution: Resolution) -> Answer {
    let freed = resolution == Resolution::Release;
    let (record, _) = look(admin, id).await?;
    let policy = policy_of(admin, &record);
    match admin.ask(admin.engine.resolve(id, resolution, &policy)).await? {
        Resolved::Recorded => {
            let state = if freed { "free" } else { "done" };
            page::json(&json!({ "id": id.to_string(), "state": state }))
        }
        // One that was running has been dealt with; advice would be for a state that is not known.
        Resolved::NotInDoubt => Err(conflict("it is not in doubt: it is done, or gone")),
        Resolved::TooLate => Err(conflict("somebody was quicker: look at it again")),
    }
}

fn policy_of(admin: &Admin, record: &Record) -> Arc<Policy> {
    let route = String::from_utf8_lossy(record.origin.route.as_bytes());
    // A route that is gone from the configuration has records still.
    admin.gateway.policy(&route).unwrap_or_else(|| Arc::new(Policy::default()))
}

/// The record of finished work as it will be once its retention is over.
///
/// A done record never changes, so this is a newer one: its fence is one higher. Whoever claimed
/// the key anew in between has a far higher one, which is a clock reading, and wins.
fn over(stored: Record, now: Timestamp) -> Result<Record, Problem> {
    retained(&stored, now)?;
    let Stands::Done { at, expires, forget, outcome, ref answer } = stored.state else {
        return Err(gone());
    };
    let fence = stored.fence.number().checked_add(1).and_then(Fence::from_number);
    let answer = Kept::Tombstone(Tombstone { status: answer.status(), reason: NotKept::Expired });
    // It refuses late retries for as long as it would have.
    let forget = now.after(forget.since(expires));
    let state = Stands::Done { at, expires: now, forget, outcome, answer };
    Ok(Record { fence: fence.ok_or_else(gone)?, state, ..stored })
}

fn gone() -> Problem {
    Problem::new(Code::RecordNotFound, "nobody has used this key, or it is free again")
}

fn conflict(detail: &'static str) -> Problem {
    Problem::new(Code::StateConflict, detail)
}
