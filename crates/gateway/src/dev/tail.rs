//! A line for each request, as it ends.

use oncekey::problem::moment::rfc3339_millis;

use super::Behind;
use super::screen::{Colour, Tone};
use crate::admin::{Event, Mark};

/// Room for `POST /v1/charges` and some more; longer ones push the rest to the right.
const PLACE: usize = 26;
/// Paths are cut there: nobody reads on, and clients choose them.
const LONGEST: usize = 60;

/// Shows requests and counts them.
#[derive(Debug)]
pub(super) struct Tail {
    behind: Behind,
    seen: u64,
    avoided: u64,
    twice: u64,
}

impl Tail {
    pub(super) const fn new(behind: Behind) -> Self {
        Self { behind, seen: 0, avoided: 0, twice: 0 }
    }

    /// The line of a request.
    pub(super) fn line(&mut self, event: &Event, colour: Colour) -> String {
        self.seen += 1;
        match event.mark {
            Some(Mark::Replayed | Mark::Coalesced) => self.avoided += 1,
            Some(Mark::Duplicate) => self.twice += 1,
            Some(Mark::Hollow | Mark::Repeated) | None => {}
        }
        let moment = rfc3339_millis(event.ts);
        let time = moment.get(11..19).unwrap_or_default();
        let place = format!("{} {}", event.method, shown(&event.path));
        let (status, took) = (event.status, event.duration.as_millis());
        let key = event.key_hash.map_or_else(
            || "no key".to_owned(),
            |id| format!("key {}", id.to_string().get(..8).unwrap_or_default()),
        );
        let (tone, words) = self.words(event);
        let words = colour.paint(tone, &words);
        let line = format!("  {time}  {place:PLACE$}  {status}  {took:>5} ms  {key:12}  {words}");
        format!("{}\n", line.trim_end())
    }

    /// What is said at the end.
    pub(super) fn sum(&self) -> String {
        let Self { behind, seen, avoided, twice } = self;
        let what = behind.thing();
        let twice = match twice {
            0 => String::new(),
            twice => format!(", {twice} ran twice"),
        };
        let of = |count: u64, thing: &str| match count {
            1 => format!("1 {thing}"),
            count => format!("{count} {thing}s"),
        };
        let (seen, avoided) = (of(*seen, "request"), of(*avoided, &format!("second {what}")));
        format!("\n  {seen}, {avoided} avoided{twice}.\n")
    }

    fn words(&self, event: &Event) -> (Tone, String) {
        let what = self.behind.thing();
        let (tone, words) = match event.mark {
            Some(Mark::Replayed) => {
                return (Tone::Good, format!("replayed, second {what} avoided"));
            }
            Some(Mark::Coalesced) => {
                return (Tone::Good, format!("waited for the first, second {what} avoided"));
            }
            Some(Mark::Duplicate) => (Tone::Bad, "DUPLICATE, ran twice"),
            Some(Mark::Hollow) => (Tone::Bad, "HOLLOW, same body under a new key"),
            Some(Mark::Repeated) => (Tone::Bad, "looks like a repeat: same body, no key"),
            None => said_of(event.outcome),
        };
        (tone, words.to_owned())
    }
}

/// Words for an outcome that has no mark.
fn said_of(outcome: &str) -> (Tone, &'static str) {
    match outcome {
        "executed" | "would_executed" => (Tone::Plain, "first time"),
        "mismatch" => (Tone::Odd, "key used for another body"),
        "would_mismatch" => (Tone::Odd, "key used for another body, would be refused"),
        "in_progress" => (Tone::Odd, "the first is still running"),
        "missing_key" => (Tone::Odd, "refused, a key is required"),
        "invalid_key" | "would_invalid_key" => (Tone::Odd, "this is no key"),
        "invalid_request" => (Tone::Odd, "refused, nothing was done"),
        "unknown" => (Tone::Odd, "nobody knows whether it ran"),
        "not_retained" => (Tone::Good, "it ran, its answer was not kept"),
        "unprotected" | "would_unprotected" => (Tone::Odd, "could not be protected"),
        "store_unavailable" => (Tone::Bad, "the store does not answer, nothing was done"),
        // A request that needs no key, or one without: the column before says it.
        _ => (Tone::Plain, ""),
    }
}

