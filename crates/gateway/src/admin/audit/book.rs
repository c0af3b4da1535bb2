//! Where entries are kept: the newest in memory, all of them in a file.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::Duration;

use oncekey::clock::{SystemUptime, Uptime as _};

use super::super::problem::Code;
use super::entry::{Entry, Outcome};

/// The entries of one gateway.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// Oldest first; an entry that has ended stands where it began.
    entries: VecDeque<Entry>,
    last: u64,
    file: Option<File>,
    /// Whether the last line of the file may have no end: a crash or a full disk tore it.
    torn: bool,
    /// When a stranger was last written down, and how many were not since.
    stranger: Option<Duration>,
    unheard: u64,
}

/// Entries in memory: months of what people do, half a megabyte.
const MOST: usize = 1_000;
/// How much of the end of a file is read at start: more than `MOST` entries of the usual size.
const TAIL: u64 = 1024 * 1024;
/// Refusals of strangers are written down no more often than this. One is evidence enough, and a
/// thousand a second would push out everything else.
const STRANGERS_EVERY: Duration = Duration::from_secs(1);

impl Book {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path)?;
        let (text, torn) = tail(&mut file)?;
        let mut book = Self { file: Some(file), torn, ..Self::default() };
        // A line that cannot be read was torn, or cut off at the beginning of the tail.
        for entry in text.lines().filter_map(|line| serde_json::from_str::<Entry>(line).ok()) {
            book.last = book.last.max(entry.seq);
            book.remember(entry);
        }
        Ok(book)
    }

    /// The number of the next entry.
    pub(super) const fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Writes down that something is about to be done. It is on the disk when this returns.
    pub(super) fn begin(&mut self, mut entry: Entry) -> io::Result<Entry> {
        entry.seq = self.number();
        self.write(entry.clone())?;
        Ok(entry)
    }

    pub(super) fn end(
        &mut self,
        entry: Entry,
        outcome: Outcome,
        code: Option<Code>,
    ) -> io::Result<()> {
        self.write(entry.ended(outcome, code))
    }

    /// Writes down that a stranger was refused, unless one was a moment ago.
    pub(super) fn note_stranger(&mut self, mut entry: Entry) -> io::Result<()> {
        let now = SystemUptime.elapsed();
        if self.stranger.is_some_and(|last| now.saturating_sub(last) < STRANGERS_EVERY) {
            self.unheard += 1;
            return Ok(());
        }
        self.stranger = Some(now);
        entry.unheard = (self.unheard > 0).then_some(self.unheard);
        self.unheard = 0;
        entry.seq = self.number();
        self.write(entry)
    }

    /// Writes a line, and remembers it if that worked.
    pub(super) fn write(&mut self, entry: Entry) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            // Half a line must not spoil the next one.
            let mut line = if self.torn { vec![b'\n'] } else { Vec::new() };
            serde_json::to_writer(&mut line, &entry)?;
            line.push(b'\n');
            self.torn = true;
            file.write_all(&line)?;
            file.sync_data()?;
            self.torn = false;
        }
        self.remember(entry);
        Ok(())
    }

    /// Entries with a smaller number than `before`, newest first.
    pub(super) fn page(&self, before: u64, limit: usize) -> Vec<Entry> {
        let older = self.entries.iter().rev().filter(|entry| entry.seq < before);
        older.take(limit).cloned().collect()
    }

    fn remember(&mut self, entry: Entry) {
        if let Some(begun) = self.entries.iter_mut().rev().find(|known| known.seq == entry.seq) {
            *begun = entry;
            return;
        }
        if self.entries.len() == MOST {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }
}

/// The end of a file as text, and whether its last line is torn.
fn tail(file: &mut File) -> io::Result<(String, bool)> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.take(length.min(TAIL)).read_to_end(&mut bytes)?;
    let torn = bytes.last().is_some_and(|last| *last != b'\n');
    Ok((String::from_utf8_lossy(&bytes).into_owned(), torn))
}
