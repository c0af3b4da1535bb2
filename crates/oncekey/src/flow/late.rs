//! Late outcomes: what came of calls that may be repeated, written with the next commit of their flow.
//!
//! If the outcome of such a call is lost, the call is made again, with the same key. So the outcome needs
//! no commit of its own: the commit that rests on it carries it. Nothing else of the flow becomes true
//! before it. Whatever commits nothing of its own, such as the intent of the next call or the end of a
//! failed attempt, has it written down first.
//!
//! Outcomes of calls that must not be repeated are never late.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::checkpoint::{Checkpoint, encode, shape};
use super::effect::Safety;
use super::halt::Halt;
use super::point::{Kind, Point, Step};
use super::run::Run;
use super::store::{TxStore, TxTrouble};

/// What came of a call, as it will be stored.
#[derive(Debug)]
pub(crate) struct Late {
    step: Step,
    shape: String,
    bound: Vec<u8>,
    output: Vec<u8>,
}

impl Late {
    pub(super) fn point(&self) -> Point<'_> {
        let Self { step, shape, bound, output } = self;
        Point { step, kind: Kind::Effect, shape, bound, output }
    }
}

/// The late outcomes of an attempt. Nobody takes them out before they are committed, so whoever is dropped
/// on the way loses none of them; two who carry the same one at once write the same row.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Mutex<Vec<Arc<Late>>>);

impl Waiting {
    pub(super) fn all(&self) -> Vec<Arc<Late>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, late: Late) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(late));
    }

    /// Those are committed.
    pub(super) fn written(&self, those: &[Arc<Late>]) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|late| !those.iter().any(|written| Arc::ptr_eq(late, written)));
    }
}

/// Whether the outcome of a call that was made for the first time may be late. After the longest attempt and
/// the time until somebody else takes the flow, the other side must still know the key.
pub(super) fn may_be_late(safety: Safety, until_the_next: Duration) -> bool {
    match safety {
        Safety::Natural => true,
        Safety::Keyed { window } => window / 2 > until_the_next,
        Safety::Probed | Safety::Once => false,
    }
}

impl<S: TxStore> Run<S> {
    /// Keeps what came of a call until the next commit.
    pub(super) fn outcome_with_the_next<T: Checkpoint>(
        &self,
        step: &Step,
        bound: &[u8],
        value: &T,
    ) -> Result<(), Halt> {
        let output = encode(&step.name, value)?;
        let (step, shape) = (step.clone(), shape::<T>());
        self.late.add(Late { step, shape, bound: bound.to_vec(), output });
        Ok(())
    }

    /// Has what is late written down, before something that must not be true without it.
    pub(super) async fn catch_up(&self) -> Result<(), Halt> {
        for late in self.late.all() {
            match self.write_outcome(late.point()).await {
                Ok(()) => {}
                // Another step of this attempt carried it in the same moment.
                Err(Halt::Store(error)) if error.kind() == TxTrouble::Duplicate => {
                    if !self.stands(late.point()).await? {
                        return Err(Halt::Store(error));
                    }
                }
                Err(halt) => return Err(halt),
            }
            self.late.written(&[late]);
        }
        Ok(())
    }

    /// The same at the end of an attempt that failed, for whoever goes on. What cannot be written is asked
    /// for again.
    pub(super) async fn leave_behind(&self) {
        if self.grip.is_lost() {
            return;
        }
        if let Err(halt) = self.catch_up().await {
            tracing::warn!(%halt, "the outcome of a call could not be written down");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Losing one must lead to the same call again, and to nothing else.
    #[test]
    fn only_outcomes_that_can_surely_be_asked_for_again_are_late() {
        let minute = Duration::from_secs(60);
        assert!(may_be_late(Safety::Natural, minute));
        assert!(may_be_late(Safety::Keyed { window: 3 * minute }, minute));
        assert!(!may_be_late(Safety::Keyed { window: 2 * minute }, minute));
        assert!(!may_be_late(Safety::Probed, minute));
        assert!(!may_be_late(Safety::Once, minute));
    }
}
