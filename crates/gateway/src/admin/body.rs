//! Bodies of changes: JSON, small, soon.

use std::time::Duration;

use axum::extract::{FromRequest, Request};
use http::header;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::problem::{Code, Problem};

/// A body that was read as JSON.
#[derive(Debug)]
pub(super) struct Sent<T>(pub(super) T);

/// Why somebody does something. People read it a year later.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Reason(pub(super) String);

/// The largest body. An answer that somebody writes down by hand is far smaller.
pub(super) const MAX_BODY: usize = 1024 * 1024;
/// How long a body may take. A script sends a kilobyte at once.
const WITHIN: Duration = Duration::from_secs(10);
/// The longest reason: a paragraph, or a link to a ticket.
const MAX_REASON: usize = 500;

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Sent<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        // A form on another site can post without being asked for permission, but not JSON.
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            let detail = "send Content-Type: application/json";
            return Err(Problem::new(Code::MediaTypeRefused, detail));
        }
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > MAX_BODY) {
            return Err(too_large());
        }
        let body = Limited::new(request.into_body(), MAX_BODY).collect();
        let body = match tokio::time::timeout(WITHIN, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large()),
            Ok(Err(_)) => return Err(Problem::invalid("the body is incomplete")),
            Err(_) => {
                let detail = format!("the body took longer than {} s", WITHIN.as_secs());
                return Err(Problem::new(Code::BodyTooSlow, detail));
            }
        };
        let read = serde_json::from_slice(&body);
        read.map(Self)
            .map_err(|error| Problem::invalid(format!("the body makes no sense: {error}")))
    }
}

fn too_large() -> Problem {
    Problem::new(Code::BodyTooLarge, format!("send at most {MAX_BODY} bytes"))
}

impl TryFrom<String> for Reason {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("`reason` is empty: say why, for whoever reads the audit".to_owned());
        }
        if text.chars().count() > MAX_REASON {
            return Err(format!("`reason` is longer than {MAX_REASON} characters"));
        }
        if text.chars().any(char::is_control) {
            return Err("`reason` has a control character: write one line".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_a_line_that_says_something() {
        let read = |text: &str| Reason::try_from(text.to_owned()).map(|reason| reason.0);
        assert_eq!(read("  ticket 4711 "), Ok("ticket 4711".to_owned()));
        for wrong in ["", "   ", "a\nb", "\u{1b}[2J", &"x".repeat(MAX_REASON + 1)] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
