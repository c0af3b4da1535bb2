//! One entry of the audit.

use oncekey::clock::SystemClock;
use oncekey::core::Clock as _;
use oncekey::problem::moment::rfc3339_millis;
use serde::{Deserialize, Serialize};

use super::super::access::Shown;
use super::super::guard::Caller;
use super::super::keys::parse_id;
use super::super::problem::Code;
use super::Deed;

/// What is written down.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Rises. The two lines of one change have the same.
    pub(super) seq: u64,
    /// When it was asked for, or, in its last line, when it had ended.
    pub(super) ts: String,
    pub(super) action: String,
    pub(super) outcome: Outcome,
    /// The key id that it was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<String>,
    /// The other end of the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    /// The name that the caller gave itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    actor: Option<String>,
    /// Whether the token was `right`, `wrong` or `not_needed`.
    token: String,
    /// How many refusals of strangers before this one were not written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) unheard: Option<u64>,
}

/// How far it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// It was about to be done. If this is the last word, nobody knows whether it was.
    Asked,
    Done,
    Refused,
}

impl Entry {
    pub(super) fn asked(deed: &Deed) -> Self {
        let mut entry = Self::new(&deed.caller, deed.action, Outcome::Asked);
        entry.target = deed.target.map(|id| id.to_string());
        entry.reason = deed.reason.as_ref().map(|reason| reason.0.clone());
        entry
    }

    pub(super) fn refused(caller: &Caller, path: &str, code: Option<Code>) -> Self {
        let (action, target) = meaning(path);
        let mut entry = Self::new(caller, action, Outcome::Refused);
        entry.target = target;
        entry.code = code.map(|code| code.label().to_owned());
        entry
    }

    fn new(caller: &Caller, action: &str, outcome: Outcome) -> Self {
        let token = match caller.token {
            Shown::NotNeeded => "not_needed",
            Shown::Right => "right",
            Shown::Wrong => "wrong",
        };
        Self {
            seq: 0,
            ts: rfc3339_millis(SystemClock.now()),
            action: action.to_owned(),
            outcome,
            target: None,
            reason: None,
            code: None,
            peer: caller.peer.map(|peer| peer.to_string()),
            actor: caller.name.clone(),
            token: token.to_owned(),
            unheard: None,
        }
    }

    /// The same with how it ended.
    pub(super) fn ended(mut self, outcome: Outcome, code: Option<Code>) -> Self {
        self.ts = rfc3339_millis(SystemClock.now());
        self.outcome = outcome;
        self.code = code.map(|code| code.label().to_owned());
        self
    }
}

/// What a path was meant to do, and to which record. Only words of ours and well-formed ids: what
/// else a stranger put into a path is not worth keeping.
fn meaning(path: &str) -> (&'static str, Option<String>) {
    let known = ["resolve", "release", "expire", "erase", "reload", "drain"];
    let mut parts = path.rsplit('/');
    let verb = parts.next().unwrap_or_default();
    let action = known.into_iter().find(|known| *known == verb).unwrap_or("other");
    let id = parts.next().and_then(|id| parse_id(id).ok());
    (action, id.map(|id| id.to_string()))
}

impl Outcome {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Done => "done",
            Self::Refused => "refused",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_of_ours_are_kept_of_a_path() {
        let id = "ab".repeat(32);
        let path = format!("/api/v1/keys/{id}/release");
        assert_eq!(meaning(&path), ("release", Some(id)));
        assert_eq!(meaning("/api/v1/drain"), ("drain", None));
        assert_eq!(meaning("/api/v1/keys/<script>/erase"), ("erase", None));
        assert_eq!(meaning("/<script>"), ("other", None));
        assert_eq!(meaning(""), ("other", None));
    }
}
