//! Something that happens once and that many wait for.
//!
//! Not tokio's watch channel: that one wakes its receivers in an order that the seed does not
//! decide.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Raised once, heard by everybody, now or later.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    raised: AtomicBool,
    bell: Notify,
}

impl Signal {
    pub(crate) fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
        self.bell.notify_waiters();
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    /// Waits until it is raised.
    pub(crate) async fn raised(&self) {
        let mut rung = std::pin::pin!(self.bell.notified());
        // Registered before the look, so that a signal between the two is heard.
        rung.as_mut().enable();
        if !self.is_raised() {
            rung.await;
        }
    }
}
