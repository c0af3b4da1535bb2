//! Where the end of an attempt goes when the store cannot be told.
//!
//! The work is done and its answer is on the way to the client, but the store is down. The end is
//! then kept in a file on a local disk, synced, until the store is back; a crash in between loses
//! nothing (F4). Draining an entry twice is harmless, because the store compares fence and owner.
//!
//! One thread does the file work. Many appends share one sync, and whoever stops waiting for an
//! append changes nothing about it. The journal neither encrypts nor looks into answers: what
//! is in it is what the store would have got.
//!
//! ```text
//!  callers ──► queue ──► [ frame · frame · … ] ──► fdatasync ──► replies
//!                                  │ failed
//!                                  ▼
//!              new file with all that waits, synced, renamed; then once more
//! ```

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

pub(super) use self::disk::FolderLock;
use self::disk::{Disk, RealDisk};
pub use self::error::JournalError;
use self::frame::{AROUND, offset};
use self::log::Log;
use super::end::Entry;
use crate::entropy::Entropy;

mod disk;
mod entry;
mod error;
mod frame;
mod log;
#[cfg(test)]
mod tests;

/// Names an entry of a journal, for as long as the journal is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Mark(u64);

/// Ends that wait for the store, on a local disk. One per folder.
pub(super) struct Journal {
    queue: Option<Sender<Job>>,
    tally: Arc<Tally>,
    limit: u64,
    thread: Option<JoinHandle<()>>,
}

/// What can be chosen.
#[derive(Clone, Copy, Debug)]
struct Settings {
    /// How many bytes may wait.
    limit: u64,
    /// How long drained entries may stay in the file.
    tidy_after: Duration,
}

/// At 2 KB for a usual answer, 130 000 ends: ten minutes of an outage at 200 requests a second,
/// and nobody claims anything new while the store is down. What is longer than that needs a
/// person, not a larger disk. All of it is read into memory at the start, which still fits the
/// smallest machine that people run. The file may be twice as large until it is tidied.
const LIMIT: u64 = 256 * 1024 * 1024;

/// How long content can outlive its draining, and with it an erasure (I55): shorter than anybody
/// takes to look, and a new file each half minute costs nothing.
const TIDY_AFTER: Duration = Duration::from_secs(30);

/// The most bytes before one sync: about 20 ms of an ordinary disk, so that a storm of large
/// answers does not keep everybody waiting for the last of them.
const MOST_BYTES: usize = 4 * 1024 * 1024;

/// What others may know of the file while the thread works on it.
#[derive(Debug, Default)]
struct Tally {
    /// Bytes that wait for the store.
    waiting: AtomicU64,
    /// Bytes that wait for the thread.
    queued: AtomicU64,
    damaged: AtomicU64,
}

enum Job {
    Append { payload: Vec<u8>, reply: oneshot::Sender<Result<Mark, JournalError>> },
    Drained { mark: Mark, reply: oneshot::Sender<()> },
}

impl Journal {
    /// Opens the journal in a folder, which is made if it is missing, and returns what is still to
    /// be drained, oldest first.
    ///
    /// Every entry whose append was acknowledged is among them until it is drained, after a crash
    /// at any moment, during an earlier opening too. What is damaged is left out and counted.
    ///
    /// # Errors
    /// If somebody else uses the folder, if the file is of another version or has a damaged
    /// header, or if the disk says no.
    pub(super) fn open(
        folder: &Path,
        entropy: Arc<dyn Entropy>,
    ) -> Result<(Self, Vec<(Mark, Entry)>), JournalError> {
        Self::open_with(
            folder,
            Settings { limit: LIMIT, tidy_after: TIDY_AFTER },
            RealDisk,
            entropy,
        )
    }

    fn open_with<D: Disk>(
        folder: &Path,
        settings: Settings,
        disk: D,
        entropy: Arc<dyn Entropy>,
    ) -> Result<(Self, Vec<(Mark, Entry)>), JournalError> {
        let (log, entries) = Log::open(folder, disk, entropy, settings.tidy_after)?;
        let tally = Arc::new(Tally::default());
        tally.update(&log);
        let (queue, jobs) = channel();
        let shared = Arc::clone(&tally);
        let thread = std::thread::Builder::new()
            .name("oncekey-journal".to_owned())
            .spawn(move || run(log, &jobs, &shared))
            .map_err(|error| JournalError::Thread(Arc::new(error)))?;
        let journal =
            Self { queue: Some(queue), tally, limit: settings.limit, thread: Some(thread) };
        let entries = entries.into_iter().map(|(number, entry)| (Mark(number), entry)).collect();
        Ok((journal, entries))
    }

