//! Answers that all endpoints share: JSON documents, and what is not there.

use axum::extract::Query;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, Uri, header};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::problem::{Code, Problem};

/// What an endpoint comes to.
pub(super) type Answer = Result<Response, Problem>;

/// A JSON document with status 200.
pub(super) fn json(document: &impl Serialize) -> Answer {
    let text = serde_json::to_vec(document)
        .map_err(|_| Problem::new(Code::RecordDamaged, "the answer cannot be written as JSON"))?;
    let mut response = text.into_response();
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// Reads the query. A parameter that is not known is refused: a filter with a typing mistake would
/// show everything.
pub(super) fn query<Q: DeserializeOwned>(uri: &Uri) -> Result<Q, Problem> {
    let read = Query::<Q>::try_from_uri(uri);
    let Query(query) = read.map_err(|error| {
        let why = std::error::Error::source(&error).map(ToString::to_string);
        Problem::invalid(format!("the query makes no sense: {}", why.unwrap_or_default()))
    })?;
    Ok(query)
}

pub(super) async fn nothing() -> Problem {
    Problem::new(Code::NotFound, "see /api/v1/openapi.json for what there is")
}

pub(super) async fn wrong_method() -> Problem {
    Problem::new(Code::MethodNotAllowed, "see /api/v1/openapi.json for what there is")
}
