//! What is said at the start: what is where, and what to try.

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::{Behind, tries};

/// What is known when the gateway serves.
#[derive(Debug)]
pub(super) struct Banner<'a> {
    pub(super) behind: Behind,
    pub(super) listen: &'a str,
    pub(super) admin: SocketAddr,
    pub(super) upstream: String,
    pub(super) mode: &'a str,
}

/// Whether a key holds what it promises in a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    Promise,
    Nothing,
}

impl Keeps {
    fn of(mode: &str) -> Self {
        match mode {
            "off" | "observe" => Self::Nothing,
            _ => Self::Promise,
        }
    }
}

impl Banner<'_> {
    /// All of it, with an empty line at the end.
    pub(super) fn text(&self) -> String {
        let Self { behind, listen, admin, upstream, mode } = self;
        let version = env!("CARGO_PKG_VERSION");
        let gateway = match listen.strip_prefix("http") {
            Some(_) => (*listen).to_owned(),
            None => format!("http://{listen}"),
        };
        let upstream = match upstream.strip_prefix(':') {
            Some(port) => format!("http://127.0.0.1:{port}"),
            None => upstream.clone(),
        };
        let toy = if *behind == Behind::Demo { " (a toy payment API)" } else { "" };
        let meaning = match *mode {
            "off" => "off: requests pass, and nobody looks",
            "observe" => {
                "observe: requests and answers pass unchanged, duplicates are only pointed out"
            }
            "required" => "required: POST and PATCH need a key, and run once for each",
            _ => "optional: POST and PATCH with a key run once for each",
        };
        let mut text = format!(
            "\n  oncekey {version}\n  \
             gateway  {gateway}  →  {upstream}{toy}\n  \
             admin    http://{admin}\n  \
             store    temporary SQLite, removed at the end\n  \
             mode     {meaning}\n\n"
        );
        match behind {
            Behind::Demo => {
                text.push_str("  Try these in another terminal:\n");
                for (number, one) in (1..).zip(tries::all(&gateway, Keeps::of(mode))) {
                    // Writing to a text cannot fail.
                    let _ = write!(text, "\n  {number}. {}\n     {}\n", one.about, one.command);
                }
                text.push('\n');
            }
            Behind::Upstream => {
                text.push_str("  Send the requests of your clients to the gateway.\n");
            }
        }
        text.push_str("  Ctrl-C ends it. Times are UTC, and a key is shown by its digest.\n\n");
        text
    }
}
