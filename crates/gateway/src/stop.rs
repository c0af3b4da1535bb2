//! The wish to end, heard by everybody who waits for it.

use tokio::sync::watch;

/// Raises the wish.
#[derive(Debug)]
pub(crate) struct Stopper(watch::Sender<Wish>);

/// Hears it. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Stop(watch::Receiver<Wish>);

/// What is wished, and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    Nothing,
    /// That everything comes to its end.
    End,
    /// The time for that is over.
    EndNow,
}

/// A wish that nobody has yet.
pub(crate) fn stop() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(Wish::Nothing);
    (Stopper(sender), Stop(receiver))
}

impl Stopper {
    pub(crate) fn raise(&self) {
        self.wish(Wish::End);
    }

    /// Waits no longer for what never comes to an end by itself.
    pub(crate) fn insist(&self) {
        self.wish(Wish::EndNow);
    }

    fn wish(&self, wish: Wish) {
        self.0.send_modify(|before| *before = wish.max(*before));
    }
}

impl Stop {
    /// Waits until it is raised. If nobody can raise it any more, it is.
    pub(crate) async fn raised(&self) {
        self.until(Wish::End).await;
    }

    /// Waits until there is no more time.
    pub(crate) async fn insisted(&self) {
        self.until(Wish::EndNow).await;
    }

    async fn until(&self, wish: Wish) {
        drop(self.0.clone().wait_for(|now| *now >= wish).await);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn whoever_insists_also_raises_and_takes_nothing_back() {
        let (stopper, stop) = stop();
        let heard = || [stop.raised().now_or_never(), stop.insisted().now_or_never()];
        assert_eq!(heard(), [None, None]);
        stopper.raise();
        assert_eq!(heard(), [Some(()), None]);
        stopper.insist();
        stopper.raise();
        assert_eq!(heard(), [Some(()), Some(())]);
    }
}
