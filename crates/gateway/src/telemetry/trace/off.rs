//! A program without traces.

use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};

use crate::config::Config;
use crate::exit::{self, Exit};
use crate::route::Route;

/// Traces nothing.
#[derive(Clone, Debug)]
pub(crate) struct Tracer;

/// No span of a request.
#[derive(Debug)]
pub(crate) struct Serving;

/// No span of a call.
#[derive(Debug)]
pub(crate) struct Calling;

const MISSING: &str = "telemetry.otlp needs a program that was built with it: \
                       cargo build --release -p oncekey-gateway --features otlp; or leave it out of \
                       the configuration";

impl Tracer {
    /// Refuses what this program cannot do, instead of quietly not doing it.
    pub(crate) fn check(config: &Config) -> Result<(), Exit> {
        match config.telemetry.otlp {
            Some(_) => Err(Exit::new(exit::INVALID, MISSING)),
            None => Ok(()),
        }
    }

    pub(crate) fn start(config: &Config) -> Result<Self, Exit> {
        Self::check(config).map(|()| Self)
    }

    #[expect(clippy::unused_self, reason = "as the one that traces")]
    pub(crate) fn request(&self, _: &mut Parts, _: Option<&Route>) -> Serving {
        Serving
    }

    #[expect(clippy::unused_self, reason = "as the one that traces")]
    pub(crate) fn upstream(&self, _: &mut HeaderMap) -> Calling {
        Calling
    }

    #[expect(clippy::unused_async, reason = "as the one that traces")]
    pub(crate) async fn flush(&self, _: Duration) {}
}

impl Serving {
    #[expect(clippy::unused_self, reason = "as the one that traces")]
    pub(crate) const fn is_on(&self) -> bool {
        false
    }

    #[expect(clippy::unused_self, reason = "as the one that traces")]
    pub(crate) fn answered<B>(&mut self, _: &Response<B>) {}

    #[expect(clippy::unused_self, reason = "as the one that traces")]
    pub(crate) fn end(self) {}
}

impl Calling {
    #[expect(clippy::unused_self, reason = "as the one that traces")]
    pub(crate) fn ended(self, _: Option<StatusCode>) {}
}
