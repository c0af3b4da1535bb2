//! The eight methods, bent by the bug.

use std::time::Duration;

use async_trait::async_trait;
use oncekey_core::decide::{Act, Decision, Grant, Judgement};
use oncekey_core::store::Purged;
use oncekey_core::{
    Claim, Claimed, Completion, ErrorKind, KeyId, Lease, Record, Renewal, Sent, State, Store,
    StoreError, Write,
};

use super::rules::MISMATCH;
use super::table::lingers;
use super::{Broken, Bug};

#[async_trait]
impl Store for Broken {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        if !self.has(Bug::TextsAreNotChecked) {
            claim.check()?;
        }
        let now = self.now();
        if self.has(Bug::NoGrantsWhileTheClockIsBehind)
            && self.table().highest.is_some_and(|fence| fence.number() > now.micros() + 9_000_000)
        {
            return Err(StoreError::new(ErrorKind::Unavailable, "the clock stepped back"));
        }
        let found = self.table().records.get(&self.place(&claim.id)).cloned();
        let mut decision = self.decide(found.as_ref(), claim, now);
        if self.has(Bug::FingerprintComparedInASecondStep) {
            if found.as_ref().is_some_and(|first| first.fingerprint != claim.fingerprint) {
                decision = MISMATCH;
            } else {
                self.pause().await;
            }
        }
        let takes_over = decision == Decision::Run(Grant::TakenOver);
        if self.has(Bug::ClaimInTwoSteps) || takes_over && self.has(Bug::TakeoverInTwoSteps) {
            self.pause().await;
            return Ok(self.follow(&mut self.table(), decision, claim, found.as_ref()));
        }
        let mut table = self.table();
        let found = table.records.get(&self.place(&claim.id)).cloned();
        if decision != MISMATCH {
            decision = self.decide(found.as_ref(), claim, now);
        }
        Ok(self.follow(&mut table, decision, claim, found.as_ref()))
    }

    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError> {
        let mut leases = leases.to_vec();
        if self.has(Bug::RenewalsInKeyOrder) {
            leases.sort_by_key(|lease| *lease.id.as_bytes());
        }
        let mut renewals = Vec::new();
        for lease in &leases {
            let held = self.may(lease, Act::Renew) != Judgement::Fenced;
            if held && self.has(Bug::RenewalInTwoSteps) {
                self.pause().await;
            }
            // Checked again under the lock that is held while writing, unless that is the bug.
            let mut table = self.table();
            let held = match self.bug {
                Some(Bug::RenewalInTwoSteps) => held,
                _ => self.may_under(&table, lease, Act::Renew) != Judgement::Fenced,
            };
            renewals.push(match held {
                true => Renewal::Until(self.extend(&mut table, &lease.id, span)),
                false => Renewal::Lost,
            });
        }
        Ok(renewals)
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        let mut table = self.table();
        Ok(match self.may_under(&table, lease, Act::Send) {
            Judgement::Apply => {
                if let Some(State::Running { sent, .. }) = self.state(&mut table, &lease.id) {
                    *sent = Sent::Yes;
                }
                Write::Applied
            }
            Judgement::Already => Write::Applied,
            Judgement::Fenced => Write::Fenced,
        })
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        if !self.has(Bug::AnswersAreNotChecked) {
            completion.check()?;
        }
        let act = Act::Complete(completion.answer.outcome());
        let early = self.may(lease, act);
        if early != Judgement::Fenced && self.has(Bug::CompletionInTwoSteps) {
            self.pause().await;
        }
        let write = {
            let mut table = self.table();
            let judgement = match self.bug {
                Some(Bug::CompletionInTwoSteps) => early,
                _ => self.may_under(&table, lease, act),
            };
            match judgement {
                Judgement::Apply => {
                    self.finish(&mut table, lease, completion);
                    Write::Applied
                }
                Judgement::Already => Write::Applied,
                Judgement::Fenced => Write::Fenced,
            }
        };
        if !self.has(Bug::CompletionIsSilent) {
            self.announce(&lease.id);
        }
        Ok(write)
    }

    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        let write = {
            let mut table = self.table();
            match self.may_under(&table, lease, Act::Release) {
                Judgement::Apply | Judgement::Already => {
                    self.give_back(&mut table, &lease.id);
                    Write::Applied
                }
                Judgement::Fenced => Write::Fenced,
            }
        };
        if !self.has(Bug::ReleaseIsSilent) {
            self.announce(&lease.id);
        }
        Ok(write)
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        let since = self.now();
        let write = {
            let mut table = self.table();
            match self.may_under(&table, lease, Act::Unknown) {
                Judgement::Apply => {
                    if let Some(state) = self.state(&mut table, &lease.id) {
                        *state = State::Unknown { since };
                    }
                    Write::Applied
                }
                Judgement::Already => Write::Applied,
                Judgement::Fenced => Write::Fenced,
            }
        };
        if !self.has(Bug::UnknownIsSilent) {
            self.announce(&lease.id);
        }
        Ok(write)
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        let now = self.now();
        let table = self.table();
        let found = table.records.get(&self.place(id));
        Ok(found.filter(|record| !self.is_forgotten(record, now)).cloned())
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        let now = self.now();
        let mut due: Vec<KeyId> = match self.bug {
            Some(Bug::PurgeByAnOldIndex) => self.due_by_index(now),
            _ => self.due(&self.table(), now),
        };
        if !self.has(Bug::PurgeIgnoresItsLimit) {
            due.truncate(limit);
        }
        let blind = self.has(Bug::PurgeInTwoSteps) || self.has(Bug::PurgeByAnOldIndex);
        if self.has(Bug::PurgeInTwoSteps) {
            self.pause().await;
        }
        let mut table = self.table();
        let still_due = self.due(&table, now);
        let mut purged = Purged::default();
        for id in due.into_iter().filter(|id| blind || still_due.contains(id)) {
            let lingers = table.records.get(&id).is_some_and(|record| lingers(record, now));
            if lingers {
                self.strip(&mut table, &id);
                purged.stripped += 1;
            } else if let Some(record) = table.records.remove(&id) {
                table.graveyard.push(record);
                purged.forgotten += 1;
            }
        }
        Ok(purged)
    }
}
