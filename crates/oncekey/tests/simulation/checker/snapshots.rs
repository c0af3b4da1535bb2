//! What a reader sees after every commit must be what the commits so far made of it.

use oncekey::core::{KeyId, Record, State, Timestamp};

use super::Judge;
use super::books::{Phase, Standing};

impl Judge<'_> {
    /// I11, I27, I28: compares a record with the book of its key.
    pub(super) fn compare(&mut self, id: KeyId, record: Option<&Record>, now: Timestamp) {
        let standing = self.book(id).visible(now).cloned();
        let difference = match (&standing, record) {
            (None, None) => None,
            (Some(standing), Some(record)) => difference(standing, record),
            (Some(Standing { phase: Phase::Done(_), .. }), None) => {
                Some(("I27", "an answer is gone before its time"))
            }
            (Some(_), None) => Some(("I28", "a record is gone that nobody ended")),
            (None, Some(_)) => Some(("I27", "a record is there that should be gone")),
        };
        if let Some((rule, text)) = difference {
            self.wrong(rule, format!("{text}: {standing:?}, read was {record:?}"));
        }
    }
}

fn difference(standing: &Standing, record: &Record) -> Option<(&'static str, &'static str)> {
    if (standing.fence, standing.owner) != (record.fence, record.owner) {
        return Some(("I4", "somebody else's attempt stands there"));
    }
    if standing.fingerprint != record.fingerprint {
        return Some(("I11", "the fingerprint has changed"));
    }
    if standing.class != record.class {
        return Some(("I8", "the class has changed"));
    }
    match (&standing.phase, &record.state) {
        (Phase::Running { until, sent }, State::Running { until: read, sent: mark }) => {
            if sent != mark {
                Some(("I8", "the send mark has changed"))
            } else if until != read {
                Some(("I6", "the lease has changed"))
            } else {
                None
            }
        }
        (Phase::Unknown, State::Unknown { .. }) => None,
        (Phase::Done(done), State::Done { expires, forget, outcome, answer, .. }) => {
            if done.outcome != *outcome || done.answer != *answer {
                Some(("I11", "the answer has changed"))
            } else if (done.expires, done.forget) != (*expires, *forget) {
                Some(("I27", "the retention has changed"))
            } else {
                None
            }
        }
        (Phase::Unknown, _) => Some(("I15", "it is not unknown any more")),
        (Phase::Done(_), _) => Some(("I11", "it is not done any more")),
        (Phase::Running { .. }, _) => Some(("I4", "it is not running any more")),
    }
}
