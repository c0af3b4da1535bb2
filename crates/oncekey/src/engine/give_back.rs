//! What a claim that was never answered may have taken is given back.

use std::sync::Arc;

use oncekey_core::{Claim, Sent, State, Store as _, Write};

use super::Shared;
use super::claim::{FIRST_PAUSE, SOONEST};

/// Whether a claim that nobody will use may stand in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// Every try was refused before anything was written.
    No,
    /// An answer was lost, or came too late to be believed.
    Maybe,
}

impl Shared {
    /// Frees what an unanswered claim may have taken, in a task of its own.
    pub(super) fn give_back_later(self: &Arc<Self>, claim: &Claim, taken: Taken) {
        match taken {
            Taken::No => return,
            Taken::Maybe => {}
        }
        let (shared, claim) = (Arc::clone(self), claim.clone());
        let tracked = self.gate.track();
        self.spawner.spawn(Box::pin(async move {
            shared.give_back(claim).await;
            drop(tracked);
        }));
    }

    /// Frees a key that an unanswered claim may have taken. Nothing was sent under it.
    async fn give_back(self: Arc<Self>, claim: Claim) {
        let began = self.uptime.elapsed();
        let mut pause = FIRST_PAUSE;
        // Afterwards its lease has lapsed, and anybody may take it over.
        while self.uptime.elapsed().saturating_sub(began) < claim.lease {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(SOONEST);
            // Read, not claimed: a claim might take over somebody who is merely late, for nobody.
            let Ok(found) = self.store.get(&claim.id).await else { continue };
            let Some(record) = found.filter(|record| record.owner == claim.owner) else { return };
            let given_back = match (&record.state, claim.class.may_send_again()) {
                // The mark that is seen may be our own, or an earlier attempt's.
                (State::Running { sent: Sent::Yes, .. }, true) => {
                    self.store.unknown(&record.lease()).await
                }
                // What was sent before is never taken over in these classes: the mark is our own.
                (State::Running { .. }, _) => self.store.release(&record.lease()).await,
                (State::Done { .. } | State::Unknown { .. } | State::Parked { .. }, _) => return,
            };
            if let Ok(Write::Applied | Write::Fenced) = given_back {
                return;
            }
        }
    }
}
