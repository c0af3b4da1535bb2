//! How what an attempt has written becomes true, or is found not to have.

use std::sync::Arc;

use super::announce::{Call, Planned};
use super::at_end::AtEnd;
use super::checkpoint::{Checkpoint, encode, shape};
use super::claim::look;
use super::halt::Halt;
use super::late::Late;
use super::point::{Advanced, Kind, Point, Step, advance, finish, steps};
use super::reply::Reply;
use super::run::Run;
use super::store::{TxError, TxStore, TxTrouble, Value};

impl<S: TxStore> Run<S> {
    /// Ends the flow with a reply and the messages that were left for the end, in this transaction.
    pub(crate) async fn end(
        &self,
        mut tx: S::Tx,
        reply: &Reply,
        messages: &[AtEnd],
    ) -> Result<(), Halt> {
        let size = reply.0.body.len() + reply.0.headers.as_encoded().len();
        if size > self.largest_reply {
            let _ = S::rollback(tx).await;
            return Err(Halt::park(format!(
                "the reply has {size} bytes and may have {}",
                self.largest_reply
            )));
        }
        let late = self.late.all();
        match finish(&self.store, &mut tx, &self.held, (&reply.0, messages), &late).await? {
            Advanced::Yes => {}
            other @ (Advanced::Fenced | Advanced::Smuggled) => {
                return self.give_up(tx, other, "finish").await;
            }
        }
        let Err(error) = S::commit(tx).await else {
            self.late.written(&late);
            return Ok(());
        };
        let found = match self.quiet().await {
            Ok(()) => look(&self.store, &self.held.id).await,
            Err(error) => Err(error),
        };
        match found {
            Ok(Some(found))
                if found.fence == self.held.fence && found.reply.as_ref() == Some(&reply.0) =>
            {
                self.late.written(&late);
                Ok(())
            }
            Ok(_) | Err(_) => Err(Halt::retry(format!("a commit failed: {error}"))),
        }
    }

    /// Writes a recovery point and what is late into this transaction and commits it, or takes it back if
    /// the flow is somebody else's.
    pub(crate) async fn close(&self, tx: S::Tx, point: Point<'_>) -> Result<(), Halt> {
        self.close_announcing(tx, point, Vec::new()).await
    }

    /// The same with the intents of these calls.
    pub(crate) async fn close_announcing(
        &self,
        tx: S::Tx,
        point: Point<'_>,
        calls: Vec<Call>,
    ) -> Result<(), Halt> {
        let (late, calls) = (self.late.all(), self.plan(calls)?);
        self.close_with(tx, point, (&late, &calls)).await?;
        self.late.written(&late);
        self.are_announced(calls);
        Ok(())
    }

    /// The same with these late outcomes and no others.
    pub(crate) async fn close_with(
        &self,
        mut tx: S::Tx,
        point: Point<'_>,
        with: (&[Arc<Late>], &[Planned]),
    ) -> Result<(), Halt> {
        let start = self.unwritten.say();
        let (store, held) = (&self.store, &self.held);
        let advanced = advance(store, &mut tx, held, point, start.as_deref(), with).await;
        if !matches!(advanced, Ok(Advanced::Yes)) && start.is_some() {
            self.unwritten.unsay();
        }
        match advanced? {
            Advanced::Yes => self.commit(tx, point).await,
            other @ (Advanced::Fenced | Advanced::Smuggled) => {
                self.give_up(tx, other, &point.step.name).await
            }
        }
    }

    async fn give_up(&self, tx: S::Tx, advanced: Advanced, step: &str) -> Result<(), Halt> {
        let _ = S::rollback(tx).await;
        match advanced {
            Advanced::Smuggled => Err(Halt::park(format!(
                "somebody ended the transaction inside step {step}: what it wrote is committed \
                 without its recovery point"
            ))),
            Advanced::Fenced | Advanced::Yes => {
                self.grip.lose();
                Err(Halt::Fenced)
            }
        }
    }

    /// Commits a transaction whose last statement wrote a recovery point, and finds out what became of
    /// it if the answer is lost: a failed COMMIT is unknown, not failed.
    async fn commit(&self, tx: S::Tx, point: Point<'_>) -> Result<(), Halt> {
        let Err(error) = S::commit(tx).await else {
            self.unwritten.is_written();
            return Ok(());
        };
        // Written again, a start waits for the commit that may still be going on, as a lock does.
        self.be_written().await?;
        let stands = match self.quiet().await {
            Ok(()) => self.stands(point).await,
            Err(error) => Err(error),
        };
        match stands {
            Ok(true) => Ok(()),
            // Surely rolled back, because another transaction was in the way: at once again.
            Ok(false) if error.kind() == TxTrouble::Conflict => Err(error.into()),
            Ok(false) | Err(_) => Err(Halt::retry(format!("a commit failed: {error}"))),
        }
    }

    /// Whether this attempt's recovery point is written. What another owner has written under the same
    /// name is not it, whatever it says.
    pub(crate) async fn stands(&self, point: Point<'_>) -> Result<bool, TxError> {
        let found = steps(&self.store, &self.held.id).await?;
        Ok(found
            .get(point.step)
            .is_some_and(|taken| taken.fence == self.held.fence && taken.output == point.output))
    }

    /// Waits until no transaction on the flow's row is under way: a commit whose answer was lost may
    /// still be going on.
    async fn quiet(&self) -> Result<(), TxError> {
        let mut tx = self.store.begin().await?;
        let id = Value::Bytes(self.held.id.as_bytes());
        S::query(S::conn(&mut tx), &self.store.layout().sql().look_and_hold, &[id]).await?;
        S::rollback(tx).await
    }

    /// Records the output of a step that wrote nothing else.
    pub(crate) async fn record<T: Checkpoint>(
        &self,
        step: &Step,
        kind: Kind,
        bound: &[u8],
        value: &T,
    ) -> Result<(), Halt> {
        let output = encode(&step.name, value)?;
        let shape = shape::<T>();
        let tx = self.store.begin().await?;
        self.close(tx, Point { step, kind, shape: &shape, bound, output: &output }).await
    }
}
