//! Problem documents: the only RFC 9457 code.
//!
//! One table says for each [`Code`] its status, whether the work ran and whether asking again
//! helps. A [`Problem`] is a row of it with the particulars of one request. Nothing in a problem
//! comes from a body, a key or a driver: texts are ours, places are names, ids are ours.
//!
//! There are no HTTP types in here, so that the gateway, webhooks and clients share it.
//! `docs/reference/problems.md` shows the table, and a test compares the two.

use std::borrow::Cow;
use std::time::Duration;

use oncekey_core::Timestamp;
use serde::{Serialize, Serializer};

mod code;
pub mod moment;
mod refusals;

pub use self::code::{Code, Executed, Retryable};
use self::moment::rfc3339;

/// Where the problems are explained, unless an API points to its own page.
pub const DEFAULT_BASE: &str = "https://oncekey.dev/problems";

/// The media type of a problem document.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// One problem document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What went wrong.
    pub code: Code,
    /// The HTTP status; from the table, unless the route says otherwise.
    pub status: u16,
    /// Whether the work ran.
    pub executed: Executed,
    /// Whether asking again helps.
    pub retryable: Retryable,
    /// What happened, for a person.
    pub detail: Cow<'static, str>,
    /// The id of the request that got this document.
    pub request_id: Option<String>,
    /// How long to wait before asking again.
    pub retry_after: Option<Duration>,
    /// The places where this request differs from the first one, never their values.
    pub differs: Vec<String>,
    /// The id of the request that used the key first.
    pub original_request: Option<String>,
    /// The status that the first caller got.
    pub original_status: Option<u16>,
    /// When the key was first used.
    pub first_used: Option<Timestamp>,
    /// What to do about it.
    pub hint: Option<&'static str>,
}

impl Problem {
    /// A problem with what the table says about its code.
    ///
    /// `detail` is shown to whoever asked: never put a key, a body or a driver's message into it.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            status: code.status(),
            executed: code.executed(),
            retryable: code.retryable(),
            detail: detail.into(),
            request_id: None,
            retry_after: None,
            differs: Vec::new(),
            original_request: None,
            original_status: None,
            first_used: None,
            hint: None,
        }
    }

    /// How many whole seconds `Retry-After` says: rounded up, at least 1.
    ///
    /// Zero would be an invitation to a busy loop, and rounding down one to come too early.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after.map(whole_seconds)
    }

    /// The document, with its type as an anchor in the page at `base`.
    #[must_use]
    pub fn to_json(&self, base: &str) -> Vec<u8> {
        let document = Document {
            uri: self.code.type_uri(base),
            title: self.code.title(),
            status: self.status,
            detail: &self.detail,
            code: self.code.label(),
            executed: self.executed.label(),
            retryable: self.retryable == Retryable::Yes,
            request_id: self.request_id.as_deref(),
            retry_after_ms: self.retry_after,
            differs: &self.differs,
            original_request: self.original_request.as_deref(),
            original_status: self.original_status,
            first_used: self.first_used,
            hint: self.hint,
        };
        serde_json::to_vec(&document).expect("text and numbers always serialise")
    }

    fn about(mut self, original: &str) -> Self {
        // A record of an older format may not know its request; an empty id helps nobody.
        self.original_request = Some(original.to_owned()).filter(|id| !id.is_empty());
        self
    }

    fn after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    fn hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }
}

/// The members in the order in which people read them.
#[derive(Serialize)]
struct Document<'p> {
    #[serde(rename = "type")]
    uri: String,
    title: &'static str,
    status: u16,
    detail: &'p str,
    code: &'static str,
    executed: &'static str,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'p str>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "millis")]
    retry_after_ms: Option<Duration>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    differs: &'p [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    original_request: Option<&'p str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "moment")]
    first_used: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'static str>,
}

#[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
fn millis<S: Serializer>(span: &Option<Duration>, out: S) -> Result<S::Ok, S::Error> {
    let millis = span.map_or(0, |span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    out.serialize_u64(millis)
}

#[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
fn moment<S: Serializer>(moment: &Option<Timestamp>, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&rfc3339(moment.unwrap_or_default()))
}

pub(crate) fn whole_seconds(span: Duration) -> u64 {
    let partly = u64::from(span.subsec_nanos() > 0);
    span.as_secs().saturating_add(partly).max(1)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::engine::Refused;

    #[test]
    fn a_document_has_its_members_in_reading_order() {
        let mut problem = Problem::from(&Refused::Mismatch {
            differs: vec!["body:/amount".into()],
            original: "req_1".into(),
            first_used: Timestamp::from_micros(1_786_788_251_000_000),
        });
        problem.request_id = Some("req_2".into());
        let text = String::from_utf8(problem.to_json(DEFAULT_BASE)).unwrap();
        let expected = concat!(
            r#"{"type":"https://oncekey.dev/problems#idempotency_key_reused","#,
            r#""title":"Idempotency-Key was already used for a different request","status":422,"#,
            r#""detail":"The first request with this key was a different one; the member differs "#,
            r#"names the places. This request was not executed.","#,
            r#""code":"idempotency_key_reused","executed":"no","retryable":false,"#,
            r#""request_id":"req_2","differs":["body:/amount"],"original_request":"req_1","#,
            r#""first_used":"2026-08-15T10:04:11Z","#,
            r#""hint":"Use a new key for a new operation, and the same key only for retries."}"#,
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_document_leaves_out_what_is_not_known() {
        let problem = Problem::new(Code::BodyTooLarge, "Too large.");
        let document: Value = serde_json::from_slice(&problem.to_json("/p")).unwrap();
        let expected = json!({
            "type": "/p#idempotency_body_too_large",
            "title": "The request body is too large",
            "status": 413,
            "detail": "Too large.",
            "code": "idempotency_body_too_large",
            "executed": "no",
            "retryable": false,
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn waiting_times_are_whole_seconds_and_never_none() {
        for (span, seconds) in [
            (Duration::ZERO, 1),
            (Duration::from_millis(1), 1),
            (Duration::from_secs(1), 1),
            (Duration::from_millis(1_001), 2),
            (Duration::MAX, u64::MAX),
        ] {
            let problem = Problem::new(Code::InProgress, "x").after(span);
            assert_eq!(problem.retry_after_seconds(), Some(seconds), "{span:?}");
        }
    }

    /// Every problem with which nothing was executed and a retry helps is a 5xx or a conflict:
    /// generic clients retry nothing else.
    #[test]
    fn what_is_retryable_has_a_status_that_clients_retry() {
        for code in Code::ALL {
            let retried = matches!(code.status(), 409 | 502 | 503);
            assert!(code.retryable() == Retryable::No || retried, "{}", code.label());
        }
    }
}
