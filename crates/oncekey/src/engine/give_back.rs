//! What a claim that was never answered may have taken is given back.

use std::sync::{Arc, Weak};
use std::time::Duration;

use oncekey_core::{Claim, Fence, Sent, State, Store as _, Write};

use super::Shared;
use super::claim::{FIRST_PAUSE, SOONEST};
use super::record::BACKGROUND;

/// Whether a claim that nobody will use may stand in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// Every try was refused before anything was written.
    No,
    /// An answer was lost, or came too late to be believed.
    Maybe,
}

/// What a look at the store said about an unanswered claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looked {
    /// It will not stand in anybody's way any more.
    Settled,
    /// It is not there, or was just freed. One of its tries may be on its way: a disk that stalls, or a
    /// server that waits for its standby, writes it when everybody has given up on it. If somebody else has
    /// the key, it is written when they give it back.
    NotThere,
    /// The store did not answer.
    Unanswered,
}

/// The longest pause between two looks. A stall leaves thousands of claims behind, and all of them are
/// looked for: that must not be the next storm.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

impl Shared {
    /// Frees what an unanswered claim may have taken, in a task of its own.
    ///
    /// A shutdown waits for it until the store has answered once, or the lease is over. Later looks are
    /// for what was held up on its way, and end with the engine: such a claim then becomes unknown, as
    /// after a crash.
    pub(super) fn give_back_later(self: &Arc<Self>, claim: &Claim, taken: Taken) {
        match taken {
            Taken::No => {}
            Taken::Maybe => self.look_for(claim, None),
        }
    }

    /// Frees what lost tries of a claim may take yet, though a later one has won `held`: the attempt is over
    /// some day, and if it gives the key back, they find it free.
    pub(super) fn give_back_lost_tries(self: &Arc<Self>, claim: &Claim, taken: Taken, held: Fence) {
        match taken {
            Taken::No => {}
            Taken::Maybe => self.look_for(claim, Some(held)),
        }
    }

    /// Looks for an unanswered claim until it can do no harm. `held` is what its owner holds by another try.
    fn look_for(self: &Arc<Self>, claim: &Claim, held: Option<Fence>) {
        let (shared, claim) = (Arc::downgrade(self), claim.clone());
        let mut tracked = Some(self.gate.track());
        let began = self.uptime.elapsed();
        self.spawner.spawn(Box::pin(async move {
            let longest = longest(&claim);
            let mut pause = FIRST_PAUSE;
            loop {
                tokio::time::sleep(pause).await;
                let Some(engine) = Weak::upgrade(&shared) else { return };
                let looked = engine.give_back(&claim, held).await;
                let took = engine.uptime.elapsed().saturating_sub(began);
                if looked == Looked::Settled || took >= longest {
                    return;
                }
                if looked == Looked::NotThere || took >= claim.lease {
                    tracked = None;
                }
                pause = (pause * 2).min(match tracked {
                    Some(_) => SOONEST,
                    None => LONGEST_PAUSE,
                });
            }
        }));
    }

    /// Frees a key if an unanswered claim has taken it. Nothing was sent under it.
    async fn give_back(&self, claim: &Claim, held: Option<Fence>) -> Looked {
        // Read, not claimed: a claim might take over somebody who is merely late, for nobody.
        let record = match self.store.get(&claim.id).await {
            // It was refused, or will be.
            Ok(Some(record)) if matches!(record.state, State::Done { .. }) => {
                return Looked::Settled;
            }
            // What is held is its owner's. A try that takes effect later gets another fence.
            Ok(Some(record)) if record.owner == claim.owner && Some(record.fence) != held => record,
            // Somebody else was quicker, or a later try. They may still give the key back.
            Ok(Some(_)) | Ok(None) => return Looked::NotThere,
            Err(_) => return Looked::Unanswered,
        };
        let given_back = match (&record.state, claim.class.may_send_again()) {
            // The mark that is seen may be our own, or an earlier attempt's.
            (State::Running { sent: Sent::Yes, .. }, true) => {
                self.store.unknown(&record.lease()).await
            }
            // What was sent before is never taken over in these classes: the mark is our own, also if
            // a sweeper came first and called it unknown.
            (State::Running { .. }, _) | (State::Unknown { .. }, false) => {
                self.store.release(&record.lease()).await
            }
            (State::Done { .. } | State::Unknown { .. } | State::Parked { .. }, _) => {
                return Looked::Settled;
            }
        };
        match given_back {
            Ok(Write::Applied | Write::Fenced) => Looked::NotThere,
            Err(_) => Looked::Unanswered,
        }
    }
}

/// For how long an unanswered claim is looked for.
fn longest(claim: &Claim) -> Duration {
    match (claim.sent, claim.class.may_send_again()) {
        // When its lease lapses, nobody may take it over: its mark says that it may have been sent. Only
        // we know that it was not, and without us the key is unknown for ever (I16).
        (Sent::Yes, false) => BACKGROUND.max(claim.lease),
        // Afterwards its lease has lapsed, and anybody may take it over.
        (Sent::Yes, true) | (Sent::No, _) => claim.lease,
    }
}
