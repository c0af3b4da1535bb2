//! What the parent knows of every attempt of the whole run, and what must follow from it.

use std::collections::{BTreeSet, HashMap, HashSet};

use oncekey::core::saved::NotKept;
use oncekey::core::{Answer, Owner, Record, Sent, State};

use crate::common;
use crate::note::{Note, Step, What};
use crate::plan::{self, is_recycled};

/// Everything that was asked and told.
#[derive(Debug, Default)]
pub(crate) struct History {
    tries: HashMap<u64, Try>,
    keys: HashMap<u64, Key>,
    /// Which attempt an owner token, in hexadecimal digits, is of.
    owners: HashMap<String, u64>,
    /// Keys that somebody has asked for since the last kill.
    touched: BTreeSet<u64>,
}

/// One attempt.
#[derive(Debug, Default)]
struct Try {
    key: u64,
    /// The highest fence that was known for the key before this attempt asked for it.
    floor: i64,
    fence: Option<i64>,
    asked: BTreeSet<Step>,
    applied: BTreeSet<Step>,
    fenced: BTreeSet<Step>,
    /// The outcome of its answer, once somebody has wanted to know.
    outcome: Option<String>,
}

#[derive(Debug, Default)]
struct Key {
    /// Every fence that was ever granted for it.
    fences: HashSet<i64>,
    /// The highest of them, and whose it is.
    newest: Option<(i64, u64)>,
    /// Attempts that have asked and were not answered.
    open: BTreeSet<u64>,
}

impl History {
    pub(crate) fn add(&mut self, note: &Note) {
        let Note { key, attempt, what } = note;
        match what {
            What::Asks(Step::Claim) => self.asks(*key, *attempt),
            What::Asks(step) => {
                self.attempt(*attempt).asked.insert(*step);
            }
            What::Won(fence) => self.won(*key, *attempt, *fence),
            What::Lost => self.close(*key, *attempt),
            What::Replayed { owner, outcome } => {
                let by = self.owners.get(owner).expect("a replay of what somebody completed");
                self.replayed(*key, *by, outcome);
                self.close(*key, *attempt);
            }
            What::Applied(step) => {
                self.attempt(*attempt).applied.insert(*step);
            }
            What::Fenced(step) => {
                self.attempt(*attempt).fenced.insert(*step);
            }
        }
    }

