//! The one thread that writes, and its queue.
//!
//! Callers put operations into a bounded queue. The thread takes what is there, applies it in one
//! `IMMEDIATE` transaction, commits once, and only then answers everybody: a hundred claims cost
//! one sync of the disk instead of a hundred. A lone caller waits for nobody.
//!
//! ```text
//!  callers ──► queue ──► [ BEGIN IMMEDIATE · op · op · … · COMMIT ] ──► replies
//!                                                   │ failed
//!                                                   ▼
//!                            reopen, look which operations are there, reply accordingly
//! ```

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use oncekey_core::wake::Hub;
use oncekey_core::{Clock, Erased, ErrorKind, StoreError};
use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use super::aftermath;
use super::error::{closed, from_sqlite, still_in_the_log};
use super::hope::Hope;
use super::job::{Job, MOST_OPERATIONS, answer, answer_all, take_batch};
use super::log::{self, Emptied};
use super::op::{Op, Reply};
use super::place::Place;
use super::queue::{Entrance, Exit, Patience, queue};
use super::running::Running;
use super::schema::{self, Placement};
use super::scribe::{Scribe, Stage};
use super::settle::{self, Sweep};
use super::statements::Statements;
use super::transaction::{Broken, Rollback, begin, commit};
use crate::clock::Stopwatch;

/// Operations that may wait or be under way in one lane. Beyond it callers wait for a place, so
/// memory stays bounded. Eight times the batch: the queue never runs dry behind a commit.
const LANE: usize = 2_048;
/// If none of the callers that were just answered comes back for so long, nobody else is waited
/// for. A caller that does nothing else is back within microseconds. One that calls a service in between
/// is not: 150 µs let half of those through the gateway come back, which kept hope up, and every round
/// waited for longer than its sync takes. With 20 µs eight callers in a loop get a fifth more done, the gateway
/// a twentieth, and 64 and 512 callers as much as before.
const LULL: Duration = Duration::from_micros(20);

/// How long callers have the writer to themselves before it tries again to empty the log: ten times
/// as long as a try keeps them out.
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// After how many operations the length of the log is looked at, and the log written back as far as
/// it goes: about one page each, so the log overshoots by an eighth at most, and writing back and syncing
/// takes one or two milliseconds beside the writer. After 200 operations instead it is done five times
/// as often and takes nearly as long.
const LOOK_EVERY: usize = 1_000;

/// The callers' end of the queue. Dropping it stops the thread once everything queued is done.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Option<Entrance<Job>>,
    /// Claims, and what nobody's attempt depends on, queue here …
    claims: Arc<Semaphore>,
    /// … and everything that ends or keeps an attempt here, so that a storm of claims can never
    /// keep renewals and completions out.
    owners: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
}

/// An erasure that waits for the log to be emptied.
struct Unclear {
    job: Job,
    said: Erased,
    since: Stopwatch,
}

/// The thread's end.
struct Thread {
    path: PathBuf,
    placement: Placement,
    clock: Arc<dyn Clock>,
    hub: Arc<Hub>,
    place: Place,
    /// Before the connection, so that the writer's is the last to be closed.
    scribe: Scribe,
    /// None after a failed commit, until the file could be opened again: no write happens before
    /// that.
    connection: Option<Connection>,
    sweep: Sweep,
    running: Running,
    /// Operations since the length of the log was looked at.
    unlooked: usize,
    /// Erasures that are committed, while what they erased is still in the log.
    unclear: Vec<Unclear>,
    /// How long ago it was tried in vain to empty the log.
    tried: Option<Stopwatch>,
    /// How a transaction is committed. A field, so that a test can make it fail in every way.
    commit: fn(&Connection) -> rusqlite::Result<()>,
}

impl Writer {
    pub(super) fn start(
        path: PathBuf,
        placement: Placement,
        clock: Arc<dyn Clock>,
        hub: Arc<Hub>,
        sweep: Sweep,
    ) -> Result<Self, StoreError> {
        let connection = Some(schema::open_writer(&path, placement, clock.now())?);
        let (place, scribe) = (Place::of(&path), Scribe::start(&path));
        Self::spawn(Thread {
            path,
            placement,
            clock,
            hub,
            place,
            connection,
            sweep,
            running: Running::default(),
            scribe,
            unlooked: 0,
            unclear: Vec::new(),
            tried: None,
            commit,
        })
    }

    fn spawn(thread: Thread) -> Result<Self, StoreError> {
        let (queue, jobs) = queue();
        let thread = std::thread::Builder::new()
            .name("oncekey-sqlite-writer".to_owned())
            .spawn(move || thread.run(&jobs))
            .map_err(|error| {
                StoreError::new(ErrorKind::Unavailable, "no thread for the writer")
                    .with_source(error)
            })?;
        Ok(Self {
            queue: Some(queue),
            claims: Arc::new(Semaphore::new(LANE)),
            owners: Arc::new(Semaphore::new(LANE)),
            thread: Some(thread),
        })
    }

