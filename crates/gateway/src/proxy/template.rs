//! The envelope of an API's own errors: a text with places for what we have to say.

use std::path::{Path, PathBuf};
use std::{fs, io};

use bytes::Bytes;
use http::HeaderValue;
use oncekey::problem::{Problem, Retryable};

/// A body with placeholders such as `{{code}}`.
#[derive(Debug)]
pub(super) struct Template {
    pieces: Vec<Piece>,
    content_type: HeaderValue,
    escape: Escape,
}

/// Why a template cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TemplateError {
    #[error("cannot read {0}")]
    File(PathBuf, #[source] io::Error),
    #[error("`{{{{{0}}}}}` is not known; use {known}", known = PLACES.join(", "))]
    Unknown(String),
    #[error("a `{{{{` has no end")]
    Open,
    #[error("`{0}` is not a content type")]
    ContentType(String),
}

#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// A place by its number in [`PLACES`].
    Place(usize),
}

/// What a text has to look like where it is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    /// Inside of a JSON string.
    Json,
    /// Between tags or in an attribute.
    Xml,
    Nothing,
}

/// What can be said, in the order of [`value`].
const PLACES: [&str; 8] =
    ["code", "status", "title", "detail", "request_id", "executed", "retryable", "type"];

impl Template {
    /// Reads a template. What it is, unless somebody says so, is seen from its first character.
    pub(super) fn read(path: &Path, content_type: Option<&str>) -> Result<Self, TemplateError> {
        let text = fs::read_to_string(path);
        Self::parse(
            &text.map_err(|error| TemplateError::File(path.to_owned(), error))?,
            content_type,
        )
    }

    fn parse(text: &str, content_type: Option<&str>) -> Result<Self, TemplateError> {
        let guessed = match text.trim_start().chars().next() {
            Some('{' | '[') => "application/json",
            Some('<') => "application/xml",
            Some(_) | None => "text/plain; charset=utf-8",
        };
        let content_type = content_type.unwrap_or(guessed);
        let escape = match content_type {
            text if text.contains("json") => Escape::Json,
            text if text.contains("xml") || text.contains("html") => Escape::Xml,
            _ => Escape::Nothing,
        };
        let content_type = HeaderValue::try_from(content_type)
            .map_err(|_| TemplateError::ContentType(content_type.to_owned()))?;
        Ok(Self { pieces: pieces(text)?, content_type, escape })
    }

    pub(super) fn content_type(&self) -> HeaderValue {
        self.content_type.clone()
    }

    /// The body for one problem.
    pub(super) fn fill(&self, problem: &Problem, base: &str) -> Bytes {
        let mut body = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => body.push_str(text),
                Piece::Place(number) => self.escape.push(&mut body, &value(*number, problem, base)),
            }
        }
        Bytes::from(body)
    }
}

fn pieces(mut text: &str) -> Result<Vec<Piece>, TemplateError> {
    let mut pieces = Vec::new();
    while let Some((before, after)) = text.split_once("{{") {
        let (name, rest) = after.split_once("}}").ok_or(TemplateError::Open)?;
        let place = PLACES.iter().position(|place| *place == name.trim());
        let place = place.ok_or_else(|| TemplateError::Unknown(name.trim().to_owned()))?;
        pieces.push(Piece::Text(before.to_owned()));
        pieces.push(Piece::Place(place));
        text = rest;
    }
    pieces.push(Piece::Text(text.to_owned()));
    Ok(pieces)
}

fn value(place: usize, problem: &Problem, base: &str) -> String {
    match PLACES[place] {
        "code" => problem.code.label().to_owned(),
        "status" => problem.status.to_string(),
        "title" => problem.code.title().to_owned(),
        "detail" => problem.detail.to_string(),
        "request_id" => problem.request_id.clone().unwrap_or_default(),
        "executed" => problem.executed.label().to_owned(),
        "retryable" => (problem.retryable == Retryable::Yes).to_string(),
        _ => problem.code.type_uri(base),
    }
}

impl Escape {
    fn push(self, body: &mut String, text: &str) {
        match self {
            Self::Nothing => body.push_str(text),
            Self::Json => {
                let quoted = serde_json::Value::from(text).to_string();
                body.push_str(&quoted[1..quoted.len() - 1]);
            }
            Self::Xml => text.chars().for_each(|character| match character {
                '&' => body.push_str("&amp;"),
                '<' => body.push_str("&lt;"),
                '>' => body.push_str("&gt;"),
                '"' => body.push_str("&quot;"),
                '\'' => body.push_str("&#39;"),
                other => body.push(other),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use oncekey::problem::Code;

    use super::*;

    fn filled(text: &str, content_type: Option<&str>) -> (String, String) {
        let template = Template::parse(text, content_type).unwrap();
        let mut problem = Problem::new(Code::KeyReused, "A \"quoted\" <text>\n");
        problem.request_id = Some("req_1".to_owned());
        let body = template.fill(&problem, "https://d");
        let content_type = template.content_type().to_str().unwrap().to_owned();
        (String::from_utf8(body.to_vec()).unwrap(), content_type)
    }

    #[test]
    fn a_template_is_filled_and_its_texts_are_escaped() {
        for (text, said, expected, content_type) in [
            (
                r#"{"e":{"c":"{{code}}","s":{{ status }},"d":"{{detail}}","r":{{retryable}}}}"#,
                None,
                r#"{"e":{"c":"idempotency_key_reused","s":422,"d":"A \"quoted\" <text>\n","r":false}}"#,
                "application/json",
            ),
            (
                "<e id=\"{{request_id}}\">{{detail}}</e>",
                None,
                "<e id=\"req_1\">A &quot;quoted&quot; &lt;text&gt;\n</e>",
                "application/xml",
            ),
            (
                "{{executed}} {{type}}",
                Some("text/x"),
                "no https://d#idempotency_key_reused",
                "text/x",
            ),
            ("plain", None, "plain", "text/plain; charset=utf-8"),
        ] {
            assert_eq!(filled(text, said), (expected.to_owned(), content_type.to_owned()));
        }
    }

    #[test]
    fn a_template_that_asks_for_something_else_is_refused() {
        let refused = |text| Template::parse(text, None).unwrap_err().to_string();
        assert!(refused("{{key}}").starts_with("`{{key}}` is not known; use code, status"));
        assert_eq!(refused("{{code"), "a `{{` has no end");
        assert!(Template::parse("x", Some("a\nb")).is_err());
    }
}
