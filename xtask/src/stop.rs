//! A flag that asks running work to end soon.
//!
//! One is raised by Ctrl-C or a termination signal; the servers have one of their own, which is
//! raised when they are no longer needed. Work polls the flag, because that way every ending
//! takes the ordinary path through destructors: servers stop and folders vanish.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};

/// A shared flag; clones are the same flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A flag that Ctrl-C, SIGTERM and SIGHUP raise. Call this once per process.
    pub(crate) fn on_signals() -> Result<Self> {
        let stop = Self::default();
        let raised = stop.clone();
        ctrlc::set_handler(move || raised.raise()).context("cannot watch for Ctrl-C")?;
        Ok(stop)
    }

    pub(crate) fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Turns a raised flag into an error, so that `?` unwinds the work.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_raised() { Err(Interrupted.into()) } else { Ok(()) }
    }
}

/// The error of work that ended because its flag was raised.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}
