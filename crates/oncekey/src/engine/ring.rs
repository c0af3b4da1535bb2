//! What this node granted and finished last, on a local disk.
//!
//! A store may come back older than it was: a stale replica is promoted, a backup is restored. Then
//! it has forgotten keys that this node knows. So every node notes its recent grants and ends in a
//! file of fixed size, and can tell the store again: see `sentry.rs`.
//!
//! Nobody waits for the file. A thread of its own takes notes as they come and writes them; a sync
//! follows within [`SYNC_EVERY`]. A crash of the process loses what was noted within about the last
//! millisecond, a power cut what was noted within that span. Both matter only if the store regresses
//! at the same time.
//!
//! ```text
//!  grants, ends ──► queue ──► book in memory ──► slots ──► fdatasync, ten times a second
//! ```
//!
//! Answers are not in the ring. They would make it a second store, with everything that belongs to
//! one: encryption, erasure, space.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use oncekey_core::{KeyId, Lease, Lineage, Timestamp};
use tokio::sync::oneshot;

use self::book::Book;
pub use self::error::RingError;
use self::file::RingFile;
pub(super) use self::note::{Ended, Note, What, may_have_acted};
use super::end::End;
use crate::clock::Stopwatch;

mod book;
mod error;
mod file;
mod note;
/// The recent grants and ends of this node.
#[derive(Debug)]
pub(super) struct Ring {
    queue: Option<SyncSender<Job>>,
    book: Arc<Mutex<Book>>,
    thread: Option<JoinHandle<()>>,
}

/// A grant and an end take a slot each: so these are the last 32 768 requests, five minutes at a
/// hundred a second, where the lag of a replica is counted in seconds. The file has 16 MiB, the book
/// in memory about the same.
const SLOTS: usize = 65_536;

/// What a power cut may take with it. Ten syncs a second are nothing to a disk, and nobody waits.
const SYNC_EVERY: Duration = Duration::from_millis(100);

/// The most notes before they are written: a quarter of a mebibyte, so that the book, which is
/// locked meanwhile, is never locked for long.
const MOST_AT_ONCE: usize = 1_024;

/// How much may wait for a disk that hangs. The answers in it are no copies, but they stay in memory
/// for as long; beyond that a note is dropped and counted.
const QUEUE: usize = 8_192;

#[derive(Debug)]
enum Job {
    /// A key is granted, or stands like this.
    Stands(Box<Note>),
    /// An attempt has ended. Its digest is computed by the thread, because nobody waits for that.
    Ended {
        lease: Lease,
        end: Box<End>,
        now: Timestamp,
        known: Option<Box<Note>>,
    },
    /// Somebody else has the key.
    Gone(Lease),
    Remember(Lineage, oneshot::Sender<Result<(), RingError>>),
    Settle(oneshot::Sender<()>),
}

impl Ring {
    /// Opens the ring in a folder, which is made if it is missing, and says which life of the store
    /// its notes belong to, if that is known.
    pub(super) fn open(folder: &Path) -> Result<(Self, Option<Lineage>), RingError> {
        Self::open_with(folder, SLOTS)
    }

    fn open_with(folder: &Path, slots: usize) -> Result<(Self, Option<Lineage>), RingError> {
        let (file, contents) = RingFile::open(folder, slots)?;
        if contents.damaged > 0 {
            tracing::warn!(
                slots = contents.damaged,
                "notes in the ring are damaged and were left out: they cannot be restored if the \
                 store regresses"
            );
        }
        let mut book = Book::new(slots);
        for (number, note) in contents.notes {
            book.found(number, note);
        }
        let book = Arc::new(Mutex::new(book));
        let (queue, jobs) = sync_channel(QUEUE);
        let writer = Writer { file, book: Arc::clone(&book), unsynced: None, luck: Luck::Good };
        let thread = std::thread::Builder::new()
            .name("oncekey-ring".to_owned())
            .spawn(move || writer.run(&jobs))
            .map_err(|error| RingError::Thread(Arc::new(error)))?;
        Ok((Self { queue: Some(queue), book, thread: Some(thread) }, contents.lineage))
    }

    /// Notes how a key stands. Returns at once.
    pub(super) fn stands(&self, note: Note) {
        self.put(Job::Stands(Box::new(note)));
    }

    /// Notes that the store has taken the end of an attempt, at `now` by its clock. `known` is what
    /// the store says about the key, for those that were not noted here. Returns at once.
    pub(super) fn ended(&self, lease: &Lease, end: &End, now: Timestamp, known: Option<Note>) {
        let (lease, end, known) = (*lease, Box::new(end.clone()), known.map(Box::new));
        self.put(Job::Ended { lease, end, now, known });
    }

    /// Notes that an attempt has nothing to say any more. Returns at once.
    pub(super) fn gone(&self, lease: &Lease) {
        self.put(Job::Gone(*lease));
    }

    /// Remembers which life of the store the notes belong to, across restarts and power cuts.
    pub(super) async fn remember(&self, lineage: &Lineage) -> Result<(), RingError> {
        let (reply, done) = oneshot::channel();
        self.put(Job::Remember(lineage.clone(), reply));
        done.await.map_err(|_| RingError::Closed)?
    }

