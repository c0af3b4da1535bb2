//! The file of a journal, as the one thread sees it that may touch it.
//!
//! Appends go to the end and are synced. A file is never changed in any other way: to get rid of
//! what is drained, to get over a torn tail or a failed sync, what still waits is written to a new
//! file, synced, and renamed into place. So there is always one whole file, and a crash at any
//! moment, during recovery too, leaves either the old one or the new one (I34).
//!
//! After a failed sync nothing is known about the file any more: the system may have dropped what
//! it could not write and call the next sync a success. So nothing is acknowledged before
//! everything was written anew.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::Entry;
use super::disk::{Disk, FolderLock, is_at};
use super::error::JournalError;
use super::frame::{self, HEADER, Identity, Kind, Place, offset};
use crate::clock::Stopwatch;
use crate::entropy::Entropy;

mod renew;

/// Drained entries are not worth a new file below this, however few others there are: one write of
/// this size costs about as much as the syncs around it.
const WORTH_A_FILE: u64 = 1024 * 1024;

/// How long a disk that said no is left alone: no journal is tidied more often than that.
const LEAVE_IT_ALONE: Duration = Duration::from_secs(1);

/// The file, and what waits in it.
pub(super) struct Log<D> {
    disk: D,
    entropy: Arc<dyn Entropy>,
    folder: PathBuf,
    lock: FolderLock,
    /// None until the first file is there.
    file: Option<File>,
    identity: Identity,
    trust: Trust,
    /// Up to here the file is known to hold frames.
    length: u64,
    waiting: BTreeMap<u64, Place>,
    waiting_bytes: u64,
    next: u64,
    /// Since when there are drained entries in the file.
    drained_since: Option<Stopwatch>,
    tidy_after: Duration,
    tidiness: Tidiness,
    damaged: u64,
    evidence: Evidence,
}

/// Whether a new file may be written just because the old one is large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tidiness {
    Willing,
    /// The disk said no, so it is left alone for a while.
    Later,
}

/// Whether there is damage in the file for a person to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    None,
    Found,
}

/// Whether what is in the file is known to be on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Sound,
    /// Nothing may be acknowledged before it was written anew.
    Broken,
}

impl<D: Disk> Log<D> {
    /// Takes a folder and reads what waits in it.
    ///
    /// If the disk is too full to write the file anew, what waits is returned all the same, so
    /// that it can be drained, and appends fail until there is space.
    pub(super) fn open(
        folder: &Path,
        mut disk: D,
        entropy: Arc<dyn Entropy>,
        tidy_after: Duration,
    ) -> Result<(Self, Vec<(u64, Entry)>), JournalError> {
        let reading = |error| JournalError::disk("read", error);
        let lock = FolderLock::take(folder)?;
        let folder = folder.canonicalize().map_err(reading)?;
        // The name of the lock file, and whatever came before us.
        disk.sync_folder(&folder).map_err(|error| JournalError::disk("synced", error))?;
        let mut log = Self {
            disk,
            entropy,
            folder,
            lock,
            file: None,
            identity: Identity::new([0; 32]),
            trust: Trust::Broken,
            length: offset(HEADER),
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            next: 1,
            drained_since: None,
            tidy_after,
            tidiness: Tidiness::Willing,
            damaged: 0,
            evidence: Evidence::None,
        };
        let entries = match File::open(log.path()) {
            Ok(file) => log.read(file)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(reading(error)),
        };
        match log.rewrite() {
            Ok(()) => {}
            Err(error) if entries.is_empty() => return Err(error),
            Err(error) => {
                let why: &dyn std::error::Error = &error;
                tracing::error!(error = why, "the journal can be drained, but takes nothing new");
            }
        }
        Ok((log, entries))
    }

    fn read(&mut self, file: File) -> Result<Vec<(u64, Entry)>, JournalError> {
        let reading = |error| JournalError::disk("read", error);
        let length = file.metadata().map_err(reading)?.len();
        let mut bytes = vec![0; usize::try_from(length).map_err(|_| JournalError::NoJournal)?];
        file.read_exact_at(&mut bytes, 0).map_err(reading)?;
        let contents = frame::read(&Bytes::from(bytes))?;
        if contents.torn > 0 {
            tracing::warn!(
                bytes = contents.torn,
                "the end of the journal is not a whole entry and was discarded: an append was cut \
                 off, and nobody was told that it had succeeded"
            );
        }
        self.identity = contents.identity;
        self.next = contents.next;
        self.note_damage(contents.damaged);
        self.file = Some(file);
        let mut entries = Vec::with_capacity(contents.waiting.len());
        for (number, place, entry) in contents.waiting {
            self.add(number, place);
            entries.push((number, entry));
        }
        Ok(entries)
    }

    /// Appends entries and syncs them, and notes which are drained. Returns the numbers of the
    /// entries, once all of them are on the disk.
    ///
    /// After an error none of them may be relied upon, though some may turn up after a restart.
    /// That is harmless: they are true.
    pub(super) fn commit(
        &mut self,
        payloads: &[Vec<u8>],
        drained: &[u64],
    ) -> Result<Vec<u64>, JournalError> {
        for number in drained {
            self.remove(*number);
        }
        match self.append(payloads, drained) {
            // A new file helps against a failed sync, and against a full disk if there is
            // something to get rid of.
            Err(error) if !payloads.is_empty() && self.is_worth_another_try(&error) => {
                self.trust = Trust::Broken;
                self.append(payloads, &[])
            }
            done => done,
        }
    }

