//! The file of a ring: two headers, then slots that are used again and again.
//!
//! ```text
//! 0      header  magic 16 · version 4 · turn 8 · length 2 · lineage · … · digest 16
//! 4096   the same; the one with the higher turn counts
//! 8192   slots of 256 bytes; note n is in slot n mod 65 536
//! ```
//!
//! The headers are written in turns, so that a crash in the middle leaves the other one. A slot that
//! is torn is one old note less.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use oncekey_core::Lineage;
use sha2::{Digest as _, Sha256};

use super::error::RingError;
use super::note::{Note, SLOT};
use crate::engine::journal::FolderLock;

/// A file with slots, and the right to use it.
#[derive(Debug)]
pub(super) struct RingFile {
    file: File,
    slots: usize,
    turn: u64,
    _lock: FolderLock,
}

/// What was found in a file.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// `None` if the ring is new, or both headers are damaged.
    pub(super) lineage: Option<Lineage>,
    /// In the order of their numbers.
    pub(super) notes: Vec<(u64, Note)>,
    /// Slots that were written and cannot be read.
    pub(super) damaged: usize,
}

const VERSION: u32 = 1;
const MAGIC: [u8; 16] = *b"oncekey a ring\n\n";
/// A page of a disk: what is written at once, or not at all, on most of them.
const PAGE: usize = 4_096;
const SLOTS_AT: usize = 2 * PAGE;
const DIGEST: usize = 16;
/// A lineage is a few dozen bytes. One that does not fit would be forgotten at every start.
const MOST_LINEAGE: usize = 2_048;
/// Nobody else's business.
const OWN_FILE: u32 = 0o600;

impl RingFile {
    /// Takes a folder and reads what is in it. What is damaged is left out and counted.
    pub(super) fn open(folder: &Path, slots: usize) -> Result<(Self, Contents), RingError> {
        let lock = FolderLock::take(folder).map_err(RingError::of_lock)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(OWN_FILE);
        let opening = |error| RingError::disk("opened", error);
        let file = options.open(folder.join("ring")).map_err(opening)?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(opening)?;
        let reading = |error| RingError::disk("read", error);
        let most = SLOTS_AT + slots * SLOT;
        let length = usize::try_from(file.metadata().map_err(reading)?.len()).unwrap_or(most);
        let mut bytes = vec![0; length.min(most)];
        file.read_exact_at(&mut bytes, 0).map_err(reading)?;
        let headers =
            [0, PAGE].map(|at| bytes.get(at..at + PAGE).map_or(Header::None, read_header));
        let mut ring = Self { file, slots, turn: 0, _lock: lock };
        let mut contents = Contents::default();
        for header in headers {
            match header {
                Header::Sound { turn, lineage } if turn >= ring.turn => {
                    ring.turn = turn;
                    contents.lineage = Some(Lineage::new(lineage));
                }
                Header::Version(version) => return Err(RingError::Version { version }),
                Header::Sound { .. } | Header::None => {}
            }
        }
        let written = bytes.get(SLOTS_AT..).unwrap_or_default().chunks(SLOT);
        for slot in written.filter(|slot| slot.iter().any(|byte| *byte != 0)) {
            match slot.first_chunk::<SLOT>().and_then(Note::decode) {
                Some(found) => contents.notes.push(found),
                None => contents.damaged += 1,
            }
        }
        contents.notes.sort_by_key(|(number, _)| *number);
        Ok((ring, contents))
    }

    /// Writes notes into their slots. Afterwards a crash of the process loses none of them; a power
    /// cut may, until [`sync`](Self::sync).
    pub(super) fn write(&self, notes: &[(u64, Note)]) -> Result<(), RingError> {
        let mut at = None;
        let mut run: Vec<u8> = Vec::with_capacity(notes.len() * SLOT);
        for (number, note) in notes {
            let place = self.place(*number);
            // The end of the ring, or a note that was left out: another stretch begins.
            if at.is_some_and(|start: usize| start + run.len() != place) {
                self.write_at(at.take(), &run)?;
                run.clear();
            }
            at.get_or_insert(place);
            run.extend_from_slice(&note.encode(*number));
        }
        self.write_at(at, &run)
    }

    /// Remembers which life of the store the notes belong to. `Ok` means that it survives a power cut.
    pub(super) fn remember(&mut self, lineage: &Lineage) -> Result<(), RingError> {
        let text = lineage.as_str().as_bytes();
        let mut header = Vec::with_capacity(PAGE);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&VERSION.to_be_bytes());
        header.extend_from_slice(&(self.turn + 1).to_be_bytes());
        let text = &text[..text.len().min(MOST_LINEAGE)];
        header.extend_from_slice(&u16::try_from(text.len()).unwrap_or(0).to_be_bytes());
        header.extend_from_slice(text);
        header.resize(PAGE - DIGEST, 0);
        let digest = Sha256::digest(&header);
        header.extend_from_slice(&digest[..DIGEST]);
        let at = if self.turn.is_multiple_of(2) { PAGE } else { 0 };
        self.write_at(Some(at), &header)?;
        self.sync()?;
        self.turn += 1;
        Ok(())
    }

    /// Returns once everything that was written survives a power cut.
    pub(super) fn sync(&self) -> Result<(), RingError> {
        self.file.sync_data().map_err(|error| RingError::disk("synced", error))
    }

    fn place(&self, number: u64) -> usize {
        let slots = u64::try_from(self.slots).unwrap_or(u64::MAX);
        let slot = usize::try_from(number % slots).unwrap_or(0);
        SLOTS_AT + slot * SLOT
    }

    fn write_at(&self, at: Option<usize>, bytes: &[u8]) -> Result<(), RingError> {
        let Some(at) = at.and_then(|at| u64::try_from(at).ok()) else { return Ok(()) };
        self.file.write_all_at(bytes, at).map_err(|error| RingError::disk("written", error))
    }
}

enum Header {
    Sound {
        turn: u64,
        lineage: String,
    },
    /// Sound, and of another version.
    Version(u32),
    /// Never written, or damaged.
    None,
}

fn read_header(page: &[u8]) -> Header {
    read_sound_header(page).unwrap_or(Header::None)
}

fn read_sound_header(page: &[u8]) -> Option<Header> {
    let (content, digest) = page.split_last_chunk::<DIGEST>()?;
    if *digest != Sha256::digest(content)[..DIGEST] {
        return None;
    }
    let rest = content.strip_prefix(&MAGIC)?;
    let (version, rest) = rest.split_first_chunk::<4>()?;
    let version = u32::from_be_bytes(*version);
    if version != VERSION {
        return Some(Header::Version(version));
    }
    let (turn, rest) = rest.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let text = rest.get(..usize::from(u16::from_be_bytes(*length)))?;
    let lineage = String::from_utf8(text.to_vec()).ok()?;
    Some(Header::Sound { turn: u64::from_be_bytes(*turn), lineage })
}
