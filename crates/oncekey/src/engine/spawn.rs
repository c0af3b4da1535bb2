//! Where detached work runs.

use std::fmt;
use std::pin::Pin;

/// Runs tasks that belong to nobody.
///
/// An engine gives every attempt to its spawner, so that a simulation can stop a node between any
/// two polls, and an application can choose a runtime.
pub trait Spawn: fmt::Debug + Send + Sync + 'static {
    /// Runs `task` to its end, whoever else goes away.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>);
}

/// Runs tasks on the tokio runtime of whoever calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioSpawn;

impl Spawn for TokioSpawn {
    /// # Panics
    /// Outside of a tokio runtime.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::spawn(task);
    }
}
