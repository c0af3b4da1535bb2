//! Why a flow stops before its end, and what becomes of it then.

use std::time::Duration;

use super::reply::Reply;
use super::store::{TxError, TxTrouble};

/// What ends an attempt of a flow. Use `?` to pass it on.
///
/// Retryable, final and unknown are three different things, and nothing is taken for one of them
/// that was not said to be it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Halt {
    /// Not now: nothing more is recorded, the lease is given back, and the flow goes on later.
    #[error("the flow goes on later: {why}")]
    Retry {
        /// When; `None` leaves it to the backoff of the flow.
        after: Option<Duration>,
        /// Why, for people. No personal data: it is stored and shown.
        why: String,
    },
    /// The end, with a reply that is stored. A declined card is a reply. What was done before is
    /// compensated, as far as it has been registered and unless the pivot was passed.
    #[error("the flow ends with status {}", .0.status())]
    Stop(Reply),
    /// A person has to look.
    #[error("the flow waits for a person: {0}")]
    Park(String),
    /// Somebody else has taken the flow over. Nothing was committed.
    #[error("another attempt has taken the flow over")]
    Fenced,
    /// The code is not the one that took the recorded steps.
    #[error("the code does not fit what the flow has done before: {0}")]
    Drift(Drift),
    /// A machine sleeps until its time has come. That is committed already.
    #[error("the flow sleeps")]
    Asleep {
        /// How long.
        after: Duration,
    },
    /// The database refused.
    #[error("the database refused")]
    Store(#[source] TxError),
}

/// How the code of a flow differs from the code that began it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Drift {
    /// A recorded output cannot be read as the type that is asked for.
    #[error("the output of step {step} was recorded as {stored} and is wanted as {wanted}")]
    Shape {
        /// The step.
        step: String,
        /// What was recorded.
        stored: String,
        /// What the code wants.
        wanted: String,
    },
    /// A step was taken with other arguments.
    #[error("step {step} was taken with other arguments")]
    Arguments {
        /// The step.
        step: String,
    },
    /// A step of this name was taken, and it was of another kind.
    #[error("step {step} was recorded as another kind of step")]
    Kind {
        /// The step.
        step: String,
    },
    /// Recorded steps that the code no longer takes.
    #[error("recorded steps were not taken again: {}", .steps.join(", "))]
    Unvisited {
        /// The steps.
        steps: Vec<String>,
    },
    /// One name for two steps: the second would be given the output of the first.
    #[error("step {step} is taken twice: name it apart, or use Step::item")]
    Reused {
        /// The step.
        step: String,
    },
    /// A name that is empty or longer than 255 bytes.
    #[error("the name of a step is empty or longer than 255 bytes")]
    Name,
    /// The stored input cannot be read.
    #[error("the stored input cannot be read as {wanted}")]
    Input {
        /// What the code wants.
        wanted: String,
    },
    /// A rehearsal has come to a step that the history does not have.
    #[error("the history ends before step {step}")]
    Ends {
        /// The step.
        step: String,
    },
}

impl Halt {
    /// Not now, because of this.
    pub fn retry(why: impl Into<String>) -> Self {
        Self::Retry { after: None, why: why.into() }
    }

    /// A person has to look, because of this.
    pub fn park(why: impl Into<String>) -> Self {
        Self::Park(why.into())
    }
}

impl From<TxError> for Halt {
    fn from(error: TxError) -> Self {
        match error.kind() {
            // A moment later the other transaction is gone.
            TxTrouble::Conflict => {
                Self::Retry { after: Some(Duration::from_millis(20)), why: error.to_string() }
            }
            TxTrouble::Unavailable => Self::retry(error.to_string()),
            TxTrouble::Duplicate | TxTrouble::Refused | TxTrouble::Damaged => Self::Store(error),
        }
    }
}

/// The application's own statements: a conflict or a lost connection goes on later, anything else is
/// a mistake that is counted and in the end parked.
impl From<sqlx::Error> for Halt {
    fn from(error: sqlx::Error) -> Self {
        Self::from(super::sqlx::trouble_of(error))
    }
}

impl From<Drift> for Halt {
    fn from(drift: Drift) -> Self {
        Self::Drift(drift)
    }
}
