//! Notices what other processes have written.
//!
//! Completions of this process reach its feeds through the hub at once. SQLite cannot tell one
//! process what another did, but it can tell *that* somebody did something, cheaply: then every
//! feed is told to look again. While nobody watches, the thread sleeps.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use oncekey_core::wake::Hub;

use super::reader::Readers;

/// How often the file is looked at while somebody watches. A waiter does not notice 25 ms, and
/// forty looks a second cost nothing.
const INTERVAL: Duration = Duration::from_millis(25);

/// The thread that looks at the file. It starts with the first feed.
#[derive(Debug)]
pub(super) struct Watcher {
    readers: Readers,
    hub: Arc<Hub>,
    thread: Mutex<Option<(mpsc::Sender<()>, JoinHandle<()>)>>,
}

impl Watcher {
    pub(super) fn new(readers: Readers, hub: Arc<Hub>) -> Self {
        Self { readers, hub, thread: Mutex::new(None) }
    }

    /// Somebody began to watch. A machine without a thread to spare is left with the wake-ups of
    /// this process; waiters poll anyway.
    pub(super) fn wake_up(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((bell, _)) = &*thread {
            // The thread ends only with this watcher, so there is somebody to hear it.
            let _ = bell.send(());
            return;
        }
        let (bell, rung) = mpsc::channel();
        let (readers, hub) = (self.readers.clone(), Arc::clone(&self.hub));
        // Before the thread runs: what is committed from here on is news.
        let seen = readers.data_version().ok();
        let spawned = std::thread::Builder::new()
            .name("oncekey-sqlite-watcher".to_owned())
            .spawn(move || look(&readers, &hub, &rung, seen));
        *thread = spawned.ok().map(|handle| (bell, handle));
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((bell, handle)) = thread {
            drop(bell);
            drop(handle.join());
        }
    }
}

fn look(readers: &Readers, hub: &Hub, rung: &mpsc::Receiver<()>, mut seen: Option<i64>) {
    loop {
        let awake = if hub.is_watched() {
            rung.recv_timeout(INTERVAL)
        } else {
            rung.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        if awake == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        // The version also counts this process's own writer, whose completions the hub has
        // already told: a feed then looks once more than it had to.
        let now = readers.data_version().ok();
        if now != seen {
            seen = now;
            hub.lagged();
        }
    }
}