    /// Waits until everything that was noted before is in the book.
    pub(super) async fn settle(&self) {
        let (reply, done) = oneshot::channel();
        self.put(Job::Settle(reply));
        // Closed: then nothing more will come.
        let _ = done.await;
    }

    /// What is known of a key.
    pub(super) fn find(&self, id: &KeyId) -> Option<Note> {
        self.book().find(id).cloned()
    }

    /// The newest notes that `which` picks, at most `limit` of them.
    pub(super) fn newest(&self, limit: usize, which: impl Fn(&Note) -> bool) -> Vec<Note> {
        self.book().newest_of(limit, which)
    }

    /// All that was noted after the number `after`, newest first, and the number of the newest.
    pub(super) fn since(&self, after: u64) -> (Vec<Note>, u64) {
        let book = self.book();
        (book.since(after), book.newest())
    }

    fn put(&self, job: Job) {
        let Some(queue) = &self.queue else { return };
        if queue.try_send(job).is_err() {
            metrics::counter!("oncekey_ring_dropped_total").increment(1);
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ring {
    /// Waits until everything queued is on the disk, and lets go of the folder.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook.
            drop(thread.join());
        }
    }
}

/// What the thread has.
struct Writer {
    file: RingFile,
    book: Arc<Mutex<Book>>,
    /// Since when something is written and not synced.
    unsynced: Option<Stopwatch>,
    luck: Luck,
}

/// How the last write went, so that a broken disk is told once and not a thousand times a second.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Luck {
    Good,
    Bad,
}

impl Writer {
    /// Writes until every caller is gone and everything queued is done.
    fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            let job = match self.unsynced {
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(since) => match SYNC_EVERY.saturating_sub(since.elapsed()) {
                    // Before the next job, or a busy ring would never be synced.
                    Duration::ZERO => Err(RecvTimeoutError::Timeout),
                    left => jobs.recv_timeout(left),
                },
            };
            match job {
                Ok(job) => self.serve(job, jobs),
                Err(RecvTimeoutError::Timeout) => self.sync(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if self.unsynced.is_some() {
            self.sync();
        }
    }

    /// Writes a job together with those that wait behind it.
    fn serve(&mut self, first: Job, jobs: &Receiver<Job>) {
        let mut written = Vec::new();
        let mut next = Some(first);
        while let Some(job) = next {
            match job {
                Job::Stands(note) => self.note(*note, &mut written),
                Job::Ended { lease, end, now, known } => {
                    if let Some(note) = self.end(&lease, &end, now, known) {
                        self.note(note, &mut written);
                    }
                }
                Job::Gone(lease) => {
                    if let Some(note) = self.known(&lease) {
                        self.note(Note { what: What::Gone, ..note }, &mut written);
                    }
                }
                Job::Remember(lineage, reply) => {
                    let remembered = self.file.remember(&lineage);
                    // Whoever stopped waiting does not hear it.
                    let _ = reply.send(remembered);
                }
                Job::Settle(reply) => {
                    let _ = reply.send(());
                }
            }
            next = (written.len() < MOST_AT_ONCE).then(|| jobs.try_recv().ok()).flatten();
        }
        if !written.is_empty() {
            let wrote = self.file.write(&written);
            self.tell(wrote);
            self.unsynced.get_or_insert_with(Stopwatch::start);
        }
    }

    fn note(&self, note: Note, written: &mut Vec<(u64, Note)>) {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        written.extend(book.add(note));
    }

    /// What is known of the attempt of a lease.
    fn known(&self, lease: &Lease) -> Option<Note> {
        let book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        book.find(&lease.id).filter(|note| note.lease.fence == lease.fence).cloned()
    }

    fn end(
        &self,
        lease: &Lease,
        end: &End,
        now: Timestamp,
        known: Option<Box<Note>>,
    ) -> Option<Note> {
        let note = self.known(lease).or(known.map(|note| *note))?;
        let what = match end {
            End::Release => What::Gone,
            End::Unknown => What::Unknown { since: now },
            End::Complete(completion) => {
                let times = completion.times(lease.fence, now);
                let (at, expires, forget) = (times.at, times.expires, times.forget);
                What::Done { at, expires, forget, end: Ended::of(&completion.answer) }
            }
        };
        Some(Note { what, ..note })
    }

    fn sync(&mut self) {
        self.unsynced = None;
        let synced = self.file.sync();
        self.tell(synced);
    }

    /// The work goes on whatever the disk says: the ring is the second net, not the first.
    fn tell(&mut self, done: Result<(), RingError>) {
        match (done, self.luck) {
            (Ok(()), Luck::Bad) => {
                tracing::info!("the ring is written again");
                self.luck = Luck::Good;
            }
            (Err(error), Luck::Good) => {
                let why: &dyn std::error::Error = &error;
                tracing::error!(
                    error = why,
                    "the ring is not written: after a crash of this process, what it granted last \
                     cannot be restored if the store regresses"
                );
                self.luck = Luck::Bad;
            }
            (Ok(()), Luck::Good) | (Err(_), Luck::Bad) => {}
        }
    }
}

#[cfg(test)]
mod tests;
