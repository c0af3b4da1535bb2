//! A new file in the place of an old one: how a journal gets rid of what it does not need, and of
//! a file that it cannot trust.
//!
//! Nothing is taken over without a look: what cannot be read any more is left out, counted, and
//! kept under another name for a person.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::{Evidence, Log, Trust};
use crate::engine::journal::disk::Disk;
use crate::engine::journal::error::JournalError;
use crate::engine::journal::frame::{Identity, Kind, Place, offset};

/// How much is written to a new file at a time. Large enough that the number of system calls does
/// not matter, small beside what the entries themselves take in memory.
const COPY_AT_ONCE: usize = 1024 * 1024;

/// What a new file holds.
struct Copied {
    places: Vec<(u64, Place)>,
    /// Entries that could be read before and cannot be read any more.
    lost: Vec<u64>,
    length: u64,
}

impl<D: Disk> Log<D> {
    /// Writes what waits to a new file and puts it in the place of the old one.
    ///
    /// After an error the old file is what it was, or the new one has its place already but may
    /// lose it to the old one in a power cut. Both hold everything that was acknowledged.
    pub(super) fn rewrite(&mut self) -> Result<(), JournalError> {
        if !self.lock.is_held() {
            return Err(JournalError::Moved);
        }
        let mut key = [0; 32];
        self.entropy.fill(&mut key);
        let identity = Identity::new(key);
        let draft = self.folder.join("journal.new");
        let writing = |error| JournalError::disk("written", error);
        let syncing = |error| JournalError::disk("synced", error);

        let file = self.disk.create(&draft).map_err(writing)?;
        let copied = self.copy(&identity, &file)?;
        self.disk.sync(&file).map_err(syncing)?;
        self.note_damage(offset(copied.lost.len()));
        for number in &copied.lost {
            self.remove(*number);
        }
        if self.evidence == Evidence::Found {
            self.keep_evidence();
        }
        self.disk.rename(&draft, &self.path()).map_err(writing)?;
        self.file = Some(file);
        self.identity = identity;
        self.length = copied.length;
        self.waiting.clear();
        self.waiting_bytes = 0;
        for (number, place) in copied.places {
            self.add(number, place);
        }
        self.drained_since = None;
        self.trust = Trust::Broken;
        self.disk.sync_folder(&self.folder).map_err(syncing)?;
        self.trust = Trust::Sound;
        Ok(())
    }

    fn copy(&mut self, identity: &Identity, file: &File) -> Result<Copied, JournalError> {
        let writing = |error| JournalError::disk("written", error);
        let mut copied = Copied { places: Vec::new(), lost: Vec::new(), length: 0 };
        let mut out = identity.header();
        for (number, place) in &self.waiting {
            let old = self.file.as_ref().map(|file| read_at(file, *place)).transpose();
            let old = old.map_err(|error| JournalError::disk("read", error))?.unwrap_or_default();
            let Some(payload) = self.identity.entry_payload(*number, place.at, &old) else {
                copied.lost.push(*number);
                continue;
            };
            let start = out.len();
            let at = copied.length + offset(start);
            identity.frame(Kind::Entry, *number, at, payload, &mut out);
            copied.places.push((*number, Place { at, length: offset(out.len() - start) }));
            if out.len() >= COPY_AT_ONCE {
                self.disk.write(file, copied.length, &out).map_err(writing)?;
                copied.length += offset(out.len());
                out.clear();
            }
        }
        self.disk.write(file, copied.length, &out).map_err(writing)?;
        copied.length += offset(out.len());
        Ok(copied)
    }

    /// Keeps the damaged file under another name, for a person to look at. A second name for the
    /// same file, because renaming it would leave a moment without a journal.
    fn keep_evidence(&mut self) {
        let kept = self.folder.join(format!("damaged-{}", self.identity.name()));
        match std::fs::hard_link(self.path(), &kept) {
            Ok(()) => tracing::error!(
                file = %kept.display(),
                "the damaged journal was kept: delete it when you have seen it, it may hold answers"
            ),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => tracing::warn!(%error, "the damaged journal was not kept"),
        }
        self.evidence = Evidence::None;
    }
}

fn read_at(file: &File, place: Place) -> std::io::Result<Vec<u8>> {
    let length = usize::try_from(place.length).map_err(std::io::Error::other)?;
    let mut bytes = vec![0; length];
    match file.read_exact_at(&mut bytes, place.at) {
        Ok(()) => Ok(bytes),
        // A file that lost its end is damaged, which is found out in the same way as the rest.
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
