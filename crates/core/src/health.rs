//! How a store is set up, and what that means for its promises.
//!
//! A store looks at its server when it is opened and refuses to work if a promise cannot be kept.
//! What it found then, and what it finds when it is asked again, is a [`StoreHealth`]: for
//! `doctor`, for health checks and for the dashboard.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::store::{Store, StoreError};

/// A store that can say how it is set up.
#[async_trait]
pub trait Inspect: Store {
    /// Looks at the store as it is now. Reads only.
    ///
    /// # Errors
    /// Only if the store cannot be asked. What is wrong with it is a [`Finding`], not an error.
    async fn inspect(&self) -> Result<StoreHealth, StoreError>;
}

/// What a look at a store found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreHealth {
    /// What it is, with its version: `PostgreSQL 15.18`.
    pub name: String,
    /// What an acknowledged write survives with the settings that were found.
    pub tier: Tier,
    /// Every check that was made, in a fixed order, the good ones included.
    pub findings: Vec<Finding>,
    /// How far the store's clock is from this machine's, if it has one of its own.
    pub skew: Option<Skew>,
}

/// What an acknowledged write survives. From strong to weak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Process death, power loss and the loss of the node that acknowledged it.
    Replicated,
    /// Process death and power loss.
    Durable,
    /// Process death. Power loss or a failover may take back what was acknowledged.
    Process,
    /// Nothing: a restart forgets.
    Volatile,
}

/// One check and what came of it. Its texts never hold a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at, as a stable name in kebab case: documentation has an anchor for it.
    pub check: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// What was found, and what to do if it is not good, as one sentence in lower case.
    pub text: String,
}

/// How bad a finding is. From good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Works, with less than the full promise; the text says what is missing.
    Degraded,
    /// The store refuses to work like this.
    Refused,
}

/// A difference between two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skew {
    /// The store's clock is ahead by so much.
    Ahead(Duration),
    /// The store's clock is behind by so much.
    Behind(Duration),
}

impl StoreHealth {
    /// The worst verdict.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Good)
    }

    /// The findings that are not good.
    pub fn complaints(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.verdict != Verdict::Good)
    }
}

impl Finding {
    /// A check that found what it should.
    pub fn good(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Good, text: text.into() }
    }

    /// A check that found less than it should.
    pub fn degraded(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Degraded, text: text.into() }
    }

    /// A check that found what the store refuses to work with.
    pub fn refused(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Refused, text: text.into() }
    }
}

impl Tier {
    /// The word for it in logs and metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Replicated => "replicated",
            Self::Durable => "durable",
            Self::Process => "process",
            Self::Volatile => "volatile",
        }
    }
}

impl Verdict {
    /// The word for it in logs and metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Degraded => "degraded",
            Self::Refused => "refused",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({}): {}", self.check, self.verdict.label(), self.text)
    }
}
