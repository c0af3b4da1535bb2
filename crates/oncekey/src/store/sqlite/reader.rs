//! Connections that only read: replays never wait for the writer, nor it for them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oncekey_core::StoreError;
use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::error::{Failure, from_sqlite};
use super::place::Place;
use super::schema;

/// A few read-only connections, each used by one thread at a time.
///
/// A point read takes a few microseconds, less than handing it to another thread and back, so it
/// is done where the caller is. What may take longer, such as reading a body of a mebibyte, goes
/// through [`Readers::run`].
#[derive(Clone, Debug)]
pub(super) struct Readers(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    path: PathBuf,
    place: Place,
    connections: Vec<Mutex<Connection>>,
    next: AtomicUsize,
    /// How many long reads may go on at once: each has a connection and a body of its own.
    long_reads: Semaphore,
}

impl Readers {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        // One for every thread that can run at the same time; more would only wait for a core.
        let count = std::thread::available_parallelism().map_or(4, usize::from).clamp(2, 16);
        let open = |_| schema::open_reader(path).map(Mutex::new);
        let connections = (0..count).map(open).collect::<Result<_, _>>()?;
        let (place, next) = (Place::of(path), AtomicUsize::new(0));
        let (path, long_reads) = (path.to_owned(), Semaphore::new(2 * count));
        Ok(Self(Arc::new(Pool { path, place, connections, next, long_reads })))
    }

    /// Reads on this thread. `read` must be short.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        Ok(read(&self.0.connection())?)
    }

    /// Reads on this thread, which may be blocked, on a connection of its own.
    pub(super) fn read_apart<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        // The others still read the file that was there before. Looked at before it is opened,
        // because opening and closing another file may remove the log that lies beside it; and
        // after, because a look is not a lock.
        self.0.place.check()?;
        let connection = schema::open_reader(&self.0.path)?;
        self.0.place.check_file()?;
        Ok(read(&connection)?)
    }

    /// Reads on a thread that may be blocked, on a connection of its own.
    ///
    /// # Cancellation
    /// The read goes on and its result is dropped.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _turn = self.0.long_reads.acquire().await.map_err(|_| super::error::closed())?;
        let readers = self.clone();
        tokio::task::spawn_blocking(move || readers.read_apart(read))
            .await
            .map_err(|_| super::error::closed())?
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Its log.
    pub(super) fn log(&self) -> &Path {
        self.0.place.log()
    }

    /// How often other connections have changed the file, as this connection sees it.
    pub(super) fn data_version(&self) -> Result<i64, StoreError> {
        let connection = lock(&self.0.connections[0]);
        connection.pragma_query_value(None, "data_version", |row| row.get(0)).map_err(from_sqlite)
    }
}

impl Pool {
    fn connection(&self) -> MutexGuard<'_, Connection> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        for offset in 0..self.connections.len() {
            let candidate = &self.connections[first.wrapping_add(offset) % self.connections.len()];
            if let Ok(free) = candidate.try_lock() {
                return free;
            }
        }
        lock(&self.connections[first % self.connections.len()])
    }
}

/// A panic during a read leaves a connection without an open transaction: it may be used on.
fn lock(connection: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}
