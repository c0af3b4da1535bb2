//! Writes the log back to the file beside the writer, so that nobody waits for it.
//!
//! A log of eight thousand pages takes 35 ms to write back and sync. Done by the writer between two
//! batches, every caller of those 35 ms waited: once a second at full load, which was the whole of
//! the 99th percentile. SQLite lets another connection do it while the writer goes on. Only the end
//! is the writer's: the log begins again at its start when all of it is in the file, which it never
//! is while somebody appends. What came meanwhile is little, and takes less than a commit.
//!
//! Nor does it wait until the log is long: every sync of the log waits for what else is on its way to
//! the disk, and eight thousand pages at once are on their way for long. Some hundred at a time halve the
//! 99th percentile of claims and completions at full load (7.6 to 4.1 ms with 64 callers), at the same rate.
//!
//! ```text
//!  writer:  append … append … append … append … append … │ the rest │ append (from the start of the log)
//!  scribe:    └ ahead ┘  └ ahead ┘   └ most ┘└ what came since ┘
//! ```

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::log;
use super::schema;

/// The writer's end. Dropping it waits for what is being written.
#[derive(Debug)]
pub(super) struct Scribe {
    bell: Option<SyncSender<Task>>,
    stage: Shared,
    thread: Option<JoinHandle<()>>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It has nothing to do.
    Resting,
    /// It writes back what there is.
    Ahead,
    /// It writes so much back that the rest is little.
    Writing,
    /// All but the newest pages are in the file: the rest is the writer's.
    Written,
}

/// What it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Ahead,
    Most,
}

#[derive(Clone, Debug)]
struct Shared(Arc<Mutex<Stage>>);

/// The first pass takes the log as it is, the second what came meanwhile: a hundredth of it is left.
const PASSES: usize = 2;

impl Scribe {
    /// Starts the thread. Without one, which a crowded machine may refuse, the writer does it all.
    pub(super) fn start(path: &Path) -> Self {
        let stage = Shared(Arc::new(Mutex::new(Stage::Resting)));
        let (bell, rung) = sync_channel(1);
        let (path, told) = (path.to_owned(), stage.clone());
        let thread = std::thread::Builder::new()
            .name("oncekey-sqlite-log".to_owned())
            .spawn(move || write(&path, &rung, &told));
        Self { bell: Some(bell), stage, thread: thread.ok() }
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage.get()
    }

    /// Has the log written back as far as it goes, so that less is left when it is long. If there is
    /// nobody to do it, it is not done.
    pub(super) fn go_ahead(&self) {
        self.stage.set(Stage::Ahead);
        if !self.tell(Task::Ahead) {
            self.stage.set(Stage::Resting);
        }
    }

    /// Has the log written back. If there is nobody to do it, it is the writer's at once.
    pub(super) fn begin(&self) {
        self.stage.set(Stage::Writing);
        if !self.tell(Task::Most) {
            self.stage.set(Stage::Written);
        }
    }

    fn tell(&self, task: Task) -> bool {
        self.bell.as_ref().is_some_and(|bell| bell.try_send(task).is_ok())
    }

    /// The writer has done the rest.
    pub(super) fn rest(&self) {
        self.stage.set(Stage::Resting);
    }
}

impl Drop for Scribe {
    fn drop(&mut self) {
        self.bell = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the panic hook.
            drop(thread.join());
        }
    }
}

impl Shared {
    fn get(&self) -> Stage {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, stage: Stage) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }
}

/// Writes back whenever it is asked to. A failure is nobody's: the writer finds more left to do.
fn write(path: &Path, rung: &Receiver<Task>, stage: &Shared) {
    let mut connection = None;
    while let Ok(task) = rung.recv() {
        let (passes, then) = match task {
            Task::Ahead => (1, Stage::Resting),
            Task::Most => (PASSES, Stage::Written),
        };
        let _done = Done { stage, then };
        // Opened when it is needed first: most processes never fill a log.
        if connection.is_none() {
            connection = schema::open_scribe(path).ok();
        }
        for _ in 0..passes {
            let Some(open) = &connection else { break };
            if log::write_back(open).is_err() {
                connection = None;
            }
        }
    }
}

/// Says what comes next, also if writing panics: nobody waits for a thread that is gone.
struct Done<'s> {
    stage: &'s Shared,
    then: Stage,
}

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.stage.set(self.then);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oncekey_core::Timestamp;

    use super::super::schema::Placement;
    use super::*;
    use crate::clock::Stopwatch;

    /// The writer goes on while the log is written back, and with what is left done by the writer
    /// the log begins again at its start instead of growing.
    #[test]
    fn a_log_that_is_written_back_beside_the_writer_does_not_grow() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oncekey.db");
        let writer = schema::open_writer(&path, Placement::Own, Timestamp::default()).unwrap();
        let commit = || writer.execute_batch("UPDATE oncekey_clock SET fence = fence + 1").unwrap();
        let length = || folder.path().join("oncekey.db-wal").metadata().unwrap().len();
        for _ in 0..20 {
            commit();
        }
        let before = length();
        let scribe = Scribe::start(&path);
        assert_eq!(scribe.stage(), Stage::Resting);
        scribe.begin();
        let watch = Stopwatch::start();
        while scribe.stage() == Stage::Writing {
            assert!(watch.elapsed() < Duration::from_secs(30), "nobody writes the log back");
            commit();
        }
        assert_eq!(scribe.stage(), Stage::Written);
        log::write_back(&writer).unwrap();
        scribe.rest();
        let longest = length().max(before);
        for _ in 0..20 {
            commit();
        }
        assert_eq!(length(), longest, "the log began again at its start");
    }

    /// What was written ahead is not written again, and the writer has no part in it.
    #[test]
    fn a_log_is_written_back_before_it_is_long() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oncekey.db");
        let writer = schema::open_writer(&path, Placement::Own, Timestamp::default()).unwrap();
        for _ in 0..20 {
            writer.execute_batch("UPDATE oncekey_clock SET fence = fence + 1").unwrap();
        }
        let progress = || {
            let pragma = "PRAGMA wal_checkpoint(NOOP)";
            let row = writer.query_row(pragma, [], |row| Ok((row.get(1)?, row.get(2)?)));
            row.unwrap()
        };
        let (frames, back): (i64, i64) = progress();
        assert!(frames >= 20 && back == 0, "nothing is written back yet: {back} of {frames}");
        let scribe = Scribe::start(&path);
        scribe.go_ahead();
        let watch = Stopwatch::start();
        while scribe.stage() == Stage::Ahead {
            assert!(watch.elapsed() < Duration::from_secs(30), "nobody writes the log back");
            std::thread::yield_now();
        }
        assert_eq!(scribe.stage(), Stage::Resting, "nothing is left to the writer");
        assert_eq!(progress(), (frames, frames));
    }
}
