//! Log lines on their way out.
//!
//! A thread of its own writes them, many at a time: a request must not wait for whoever reads the
//! log, and a system call for each line is a tenth of what a replay costs. What is not written when
//! the process is killed is lost, which is ten milliseconds of lines.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Takes lines. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Sink(Arc<Shared>);

/// Has everything written when it is dropped. Whoever installs a log keeps this to the end.
#[derive(Debug)]
#[must_use]
pub(crate) struct Flush(Sink);

#[derive(Debug, Default)]
struct Shared {
    lines: Mutex<Lines>,
    /// Rung when the first line comes.
    some: Condvar,
    /// Rung when everything is written.
    none: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    text: Vec<u8>,
    /// How many lines found no room.
    lost: u64,
    /// Whether the thread holds lines that are not written.
    writing: bool,
}

/// The most that waits: half a minute of a busy log. Beyond it lines are counted and thrown away,
/// because a reader that stands still must not stop payments, nor take the memory of the program.
const MOST: usize = 4 * 1024 * 1024;

/// How long lines gather between two writes. Nobody notices it, and a busy log takes a hundred calls
/// a second instead of one for each line. The first line after a silence is written at once.
const PAUSE: Duration = Duration::from_millis(10);

/// How long the end of the program waits for whoever reads the log.
const LAST_WORDS: Duration = Duration::from_secs(2);

impl Sink {
    /// Starts the thread that writes to `out`.
    pub(super) fn start(out: impl Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let lines = Arc::clone(&shared);
        thread::Builder::new().name("oncekey-log".to_owned()).spawn(move || lines.write(out))?;
        Ok(Self(shared))
    }

    /// Has everything written at its end.
    pub(super) fn flush_at_end(&self) -> Flush {
        Flush(self.clone())
    }
}

impl Write for Sink {
    /// Takes the whole of a line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut lines = self.0.lines();
        if lines.text.len() + line.len() > MOST {
            lines.lost += 1;
            return Ok(line.len());
        }
        let is_first = lines.text.is_empty();
        lines.text.extend_from_slice(line);
        drop(lines);
        if is_first {
            self.0.some.notify_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        let shared = &self.0.0;
        let unwritten = |lines: &mut Lines| lines.writing || !lines.text.is_empty();
        drop(shared.none.wait_timeout_while(shared.lines(), LAST_WORDS, unwritten));
    }
}

impl Shared {
    /// Writes what comes, for as long as the process lives.
    fn write(&self, mut out: impl Write) {
        let mut text = Vec::new();
        loop {
            let lost = {
                let mut lines = self.lines();
                lines.writing = false;
                if lines.text.is_empty() {
                    self.none.notify_all();
                }
                while lines.text.is_empty() {
                    lines = self.some.wait(lines).unwrap_or_else(PoisonError::into_inner);
                }
                lines.writing = true;
                std::mem::swap(&mut lines.text, &mut text);
                std::mem::take(&mut lines.lost)
            };
            // Nobody reads a log that cannot be written, and the next line is tried again.
            let lost = lost + write_out(&mut out, &text);
            text.clear();
            if lost > 0 {
                tracing::warn!(lines = lost, "log lines were lost: nobody reads them fast enough");
            }
            thread::sleep(PAUSE);
        }
    }

    /// Nothing in here panics half-way through a change.
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes lines, and says how many could not be written.
fn write_out(out: &mut impl Write, mut text: &[u8]) -> u64 {
    while !text.is_empty() {
        match out.write(text) {
            Ok(0) => break,
            Ok(written) => text = &text[written..],
            // Somebody has told the pipe not to wait. So we do.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(PAUSE),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    drop(out.flush());
    let lines = text.iter().filter(|byte| **byte == b'\n').count();
    u64::try_from(lines).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::paper::Paper;
    use super::*;

    /// Takes nothing until somebody lets it.
    struct Stuck(Arc<Mutex<()>>, Paper);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _free = self.0.lock().unwrap();
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_line_is_written_in_order_before_the_end() {
        let paper = Paper::default();
        let mut sink = Sink::start(paper.clone()).unwrap();
        let flush = sink.flush_at_end();
        let mut expected = Vec::new();
        for number in 0..10_000 {
            let line = format!("line {number}\n");
            sink.write_all(line.as_bytes()).unwrap();
            expected.extend_from_slice(line.as_bytes());
        }
        drop(flush);
        assert!(paper.bytes() == expected);
    }

    #[test]
    fn a_reader_that_stands_still_stops_nobody_and_takes_bounded_memory() {
        let (gate, paper) = (Arc::new(Mutex::new(())), Paper::default());
        let closed = gate.lock().unwrap();
        let mut sink = Sink::start(Stuck(Arc::clone(&gate), paper.clone())).unwrap();
        let flush = sink.flush_at_end();
        let line = [b'x'; 1_024];
        // Not before the thread stands still, or it would take the count of what was lost with it.
        sink.write_all(&line).unwrap();
        while !sink.0.lines().writing {
            thread::yield_now();
        }
        for _ in 0..20_000 {
            sink.write_all(&line).unwrap();
        }
        assert!(sink.0.lines().text.len() <= MOST);
        assert!(sink.0.lines().lost > 0);
        drop(closed);
        drop(flush);
        assert!(paper.bytes().len() > MOST / 2);
    }
}
