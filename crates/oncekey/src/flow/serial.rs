//! Phases that are as if no other transaction had run beside them.

use std::time::Duration;

use super::checkpoint::{Checkpoint, encode, shape};
use super::halt::Halt;
use super::point::{Kind, PhaseTx, Point, Step};
use super::run::Flow;
use super::store::TxStore;

/// How often a phase is tried before its flow is given up for a while. Of those that are in each other's
/// way one always gets through, and the pauses below grow to a quarter of a second.
const TRIES: u32 = 8;
/// The first pause, which doubles: about as long as a transaction takes.
const PAUSE: Duration = Duration::from_millis(2);
/// What a conflict asks for is shorter. A body that asks for more wants the flow to wait.
const SOON: Duration = Duration::from_millis(250);

impl<S: TxStore> Flow<S> {
    /// As [`phase`](Self::phase), at isolation level SERIALIZABLE: for a decision that rests on rows that
    /// others change.
    ///
    /// `body` makes the code of one try, `|| async |tx: &mut PhaseTx<_>| …`: a closure that is called
    /// more than once and borrows the transaction could not be sent between threads otherwise. If other
    /// transactions are in the way (40001, 40P01, 1213, 1205, `SQLITE_BUSY`), be it only at
    /// the commit, everything is rolled back and the whole of it is tried again, by the same attempt of the
    /// flow.
    ///
    /// All that read or write those rows must be serializable, too: the database compares these with each
    /// other only. On PostgreSQL, a renewal of the lease is in the way of a phase that takes longer than a
    /// third of it. On SQLite every phase is serializable, because there is one writer.
    ///
    /// # Errors
    /// As of [`phase`](Self::phase). [`Halt::Retry`] if others are still in the way after several tries.
    ///
    /// # Cancellation
    /// As of [`phase`](Self::phase).
    pub async fn phase_serializable<T, M, F>(
        &self,
        step: impl Into<Step>,
        body: M,
    ) -> Result<T, Halt>
    where
        T: Checkpoint,
        M: Fn() -> F,
        F: AsyncFnOnce(&mut PhaseTx<S>) -> Result<T, Halt>,
    {
        let run = &self.run;
        let step = run.visit(step.into())?;
        if let Some(value) = run.recorded(&step, Kind::Phase, &[])? {
            return Ok(value);
        }
        let mut pause = PAUSE;
        for _ in 1..TRIES {
            match self.serializable(&step, body()).await {
                Err(Halt::Retry { after: Some(after), .. }) if after <= SOON => {}
                ended => return ended,
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        self.serializable(&step, body()).await
    }

    async fn serializable<T, F>(&self, step: &Step, body: F) -> Result<T, Halt>
    where
        T: Checkpoint,
        F: AsyncFnOnce(&mut PhaseTx<S>) -> Result<T, Halt>,
    {
        let run = &self.run;
        run.may_act()?;
        let store = run.store.clone();
        let tx = store.begin_serializable().await?;
        let mut phase = PhaseTx::of_phase(store, tx, run.held.id);
        let value = match phase.run(body).await {
            Ok(value) => value,
            Err(halt) => {
                // Waited for, so that the next try does not meet its locks.
                let _ = S::rollback(phase.tx).await;
                return Err(halt);
            }
        };
        let output = encode(&step.name, &value)?;
        let shape = shape::<T>();
        let point = Point { step, kind: Kind::Phase, shape: &shape, bound: &[], output: &output };
        let calls = phase.calls();
        run.close_announcing(phase.tx, point, calls).await?;
        Ok(value)
    }
}