    fn append(&mut self, payloads: &[Vec<u8>], drained: &[u64]) -> Result<Vec<u64>, JournalError> {
        if !self.lock.is_held() {
            return Err(JournalError::Moved);
        }
        if self.trust == Trust::Broken {
            if payloads.is_empty() {
                // What is drained is not written anew, so there is nothing to note.
                return Ok(Vec::new());
            }
            self.rewrite()?;
        }
        let mut frames = Vec::new();
        let mut places = Vec::with_capacity(payloads.len());
        for number in drained {
            let at = self.length + offset(frames.len());
            self.identity.frame(Kind::Drained, *number, at, &[], &mut frames);
        }
        for (number, payload) in (self.next..).zip(payloads) {
            let start = frames.len();
            let at = self.length + offset(start);
            self.identity.frame(Kind::Entry, number, at, payload, &mut frames);
            places.push((number, Place { at, length: offset(frames.len() - start) }));
        }
        self.write_and_sync(&frames, payloads)?;
        self.length += offset(frames.len());
        for (number, place) in &places {
            self.add(*number, *place);
            self.next = number + 1;
        }
        Ok(places.into_iter().map(|(number, _)| number).collect())
    }

    fn write_and_sync(&mut self, frames: &[u8], payloads: &[Vec<u8>]) -> Result<(), JournalError> {
        let path = self.path();
        let Some(file) = &self.file else {
            return Err(JournalError::Closed);
        };
        if let Err(error) = self.disk.write(file, self.length, frames) {
            // Half a frame in the middle would look like damage later.
            if self.disk.cut(file, self.length).is_err() {
                self.trust = Trust::Broken;
            }
            return Err(JournalError::disk("written", error));
        }
        // That something is drained may be forgotten: it is then drained once more.
        if payloads.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.disk.sync(file) {
            self.trust = Trust::Broken;
            return Err(JournalError::disk("synced", error));
        }
        // What is in a file without a name is gone after a restart.
        if !is_at(&path, file) {
            self.trust = Trust::Broken;
            return Err(JournalError::Moved);
        }
        Ok(())
    }

    /// Gets rid of what is drained. A failure changes nothing and is tried again later.
    pub(super) fn tidy(&mut self) {
        self.tidiness = Tidiness::Willing;
        if let Err(error) = self.rewrite() {
            let why: &dyn std::error::Error = &error;
            tracing::warn!(error = why, "drained entries stay in the journal for now");
            self.tidiness = Tidiness::Later;
            self.drained_since = Some(Stopwatch::start());
            self.tidy_after = self.tidy_after.max(LEAVE_IT_ALONE);
        }
    }

    /// How long until drained entries have to go; `None` if there are none.
    pub(super) fn tidy_in(&self) -> Option<Duration> {
        let since = self.drained_since?;
        Some(self.tidy_after.saturating_sub(since.elapsed()))
    }

    /// Whether most of the file is of no use. Getting rid of it then costs less than it took to
    /// write it, so that all of it stays in proportion.
    pub(super) fn is_wasteful(&self) -> bool {
        let is_large = self.drained_bytes() >= self.waiting_bytes.max(WORTH_A_FILE);
        is_large && self.tidiness == Tidiness::Willing
    }

    /// Leaves nothing behind that is drained, if that is cheap.
    pub(super) fn close(&mut self) {
        if self.waiting.is_empty() && self.drained_since.is_some() {
            self.tidy();
        }
    }

    pub(super) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// How many stretches could not be read, since the journal was opened.
    pub(super) fn damaged(&self) -> u64 {
        self.damaged
    }

    fn is_worth_another_try(&self, error: &JournalError) -> bool {
        match error {
            JournalError::DiskFull(_) | JournalError::Disk { .. } | JournalError::Moved => {
                let reclaims = self.drained_bytes() > self.waiting_bytes;
                self.trust == Trust::Broken || reclaims
            }
            JournalError::InUse { .. }
            | JournalError::Full { .. }
            | JournalError::Version { .. }
            | JournalError::NoJournal
            | JournalError::Thread(_)
            | JournalError::Closed => false,
        }
    }

    fn drained_bytes(&self) -> u64 {
        self.length.saturating_sub(offset(HEADER)).saturating_sub(self.waiting_bytes)
    }

    fn add(&mut self, number: u64, place: Place) {
        self.waiting.insert(number, place);
        self.waiting_bytes += place.length;
    }

    fn remove(&mut self, number: u64) {
        if let Some(place) = self.waiting.remove(&number) {
            self.waiting_bytes -= place.length;
            self.drained_since.get_or_insert_with(Stopwatch::start);
        }
    }

    fn note_damage(&mut self, stretches: u64) {
        self.damaged += stretches;
        if stretches > 0 {
            self.evidence = Evidence::Found;
            tracing::error!(
                stretches,
                "entries of the journal are damaged and were left out: their records stay as they \
                 are in the store"
            );
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join("journal")
    }
}
