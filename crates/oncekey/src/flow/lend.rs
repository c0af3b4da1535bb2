//! Connections that are lent to one caller at a time.
//!
//! For drivers without a pool of their own. It knows nothing of transactions: whoever gives a connection
//! back has seen to it that it is clean.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::store::{TxError, TxTrouble};

/// Lends so many connections at a time.
pub(crate) struct Lender<C> {
    idle: Arc<Mutex<Vec<C>>>,
    places: Arc<Semaphore>,
}

/// A place among those that hold a connection.
#[derive(Debug)]
pub(crate) struct Place<C> {
    idle: Arc<Mutex<Vec<C>>>,
    permit: OwnedSemaphorePermit,
}

/// A connection that is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Lent<C> {
    /// Until it is given back.
    connection: Option<C>,
    idle: Arc<Mutex<Vec<C>>>,
    /// Dropped last: who gets the place finds the connection.
    _permit: OwnedSemaphorePermit,
}

impl<C> Lender<C> {
    /// With these connections, and room for `most`.
    pub(crate) fn new(idle: Vec<C>, most: usize) -> Self {
        Self { idle: Arc::new(Mutex::new(idle)), places: Arc::new(Semaphore::new(most)) }
    }

    /// Waits until fewer than all are lent.
    pub(crate) async fn place(&self) -> Result<Place<C>, TxError> {
        let permit = Arc::clone(&self.places).acquire_owned().await;
        let permit = permit.map_err(|error| TxError::new(TxTrouble::Unavailable, error))?;
        Ok(Place { idle: Arc::clone(&self.idle), permit })
    }
}

impl<C> Place<C> {
    /// A connection that nobody uses. The one that was given back last: the others may rest.
    pub(crate) fn idle(&self) -> Option<C> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Takes a connection to this place.
    pub(crate) fn hold(self, connection: C) -> Lent<C> {
        Lent { connection: Some(connection), idle: self.idle, _permit: self.permit }
    }
}

impl<C> Deref for Lent<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.connection.as_ref().expect("it is given back when nobody can look any more")
    }
}

impl<C> Drop for Lent<C> {
    fn drop(&mut self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.extend(self.connection.take());
    }
}

impl<C> Clone for Lender<C> {
    fn clone(&self) -> Self {
        Self { idle: Arc::clone(&self.idle), places: Arc::clone(&self.places) }
    }
}

impl<C> fmt::Debug for Lender<C> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Lender({} free)", self.places.available_permits())
    }
}
