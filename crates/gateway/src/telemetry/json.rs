//! One JSON document for each log line, with names that stay the same.
//!
//! The JSON of tracing-subscriber nests fields and spans, and names them its own way. Here a line
//! is flat: what is known about the request stands beside what happened, under the names of
//! `docs/reference/logs.md`, so that a query needs no knowledge of our spans.

use std::cell::Cell;
use std::io::Write;

use oncekey::clock::SystemClock;
use oncekey::core::{Clock as _, Timestamp};
use oncekey::problem::moment::rfc3339;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::fields::{Fields, push_name, push_text};

/// A layer that writes JSON lines to what `open` gives.
///
/// A line is written as a whole or, if the writer is gone, not at all: a log that cannot be written
/// must not stop a payment.
pub(super) struct JsonLines<O> {
    instance: String,
    open: O,
}

/// What a thread uses again for its next line.
#[derive(Default)]
struct Desk {
    line: Vec<u8>,
    /// Names that stand in the line.
    said: Vec<&'static str>,
    /// The last second, and how it is written.
    second: (i64, String),
}

thread_local! {
    static DESK: Cell<Option<Box<Desk>>> = const { Cell::new(None) };
}

impl<O> JsonLines<O> {
    pub(super) fn new(instance: &str, open: O) -> Self {
        Self { instance: instance.to_owned(), open }
    }
}

impl<O, W, S> Layer<S> for JsonLines<O>
where
    O: Fn() -> W + 'static,
    W: Write,
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::none();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            record.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut own = Fields::none();
        event.record(&mut own);
        let metadata = event.metadata();
        // Taken and not borrowed: whoever is asked for its fields may log something itself.
        let mut desk = DESK.try_with(Cell::take).ok().flatten().unwrap_or_default();
        desk.line.clear();
        desk.said.clear();
        // Put together here and not by `serde_json`, whose map would sort the members: people read
        // `ts` and `msg` first.
        desk.date(SystemClock.now());
        let Desk { line, said, .. } = &mut *desk;
        push_member(line, "level", word(*metadata.level()));
        push_name(line, "msg");
        push_message(line, own.message());
        push_member(line, "instance", &self.instance);
        push_member(line, "target", metadata.target());
        own.push_into(line, said);
        // The event knows better than the spans around it, and the inner span than the outer.
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(known) = span.extensions().get::<Fields>() {
                known.push_into(line, said);
            }
        }
        line.extend_from_slice(b"}\n");
        // Nobody reads a log that cannot be written.
        drop((self.open)().write_all(line));
        DESK.try_with(|kept| kept.set(Some(desk))).ok();
    }
}

fn push_member(line: &mut Vec<u8>, name: &'static str, text: &str) {
    push_name(line, name);
    push_text(line, text);
}

impl Desk {
    /// Begins a line with the time. Of a thousand lines of a second, one works out its date.
    fn date(&mut self, now: Timestamp) {
        let second = now.micros().div_euclid(1_000_000);
        if self.second.1.is_empty() || self.second.0 != second {
            let mut text = rfc3339(now);
            // Without the letter behind it.
            text.pop();
            self.second = (second, text);
        }
        let millis = now.micros().rem_euclid(1_000_000) / 1_000;
        self.line.extend_from_slice(b"{\"ts\":\"");
        self.line.extend_from_slice(self.second.1.as_bytes());
        // By hand, because the formatter of the standard library takes longer than the rest of the date.
        let digit = |place: i64| b'0' + u8::try_from(millis / place % 10).unwrap_or_default();
        self.line.extend_from_slice(&[b'.', digit(100), digit(10), digit(1), b'Z', b'"']);
    }
}

/// The words of an event are a text, whatever was given for them.
fn push_message(line: &mut Vec<u8>, message: Option<&[u8]>) {
    match message {
        Some(text @ [b'"', ..]) => line.extend_from_slice(text),
        Some(other) => {
            line.push(b'"');
            line.extend_from_slice(other);
            line.push(b'"');
        }
        None => line.extend_from_slice(b"\"\""),
    }
}