    /// Keys that were asked for since this was called last.
    pub(crate) fn take_touched(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.touched)
    }

    /// All keys of the run.
    pub(crate) fn keys(&self) -> BTreeSet<u64> {
        self.keys.keys().copied().collect()
    }

    /// Attempts at a key that have asked and were not answered.
    pub(crate) fn open(&self, key: u64) -> Vec<u64> {
        self.keys[&key].open.iter().copied().collect()
    }

    /// The newest attempt at a key, its fence, and the step that it asked for without an answer.
    pub(crate) fn unanswered(&self, key: u64) -> Option<(u64, i64, Step)> {
        let (fence, attempt) = self.keys[&key].newest?;
        let Try { asked, applied, fenced, .. } = &self.tries[&attempt];
        let step = asked.iter().find(|step| !applied.contains(step) && !fenced.contains(step))?;
        Some((attempt, fence, *step))
    }

    /// Which attempt an owner token is of.
    pub(crate) fn attempt_of(&self, owner: &Owner) -> u64 {
        let owner = common::hex(owner.as_bytes());
        *self.owners.get(&owner).expect("every owner in the store has asked for it")
    }

    /// Checks what the store holds for a key after a kill against what was acknowledged before,
    /// and takes in what it tells about those who were not answered.
    pub(crate) fn check(&mut self, key: u64, found: Option<&Record>) {
        let newest = self.keys[&key].newest;
        let Some(record) = found else {
            let Some((fence, attempt)) = newest else { return };
            let asked = &self.tries[&attempt].asked;
            let may_be_gone = asked.contains(&Step::Release)
                || (asked.contains(&Step::Complete) && is_recycled(key));
            assert!(may_be_gone, "key {key}: attempt {attempt} with fence {fence} is lost");
            return;
        };
        let attempt = self.attempt_of(&record.owner);
        let number = record.fence.number();
        match newest {
            Some((fence, holder)) if number == fence => {
                assert_eq!(attempt, holder, "key {key}: two owners of fence {fence}");
            }
            Some((fence, holder)) => {
                assert!(number > fence, "key {key}: fence {fence} is lost, {number} is there");
                let held = !is_recycled(key) && !self.tries[&holder].asked.contains(&Step::Release);
                assert!(!held, "key {key}: attempt {attempt} has replaced {holder}, which held it");
                self.won(key, attempt, number);
            }
            None => self.won(key, attempt, number),
        }
        self.check_state(key, attempt, record);
    }

    fn check_state(&self, key: u64, attempt: u64, record: &Record) {
        let Try { asked, applied, .. } = &self.tries[&attempt];
        let about =
            format!("key {key}, attempt {attempt}: {record:?} after {asked:?}, {applied:?}");
        assert!(!applied.contains(&Step::Release), "a released key came back: {about}");
        match &record.state {
            State::Running { sent, .. } => {
                let ended = applied.contains(&Step::Complete) || applied.contains(&Step::Unknown);
                assert!(!ended, "an acknowledged end is lost: {about}");
                let must =
                    plan::claim(key, attempt).sent == Sent::Yes || applied.contains(&Step::Send);
                assert!(*sent == Sent::Yes || !must, "a send mark is lost: {about}");
            }
            State::Unknown { .. } => {
                assert!(asked.contains(&Step::Unknown), "nobody marked it unknown: {about}");
                assert!(!applied.contains(&Step::Complete), "a completion is lost: {about}");
            }
            State::Done { outcome, answer, .. } => {
                assert!(asked.contains(&Step::Complete), "nobody completed it: {about}");
                let given = plan::completion(key, attempt).answer;
                assert_eq!(*outcome, given.outcome(), "{about}");
                let stripped = matches!(answer, Answer::Tombstone(tombstone)
                    if tombstone.reason == NotKept::Expired);
                if !(stripped && is_recycled(key)) {
                    assert!(*answer == given, "another answer: {about}");
                }
            }
            State::Parked { .. } => panic!("nobody parks: {about}"),
        }
    }

    /// I12: a replay, however early, is of the very answer that its owner gave.
    fn replayed(&mut self, key: u64, by: u64, outcome: &str) {
        let known = self.attempt(by);
        assert_eq!(known.key, key, "a replay is of the key that was asked for");
        assert!(known.asked.contains(&Step::Complete), "key {key}: attempt {by} gave no answer");
        let given = known.outcome.get_or_insert_with(|| {
            common::hex(plan::completion(key, by).answer.outcome().as_bytes())
        });
        assert_eq!(outcome, given, "key {key}: a replay of another answer than {by} gave");
    }

    fn asks(&mut self, key: u64, attempt: u64) {
        let known = self.keys.entry(key).or_default();
        let floor = known.newest.map_or(0, |(fence, _)| fence);
        known.open.insert(attempt);
        self.touched.insert(key);
        self.owners.insert(common::hex(common::owner(attempt).as_bytes()), attempt);
        let again = self.tries.insert(attempt, Try { key, floor, ..Try::default() });
        assert!(again.is_none(), "attempt {attempt} asks twice");
        self.attempt(attempt).asked.insert(Step::Claim);
    }

    fn won(&mut self, key: u64, attempt: u64, fence: i64) {
        let known = self.attempt(attempt);
        assert_eq!(known.fence, None, "key {key}: attempt {attempt} got two fences");
        let floor = known.floor;
        known.fence = Some(fence);
        known.applied.insert(Step::Claim);
        assert!(fence > floor, "key {key}: fence {fence} was granted after {floor}");
        let known = self.keys.get_mut(&key).expect("it was asked for");
        assert!(known.fences.insert(fence), "key {key}: fence {fence} was granted twice");
        known.newest = known.newest.max(Some((fence, attempt)));
        known.open.remove(&attempt);
    }

    fn close(&mut self, key: u64, attempt: u64) {
        self.keys.get_mut(&key).expect("it was asked for").open.remove(&attempt);
        self.attempt(attempt).fenced.insert(Step::Claim);
    }

    fn attempt(&mut self, attempt: u64) -> &mut Try {
        self.tries.get_mut(&attempt).expect("it has asked for its key")
    }
}
