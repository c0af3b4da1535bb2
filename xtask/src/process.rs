//! Runs a command to its end, with its output captured in the order it was written.
//!
//! Every command gets a process group of its own. Ctrl-C then reaches only this program, which
//! ends the whole group: a killed `cargo` would otherwise leave its test programs behind.

use std::io::{self, BufRead as _, BufReader, PipeReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;
use std::{mem, thread};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::clock::Stopwatch;
use crate::stop::{Interrupted, Stop};

/// How long a raised flag may go unnoticed.
const TICK: Duration = Duration::from_millis(100);
/// How long a process may take to end by itself once it was asked to; databases flush first.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long output may trickle in after the command has ended. Only a grandchild that outlives
/// the command holds the pipe open, and nobody waits for that one.
const DRAIN: Duration = Duration::from_secs(1);

/// What a command left behind.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    /// Standard output and standard error together.
    pub(crate) output: String,
}

/// What happens while a command runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event<'a> {
    /// It wrote a line, given here without its line break.
    Line(&'a str),
    /// Nothing happened, but time has passed.
    Tick,
}

/// Runs `command` until it ends or `stop` is raised.
pub(crate) fn run(
    mut command: Command,
    stop: &Stop,
    mut watch: impl FnMut(Event<'_>),
) -> Result<Finished> {
    stop.check()?;
    let (reader, writer) = io::pipe().context("cannot create a pipe")?;
    let copy = writer.try_clone().context("cannot create a pipe")?;
    command.stdin(Stdio::null()).stdout(copy).stderr(writer).process_group(0);
    let child = command.spawn().with_context(|| format!("cannot run {}", line_of(&command)))?;
    let mut group = Group { child, ended: None };
    // The command holds the writing ends of the pipe: the reader would wait for it for ever.
    drop(command);

    let lines = lines_of(reader);
    let mut output = String::new();
    let mut ended: Option<(ExitStatus, Stopwatch)> = None;
    loop {
        match lines.recv_timeout(TICK) {
            Ok(line) => {
                watch(Event::Line(line.trim_end()));
                output.push_str(&line);
            }
            Err(RecvTimeoutError::Timeout) => watch(Event::Tick),
            Err(RecvTimeoutError::Disconnected) => {
                let status = group.wait()?;
                return Ok(Finished { status, output });
            }
        }
        if stop.is_raised() {
            return Err(Interrupted.into());
        }
        match ended {
            Some((status, since)) if since.elapsed() > DRAIN => {
                return Ok(Finished { status, output });
            }
            Some(_) => {}
            None => ended = group.poll()?.map(|status| (status, Stopwatch::start())),
        }
    }
}

/// Runs a short command and returns its output, or an error that contains it.
pub(crate) fn output(command: Command, stop: &Stop) -> Result<String> {
    let line = line_of(&command);
    let finished = run(command, stop, |_| {})?;
    if !finished.status.success() {
        bail!("{line} ended with {}:\n{}", finished.status, finished.output.trim_end());
    }
    Ok(finished.output)
}

/// The command as one would type it, for messages.
pub(crate) fn line_of(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Asks a process to end, waits, and kills it if it does not.
pub(crate) fn end(child: &mut Child, ask: Signal) -> io::Result<ExitStatus> {
    if let Some(status) = child.try_wait()? {
        return Ok(status);
    }
    let asked = Stopwatch::start();
    // The process may be gone by now, in which case `wait` below has the answer.
    let _ = kill_process(Pid::from_child(child), ask);
    while asked.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill()?;
    child.wait()
}

/// A command and all its descendants that stayed in its process group.
struct Group {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Group {
    fn poll(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().context("cannot wait for a command")?;
        }
        Ok(self.ended)
    }

    fn wait(&mut self) -> Result<ExitStatus> {
        let status = self.child.wait().context("cannot wait for a command")?;
        self.ended = Some(status);
        Ok(status)
    }
}

impl Drop for Group {
    /// Ends the group if we leave early. A group whose leader was reaped is left alone, because
    /// its number may belong to somebody else by then.
    fn drop(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let group = Pid::from_child(&self.child);
        // Nothing can be done about a failure here, and a group that is gone is what we want.
        let _ = kill_process_group(group, Signal::INT);
        thread::sleep(TICK);
        // The leader is not reaped yet, so the number is still ours.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }
}

fn lines_of(reader: PipeReader) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut bytes = Vec::new();
        // A read error is an end of output too: the command itself is judged by its exit code.
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
            let line = String::from_utf8_lossy(&mem::take(&mut bytes)).into_owned();
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_errors_arrive_in_the_order_they_were_written() {
        let finished =
            run(shell("echo one; echo two >&2; echo three; exit 3"), &Stop::default(), |_| {});
        let finished = finished.unwrap();
        assert_eq!(finished.output, "one\ntwo\nthree\n");
        assert_eq!(finished.status.code(), Some(3));
    }

    #[test]
    fn a_raised_flag_ends_the_whole_group() {
        let stop = Stop::default();
        let mut grandchild = None;
        let result = run(shell("sleep 600 & echo $!; wait"), &stop, |event| {
            if let Event::Line(line) = event {
                grandchild = line.parse::<i32>().ok();
                stop.raise();
            }
        });
        assert!(result.unwrap_err().is::<Interrupted>());
        // The kernel takes a moment. A zombie that nobody has reaped yet counts as ended.
        let stat = format!("/proc/{}/stat", grandchild.unwrap());
        let runs = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        let since = Stopwatch::start();
        while runs() && since.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(!runs(), "the grandchild still runs");
    }

    #[test]
    fn a_grandchild_that_keeps_the_pipe_open_does_not_block() {
        let watch = Stopwatch::start();
        let finished = run(shell("sleep 5 & echo done"), &Stop::default(), |_| {}).unwrap();
        assert_eq!(finished.output, "done\n");
        assert!(watch.elapsed() < Duration::from_secs(4));
    }

    #[test]
    fn a_process_ends_when_it_is_asked_to() {
        let mut child = shell("exec sleep 600").spawn().unwrap();
        let status = end(&mut child, Signal::TERM).unwrap();
        assert!(!status.success());
    }
}