    /// Has `op` done and returns what came of it, after the commit.
    ///
    /// # Cancellation
    /// Dropped before the operation is queued, nothing happens; dropped later, it happens anyway.
    pub(super) async fn ask(&self, op: Op) -> Result<Reply, StoreError> {
        let lane = match op {
            Op::Claim(_) | Op::Purge(_) | Op::Erase(_) | Op::Restore(_) | Op::Inspect => {
                &self.claims
            }
            Op::Renew(..)
            | Op::Send(_)
            | Op::Piece { .. }
            | Op::Complete(..)
            | Op::Release(_)
            | Op::Unknown(_) => &self.owners,
        };
        let place = Arc::clone(lane).acquire_owned().await.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        let queue = self.queue.as_ref().ok_or_else(closed)?;
        if !queue.put(Job::new(op, reply, place)) {
            return Err(StoreError::new(
                ErrorKind::Unavailable,
                "the writer of the database file has died: start the process again",
            ));
        }
        answer.await.map_err(|_| closed())?
    }
}

impl Drop for Writer {
    /// Waits for the thread, so that the file is closed when the store is gone. It takes as long
    /// as the last batch.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook, and every caller has
            // been told that its call is ambiguous.
            drop(thread.join());
        }
    }
}

impl Thread {
    fn run(mut self, jobs: &Exit<Job>) {
        let mut waiting = VecDeque::new();
        let mut patience = Patience::default();
        let mut hope = Hope::default();
        loop {
            let before = waiting.len();
            if !jobs.gather(&mut waiting, patience) {
                return;
            }
            hope.learn(patience.expected, before, waiting.len());
            let batch = take_batch(&mut waiting);
            let done = batch.len();
            let watch = Stopwatch::start();
            if done > 0
                && let Err(Stuck { unanswered, error }) = self.serve(batch)
            {
                // Whoever queued behind it would wait as long, to hear the same. They are taken
                // before anybody is answered: who comes later may find that it works again.
                jobs.take(&mut waiting);
                answer_all(unanswered, &error);
                answer_all(waiting.drain(..).collect(), &error);
            }
            // If they come, waiting saves a commit; if not, it has cost half a one.
            let longest = watch.elapsed() / 2;
            // Those who came meanwhile and those who are back in a moment: counting both keeps
            // callers from falling into two groups that take turns, each with its own commit.
            jobs.take(&mut waiting);
            let all = (done + waiting.len()).min(MOST_OPERATIONS);
            let expected = if hope.is_up() { all } else { 0 };
            self.checkpoint(done);
            self.clear();
            let first = (!self.unclear.is_empty()).then_some(BETWEEN_TRIES);
            patience = Patience { first, expected, lull: LULL, longest };
        }
    }

    /// Has the log written back to the file once it is long enough, and writes the rest itself.
    /// SQLite would do it inside a commit; here the callers already have their answers.
    fn checkpoint(&mut self, done: usize) {
        self.unlooked += done;
        let Some(connection) = &self.connection else { return };
        match self.scribe.stage() {
            Stage::Ahead | Stage::Writing => {}
            Stage::Written => {
                // What fails or is held up is found too long at the next look.
                drop(log::write_back(connection));
                self.scribe.rest();
            }
            Stage::Resting if self.unlooked < LOOK_EVERY => {}
            Stage::Resting => {
                self.unlooked = 0;
                // Another file may lie at the path by now, which must not get this log.
                if self.place.check().is_err() {
                    return;
                }
                match log::is_long(connection) {
                    true => self.scribe.begin(),
                    false => self.scribe.go_ahead(),
                }
            }
        }
    }

    /// Empties the log and answers those who wait for it, or tells them that it cannot be.
    fn clear(&mut self) {
        let is_soon = self.tried.is_some_and(|tried| tried.elapsed() < BETWEEN_TRIES);
        if self.unclear.is_empty() || is_soon {
            return;
        }
        let emptied = match &self.connection {
            Some(connection) => log::empty(connection, self.place.log()),
            None => Ok(Emptied::HeldUp),
        };
        let why = match emptied {
            Ok(Emptied::Yes) => {
                self.tried = None;
                for Unclear { job, said, .. } in self.unclear.drain(..) {
                    drop(job.reply.send(Ok(Reply::Erased(said))));
                }
                return;
            }
            Ok(Emptied::HeldUp) => "somebody has been reading for too long".to_owned(),
            Err(failure) => StoreError::from(failure).to_string(),
        };
        self.tried = Some(Stopwatch::start());
        let over = |unclear: &mut Unclear| unclear.since.elapsed() >= schema::BUSY;
        for Unclear { job, .. } in self.unclear.extract_if(.., over) {
            drop(job.reply.send(Err(still_in_the_log(&why))));
        }
    }

