//! What was logged as a warning or worse.

use std::fmt;
use std::sync::{Mutex, OnceLock};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static LINES: OnceLock<Mutex<Vec<String>>> = OnceLock::new();

struct Log;

/// Begins to listen.
pub(crate) fn listen() {
    if LINES.set(Mutex::default()).is_ok() {
        tracing::subscriber::set_global_default(Log).unwrap();
    }
}

/// How many lines say this.
pub(crate) fn count(text: &str) -> usize {
    let lines = LINES.get().unwrap().lock().unwrap();
    lines.iter().filter(|line| line.contains(text)).count()
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.0.insert_str(0, &format!("{value:?}")),
            name => self.0.push_str(&format!(" {name}={value:?}")),
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        if std::env::var_os("ONCEKEY_STALE_LOG").is_some() {
            eprintln!("{} {}", event.metadata().level(), text.0);
        }
        LINES.get().unwrap().lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
