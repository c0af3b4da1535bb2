//! What the methods do to the table, bent by the bug.

use std::time::Duration;

use bytes::Bytes;
use oncekey_core::decide::{Act, Decision, Grant, Judgement};
use oncekey_core::record::Text;
use oncekey_core::saved::NotKept;
use oncekey_core::store::Times;
use oncekey_core::{
    Answer, Claim, Claimed, Completion, Headers, KeyId, Lease, Record, Saved, Sent, State,
    Timestamp, Tombstone,
};

use super::{Broken, Bug, Table};

impl Broken {
    pub(super) fn may(&self, lease: &Lease, act: Act) -> Judgement {
        self.may_under(&self.table(), lease, act)
    }

    pub(super) fn may_under(&self, table: &Table, lease: &Lease, act: Act) -> Judgement {
        self.judge(table.records.get(&self.place(&lease.id)), lease, act, self.now())
    }

    pub(super) fn state<'t>(&self, table: &'t mut Table, id: &KeyId) -> Option<&'t mut State> {
        table.records.get_mut(&self.place(id)).map(|record| &mut record.state)
    }

    /// Does what was decided.
    pub(super) fn follow(
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
                let earlier = grant.earlier(found);
                if self.has(Bug::AskingAgainIsANewAttempt) {
                    let lease = self.grant(table, claim, grant, found);
                    return Claimed::Won { lease, grant, earlier };
                }
                if self.has(Bug::AskingAgainRewrites) {
                    let fence = record.fence;
                    self.grant(table, claim, grant, found);
                    if let Some(record) = table.records.get_mut(&claim.id) {
                        record.fence = fence;
                    }
                }
                let until = self.extend(table, &claim.id, claim.lease);
                let lease = Lease { owner: claim.owner, until, ..record.lease() };
                Claimed::Won { lease, grant, earlier }
            }
            (Decision::Run(grant), _) => {
                let earlier = grant.earlier(found);
                Claimed::Won { lease: self.grant(table, claim, grant, found), grant, earlier }
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
        let own = if self.has(Bug::MergedSendMarkLost) { Sent::No } else { claim.sent };
        let forgets = self.has(Bug::TakeoverForgetsTheSend);
        let sent = if forgets { own } else { own.or(grant.earlier(found)) };
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
            created: grant.created(found, now),
            origin,
            places: claim.places.clone(),
            state: State::Running { until, sent },
        };
        let was_erased = table.erased.iter().any(|erased| erased.id == claim.id);
        if was_erased && self.has(Bug::ErasureSticks) {
            let _ = oncekey_core::erase::blank(&mut record);
        }
        if let (Some(Bug::TakeoverKeepsTheOldRequest), Some(old)) = (self.bug, found) {
            record.origin = old.origin.clone();
            record.places = old.places.clone();
        }
        table.records.insert(self.place(&claim.id), record);
        Lease { id: claim.id, fence, owner: claim.owner, until }
    }

    pub(super) fn extend(&self, table: &mut Table, id: &KeyId, span: Duration) -> Timestamp {
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

    pub(super) fn finish(&self, table: &mut Table, lease: &Lease, completion: &Completion) {
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

    pub(super) fn give_back(&self, table: &mut Table, id: &KeyId) {
        if self.has(Bug::ReleaseOnlyLapses) {
            if let Some(State::Running { until, .. }) = self.state(table, id) {
                *until = Timestamp::from_micros(0);
            }
        } else if let Some(record) = table.records.remove(&self.place(id)) {
            table.graveyard.push(record);
        }
    }

    pub(super) fn strip(&self, table: &mut Table, id: &KeyId) {
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
    pub(super) fn due(&self, table: &Table, now: Timestamp) -> Vec<KeyId> {
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

    pub(super) fn due_by_index(&self, now: Timestamp) -> Vec<KeyId> {
        let table = self.table();
        let due = table.index.iter().filter(|(moment, _)| *moment <= now);
        due.map(|(_, place)| *place).collect()
    }
}

pub(super) fn lingers(record: &Record, now: Timestamp) -> bool {
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
