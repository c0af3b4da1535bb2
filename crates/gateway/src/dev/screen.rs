//! The terminal of the developer.

use std::io::{self, IsTerminal as _, Write as _};

/// Where the tail is shown.
#[derive(Debug)]
pub(super) struct Screen {
    out: io::Stdout,
    pub(super) colour: Colour,
}

/// Whether lines may have colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    On,
    Off,
}

/// What a colour means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    /// Nothing to see.
    Plain,
    /// A second run was avoided.
    Good,
    /// Something ran twice.
    Bad,
    /// A request was refused.
    Odd,
}

impl Screen {
    /// Standard output, which is what the command was asked for.
    pub(super) fn of_process() -> Self {
        let out = io::stdout();
        let no_color = std::env::var_os("NO_COLOR");
        let colour = Colour::wanted(out.is_terminal(), no_color.as_deref());
        Self { out, colour }
    }

    /// Shows a text at once.
    ///
    /// # Errors
    /// If nobody reads any more.
    pub(super) fn say(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

impl Colour {
    /// See no-color.org: any value but the empty one means no.
    fn wanted(terminal: bool, no_color: Option<&std::ffi::OsStr>) -> Self {
        let forbidden = no_color.is_some_and(|value| !value.is_empty());
        if terminal && !forbidden { Self::On } else { Self::Off }
    }

    /// The text in its colour.
    pub(super) fn paint(self, tone: Tone, text: &str) -> String {
        let code = match (self, tone) {
            (Self::Off, _) | (_, Tone::Plain) => return text.to_owned(),
            (Self::On, Tone::Good) => "32",
            (Self::On, Tone::Bad) => "1;31",
            (Self::On, Tone::Odd) => "33",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_whose_owner_did_not_refuse_them() {
        assert_eq!(Colour::wanted(true, None), Colour::On);
        assert_eq!(Colour::wanted(true, Some("".as_ref())), Colour::On);
        assert_eq!(Colour::wanted(true, Some("1".as_ref())), Colour::Off);
        assert_eq!(Colour::wanted(false, None), Colour::Off);
        assert_eq!(Colour::Off.paint(Tone::Bad, "x"), "x");
        assert_eq!(Colour::On.paint(Tone::Bad, "x"), "\u{1b}[1;31mx\u{1b}[0m");
    }
}
