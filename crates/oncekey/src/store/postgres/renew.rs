//! Extending leases, many at a time.
//!
//! A row that somebody else holds is not waited for: the leases beside it would lapse meanwhile. It is
//! tried again when they are renewed, for a moment; then it is told as a renewal that failed, and whoever
//! asked tries again.

use std::collections::HashMap;
use std::time::Duration;

use oncekey_core::decide::{Act, Judgement, judge};
use oncekey_core::{KeyId, Lease, Renewal, StoreError, Timestamp};
use tokio::time::sleep;

use super::PostgresStore;
use super::batch::{LeaseColumns, by_id, micros};
use super::pool::Effect;
use super::row;

/// The most leases in one statement: renewing them takes some milliseconds.
const MOST: usize = 500;

/// How long rows are given that somebody holds. A statement of this store is over in milliseconds, and
/// says then who has the key; whoever holds a row for longer is somebody else, and is not waited for.
const MOMENTS: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(40), Duration::from_millis(160)];

impl PostgresStore {
    pub(super) async fn extend(
        &self,
        leases: &[Lease],
        span: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        let mut renewals = Vec::with_capacity(leases.len());
        for some in leases.chunks(MOST) {
            match self.extend_some(some, span).await {
                Ok(some) => renewals.extend(some),
                Err(error) if renewals.is_empty() => return Err(error),
                // What was renewed counts, whatever becomes of the rest.
                Err(error) => {
                    tracing::debug!(%error, "some leases could not be renewed");
                    renewals.resize(leases.len(), Renewal::Failed);
                    break;
                }
            }
        }
        Ok(renewals)
    }

    async fn extend_some(
        &self,
        leases: &[Lease],
        span: Duration,
    ) -> Result<Vec<Renewal>, StoreError> {
        let open: Vec<&Lease> = leases.iter().collect();
        let mut renewals = self.extend_once(&open, span).await?;
        for pause in MOMENTS {
            let is_open = |lease: &&Lease| renewals.get(&proof(lease)) == Some(&Renewal::Failed);
            let open: Vec<&Lease> = leases.iter().filter(is_open).collect();
            if open.is_empty() {
                break;
            }
            sleep(pause).await;
            match self.extend_once(&open, span).await {
                Ok(some) => renewals.extend(some),
                Err(error) => {
                    tracing::debug!(%error, "some leases could not be renewed");
                    break;
                }
            }
        }
        let renewal = |lease| renewals.get(&proof(lease)).copied().unwrap_or(Renewal::Failed);
        Ok(leases.iter().map(renewal).collect())
    }

    async fn extend_once<'l>(
        &self,
        leases: &[&'l Lease],
        span: Duration,
    ) -> Result<HashMap<Proof<'l>, Renewal>, StoreError> {
        let columns = LeaseColumns::of(leases.iter().copied());
        let [ids, fences, owners] = columns.values();
        let values = [ids, fences, owners, &micros(span)];
        // Renewing twice is renewing once, a little later.
        let rows = self.renewals.ask(Effect::Repeatable, &self.sql.renew, &values).await?;
        let mut renewed = HashMap::with_capacity(rows.len());
        for row in &rows {
            let proof: Proof<'_> = (row::id(row, 0)?, row::get(row, 1)?, row::get(row, 2)?);
            renewed.insert(proof, Timestamp::from_micros(row::get(row, 3)?));
        }
        let (mut renewals, mut missing) = (HashMap::with_capacity(leases.len()), Vec::new());
        for lease in leases {
            match renewed.get(&proof(lease)) {
                Some(until) => drop(renewals.insert(proof(lease), Renewal::Until(*until))),
                None => missing.push(*lease),
            }
        }
        if !missing.is_empty() {
            renewals.extend(self.look_at(&missing).await);
        }
        Ok(renewals)
    }

    /// What became of leases that were not renewed: lost, or held up by somebody who locks the row. Of
    /// those that are not in the answer nothing is known.
    async fn look_at<'l>(&self, missing: &[&'l Lease]) -> HashMap<Proof<'l>, Renewal> {
        let ids: Vec<&[u8]> = missing.iter().map(|lease| lease.id.as_bytes().as_slice()).collect();
        let rows = match self.renewals.ask(Effect::Harmless, &self.sql.standing, &[&ids]).await {
            Ok(rows) => rows,
            Err(error) => {
                tracing::debug!(%error, "it is not known why some leases were not renewed");
                return HashMap::new();
            }
        };
        let rows = by_id(&rows);
        let renewal = |lease: &&'l Lease| {
            let row = rows.get(lease.id.as_bytes().as_slice());
            let renewal = match row.map(|row| row::standing(row)).transpose() {
                Ok(standing) => match judge(standing, lease, Act::Renew) {
                    Judgement::Apply | Judgement::Already => Renewal::Failed,
                    Judgement::Fenced => Renewal::Lost,
                },
                Err(damage) => {
                    tracing::error!(%damage, "the lease of a damaged record is lost");
                    Renewal::Lost
                }
            };
            (proof(lease), renewal)
        };
        missing.iter().map(renewal).collect()
    }
}

/// A lease without its time: key id, fence and owner, which a store compares.
type Proof<'l> = (KeyId, i64, &'l [u8]);

fn proof(lease: &Lease) -> Proof<'_> {
    (lease.id, lease.fence.number(), lease.owner.as_bytes())
}
