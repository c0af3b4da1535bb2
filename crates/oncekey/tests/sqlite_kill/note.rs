//! What the child tells the parent about an attempt, a line each: what it is about to ask for, and
//! what it was told, after it was told.

use std::fmt;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) key: u64,
    pub(crate) attempt: u64,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Is about to ask for this.
    Asks(Step),
    /// Owns the key under this fence.
    Won(i64),
    /// Does not own the key.
    Lost,
    /// Was given an answer of this owner with this outcome, both in hexadecimal digits.
    Replayed { owner: String, outcome: String },
    /// This took effect.
    Applied(Step),
    /// This did not.
    Fenced(Step),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Claim,
    Send,
    Complete,
    Release,
    Unknown,
}

impl Step {
    const ALL: [Self; 5] = [Self::Claim, Self::Send, Self::Complete, Self::Release, Self::Unknown];

    const fn label(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Send => "send",
            Self::Complete => "complete",
            Self::Release => "release",
            Self::Unknown => "unknown",
        }
    }

    fn read(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.label() == label)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, attempt, what } = self;
        write!(out, "{key} {attempt} ")?;
        match what {
            What::Asks(step) => write!(out, "asks {}", step.label()),
            What::Won(fence) => write!(out, "won {fence}"),
            What::Lost => write!(out, "lost -"),
            What::Replayed { owner, outcome } => write!(out, "replayed {owner}:{outcome}"),
            What::Applied(step) => write!(out, "applied {}", step.label()),
            What::Fenced(step) => write!(out, "fenced {}", step.label()),
        }
    }
}

impl Note {
    pub(crate) fn read(line: &str) -> Option<Self> {
        let [key, attempt, verb, detail] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let what = match verb {
            "asks" => What::Asks(Step::read(detail)?),
            "won" => What::Won(detail.parse().ok()?),
            "lost" => What::Lost,
            "replayed" => {
                let (owner, outcome) = detail.split_once(':')?;
                What::Replayed { owner: owner.to_owned(), outcome: outcome.to_owned() }
            }
            "applied" => What::Applied(Step::read(detail)?),
            "fenced" => What::Fenced(Step::read(detail)?),
            _ => return None,
        };
        Some(Self { key: key.parse().ok()?, attempt: attempt.parse().ok()?, what })
    }
}
