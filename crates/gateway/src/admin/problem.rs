//! What can go wrong at the admin API: the only place that writes its problem documents (RFC 9457).
//!
//! A detail is a sentence of ours. It never holds a key, a body, a credential or the message of a
//! driver; what a client sent is repeated only where it is needed to find the mistake.

use std::borrow::Cow;

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use oncekey::core::{ErrorKind, StoreError};
use oncekey::problem::MEDIA_TYPE;
use serde_json::{Map, Value, json};

/// What went wrong, as a word that programs can rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    HostRefused,
    OriginRefused,
    TokenRequired,
    NotFound,
    MethodNotAllowed,
    RequestInvalid,
    MediaTypeRefused,
    BodyTooLarge,
    BodyTooSlow,
    RecordNotFound,
    PayloadRefused,
    ConfirmationRequired,
    LeaseAlive,
    StateConflict,
    ReloadFailed,
    RecordDamaged,
    AuditUnavailable,
    Busy,
    StoreUnavailable,
}

/// One problem document.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) code: Code,
    detail: Cow<'static, str>,
    members: Map<String, Value>,
}

/// Where the codes are explained.
const BASE: &str = "https://oncekey.dev/admin-api";

impl Code {
    /// All of them, in the order of the reference.
    #[cfg(test)]
    pub(super) const ALL: [Self; 19] = [
        Self::HostRefused,
        Self::OriginRefused,
        Self::TokenRequired,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::RequestInvalid,
        Self::MediaTypeRefused,
        Self::BodyTooLarge,
        Self::BodyTooSlow,
        Self::RecordNotFound,
        Self::PayloadRefused,
        Self::ConfirmationRequired,
        Self::LeaseAlive,
        Self::StateConflict,
        Self::ReloadFailed,
        Self::RecordDamaged,
        Self::AuditUnavailable,
        Self::Busy,
        Self::StoreUnavailable,
    ];

    /// The word for it: the member `code`, and the anchor in the reference.
    pub(super) const fn label(self) -> &'static str {
        self.row().0
    }

    pub(super) const fn status(self) -> StatusCode {
        self.row().1
    }

    /// Label, status, title.
    const fn row(self) -> (&'static str, StatusCode, &'static str) {
        use StatusCode as S;
        match self {
            Self::HostRefused => ("admin_host_refused", S::FORBIDDEN, "The Host is not ours"),
            Self::OriginRefused => {
                ("admin_origin_refused", S::FORBIDDEN, "Another site may not ask")
            }
            Self::TokenRequired => ("admin_token_required", S::UNAUTHORIZED, "A token is needed"),
            Self::NotFound => ("admin_not_found", S::NOT_FOUND, "There is nothing here"),
            Self::MethodNotAllowed => {
                ("admin_method_not_allowed", S::METHOD_NOT_ALLOWED, "Not with this method")
            }
            Self::RequestInvalid => {
                ("admin_request_invalid", S::BAD_REQUEST, "The request makes no sense")
            }
            Self::MediaTypeRefused => {
                ("admin_media_type_refused", S::UNSUPPORTED_MEDIA_TYPE, "Changes are sent as JSON")
            }
            Self::BodyTooLarge => {
                ("admin_body_too_large", S::PAYLOAD_TOO_LARGE, "The body is too large")
            }
            Self::BodyTooSlow => {
                ("admin_body_too_slow", S::REQUEST_TIMEOUT, "The body did not come in time")
            }
            Self::RecordNotFound => {
                ("admin_record_not_found", S::NOT_FOUND, "There is no such record")
            }
            Self::PayloadRefused => {
                ("admin_payload_refused", S::FORBIDDEN, "Keys and answers are not shown here")
            }
            Self::ConfirmationRequired => {
                ("admin_confirmation_required", S::UNPROCESSABLE_ENTITY, "This must be confirmed")
            }
            Self::LeaseAlive => ("admin_lease_alive", S::CONFLICT, "Somebody is working on it"),
            Self::StateConflict => {
                ("admin_state_conflict", S::CONFLICT, "The record is in another state")
            }
            Self::ReloadFailed => {
                ("admin_reload_failed", S::UNPROCESSABLE_ENTITY, "The configuration is wrong")
            }
            Self::RecordDamaged => {
                ("admin_record_damaged", S::INTERNAL_SERVER_ERROR, "The record is damaged")
            }
            Self::AuditUnavailable => {
                ("admin_audit_unavailable", S::SERVICE_UNAVAILABLE, "It could not be audited")
            }
            Self::Busy => ("admin_busy", S::SERVICE_UNAVAILABLE, "Too many are asking"),
            Self::StoreUnavailable => {
                ("admin_store_unavailable", S::SERVICE_UNAVAILABLE, "The store does not answer")
            }
        }
    }
}

impl Problem {
    pub(super) fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { code, detail: detail.into(), members: Map::new() }
    }

    /// The request makes no sense, and this is why.
    pub(super) fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::RequestInvalid, detail)
    }

    /// With something more that a program can read.
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    pub(super) fn to_json(&self) -> Value {
        let (label, status, title) = self.code.row();
        let mut document = json!({
            "type": format!("{BASE}#{label}"),
            "title": title,
            "status": status.as_u16(),
            "detail": self.detail,
            "code": label,
        });
        if let Value::Object(members) = &mut document {
            members.extend(self.members.clone());
        }
        document
    }
}

/// What an error of the store means for whoever asked.
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        // The message is ours and names no key; its source is the driver's and stays in the log.
        let text = error.to_string();
        match error.kind() {
            ErrorKind::Rejected => Self::invalid(text),
            ErrorKind::Corrupt => Self::new(Code::RecordDamaged, text),
            ErrorKind::Ambiguous => Self::new(
                Code::StoreUnavailable,
                format!("{text}: it may or may not have taken effect, look at the record"),
            ),
            ErrorKind::Unavailable | ErrorKind::Unsuitable | _ => {
                Self::new(Code::StoreUnavailable, text)
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.code.status(), self.to_json().to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        if self.code == Code::TokenRequired {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(self.code, Code::Busy | Code::StoreUnavailable) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        // For the audit, which says how a change was refused.
        response.extensions_mut().insert(self.code);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_explained_in_the_reference() {
        let page = include_str!("../../../../docs/reference/admin-api.md");
        let (_, table) = page.split_once("\n## Problems\n").expect("the table");
        let rows = table.lines().filter(|line| line.starts_with("| `admin_"));
        let shown: Vec<String> =
            rows.map(|line| line.split(" | ").take(2).collect::<Vec<_>>().join(" | ")).collect();
        let expected =
            Code::ALL.map(|code| format!("| `{}` | {}", code.label(), code.status().as_u16()));
        assert_eq!(shown, expected);
    }
}
