//! A progress bar, for people who watch. Elsewhere nothing is drawn.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use oncekey::clock::{SystemUptime, Uptime as _};
use oncekey::store::copy::Totals;

/// Often enough to look alive, rarely enough to cost nothing.
const REDRAW: Duration = Duration::from_millis(100);
/// How many characters are the bar itself: the whole line then fits eighty columns.
const WIDTH: u64 = 24;

/// Draws on standard error, over the same line again and again.
#[derive(Debug)]
pub(super) struct Bar {
    watcher: Watcher,
    started: Duration,
    drawn: Option<Duration>,
    /// How much earlier runs had done: it does not count for the rate of this one.
    begun: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watcher {
    Person,
    Nobody,
}

impl Bar {
    pub(super) fn new(begun: u64) -> Self {
        let is_watched = io::stderr().is_terminal();
        let watcher = if is_watched { Watcher::Person } else { Watcher::Nobody };
        Self { watcher, started: SystemUptime.elapsed(), drawn: None, begun }
    }

    /// How long the copy has taken so far.
    pub(super) fn elapsed(&self) -> Duration {
        SystemUptime.elapsed().saturating_sub(self.started)
    }

    pub(super) fn draw(&mut self, totals: &Totals, expected: usize) {
        let elapsed = self.elapsed();
        let is_soon = self.drawn.is_some_and(|drawn| elapsed.saturating_sub(drawn) < REDRAW);
        if self.watcher == Watcher::Nobody || is_soon {
            return;
        }
        self.drawn = Some(elapsed);
        let expected = u64::try_from(expected).unwrap_or(u64::MAX);
        let line = line(totals.seen, expected, totals.seen - self.begun.min(totals.seen), elapsed);
        // A bar that cannot be drawn is no reason to stop.
        drop(write!(io::stderr().lock(), "\r{line}\x1b[K"));
    }

    /// Leaves an empty line for what is said next.
    pub(super) fn clear(&mut self) {
        if self.drawn.take().is_some() {
            drop(write!(io::stderr().lock(), "\r\x1b[K"));
        }
    }
}

fn line(seen: u64, expected: u64, here: u64, elapsed: Duration) -> String {
    // Records that came meanwhile may make it more than was expected.
    let whole = expected.max(seen).max(1);
    let filled = seen.saturating_mul(WIDTH) / whole;
    let bar: String = (0..WIDTH).map(|at| if at < filled { '#' } else { '-' }).collect();
    let rate = per_second(here, elapsed);
    let left = match rate {
        0 => "…".to_owned(),
        rate => time((whole - seen).div_ceil(rate)),
    };
    let percent = seen.saturating_mul(100) / whole;
    format!(
        "{percent:3} % [{bar}] {} of {} · {}/s · {left} left",
        grouped(seen),
        grouped(whole),
        grouped(rate)
    )
}

/// How many a second, rounded down.
pub(super) fn per_second(count: u64, elapsed: Duration) -> u64 {
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    count.saturating_mul(1_000) / millis
}

/// A number with a gap after every three digits.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

fn time(seconds: u64) -> String {
    match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_it_is_and_how_long_it_takes() {
        let shown = line(5_000, 20_000, 4_000, Duration::from_secs(2));
        let bar = "######------------------";
        assert_eq!(shown, format!(" 25 % [{bar}] 5 000 of 20 000 · 2 000/s · 8 s left"));
        let begun = line(0, 20_000, 0, Duration::ZERO);
        assert!(begun.ends_with("0 of 20 000 · 0/s · … left"), "{begun}");
        let over = line(30, 20, 30, Duration::from_secs(1));
        assert!(over.starts_with("100 %") && over.contains("30 of 30"), "{over}");
        assert!(line(0, 0, 0, Duration::ZERO).contains("0 of 1"), "no division by zero");
        let far = line(1, u64::MAX, 1, Duration::from_secs(1));
        assert!(far.starts_with("  0 %"), "{far}");
    }

    #[test]
    fn numbers_and_times_are_readable() {
        let numbers = [0, 999, 1_000, 1_234_567].map(grouped);
        assert_eq!(numbers, ["0", "999", "1 000", "1 234 567"]);
        assert_eq!([0, 59, 61, 7_260].map(time), ["0 s", "59 s", "1 min 1 s", "2 h 1 min"]);
    }
}
