//! An answer that an operator writes down, for work whose own answer was lost.

use bytes::Bytes;
use oncekey::core::{Headers, Saved};
use serde::Deserialize;

use super::super::problem::Problem;

/// What clients get from now on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GivenAnswer {
    status: u16,
    /// Lines in order; the same name may come twice.
    #[serde(default)]
    headers: Vec<(String, String)>,
    #[serde(default)]
    body: String,
}

/// Lines that belong to one connection, one client or one moment. Whoever replays an answer writes
/// its own, or must not have any.
const NOT_KEPT: [&str; 11] = [
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "proxy-authenticate",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "www-authenticate",
];

impl GivenAnswer {
    pub(super) fn saved(self) -> Result<Saved, Problem> {
        if !(200..=599).contains(&self.status) {
            return Err(Problem::invalid("`status` of the answer is from 200 to 599"));
        }
        let mut headers = Headers::new();
        for (name, value) in &self.headers {
            if NOT_KEPT.iter().any(|not_kept| name.eq_ignore_ascii_case(not_kept)) {
                // The name is one of ours by now.
                return Err(Problem::invalid(format!("the header `{name}` is never kept")));
            }
            let pushed = headers.push(name.as_bytes(), value.as_bytes());
            pushed.map_err(|error| Problem::invalid(error.to_string()))?;
        }
        Ok(Saved { status: self.status, headers, body: Bytes::from(self.body) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> Result<Saved, String> {
        let given: GivenAnswer = serde_json::from_str(text).map_err(|error| error.to_string())?;
        given.saved().map_err(|problem| problem.to_json().to_string())
    }

    #[test]
    fn an_answer_is_what_a_client_could_have_got() {
        let saved = given(
            r#"{"status":201,"headers":[["Content-Type","application/json"],["Link","a"],["Link","b"]],
                "body":"{}"}"#,
        )
        .unwrap();
        assert_eq!((saved.status, saved.headers.len(), &saved.body[..]), (201, 3, &b"{}"[..]));
        for wrong in [
            r#"{}"#,
            r#"{"status":99}"#,
            r#"{"status":101}"#,
            r#"{"status":600}"#,
            r#"{"status":200,"headers":[["a\r\nb","c"]]}"#,
            r#"{"status":200,"headers":[["a","b\r\nSet-Cookie: c"]]}"#,
            r#"{"status":200,"headers":[["Set-Cookie","c"]]}"#,
            r#"{"status":200,"headers":[["Content-Length","7"]]}"#,
            r#"{"status":200,"bdoy":"x"}"#,
        ] {
            assert!(given(wrong).is_err(), "{wrong}");
        }
    }
}
