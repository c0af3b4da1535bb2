//! How the program ends: a number for scripts, and words for people.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use oncekey::core::{ErrorKind, StoreError};

/// It was tried and did not work.
pub(crate) const FAILURE: u8 = 1;
/// A configuration is wrong.
pub(crate) const INVALID: u8 = 3;
/// A store could not be reached. Later it may.
pub(crate) const UNREACHABLE: u8 = 4;
/// There are warnings, and `--strict` was asked for.
pub(crate) const WARNINGS: u8 = 6;
/// Refused because it would not be safe now.
pub(crate) const REFUSED: u8 = 7;
/// Whoever asks may not.
pub(crate) const DENIED: u8 = 8;
/// `EX_USAGE` of sysexits.h: the command line is wrong, and running it again will not help.
pub(crate) const USAGE: u8 = 64;

/// An end that is not a good one.
#[derive(Debug)]
#[must_use]
pub(crate) struct Exit {
    code: u8,
    /// What is printed to standard error, as it is.
    text: String,
}

impl Exit {
    /// Says what is wrong and what to do, in lower case.
    pub(crate) fn new(code: u8, message: &str) -> Self {
        Self { code, text: format!("error: {message}\n") }
    }

    /// Everything has been said.
    pub(crate) const fn silent(code: u8) -> Self {
        Self { code, text: String::new() }
    }

    /// With words of somebody else's.
    pub(crate) const fn verbatim(code: u8, text: String) -> Self {
        Self { code, text }
    }

    /// An error of a store, and what lies behind it.
    pub(crate) fn of_store(about: &str, error: &StoreError) -> Self {
        Self::chain(code_of(error), &format!("{about}: {error}"), error.source())
    }

    /// A message and everything that led to it.
    pub(crate) fn chain(
        code: u8,
        message: &str,
        mut cause: Option<&(dyn Error + 'static)>,
    ) -> Self {
        let mut text = format!("error: {message}\n");
        while let Some(error) = cause {
            text.push_str(&format!("  because: {error}\n"));
            cause = error.source();
        }
        Self { code, text }
    }

    /// What would be printed.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The number.
    #[cfg(test)]
    pub(crate) const fn code(&self) -> u8 {
        self.code
    }

    /// Says it and gives the number.
    pub(crate) fn end(self) -> ExitCode {
        // If standard error is gone, the number is all that is left to say.
        drop(io::stderr().lock().write_all(self.text.as_bytes()));
        ExitCode::from(self.code)
    }
}

/// What a script can do about an error of a store.
pub(crate) fn code_of(error: &StoreError) -> u8 {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Ambiguous => UNREACHABLE,
        ErrorKind::Rejected => USAGE,
        ErrorKind::Corrupt | ErrorKind::Unsuitable | _ => FAILURE,
    }
}