/// The line for events that came too fast.
pub(super) fn missed(events: u64) -> String {
    format!("  … {events} more that came too fast to show\n")
}

impl Behind {
    /// What is avoided.
    const fn thing(self) -> &'static str {
        match self {
            Self::Demo => "charge",
            Self::Upstream => "run",
        }
    }
}

/// A path that does nothing to a terminal.
fn shown(path: &str) -> String {
    let safe = |letter: char| if letter.is_control() { '?' } else { letter };
    let mut text: String = path.chars().take(LONGEST).map(safe).collect();
    if path.chars().count() > LONGEST {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oncekey::core::{KeyId, Timestamp};

    use super::*;

    fn event(outcome: &'static str, mark: Option<Mark>) -> Event {
        Event {
            // 12:04:11 on some day.
            ts: Timestamp::from_micros((20_000 * 86_400 + 43_451) * 1_000_000),
            method: "POST",
            route: "all".into(),
            path: "/v1/charges".into(),
            status: 201,
            outcome,
            duration: Duration::from_micros(38_400),
            key_hash: Some(KeyId::from_bytes([0xab; 32])),
            mark,
        }
    }

    #[test]
    fn a_line_says_what_happened() {
        let mut tail = Tail::new(Behind::Demo);
        for (outcome, mark, expected) in [
            ("executed", None, "first time"),
            ("replayed", Some(Mark::Replayed), "replayed, second charge avoided"),
            ("coalesced", Some(Mark::Coalesced), "waited for the first, second charge avoided"),
            ("would_replayed", Some(Mark::Duplicate), "DUPLICATE, ran twice"),
            ("mismatch", None, "key used for another body"),
        ] {
            let line = tail.line(&event(outcome, mark), Colour::Off);
            let start = "  12:04:11  POST /v1/charges            201     38 ms  key abababab  ";
            assert_eq!(line, format!("{start}{expected}\n"));
        }
        let sum = tail.sum();
        assert!(sum.contains("5 requests, 2 second charges avoided, 1 ran twice"), "{sum}");
    }

    #[test]
    fn the_reference_has_every_line() {
        let page = include_str!("../../../../docs/reference/cli.md");
        let (_, rest) = page.split_once("| the line says |").expect("the table");
        let (table, _) = rest.split_once("\n\n").expect("its end");
        let plain = [
            "executed",
            "mismatch",
            "would_mismatch",
            "in_progress",
            "missing_key",
            "invalid_key",
            "invalid_request",
            "unknown",
            "not_retained",
            "unprotected",
            "store_unavailable",
        ];
        let tail = Tail::new(Behind::Upstream);
        let plain = plain.map(|outcome| tail.words(&event(outcome, None)).1);
        let marks =
            [Mark::Replayed, Mark::Coalesced, Mark::Duplicate, Mark::Hollow, Mark::Repeated];
        let marked = marks.map(|mark| tail.words(&event("executed", Some(mark))).1);
        for words in plain.iter().chain(&marked) {
            assert!(!words.is_empty() && table.contains(&format!("| `{words}` |")), "{words}");
        }
        assert!(table.contains("| `no key`"), "the column before");
    }

    #[test]
    fn one_is_not_many() {
        let mut tail = Tail::new(Behind::Demo);
        assert_eq!(tail.sum(), "\n  0 requests, 0 second charges avoided.\n");
        tail.line(&event("replayed", Some(Mark::Replayed)), Colour::Off);
        assert_eq!(tail.sum(), "\n  1 request, 1 second charge avoided.\n");
    }

    #[test]
    fn a_path_does_nothing_to_a_terminal() {
        assert_eq!(shown("/a\u{1b}[2J\u{9b}b"), "/a?[2J?b");
        assert_eq!(shown(&"/".repeat(1_000)).chars().count(), LONGEST + 1);
    }
}
