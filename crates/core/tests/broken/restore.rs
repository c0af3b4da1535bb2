//! Restoring, bent by the bug.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use oncekey_core::decide::{Phase, Standing};
use oncekey_core::restore::{self, Lineage, Restore, Restored, supersedes};
use oncekey_core::saved::NotKept;
use oncekey_core::{Answer, Owner, Record, Sent, State, StoreError, Timestamp, Tombstone};

use super::{Broken, Bug};

#[async_trait]
impl Restore for Broken {
    async fn restore(&self, record: &Record) -> Result<Restored, StoreError> {
        if !self.has(Bug::RestoresAreNotChecked) {
            restore::check(record)?;
        }
        let read = self.table().records.get(&record.id).cloned();
        if self.has(Bug::RestoreInTwoSteps) {
            self.pause().await;
        }
        let mut table = self.table();
        let found = match self.bug {
            Some(Bug::RestoreInTwoSteps) => read,
            _ => table.records.get(&record.id).cloned(),
        };
        if !self.is_newer(record, found.as_ref()) {
            return Ok(Restored::Kept);
        }
        let Some(mut record) = self.spoil_restored(record.clone()) else {
            return Ok(Restored::Written);
        };
        if let (Some(found), true) = (found, self.has(Bug::RestoreKeepsTheOldRequest)) {
            record = Record { fence: record.fence, state: record.state, ..found };
        }
        if !self.has(Bug::RestoreLeavesTheFence) {
            table.highest = table.highest.max(Some(record.fence));
        }
        table.restored.insert(record.id);
        table.records.insert(record.id, record);
        Ok(Restored::Written)
    }

    async fn lineage(&self) -> Result<Lineage, StoreError> {
        let of_the_process = self.has(Bug::LineageOfTheProcess);
        let start = if of_the_process { self.starts.load(Ordering::SeqCst) } else { 0 };
        Ok(Lineage::new(format!("broken-{start}")))
    }
}

impl Broken {
    fn is_newer(&self, record: &Record, found: Option<&Record>) -> bool {
        let standing = found.map(Standing::from);
        match (self.bug, found) {
            (Some(Bug::RestoreOverwrites), _) => true,
            (Some(Bug::RestoreComparesFencesAlone), Some(found)) => record.fence > found.fence,
            (Some(Bug::RestoringAgainWritesAgain), Some(found)) if record == found => true,
            (Some(Bug::RestoreIgnoresTheSendMark), Some(_)) => {
                let sent = standing.map(|standing| match standing.phase {
                    Phase::Running(_) => Standing { phase: Phase::Running(Sent::Yes), ..standing },
                    Phase::Done(_) | Phase::Unknown | Phase::Parked => standing,
                });
                supersedes(record, sent)
            }
            _ => supersedes(record, standing),
        }
    }

    /// What this store writes in its place, or nothing.
    fn spoil_restored(&self, mut record: Record) -> Option<Record> {
        let now = self.now();
        match (&mut record.state, self.bug) {
            (
                State::Done { answer: Answer::Tombstone(_), .. },
                Some(Bug::RestoreSkipsTombstones),
            )
            | (State::Unknown { .. } | State::Parked { .. }, Some(Bug::RestoreReleasesDoubts)) => {
                return None;
            }
            (State::Done { answer, .. }, Some(Bug::RestoreLosesTheAnswer)) => {
                let (status, reason) = (answer.status(), NotKept::StatusOnly);
                *answer = Answer::Tombstone(Tombstone { status, reason });
            }
            (State::Done { answer: Answer::Kept(saved), .. }, Some(Bug::RestoreCutsBodies)) => {
                saved.body.truncate(65_536);
            }
            (State::Done { forget, .. }, Some(Bug::RestoredRecordsStay)) => {
                *forget = Timestamp::from_micros(i64::MAX);
            }
            (State::Unknown { since }, Some(Bug::RestoreTakesItsOwnTime)) => {
                *since = Timestamp::from_micros(now.micros() + 1);
            }
            (State::Running { until, .. }, Some(Bug::RestoreRenewsTheLease)) => {
                *until = Timestamp::from_micros(i64::MAX / 2);
            }
            (State::Running { .. }, Some(Bug::RestoreForgetsTheOwner)) => {
                record.owner = Owner::from_bytes([0; 16]);
            }
            _ => {}
        }
        Some(record)
    }
}