    /// Keeps an entry. `Ok` means that it is on the disk and survives a crash and a power cut.
    ///
    /// # Errors
    /// The entry may be lost in a crash. It may also turn up after one, which is harmless.
    ///
    /// # Cancellation
    /// Once polled, the append goes on whether or not anybody waits for it.
    pub(super) async fn append(&self, entry: &Entry) -> Result<Mark, JournalError> {
        let payload = entry::encode(entry);
        let size = offset(payload.len() + AROUND);
        let queued = self.tally.queued.fetch_add(size, Ordering::AcqRel) + size;
        let waiting = self.tally.waiting.load(Ordering::Acquire);
        if queued.saturating_add(waiting) > self.limit || u32::try_from(payload.len()).is_err() {
            self.tally.queued.fetch_sub(size, Ordering::AcqRel);
            return Err(JournalError::Full { limit: self.limit });
        }
        let (reply, answer) = oneshot::channel();
        self.put(Job::Append { payload, reply })?;
        answer.await.map_err(|_| JournalError::Closed)?
    }

    /// Notes that an entry has reached the store, or was fenced there. A crash may forget it, and
    /// then the entry is drained once more.
    ///
    /// # Errors
    /// If the journal is closed.
    ///
    /// # Cancellation
    /// As [`append`](Self::append).
    pub(super) async fn drained(&self, mark: Mark) -> Result<(), JournalError> {
        let (reply, answer) = oneshot::channel();
        self.put(Job::Drained { mark, reply })?;
        answer.await.map_err(|_| JournalError::Closed)
    }

    /// How many bytes wait for the store.
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.tally.waiting.load(Ordering::Acquire)
    }

    /// How many stretches of the file could not be read. Anything but zero needs a person.
    pub(super) fn damaged(&self) -> u64 {
        self.tally.damaged.load(Ordering::Acquire)
    }

    fn put(&self, job: Job) -> Result<(), JournalError> {
        let queue = self.queue.as_ref().ok_or(JournalError::Closed)?;
        queue.send(job).map_err(|_| JournalError::Closed)
    }
}

impl Drop for Journal {
    /// Waits until everything queued is on the disk, and lets go of the folder.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook.
            drop(thread.join());
        }
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Journal").field("tally", &self.tally).finish_non_exhaustive()
    }
}

impl Tally {
    fn update<D: Disk>(&self, log: &Log<D>) {
        self.waiting.store(log.waiting_bytes(), Ordering::Release);
        self.damaged.store(log.damaged(), Ordering::Release);
    }
}

/// What the thread does until every caller is gone and everything queued is done.
fn run<D: Disk>(mut log: Log<D>, jobs: &Receiver<Job>, tally: &Tally) {
    loop {
        let job = match log.tidy_in() {
            None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            // Before the next job, or a busy journal would never be tidied.
            Some(Duration::ZERO) => Err(RecvTimeoutError::Timeout),
            Some(left) => jobs.recv_timeout(left),
        };
        match job {
            Ok(job) => commit(&mut log, job, jobs, tally),
            Err(RecvTimeoutError::Timeout) => log.tidy(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
        // After the replies: nobody has to wait for it.
        if log.is_wasteful() {
            log.tidy();
        }
        tally.update(&log);
    }
    log.close();
}

/// Commits a job together with all that wait behind it, and answers everybody.
fn commit<D: Disk>(log: &mut Log<D>, first: Job, jobs: &Receiver<Job>, tally: &Tally) {
    let (mut payloads, mut waiting) = (Vec::new(), Vec::new());
    let (mut drained, mut told) = (Vec::new(), Vec::new());
    let mut bytes = 0;
    let mut next = Some(first);
    while let Some(job) = next {
        match job {
            Job::Append { payload, reply } => {
                bytes += payload.len() + AROUND;
                payloads.push(payload);
                waiting.push(reply);
            }
            Job::Drained { mark, reply } => {
                drained.push(mark.0);
                told.push(reply);
            }
        }
        next = (bytes < MOST_BYTES).then(|| jobs.try_recv().ok()).flatten();
    }
    let done = log.commit(&payloads, &drained);
    // In this order a byte is counted twice for a moment, and never not at all.
    tally.update(log);
    tally.queued.fetch_sub(offset(bytes), Ordering::AcqRel);
    // Whoever stopped waiting does not hear it.
    match done {
        Ok(numbers) => {
            for (reply, number) in waiting.into_iter().zip(numbers) {
                let _ = reply.send(Ok(Mark(number)));
            }
        }
        Err(error) => {
            for reply in waiting {
                let _ = reply.send(Err(error.clone()));
            }
        }
    }
    for reply in told {
        let _ = reply.send(());
    }
}
