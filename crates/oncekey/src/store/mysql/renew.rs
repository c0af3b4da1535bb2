//! Extending leases, many at a time.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use oncekey_core::decide::{Act, Judgement, judge};
use oncekey_core::seal::RECORD_FORMAT;
use oncekey_core::{Lease, Renewal, StateKind, Timestamp};

use super::error::Trouble;
use super::row;
use super::session::Session;
use super::sql::{self, NOW, Tables, push_hex};

/// The most leases in one statement: a tenth of a second of work for the server at most.
pub(super) const MOST: usize = 500;

/// Extends different leases, at most [`MOST`].
pub(super) async fn renew(
    session: &mut Session,
    tables: &Tables,
    leases: &[Lease],
    span: Duration,
) -> Result<Vec<Renewal>, Trouble> {
    let records = &tables.records;
    let mut sorted: Vec<&Lease> = leases.iter().collect();
    sorted.sort_by_key(|lease| lease.id);
    let mut change = String::from("UPDATE (");
    for (nth, lease) in sorted.iter().enumerate() {
        change.push_str(if nth == 0 { "SELECT " } else { " UNION ALL SELECT " });
        push_hex(&mut change, lease.id.as_bytes());
        write!(change, " AS k, {} AS f, ", lease.fence).expect("a string takes everything");
        push_hex(&mut change, lease.owner.as_bytes());
        change.push_str(" AS o");
    }
    let (span, running) = (sql::micros(span), StateKind::Running.code());
    write!(
        change,
        ") AS v STRAIGHT_JOIN {records} AS r \
         ON r.`key_id` = v.k AND r.`fence` = v.f AND r.`owner` = v.o \
         SET r.`at` = @n + {span} WHERE r.`format` = {RECORD_FORMAT} AND r.`state` = {running}"
    )
    .expect("a string takes everything");
    let now = format!("SET @n = {NOW}");
    let sets = session.run(&[&*now, &change, "SELECT @n"]).await?;
    let now = row::moment(sets.get(2))?;
    let until = Timestamp::from_micros(now.micros() + span);
    if sets.get(1).is_some_and(|set| usize::try_from(set.matched) == Ok(leases.len())) {
        return Ok(vec![Renewal::Until(until); leases.len()]);
    }
    look(session, tables, leases).await
}

/// Some are lost: which, is read.
async fn look(
    session: &mut Session,
    tables: &Tables,
    leases: &[Lease],
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
            (Judgement::Apply | Judgement::Already, Some((_, at))) => Renewal::Until(*at),
            (Judgement::Apply | Judgement::Already, None) | (Judgement::Fenced, _) => Renewal::Lost,
        }
    };
    Ok(leases.iter().map(renewal).collect())
}
