//! Erasing, bent by the bug.

use async_trait::async_trait;
use oncekey_core::erase::{Erase, Erased, blank};
use oncekey_core::record::Text;
use oncekey_core::saved::NotKept;
use oncekey_core::{
    Answer, Fingerprint, KeyId, Record, Sent, State, StoreError, Timestamp, Tombstone,
};

use super::{Broken, Bug};

#[async_trait]
impl Erase for Broken {
    async fn erase(&self, id: &KeyId) -> Result<Erased, StoreError> {
        let read = self.table().records.get(id).cloned();
        if self.has(Bug::ErasureInTwoSteps) {
            self.pause().await;
        }
        let mut table = self.table();
        let found = match self.bug {
            Some(Bug::ErasureInTwoSteps) => read,
            _ => table.records.get(id).cloned(),
        };
        let forgives = self.has(Bug::ErasesTheForgotten);
        let Some(mut record) =
            found.filter(|record| forgives || !self.is_forgotten(record, self.now()))
        else {
            table.records.remove(id);
            let lies = self.has(Bug::AbsentIsErased);
            return Ok(if lies { Erased::Blank } else { Erased::Absent });
        };
        if self.has(Bug::ErasureRemovesTheRecord) {
            table.records.remove(id);
            return Ok(Erased::Blank);
        }
        if self.has(Bug::ErasedTwiceIsAbsent) && record.origin.key == Text::default() {
            return Ok(Erased::Absent);
        }
        table.erased.push(record.clone());
        let said = self.blank(&mut record);
        table.records.insert(*id, record);
        Ok(said)
    }
}

impl Broken {
    /// Blanks as the core says, and then spoils it.
    fn blank(&self, record: &mut Record) -> Erased {
        let before = record.clone();
        let said = blank(record);
        match self.bug {
            Some(Bug::ErasureTakesTheRoute) => record.origin.route = Text::default(),
            Some(Bug::ErasureKeepsTheScope) => record.origin.scope = before.origin.scope.clone(),
            Some(Bug::ErasureTakesTheFingerprint) => {
                record.fingerprint = Fingerprint::from_parts(1, [0; 32]);
            }
            Some(_) | None => self.spoil(&mut record.state, &before.state),
        }
        if self.has(Bug::ErasureCompletes) { Erased::Blank } else { said }
    }

    fn spoil(&self, state: &mut State, before: &State) {
        match (&mut *state, before, self.bug) {
            (State::Done { .. }, _, Some(Bug::ErasureLeavesTheAnswer)) => *state = before.clone(),
            (State::Running { until, .. }, _, Some(Bug::ErasureEndsTheLease)) => {
                *until = Timestamp::from_micros(0);
            }
            (State::Running { sent, .. }, _, Some(Bug::ErasureTakesTheSendMark)) => {
                *sent = Sent::No;
            }
            (State::Unknown { since }, _, Some(Bug::ErasureCompletes)) => {
                let status = None;
                let answer = Answer::Tombstone(Tombstone { status, reason: NotKept::Erased });
                let (at, outcome) = (*since, answer.outcome());
                *state = State::Done { at, expires: at, forget: at, outcome, answer };
            }
            (State::Done { expires, forget, .. }, _, Some(Bug::ErasureMovesTheTimes)) => {
                *expires = *forget;
            }
            (State::Done { outcome, answer, .. }, _, Some(Bug::ErasureForgetsTheOutcome)) => {
                *outcome = answer.outcome();
            }
            (
                State::Done { answer: Answer::Tombstone(stands), .. },
                _,
                Some(Bug::ErasureHidesExpiry),
            ) => {
                stands.reason = NotKept::Erased;
            }
            _ => {}
        }
    }
}
