//! A few connections, each lent to one caller at a time, as a web service has them.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Connections.
pub(super) struct Pool<C> {
    free: Mutex<Vec<C>>,
    turns: Semaphore,
}

/// A connection that goes back when it is dropped.
pub(super) struct Lent<'p, C> {
    pool: &'p Pool<C>,
    connection: Option<C>,
    _turn: SemaphorePermit<'p>,
}

impl<C> Pool<C> {
    pub(super) fn new(connections: Vec<C>) -> Self {
        Self { turns: Semaphore::new(connections.len()), free: Mutex::new(connections) }
    }

    /// Waits for a connection. Who came first is served first.
    pub(super) async fn hold(&self) -> Lent<'_, C> {
        let turn = self.turns.acquire().await.expect("nobody closes it");
        let connection = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Lent { pool: self, connection, _turn: turn }
    }
}

impl<C> Deref for Lent<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.connection.as_ref().expect("there are as many as there are turns")
    }
}

impl<C> DerefMut for Lent<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.connection.as_mut().expect("there are as many as there are turns")
    }
}

impl<C> Drop for Lent<'_, C> {
    fn drop(&mut self) {
        // Before the turn is given back, which happens when the fields are dropped.
        let connection = self.connection.take();
        self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).extend(connection);
    }
}
