//! A sign in the store that somebody is putting back what it lost.
//!
//! A node that has lost nothing cannot see that another one has, and a ring takes as long as it takes: with
//! a thousand writes a second, half a minute. Whoever let grants go on after a fixed time would grant keys
//! that the other one has not put back yet. So a node that puts something back leaves a sign, a record that
//! is forgotten after seconds, and renews it; and while a sign stands, nobody lets grants go on.

use std::time::Duration;

use oncekey_core::record::{Origin, Text};
use oncekey_core::saved::{NotKept, Tombstone};
use oncekey_core::{
    Answer, Class, Fence, Fingerprint, Key, KeyId, Owner, Places, Record, Scope, State, StoreError,
};

use super::super::Shared;
use super::Sentry;

/// Whether somebody is at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Up,
    Down,
}

/// How long a sign stands. A node that dies while it puts something back keeps the others from granting
/// for so long; one that is held up for longer is taken for dead.
const STANDS: Duration = Duration::from_secs(5);
/// How often it is renewed: four of these writes may fail.
const RENEWED: Duration = Duration::from_secs(1);

impl Sentry {
    /// Puts the sign up, unless that was done a moment ago. `last` says when, by uptime.
    pub(super) async fn put_sign_up(
        &self,
        shared: &Shared,
        last: &mut Option<Duration>,
    ) -> Result<(), StoreError> {
        let now = shared.uptime.elapsed();
        if last.is_some_and(|last| now.saturating_sub(last) < RENEWED) {
            return Ok(());
        }
        // Another node's sign may be newer; then that one stands.
        self.call(self.store.restore(&sign(shared))).await?;
        *last = Some(now);
        Ok(())
    }

    /// Looks for a sign, of this node or of another.
    pub(super) async fn look_for_sign(&self, shared: &Shared) -> Result<Sign, StoreError> {
        let found = self.call(self.store.get(&place(shared))).await?;
        Ok(if found.is_some() { Sign::Up } else { Sign::Down })
    }
}

/// Where the sign stands. In a namespace that no client's key gets into.
fn place(shared: &Shared) -> KeyId {
    let namespace = format!("{}\0store-regression", shared.namespace);
    let key = Key::new(b"healing").expect("seven letters are a key");
    KeyId::derive(&namespace, &Scope::shared(), &key, None)
}

fn sign(shared: &Shared) -> Record {
    let now = shared.store_now();
    let answer = Answer::Tombstone(Tombstone { status: None, reason: NotKept::Lost });
    let mut owner = [0; 16];
    shared.entropy.fill(&mut owner);
    Record {
        id: place(shared),
        // Newer than the one before it, as far as clocks tell.
        fence: Fence::next(None, now),
        owner: Owner::from_bytes(owner),
        fingerprint: Fingerprint::from_parts(1, [0; 32]),
        class: Class::Retry,
        created: now,
        origin: Origin { route: Text::from("oncekey: store regression"), ..Origin::default() },
        places: Places::default(),
        state: State::Done {
            at: now,
            expires: now.after(STANDS),
            forget: now.after(STANDS),
            outcome: answer.outcome(),
            answer,
        },
    }
}
