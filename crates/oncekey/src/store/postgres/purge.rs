//! Removing what is over.

use oncekey_core::saved::{NotKept, Outcome};
use oncekey_core::seal::Seal;
use oncekey_core::store::Purged;
use oncekey_core::{Answer, Fence, KeyId, Lease, Owner, StoreError, Timestamp, Tombstone};
use tokio_postgres::Row;

use super::PostgresStore;
use super::batch::LeaseColumns;
use super::pool::Effect;
use super::row;

/// The most records that one statement purges: some milliseconds of holding their locks.
const SLICE: usize = 500;

/// A record whose time is over.
struct Due {
    lease: Lease,
    forget: Timestamp,
    now: Timestamp,
    seal: Seal,
    status: Option<u16>,
    outcome: Outcome,
}

impl PostgresStore {
    /// Looks first and then writes under a compare-and-set, because the seal of a tombstone is
    /// computed here. Several nodes may purge at once: each record counts for the one that did it.
    pub(super) async fn purge_slices(&self, limit: usize) -> Result<Purged, StoreError> {
        let mut purged = Purged::default();
        let mut after = (i64::MIN, Vec::new());
        while purged.total() < limit {
            let slice = SLICE.min(limit - purged.total());
            let most = i64::try_from(slice).unwrap_or(i64::MAX);
            let rows = self
                .singles
                .ask(Effect::Harmless, &self.sql.due, &[&after.0, &after.1, &most])
                .await?;
            let Some(last) = rows.last() else { break };
            after = (row::get(last, 0)?, row::get::<&[u8]>(last, 1)?.to_vec());
            // A damaged row stays for people to look at, and must not keep the others from going.
            let due: Vec<Due> = rows.iter().filter_map(read_due).collect();
            let (over, late): (Vec<Due>, Vec<Due>) =
                due.into_iter().partition(|due| due.forget <= due.now);
            purged.forgotten += self.forget(over.iter().map(|due| &due.lease)).await?;
            purged.stripped += self.strip(late).await?;
            if rows.len() < slice {
                break;
            }
        }
        Ok(purged)
    }

    /// Removes records that are done and past their time, and says how many there were.
    pub(super) async fn forget(
        &self,
        leases: impl Iterator<Item = &Lease>,
    ) -> Result<usize, StoreError> {
        let leases: Vec<&Lease> = leases.collect();
        if leases.is_empty() {
            return Ok(0);
        }
        let columns = LeaseColumns::of(leases.into_iter());
        let gone = self.singles.ask(Effect::Writes, &self.sql.forget, &columns.values()).await?;
        Ok(gone.len())
    }

    /// Puts tombstones in the place of answers.
    async fn strip(&self, mut due: Vec<Due>) -> Result<usize, StoreError> {
        if due.is_empty() {
            return Ok(0);
        }
        due.sort_unstable_by_key(|due| *due.lease.id.as_bytes());
        let reason = NotKept::Expired;
        let seals: Vec<Seal> = due
            .iter()
            .map(|due| {
                let stands = Answer::Tombstone(Tombstone { status: due.status, reason }).outcome();
                Seal::of_answer(&due.lease, &due.outcome, &stands)
            })
            .collect();
        let new: Vec<&[u8]> = seals.iter().map(|seal| seal.as_bytes().as_slice()).collect();
        let was: Vec<&[u8]> = due.iter().map(|due| due.seal.as_bytes().as_slice()).collect();
        let columns = LeaseColumns::of(due.iter().map(|due| &due.lease));
        let [ids, fences, owners] = columns.values();
        let code = i16::from(reason.code());
        let stripped = self
            .singles
            .ask(Effect::Writes, &self.sql.strip, &[ids, fences, owners, &new, &code, &was])
            .await?;
        Ok(stripped.len())
    }
}

/// `None` if the row is not what was written, as far as can be told without reading the answer.
fn read_due(row: &Row) -> Option<Due> {
    let moment = |column| row::get(row, column).ok().map(Timestamp::from_micros);
    let (expires, forget, now) = (moment(4)?, moment(5)?, moment(10)?);
    let status = row::get::<Option<i32>>(row, 6).ok()?.map(u16::try_from).transpose().ok()?;
    let not_kept = u8::try_from(row::small(row, 7).ok()?).ok()?;
    let outcome = Outcome::from_bytes(array(row, 8)?);
    let lease = Lease {
        id: KeyId::from_bytes(array(row, 1)?),
        fence: Fence::from_number(row::get(row, 2).ok()?)?,
        owner: Owner::from_bytes(array(row, 3)?),
        until: now,
    };
    let stands = match not_kept {
        0 => outcome,
        code => {
            let reason = NotKept::from_code(code)?;
            Answer::Tombstone(Tombstone { status, reason }).outcome()
        }
    };
    let seal = Seal::from_bytes(array(row, 9)?);
    let sound =
        expires <= now && expires <= forget && seal == Seal::of_answer(&lease, &outcome, &stands);
    sound.then_some(Due { lease, forget, now, seal, status, outcome })
}

fn array<const N: usize>(row: &Row, column: usize) -> Option<[u8; N]> {
    row::get::<&[u8]>(row, column).ok()?.try_into().ok()
}
