//! The eight methods, bent by the bug.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use oncekey_core::decide::{Act, Decision, Grant, Judgement};
use oncekey_core::record::Text;
use oncekey_core::saved::NotKept;
use oncekey_core::store::{Purged, Times};
use oncekey_core::{
    Answer, Claim, Claimed, Completion, ErrorKind, Headers, KeyId, Lease, Record, Renewal, Saved,
    Sent, State, Store, StoreError, Timestamp, Tombstone, Write,
};

use super::rules::MISMATCH;
use super::{Broken, Bug, Table};

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

impl Broken {
    fn may(&self, lease: &Lease, act: Act) -> Judgement {
        self.may_under(&self.table(), lease, act)
    }

    fn may_under(&self, table: &Table, lease: &Lease, act: Act) -> Judgement {
        self.judge(table.records.get(&self.place(&lease.id)), lease, act, self.now())
    }

    fn state<'t>(&self, table: &'t mut Table, id: &KeyId) -> Option<&'t mut State> {
        table.records.get_mut(&self.place(id)).map(|record| &mut record.state)
    }

    /// Does what was decided.
    fn follow(
        &self,
        table: &mut Table,
        decision: Decision,
        claim: &Claim,
        found: Option<&Record>,
    ) -> Claimed {
        match (decision, found) {
            (Decision::Refuse(refusal), Some(record)) => {
                let old = self.has(Bug::LosersSeeAnOldClock);
                let now = if old { record.created } else { self.now() };
                Claimed::Lost { refusal, record: Box::new(record.clone()), now }
            }
            (Decision::Run(Grant::Again), Some(record)) => {
                let grant = Grant::Again;
                if self.has(Bug::AskingAgainIsANewAttempt) {
                    return Claimed::Won { lease: self.grant(table, claim, grant, found), grant };
                }
                if self.has(Bug::AskingAgainRewrites) {
                    let fence = record.fence;
                    self.grant(table, claim, grant, found);
                    if let Some(record) = table.records.get_mut(&claim.id) {
                        record.fence = fence;
                    }
                }
                let until = self.extend(table, &claim.id, claim.lease);
                Claimed::Won { lease: Lease { owner: claim.owner, until, ..record.lease() }, grant }
            }
            (Decision::Run(grant), _) => {
                Claimed::Won { lease: self.grant(table, claim, grant, found), grant }
            }
            (Decision::Refuse(_), None) => unreachable!("a refusal is about a record"),
        }
    }

    fn grant(
        &self,
        table: &mut Table,
        claim: &Claim,
        grant: Grant,
        found: Option<&Record>,
    ) -> Lease {
        let now = self.now();
        let fence = self.fence(table, found, grant, now);
        let stale =
            if self.has(Bug::LeaseFromAStaleClock) { claim.lease / 2 } else { Duration::ZERO };
        let until = now.before(stale).after(claim.lease);
        let sent = if self.has(Bug::MergedSendMarkLost) { Sent::No } else { claim.sent };
        let mut origin = claim.origin.clone();
        if self.has(Bug::LosesTheRoute) {
            origin.route = Text::default();
        }
        if self.has(Bug::TextsAreCut) {
            let key = origin.key.as_bytes();
            origin.key = key.get(..255).unwrap_or(key).into();
        }
        let mut record = Record {
            id: claim.id,
            fence,
            owner: claim.owner,
            fingerprint: claim.fingerprint,
            class: claim.class,
            created: now,
            origin,
            places: claim.places.clone(),
            state: State::Running { until, sent },
        };
        if let (Some(Bug::TakeoverKeepsTheOldRequest), Some(old)) = (self.bug, found) {
            record.origin = old.origin.clone();
            record.places = old.places.clone();
        }
        table.records.insert(self.place(&claim.id), record);
        Lease { id: claim.id, fence, owner: claim.owner, until }
    }

    fn extend(&self, table: &mut Table, id: &KeyId, span: Duration) -> Timestamp {
        let now = self.now();
        let keeps_end = self.has(Bug::RenewalAddsToTheOldEnd);
        let clears = self.has(Bug::RenewalClearsTheSendMark);
        let Some(state) = self.state(table, id) else { return now };
        let (old, old_sent) = match state {
            State::Running { until, sent } => (*until, *sent),
            State::Done { .. } | State::Unknown { .. } | State::Parked { .. } => (now, Sent::Yes),
        };
        let until = if keeps_end { old.after(span) } else { now.after(span) };
        *state = State::Running { until, sent: if clears { Sent::No } else { old_sent } };
        until
    }

    fn finish(&self, table: &mut Table, lease: &Lease, completion: &Completion) {
        let now = self.now();
        let place = self.place(&lease.id);
        let Some(record) = table.records.get_mut(&place) else {
            return self.invent(table, lease);
        };
        let Times { at, expires, forget } = self.times(completion, record, now);
        let outcome = completion.answer.outcome();
        let answer = self.as_kept(completion.answer.clone());
        record.state = State::Done { at, expires, forget, outcome, answer };
        table.index.push((forget, place));
    }

    /// A record from nothing.
    fn invent(&self, table: &mut Table, lease: &Lease) {
        let template = table.records.values().next().cloned();
        if let Some(mut record) = template {
            record.id = lease.id;
            table.records.insert(lease.id, record);
        }
    }

    /// What is left of an answer once it was stored.
    fn as_kept(&self, answer: Answer) -> Answer {
        match (self.bug, answer) {
            (Some(Bug::RepeatedHeadersAreJoined), Answer::Kept(saved)) => {
                Answer::Kept(Saved { headers: joined(&saved.headers), ..saved })
            }
            (Some(Bug::BodiesAreCut), Answer::Kept(saved)) => {
                // What a MEDIUMBLOB holds: one byte less than the largest body.
                let most = saved.body.len().min((1 << 24) - 1);
                let body = Bytes::copy_from_slice(&saved.body[..most]);
                Answer::Kept(Saved { body, ..saved })
            }
            (Some(Bug::TombstonesForgetTheStatus), Answer::Tombstone(tombstone)) => {
                Answer::Tombstone(Tombstone { status: None, ..tombstone })
            }
            (_, answer) => answer,
        }
    }

    fn give_back(&self, table: &mut Table, id: &KeyId) {
        if self.has(Bug::ReleaseOnlyLapses) {
            if let Some(State::Running { until, .. }) = self.state(table, id) {
                *until = Timestamp::from_micros(0);
            }
        } else if let Some(record) = table.records.remove(&self.place(id)) {
            table.graveyard.push(record);
        }
    }

    fn strip(&self, table: &mut Table, id: &KeyId) {
        let forgets = self.has(Bug::StrippingForgetsTheStatus);
        let rewrites = self.has(Bug::StrippingForgetsTheOutcome);
        if let Some(State::Done { answer, outcome, .. }) = self.state(table, id) {
            let status = if forgets { None } else { answer.status() };
            *answer = Answer::Tombstone(Tombstone { status, reason: NotKept::Expired });
            if rewrites {
                *outcome = answer.outcome();
            }
        }
    }

    /// What a purge has to do now.
    fn due(&self, table: &Table, now: Timestamp) -> Vec<KeyId> {
        let year = Duration::from_secs(365 * 24 * 60 * 60);
        let is_due = |record: &Record| match record.state {
            State::Done { forget, .. } if forget <= now => true,
            State::Done { .. } => lingers(record, now) && !is_stripped(record),
            State::Unknown { .. } if self.has(Bug::PurgeTakesUnknown) => true,
            State::Running { .. } | State::Unknown { .. } | State::Parked { .. } => {
                self.has(Bug::EverythingExpires) && record.created < now.before(year)
            }
        };
        let due = table.records.iter().filter(|(_, record)| is_due(record));
        due.map(|(place, _)| *place).collect()
    }

    fn due_by_index(&self, now: Timestamp) -> Vec<KeyId> {
        let table = self.table();
        let due = table.index.iter().filter(|(moment, _)| *moment <= now);
        due.map(|(_, place)| *place).collect()
    }
}

fn lingers(record: &Record, now: Timestamp) -> bool {
    matches!(record.state, State::Done { expires, forget, .. } if expires <= now && now < forget)
}

fn is_stripped(record: &Record) -> bool {
    let State::Done { answer, .. } = &record.state else { return false };
    matches!(answer, Answer::Tombstone(Tombstone { reason: NotKept::Expired, .. }))
}

/// Lines of one name as one line, as proxies and careless libraries write them.
fn joined(headers: &Headers) -> Headers {
    let mut lines: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (name, value) in headers.iter() {
        match lines.iter_mut().find(|(known, _)| known == name) {
            Some((_, values)) => {
                values.extend_from_slice(b", ");
                values.extend_from_slice(value);
            }
            None => lines.push((name.to_vec(), value.to_vec())),
        }
    }
    let mut joined = Headers::new();
    for (name, value) in lines {
        joined.push(&name, &value).expect("joined lines are lines");
    }
    joined
}
