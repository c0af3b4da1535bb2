//! What the engine's refusals say to a client.

use std::borrow::Cow;
use std::time::Duration;

use oncekey_core::saved::NotKept;

use crate::engine::{Refused, Unavailable};
use crate::problem::{Code, Problem};

/// The texts of refusals. `Accepted` has none of its own: where there is no status URL to point
/// to, it is a request in progress like any other.
impl From<&Refused> for Problem {
    fn from(refused: &Refused) -> Self {
        match refused {
            Refused::Mismatch { differs, original, first_used } => {
                let mut problem = Self::new(Code::KeyReused, reused(differs))
                    .about(original)
                    .hint("Use a new key for a new operation, and the same key only for retries.");
                problem.differs.clone_from(differs);
                problem.first_used = Some(*first_used);
                problem
            }
            Refused::InProgress { retry_after, waited, original } => {
                in_progress(*waited, original.as_deref()).after(*retry_after)
            }
            Refused::Accepted { retry_after, original } => {
                in_progress(Duration::ZERO, original.as_deref()).after(*retry_after)
            }
            Refused::Unknown { original } => Self::new(
                Code::OutcomeUnknown,
                "The first request with this key may have been executed, and nobody knows yet. \
                 It is not executed again until that has been found out.",
            )
            .about(original)
            .hint("Contact support with the id in original_request. Do not try with a new key."),
            Refused::NotRetained { status, reason, original } => {
                let mut problem =
                    Self::new(Code::ResponseNotRetained, not_kept(*reason)).about(original);
                problem.original_status = *status;
                problem
            }
            Refused::Expired { original } => Self::new(
                Code::KeyTooOld,
                "The request with this key was executed, so long ago that its answer is gone. \
                 It was not executed again.",
            )
            .about(original)
            .hint("Look up what became of the operation before you try with a new key."),
            Refused::Parked { original } => Self::new(
                Code::Parked,
                "The request with this key cannot go on by itself and waits for a person.",
            )
            .about(original)
            .hint("Contact support with the id in original_request. Do not try with a new key."),
            Refused::Unavailable { why, retry_after } => {
                Self::new(Code::StoreUnavailable, unavailable(*why)).after(*retry_after)
            }
            Refused::Damaged => Self::new(
                Code::RecordDamaged,
                "What is stored for this key cannot be trusted, so the request was neither \
                 executed nor answered from it.",
            )
            .hint("Contact support with the id in request_id."),
        }
    }
}

fn reused(differs: &[String]) -> &'static str {
    match differs {
        [] => "The first request with this key was a different one. This request was not executed.",
        [_, ..] => {
            "The first request with this key was a different one; the member differs names the \
             places. This request was not executed."
        }
    }
}

fn in_progress(waited: Duration, original: Option<&str>) -> Problem {
    let detail: Cow<_> = if waited < Duration::from_secs(1) {
        "Another request with this key is still running.".into()
    } else {
        let seconds = waited.as_secs();
        format!("Another request with this key is still running. We waited {seconds} s for it.")
            .into()
    };
    let problem = Problem::new(Code::InProgress, detail)
        .hint("Retry with the same key. Do not create a new one.");
    match original {
        Some(original) => problem.about(original),
        None => problem,
    }
}

fn not_kept(reason: NotKept) -> &'static str {
    match reason {
        NotKept::TooLarge => "The request was executed. Its answer was too large to be kept.",
        NotKept::Streamed => {
            "The request was executed. Its answer was a stream, which is not kept."
        }
        NotKept::Upgraded => {
            "The request was executed. Its connection was upgraded, so there is no answer to keep."
        }
        NotKept::StatusOnly => {
            "The request was executed. Of answers to this operation only the status is kept."
        }
        NotKept::Erased => "The request was executed. Its answer was erased on request.",
        NotKept::Expired => "The request was executed. Its answer was kept no longer.",
        NotKept::Lost => {
            "The request was executed. Its answer was lost in a failover of the store."
        }
    }
}

fn unavailable(why: Unavailable) -> &'static str {
    match why {
        Unavailable::Store => {
            "The store of idempotency keys cannot be asked just now, so nothing was executed."
        }
        Unavailable::Regressed => {
            "The store of idempotency keys may have failed over and is being put right, so nothing was \
             executed."
        }
        Unavailable::Busy => {
            "Too many requests with idempotency keys are under way, so nothing was executed."
        }
        Unavailable::Draining => "This instance is shutting down, so nothing was executed.",
        Unavailable::LeaseLost => {
            "This attempt took too long to begin and gave way, so nothing was executed."
        }
    }
}

#[cfg(test)]
mod tests {
    use oncekey_core::Timestamp;

    use super::*;
    use crate::problem::{Executed, Retryable};

    fn every_refusal() -> Vec<(Refused, Code)> {
        let original = || "req_1".into();
        let wait = Duration::from_millis(1_500);
        let mut all = vec![
            (
                Refused::Mismatch {
                    differs: vec!["body:/amount".into()],
                    original: original(),
                    first_used: Timestamp::from_micros(1_786_788_251_000_000),
                },
                Code::KeyReused,
            ),
            (
                Refused::InProgress { retry_after: wait, waited: wait, original: None },
                Code::InProgress,
            ),
            (Refused::Accepted { retry_after: wait, original: Some(original()) }, Code::InProgress),
            (Refused::Unknown { original: original() }, Code::OutcomeUnknown),
            (Refused::Expired { original: original() }, Code::KeyTooOld),
            (Refused::Parked { original: original() }, Code::Parked),
            (Refused::Damaged, Code::RecordDamaged),
        ];
        for reason in NotKept::ALL {
            let refused = Refused::NotRetained { status: Some(201), reason, original: original() };
            all.push((refused, Code::ResponseNotRetained));
        }
        for why in [
            Unavailable::Store,
            Unavailable::Regressed,
            Unavailable::Busy,
            Unavailable::Draining,
            Unavailable::LeaseLost,
        ] {
            all.push((Refused::Unavailable { why, retry_after: wait }, Code::StoreUnavailable));
        }
        all
    }

    #[test]
    fn every_refusal_has_its_code_and_the_table_speaks_for_it() {
        for (refused, code) in every_refusal() {
            let problem = Problem::from(&refused);
            assert_eq!(problem.code, code, "{refused:?}");
            assert_eq!(problem.executed, code.executed());
            assert_eq!(problem.retryable, code.retryable());
            assert!(problem.detail.ends_with('.'), "{}", problem.detail);
        }
    }

    /// A client that obeys `retryable` needs to know when.
    #[test]
    fn whatever_is_worth_a_retry_says_when() {
        for (refused, _) in every_refusal() {
            let problem = Problem::from(&refused);
            let says_when = problem.retry_after.is_some();
            assert_eq!(says_when, problem.retryable == Retryable::Yes, "{refused:?}");
        }
    }

    #[test]
    fn what_was_not_kept_was_executed_and_says_with_which_status() {
        let refused = Refused::NotRetained {
            status: Some(201),
            reason: NotKept::TooLarge,
            original: "req_1".into(),
        };
        let problem = Problem::from(&refused);
        assert_eq!((problem.executed, problem.original_status), (Executed::Yes, Some(201)));
    }

    /// The texts of the four ways to be unavailable differ, because operators read them.
    #[test]
    fn each_reason_has_a_text_of_its_own() {
        let mut texts: Vec<_> =
            every_refusal().iter().map(|(refused, _)| Problem::from(refused).detail).collect();
        let all = texts.len();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), all);
    }
}
