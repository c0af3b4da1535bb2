//! Progress for the person who waits.
//!
//! On a terminal the current task is one line that changes; elsewhere each task prints a line
//! when it starts and one when it ends. All of this goes to standard error: standard output is
//! for the summary.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use crate::clock::Stopwatch;
use crate::process::Event;

/// Longer lines would wrap and could not be rewritten; no terminal in use is narrower.
const WIDTH: usize = 79;
/// Erases the line that the cursor is on.
const ERASE: &str = "\r\x1b[2K";

/// How much of a passing task's output is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    Short,
    Everything,
}

/// Where progress goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    live: bool,
    detail: Detail,
}

impl Screen {
    pub(crate) fn new(detail: Detail) -> Self {
        // A stream of output and a line that is rewritten do not mix.
        let live = detail == Detail::Short && io::stderr().is_terminal();
        Self { live, detail }
    }

    /// Announces a task.
    pub(crate) fn begin(self, title: &str) -> Task {
        let task = Task {
            screen: self,
            title: title.to_owned(),
            since: Stopwatch::start(),
            last: String::new(),
            ended: false,
        };
        if self.live {
            task.redraw();
        } else {
            eprintln!("{title} …");
        }
        task
    }

    /// Shows what a command does that runs beside others, if everything is to be shown.
    pub(crate) fn overhear(self, event: Event<'_>) {
        if let (Event::Line(line), Detail::Everything) = (event, self.detail) {
            eprintln!("{line}");
        }
    }

    /// Prints a line that stays.
    pub(crate) fn say(self, line: &str) {
        let erase = if self.live { ERASE } else { "" };
        eprintln!("{erase}{line}");
    }
}

/// Something that runs right now.
#[derive(Debug)]
pub(crate) struct Task {
    screen: Screen,
    title: String,
    since: Stopwatch,
    last: String,
    ended: bool,
}

impl Task {
    /// Shows what a running command does.
    pub(crate) fn show(&mut self, event: Event<'_>) {
        match event {
            Event::Line(line) if self.screen.detail == Detail::Everything => eprintln!("{line}"),
            Event::Line(line) if !line.trim().is_empty() => {
                line.trim().clone_into(&mut self.last);
            }
            Event::Line(_) | Event::Tick => {}
        }
        if self.screen.live {
            self.redraw();
        }
    }

    /// Ends the task with a word such as "passed", and says how long it took.
    pub(crate) fn end(mut self, verdict: &str) -> Duration {
        self.ended = true;
        let took = self.since.elapsed();
        let erase = if self.screen.live { ERASE } else { "" };
        eprintln!("{erase}{}: {verdict}, {}", self.title, seconds(took));
        took
    }

    fn redraw(&self) {
        let line = format!("{} {} {}", self.title, seconds(self.since.elapsed()), self.last);
        // Control characters in foreign output would move the cursor.
        let line: String = line.chars().filter(|c| !c.is_control()).take(WIDTH).collect();
        eprint!("{ERASE}{line}");
        // A terminal that is gone is noticed elsewhere.
        let _ = io::stderr().flush();
    }
}

impl Drop for Task {
    /// Gives an interrupted task's line back to whoever writes next.
    fn drop(&mut self) {
        if self.screen.live && !self.ended {
            eprintln!();
        }
    }
}

/// A duration for people: `0.4 s`, `83.1 s`.
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
