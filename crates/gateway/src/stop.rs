//! The wish to end, heard by everybody who waits for it.

use tokio::sync::watch;

/// Raises the wish.
#[derive(Debug)]
pub(crate) struct Stopper(watch::Sender<bool>);

/// Hears it. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Stop(watch::Receiver<bool>);

/// A wish that nobody has yet.
pub(crate) fn stop() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(sender), Stop(receiver))
}

impl Stopper {
    pub(crate) fn raise(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Waits until it is raised. If nobody can raise it any more, it is.
    pub(crate) async fn raised(&self) {
        drop(self.0.clone().wait_for(|raised| *raised).await);
    }
}