    /// Does a batch and answers everybody in it, unless everybody else would get the same error.
    fn serve(&mut self, batch: Vec<Job>) -> Result<(), Stuck> {
        let connection = match self.connection.take().map_or_else(|| self.open(), Ok) {
            Ok(connection) => connection,
            Err(error) => return Err(Stuck { unanswered: batch, error }),
        };
        match self.transact(&connection, &batch) {
            Ok(replies) => {
                self.connection = Some(connection);
                self.answer(batch, replies);
            }
            Err(Broken::ForAll(failure)) => {
                self.keep(connection);
                return Err(Stuck { unanswered: batch, error: failure.into() });
            }
            Err(Broken::BeforeCommit(failure)) => {
                self.keep(connection);
                if batch.len() == 1 {
                    answer(batch, vec![Err(failure.into())]);
                    return Ok(());
                }
                // One operation may have spoilt it for all. Alone, only the culprit fails.
                let mut jobs = batch.into_iter();
                while let Some(job) = jobs.next() {
                    if let Err(mut stuck) = self.serve(vec![job]) {
                        stuck.unanswered.extend(jobs);
                        return Err(stuck);
                    }
                }
            }
            Err(Broken::AtCommit { error, replies }) => {
                // What this connection believes about the file may be wrong: it is not used again.
                drop(connection);
                let replies = self.find_out(&batch, replies, error);
                answer(batch, replies);
            }
        }
        Ok(())
    }

    /// Answers a batch that was committed. Erasures are answered when the log is empty.
    fn answer(&mut self, batch: Vec<Job>, replies: Vec<Result<Reply, StoreError>>) {
        for (job, reply) in batch.into_iter().zip(replies) {
            if let Ok(Reply::Erased(said)) = reply {
                self.unclear.push(Unclear { job, said, since: Stopwatch::start() });
            } else {
                // A caller that has gone away does not need its reply.
                drop(job.reply.send(reply));
            }
        }
    }

    /// Goes on with a connection after a rollback, unless the rollback has failed.
    fn keep(&mut self, connection: Connection) {
        self.connection = connection.is_autocommit().then_some(connection);
    }

    fn open(&mut self) -> Result<Connection, StoreError> {
        // Opening a file that is gone would make a new one.
        self.place.check_file()?;
        let connection = schema::reopen_writer(&self.path, self.placement, self.clock.now())?;
        self.place = Place::of(&self.path);
        Ok(connection)
    }

    /// Applies the batch in one transaction and commits it.
    fn transact(
        &mut self,
        connection: &Connection,
        batch: &[Job],
    ) -> Result<Vec<Result<Reply, StoreError>>, Broken> {
        begin(connection).map_err(|error| Broken::ForAll(error.into()))?;
        let rollback = Rollback::of(connection);
        let before = settle::read_ledger(connection)?;
        let mut ledger = before;
        let now = self.clock.now();
        let mut replies = Vec::with_capacity(batch.len());
        let mut finished = Vec::new();
        let statements = Statements::of(connection);
        for job in batch {
            match job.op.apply(&statements, (&mut ledger, &mut self.running), now) {
                Ok(reply) => {
                    finished.extend(job.op.finished_by(&reply));
                    replies.push(Ok(reply));
                }
                Err(failure) if failure.is_about_one_record() => replies.push(Err(failure.into())),
                Err(failure) => return Err(Broken::BeforeCommit(failure)),
            }
        }
        // The bodies that they were given need not wait for the disk.
        drop(statements);
        settle::some(connection, &mut self.sweep, &mut ledger, before)?;
        settle::write_ledger(connection, ledger, before)?;
        self.place.check().map_err(Broken::ForAll)?;
        rollback.disarm();
        if let Err(error) = (self.commit)(connection) {
            return Err(Broken::AtCommit { error, replies });
        }
        if !finished.is_empty() {
            self.hub.finished(&finished);
        }
        Ok(replies)
    }

    /// A commit failed, so every operation of the batch has happened or has not, and SQLite
    /// cannot say which. A fresh connection recovers the log; then the owner tokens tell.
    ///
    /// What the failed commit left at the end of the log could still come to life in a crash. A
    /// commit of our own overwrites it: only then is "nothing changed" true for ever.
    fn find_out(
        &mut self,
        batch: &[Job],
        replies: Vec<Result<Reply, StoreError>>,
        error: rusqlite::Error,
    ) -> Vec<Result<Reply, StoreError>> {
        let cause = from_sqlite(error).to_string();
        match self
            .open()
            .and_then(|connection| aftermath::barrier(&connection).map(|()| connection))
        {
            Ok(connection) => {
                let jobs = batch.iter().zip(replies);
                let replies = jobs
                    .map(|(job, reply)| aftermath::found_out(&connection, &job.op, reply, &cause));
                let replies = replies.collect();
                self.connection = Some(connection);
                replies
            }
            Err(_) => batch.iter().map(|_| Err(aftermath::ambiguous(&cause))).collect(),
        }
    }
}

/// The file cannot be written at all for the moment.
struct Stuck {
    unanswered: Vec<Job>,
    error: StoreError,
}

#[cfg(test)]
mod tests;
