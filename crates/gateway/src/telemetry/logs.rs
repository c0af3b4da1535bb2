//! Installs the log: lines for people on a terminal, JSON for everybody else.

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::str::FromStr;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use super::json::JsonLines;
pub(crate) use super::sink::Flush;
use super::sink::Sink;

/// How the log looks, and how much of it there is.
#[derive(Clone, Debug)]
pub(crate) struct Logs {
    pub(crate) format: Format,
    /// A level (`info`), or directives as in `info,oncekey::engine=debug`.
    pub(crate) filter: String,
    /// Which instance writes, so that lines of many can lie in one place.
    pub(crate) instance: String,
}

/// What a line looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// Pretty on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// One JSON document a line.
    Json,
    /// For people.
    Pretty,
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogsError {
    /// The filter makes no sense.
    #[error(
        "`{0}` is not a log level: write off, error, warn, info, debug, trace, or directives as in info,oncekey=debug"
    )]
    Filter(String),
    /// The system gives no thread.
    #[error("no thread for the log")]
    Thread(#[from] io::Error),
    /// Somebody was here before.
    #[error("a log is installed already")]
    Installed(#[from] TryInitError),
}

/// Whether a line may have colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Colour {
    On,
    Off,
}

/// Installs the log for the whole process. Lines go to standard error: standard output belongs to
/// what a command was asked for. They are written when what this returns is dropped, at the latest.
pub(crate) fn install(logs: &Logs) -> Result<Flush, LogsError> {
    // Plain targets: filters by the values of spans would be looked at for every request.
    let filter: Result<Targets, _> = logs.filter.parse();
    let filter = filter.map_err(|_| LogsError::Filter(logs.filter.clone()))?;
    let terminal = io::stderr().is_terminal();
    let sink = Sink::start(io::stderr())?;
    let flush = sink.flush_at_end();
    let open = move || sink.clone();
    let registry = tracing_subscriber::registry().with(filter);
    match logs.format.resolved(terminal) {
        Format::Auto | Format::Json => {
            registry.with(JsonLines::new(&logs.instance, open)).try_init()?;
        }
        Format::Pretty => {
            let colour = Colour::wanted(terminal, std::env::var_os("NO_COLOR").as_deref());
            let pretty = tracing_subscriber::fmt::layer()
                .compact()
                .with_target(false)
                .with_ansi(colour == Colour::On)
                .with_writer(open);
            registry.with(pretty).try_init()?;
        }
    }
    Ok(flush)
}

impl Format {
    /// What `Auto` comes to.
    const fn resolved(self, terminal: bool) -> Self {
        match self {
            Self::Auto if terminal => Self::Pretty,
            Self::Auto | Self::Json => Self::Json,
            Self::Pretty => Self::Pretty,
        }
    }

    /// The word for it in configuration.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Json => "json",
            Self::Pretty => "pretty",
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::Auto, Self::Json, Self::Pretty];
        let found = known.into_iter().find(|format| format.label() == text);
        found.ok_or_else(|| "a log is auto, json or pretty".to_owned())
    }
}

impl fmt::Display for Format {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.label())
    }
}

impl Colour {
    /// See no-color.org: any value but the empty one means no.
    fn wanted(terminal: bool, no_color: Option<&std::ffi::OsStr>) -> Self {
        let forbidden = no_color.is_some_and(|value| !value.is_empty());
        if terminal && !forbidden { Self::On } else { Self::Off }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_words_and_a_pipe_gets_json_unless_told_otherwise() {
        assert_eq!(Format::Auto.resolved(true), Format::Pretty);
        assert_eq!(Format::Auto.resolved(false), Format::Json);
        assert_eq!(Format::Json.resolved(true), Format::Json);
        assert_eq!(Format::Pretty.resolved(false), Format::Pretty);
    }

    #[test]
    fn colours_are_for_terminals_whose_owner_did_not_refuse_them() {
        assert_eq!(Colour::wanted(true, None), Colour::On);
        assert_eq!(Colour::wanted(true, Some("".as_ref())), Colour::On);
        assert_eq!(Colour::wanted(true, Some("1".as_ref())), Colour::Off);
        assert_eq!(Colour::wanted(false, None), Colour::Off);
    }

    #[test]
    fn a_format_is_written_as_it_is_read() {
        for format in [Format::Auto, Format::Json, Format::Pretty] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert!("JSON".parse::<Format>().is_err());
    }

    #[test]
    fn a_wrong_level_is_named() {
        let logs = Logs { format: Format::Json, filter: "lood=x=y".into(), instance: "i".into() };
        let error = install(&logs).expect_err("no such level");
        assert!(error.to_string().starts_with("`lood=x=y` is not a log level"), "{error}");
    }
}
