//! Extending leases, many at a time.
//!
//! A row that somebody else holds is tried again for a moment; then it is told as a renewal that failed,
//! and whoever asked tries again.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::time::Duration;

use oncekey_core::decide::{Act, Judgement, judge};
use oncekey_core::seal::RECORD_FORMAT;
use oncekey_core::{KeyId, Lease, Renewal, StateKind, Timestamp};
use tokio::time::sleep;

use super::error::Trouble;
use super::row;
use super::session::Session;
use super::sql::{self, EVERYTHING, NOW, Tables, push_hex};

/// The most leases in one statement: a tenth of a second of work for the server at most.
pub(super) const MOST: usize = 500;

/// How long rows are given that somebody holds. A transaction of this store is over in milliseconds, and
/// says then who has the key; whoever holds a row for longer is somebody else, and is not waited for.
const MOMENTS: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(40), Duration::from_millis(160)];

/// Extends different leases, at most [`MOST`].
pub(super) async fn renew(
    session: &mut Session,
    tables: &Tables,
    leases: &[Lease],
    span: Duration,
) -> Result<Vec<Renewal>, Trouble> {
    let mut renewals = renew_once(session, tables, leases, span).await?;
    for pause in MOMENTS {
        let held = renewals.iter().enumerate().filter(|(_, it)| **it == Renewal::Failed);
        let places: Vec<usize> = held.map(|(place, _)| place).collect();
        if places.is_empty() {
            break;
        }
        sleep(pause).await;
        let open: Vec<Lease> = places.iter().map(|place| leases[*place]).collect();
        // What was renewed counts, whatever becomes of these.
        let Ok(some) = renew_once(session, tables, &open, span).await else { break };
        for (place, renewal) in places.into_iter().zip(some) {
            renewals[place] = renewal;
        }
    }
    Ok(renewals)
}

/// Extends what can be extended now.
///
/// Rows that somebody else holds are left out: a statement that waits for one of them would keep all the
/// others waiting, until they lapse. They are found by a statement of its own and not in one transaction
/// with the change, so that no lock outlasts a statement, however long this process stands still in
/// between. A row that is taken at that moment is waited for once, and left out when this is tried again.
async fn renew_once(
    session: &mut Session,
    tables: &Tables,
    leases: &[Lease],
    span: Duration,
) -> Result<Vec<Renewal>, Trouble> {
    let free = free(session, tables, leases).await?;
    let mut sorted: Vec<&Lease> = leases.iter().filter(|lease| free.contains(&lease.id)).collect();
    if sorted.is_empty() {
        return look(session, tables, leases, &free).await;
    }
    sorted.sort_by_key(|lease| lease.id);
    let span = sql::micros(span);
    let now = format!("SET @n = {NOW}");
    let change = change(tables, &sorted, span);
    let sets = session.run(&[&*now, &change, "SELECT @n"]).await?;
    let now = row::moment(sets.get(2))?;
    let until = Timestamp::from_micros(now.micros() + span);
    if sets.get(1).is_some_and(|set| usize::try_from(set.matched) == Ok(leases.len())) {
        return Ok(vec![Renewal::Until(until); leases.len()]);
    }
    look(session, tables, leases, &free).await
}

/// Which records are there and locked by nobody, at this moment.
async fn free(
    session: &mut Session,
    tables: &Tables,
    leases: &[Lease],
) -> Result<HashSet<KeyId>, Trouble> {
    let ids = sql::list(leases.iter().map(|lease| &lease.id));
    let text = format!(
        "SELECT `key_id` FROM {} FORCE INDEX (`key_id`) WHERE `key_id` IN {ids} \
         FOR UPDATE SKIP LOCKED",
        tables.records
    );
    let sets = session.run(&[text]).await?;
    let rows = sets.first().map_or(&[][..], |set| &set.rows);
    Ok(rows.iter().map(row::key_id).collect::<Result<_, _>>()?)
}

/// Extends `leases` by microseconds from `@n` on. Of a small table the server would read every row, and
/// wait for the locks of all of them.
fn change(tables: &Tables, leases: &[&Lease], span: i64) -> String {
    let mut change = String::from("UPDATE (");
    for (nth, lease) in leases.iter().enumerate() {
        change.push_str(if nth == 0 { "SELECT " } else { " UNION ALL SELECT " });
        push_hex(&mut change, lease.id.as_bytes());
        write!(change, " AS k, {} AS f, ", lease.fence).expect(EVERYTHING);
        push_hex(&mut change, lease.owner.as_bytes());
        change.push_str(" AS o");
    }
    let (records, running) = (&tables.records, StateKind::Running.code());
    write!(
        change,
        ") AS v STRAIGHT_JOIN {records} AS r FORCE INDEX (`key_id`) \
         ON r.`key_id` = v.k AND r.`fence` = v.f AND r.`owner` = v.o \
         SET r.`at` = @n + {span} WHERE r.`format` = {RECORD_FORMAT} AND r.`state` = {running}"
    )
    .expect(EVERYTHING);
    change
}

/// Some are lost, or held up: which, is read. Those that were free and are not lost were extended.
async fn look(
    session: &mut Session,
    tables: &Tables,
    leases: &[Lease],
    free: &HashSet<KeyId>,
) -> Result<Vec<Renewal>, Trouble> {
    let ids = sql::list(leases.iter().map(|lease| &lease.id));
    let text = format!("SELECT {} FROM {} WHERE r.`key_id` IN {ids}", row::STANDING, tables.whole);
    let sets = session.run(&[text]).await?;
    let mut found = HashMap::new();
    for row in sets.first().map_or(&[][..], |set| &set.rows) {
        // A damaged record is lost, and costs the others nothing: they were extended.
        match (row::key_id(row), row::standing(row), row::number(row, 7)) {
            (Ok(id), Ok(standing), Ok(at)) => {
                found.insert(id, (standing, Timestamp::from_micros(at)));
            }
            (_, Err(damage), _) | (Err(damage), _, _) | (_, _, Err(damage)) => {
                tracing::error!(%damage, "the lease of a damaged record is lost");
            }
        }
    }
    let renewal = |lease: &Lease| {
        let found = found.get(&lease.id);
        match (judge(found.map(|(standing, _)| *standing), lease, Act::Renew), found) {
            (Judgement::Apply | Judgement::Already, Some((_, at))) => match free.get(&lease.id) {
                Some(_) => Renewal::Until(*at),
                None => Renewal::Failed,
            },
            (Judgement::Apply | Judgement::Already, None) | (Judgement::Fenced, _) => Renewal::Lost,
        }
    };
    Ok(leases.iter().map(renewal).collect())
}