const fn word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::super::fields::{MAX_TEXT, PREFIX};
    use super::super::paper::Paper;
    use super::*;

    fn read(line: &str) -> Value {
        serde_json::from_str(line).expect("a JSON document")
    }

    fn logged(say: impl FnOnce()) -> String {
        let paper = Paper::default();
        let out = paper.clone();
        let layer = JsonLines::new("node-1", move || out.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), say);
        String::from_utf8(paper.bytes()).unwrap()
    }

    #[test]
    fn a_line_begins_with_when_how_bad_and_what() {
        let line = logged(|| tracing::warn!(fence = 7, "claim lost"));
        assert!(line.starts_with("{\"ts\":\"20"), "{line}");
        assert!(
            line.contains("Z\",\"level\":\"warn\",\"msg\":\"claim lost\",\"instance\":\"node-1\"")
        );
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(read(&line)["fence"], 7);
    }

    #[test]
    fn a_moment_is_written_to_the_millisecond() {
        let mut desk = Desk::default();
        for (micros, written) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (7_999, "1970-01-01T00:00:00.007Z"),
            (1_090_000, "1970-01-01T00:00:01.090Z"),
            (1_999_999, "1970-01-01T00:00:01.999Z"),
        ] {
            desk.line.clear();
            desk.date(Timestamp::from_micros(micros));
            assert_eq!(desk.line, format!("{{\"ts\":\"{written}\"").into_bytes());
        }
    }

    #[test]
    fn what_the_span_of_a_request_knows_stands_in_every_line_about_it() {
        let line = logged(|| {
            let span = tracing::info_span!(
                "idempotency",
                idempotency.route = "create-charge",
                idempotency.outcome = tracing::field::Empty,
                http.request.method = "POST",
            );
            span.record("idempotency.outcome", "coalesced");
            span.in_scope(|| {
                tracing::info!(duration_ms = 1.5, replayed = true, "duplicate stopped")
            });
        });
        let line = read(&line);
        assert_eq!(line["route"], "create-charge");
        assert_eq!(line["outcome"], "coalesced");
        assert_eq!(line["http.request.method"], "POST");
        assert_eq!(line["duration_ms"], 1.5);
        assert_eq!(line["replayed"], true);
    }

    #[test]
    fn an_event_knows_better_than_its_span_and_says_everything_once() {
        let line = logged(|| {
            let outer = tracing::info_span!("outer", a = 1, b = 1, c = 1);
            let inner = outer.in_scope(|| tracing::info_span!("inner", b = 2, c = 2));
            inner.in_scope(|| tracing::info!(c = 3, "x"));
        });
        for name in ["a", "b", "c"] {
            assert_eq!(line.matches(&format!("\"{name}\":")).count(), 1, "{line}");
        }
        let line = read(&line);
        assert_eq!((&line["a"], &line["b"], &line["c"]), (&1.into(), &2.into(), &3.into()));
    }

    #[test]
    fn a_field_that_is_recorded_again_has_its_last_value() {
        let line = logged(|| {
            let span = tracing::info_span!("s", outcome = "first");
            span.record("outcome", "second");
            span.in_scope(|| tracing::info!("x"));
        });
        assert_eq!(read(&line)["outcome"], "second");
        assert_eq!(line.matches("outcome").count(), 1, "{line}");
    }

    /// A line break or a quote in a text cannot forge a second line or another member.
    #[test]
    fn nothing_that_is_logged_can_forge_a_line() {
        let line = logged(|| {
            tracing::info!(error = "x\"}\n{\"level\":\"error\"", level = "fatal", "a\nb\u{1b}[2J");
        });
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        assert!(!line.contains('\u{1b}'), "{line}");
        let line = read(&line);
        assert_eq!(line["level"], "info");
        assert_eq!(line["field.level"], "fatal");
        assert_eq!(line["msg"], "a\nb\u{1b}[2J");
    }

    #[test]
    fn a_long_text_is_cut() {
        let line = logged(|| tracing::info!(error = "é".repeat(10_000), "x"));
        assert_eq!(read(&line)["error"].as_str().unwrap().chars().count(), MAX_TEXT + 1);
    }

    /// The names in the first column of the table after a heading.
    fn listed(heading: &str) -> Vec<String> {
        let page = include_str!("../../../../docs/reference/logs.md");
        let (_, rest) = page.split_once(&format!("\n## {heading}\n")).expect(heading);
        let rows = rest.lines().skip_while(|line| !line.starts_with("| `"));
        rows.take_while(|line| line.starts_with("| `"))
            .filter_map(|line| line.trim_matches('|').split(" | ").next())
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn the_reference_lists_the_members_of_a_line() {
        let line = logged(|| tracing::info!("x"));
        let names: Vec<&str> = line.split('"').skip(1).step_by(4).collect();
        assert_eq!(listed("Members of every line"), names);
        let visit = include_str!("../../../oncekey/src/layer/visit.rs");
        let (_, span) = visit.split_once("info_span!(").expect("a span");
        let (span, _) = span.split_once(");").expect("the end of the span");
        let known = listed("Members about a request");
        for field in span.lines().filter_map(|line| line.trim().split_once(" = ")) {
            let name = field.0.strip_prefix(PREFIX).expect("our prefix").to_owned();
            assert!(known.contains(&name), "{name}");
        }
    }
}
