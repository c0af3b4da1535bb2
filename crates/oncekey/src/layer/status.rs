//! Status URLs: what became of a key.
//!
//! "Did my payment go through?" without sending it again. Whoever asks is put into a scope like
//! everybody else, so a key of another scope is not found. Asking has no effect on the record.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, LOCATION, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use http_body::Body;
use oncekey_core::{ErrorKind, Key, KeyError, KeyId, Scope, StoreError};
use serde_json::json;

use super::body::ResponseBody;
use super::headers::{self, Mark, Status, mark};
use super::layer::Config;
use super::outcome::Outcome;
use super::replay::restore;
use super::scope::NoScope;
use crate::engine::{Looked, Refused, Replayed, RequestId, Source, Unavailable};
use crate::problem::{Code, Executed, Problem, Retryable, whole_seconds};

/// The prefix of status URLs.
#[derive(Clone, Debug)]
pub(super) struct StatusPath(Box<str>);

/// How often to ask about running work if nobody knows better: often enough for a person who
/// waits, and no load to speak of.
const ASK_AGAIN: Duration = Duration::from_secs(1);

impl StatusPath {
    pub(super) fn new(prefix: &str) -> Option<Self> {
        let plain =
            prefix.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#<>\"".contains(&byte));
        let path = prefix.len() > 1 && prefix.starts_with('/') && prefix.ends_with('/');
        (plain && path).then(|| Self(prefix.into()))
    }

    /// Whether a request with a safe method asks for a status.
    pub(super) fn is_asked(&self, parts: &Parts) -> bool {
        let method = parts.method == Method::GET || parts.method == Method::HEAD;
        method && parts.uri.path().starts_with(&*self.0)
    }

    fn key(&self, parts: &Parts) -> Result<Key, KeyError> {
        let encoded = parts.uri.path().strip_prefix(&*self.0).unwrap_or_default();
        Key::new(&decoded(encoded.as_bytes()).ok_or(KeyError::Malformed { position: 0 })?)
    }

    /// The status URL of a key, relative to the service.
    fn location(&self, key: &Key) -> HeaderValue {
        let mut url = self.0.to_string();
        for byte in key.as_bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    url.push(char::from(*byte));
                }
                _ => url.push_str(&format!("%{byte:02X}")),
            }
        }
        HeaderValue::try_from(url).expect("a path holds printable ASCII")
    }
}

/// The answer to a request for a status.
pub(super) async fn answer<B: Body<Data = Bytes>>(
    config: &Config,
    parts: &Parts,
) -> Response<ResponseBody<B>> {
    let request = config.request_id(parts);
    let mut response = match config.status.as_ref().map(|path| (path, path.key(parts))) {
        Some((path, Ok(key))) => look(config, path, &key, &request, parts).await,
        Some((_, Err(error))) => {
            let detail = format!("The status URL does not hold a key: {error}.");
            let problem = Problem::new(Code::KeyInvalid, detail);
            refuse(config, Outcome::InvalidKey, problem, (None, &request))
        }
        None => unreachable!("only a layer with a status path looks for it"),
    };
    // The state of a key changes, and its answer belongs to one scope.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if parts.method == Method::HEAD {
        if let Some(length) = response.body().size_hint().exact() {
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        *response.body_mut() = ResponseBody::whole(Default::default(), None);
    }
    response
}

/// The answer that points to a status URL: the work is under way.
pub(super) fn accepted<B: Body>(
    path: &StatusPath,
    key: &Key,
    retry_after: Duration,
    with: &Mark<'_>,
) -> Response<ResponseBody<B>> {
    let location = path.location(key);
    let document = json!({
        "state": "running",
        "location": location.to_str().unwrap_or_default(),
        "request_id": with.request.as_str(),
        "original_request": with.original,
    });
    let mut response = headers::json(StatusCode::ACCEPTED, document.to_string().into_bytes());
    response.headers_mut().insert(LOCATION, location);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(whole_seconds(retry_after)));
    let status = Status::without(Outcome::InProgress, Executed::Unknown, Retryable::Yes);
    mark(response.headers_mut(), with, status);
    response
}

async fn look<B: Body>(
    config: &Config,
    path: &StatusPath,
    key: &Key,
    request: &RequestId,
    parts: &Parts,
) -> Response<ResponseBody<B>> {
    let with = (Some(key), request);
    let ids = match ids_of(config, key, parts) {
        Ok(ids) => ids,
        Err(NoScope) => {
            return refuse(config, Outcome::InvalidRequest, NoScope.problem(), with);
        }
    };
    let mut looked = Ok(None);
    for (id, scope) in ids {
        looked = match &config.rule_scopes {
            None => config.engine.look(&id).await,
            Some(scope_of) => {
                // To say that there is no such key, because its rule has another name since the last
                // deployment, would make its client pay again.
                let belongs = |rule: &str| {
                    scope_of(rule).is_none_or(|from| from.find(parts).as_ref() == Ok(&scope))
                };
                config.engine.look_under(&id, belongs).await
            }
        };
        if !matches!(looked, Ok(None)) {
            break;
        }
    }
    match looked {
        Ok(None) => {
            let problem = Problem::new(
                Code::KeyNotFound,
                "There is no record of this key: the request never arrived, was not executed, or \
                 was executed so long ago that it is forgotten.",
            );
            refuse(config, Outcome::NotRetained, problem, with)
        }
        Ok(Some(Looked::Running(original))) => {
            let with = Mark { key: Some(key), request, original: Some(&original), rule: None };
            accepted(path, key, ASK_AGAIN, &with)
        }
        Ok(Some(Looked::Done(replayed))) => replay(config, &replayed, key, request),
        Ok(Some(Looked::Without(refused))) => {
            refuse(config, Outcome::of_refusal(&refused), Problem::from(&refused), with)
        }
        Err(error) => {
            let refused = unanswered(&error);
            refuse(config, Outcome::StoreUnavailable, Problem::from(&refused), with)
        }
    }
}

/// What the record of a key may be called: in every scope that a rule may have put the caller into. All of
/// them are the caller's own, but under another rule the same value may be somebody else.
fn ids_of(config: &Config, key: &Key, parts: &Parts) -> Result<Vec<(KeyId, Scope)>, NoScope> {
    let scopes = std::iter::once(&config.scope).chain(&config.status_scopes);
    let mut ids: Vec<(KeyId, Scope)> = scopes
        .filter_map(|from| from.find(parts).ok())
        .map(|scope| (config.engine.key_id(&scope, key), scope))
        .collect();
    let mut seen = HashSet::new();
    ids.retain(|(id, _)| seen.insert(*id));
    if ids.is_empty() { Err(NoScope) } else { Ok(ids) }
}

fn replay<B: Body>(
    config: &Config,
    replayed: &Replayed,
    key: &Key,
    request: &RequestId,
) -> Response<ResponseBody<B>> {
    let Ok(restored) = restore(&replayed.saved) else {
        let problem = Problem::from(&Refused::Damaged);
        return refuse(config, Outcome::StoreUnavailable, problem, (Some(key), request));
    };
    let mut response = restored.response;
    let outcome = match replayed.source {
        Source::Record => Outcome::Replayed,
        Source::Coalesced => Outcome::Coalesced,
    };
    let with = Mark { key: Some(key), request, original: Some(&replayed.original), rule: None };
    let status = Status::replayed(outcome, replayed.age, replayed.ttl);
    mark(response.headers_mut(), &with, status);
    response
}

fn refuse<B: Body>(
    config: &Config,
    outcome: Outcome,
    mut problem: Problem,
    (key, request): (Option<&Key>, &RequestId),
) -> Response<ResponseBody<B>> {
    problem.request_id = Some(request.as_str().to_owned());
    let mut response = headers::problem(&problem, &config.problems);
    let original = problem.original_request.as_deref();
    let status = Status::problem(outcome, &problem);
    mark(response.headers_mut(), &Mark { key, request, original, rule: None }, status);
    response.extensions_mut().insert(problem);
    response
}

fn unanswered(error: &StoreError) -> Refused {
    match error.kind() {
        ErrorKind::Corrupt => Refused::Damaged,
        // A kind that we do not know yet is one more reason not to have an answer.
        ErrorKind::Unavailable
        | ErrorKind::Ambiguous
        | ErrorKind::Rejected
        | ErrorKind::Unsuitable
        | _ => Refused::Unavailable { why: Unavailable::Store, retry_after: ASK_AGAIN },
    }
}

/// Decodes percent-encoding (RFC 3986, section 2.1); `None` if it is cut or not hexadecimal.
pub(super) fn decoded(mut text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    while let Some((byte, rest)) = text.split_first() {
        text = rest;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let (digits, rest) = text.split_first_chunk::<2>()?;
        let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
        bytes.push(u8::try_from(high? * 16 + low?).ok()?);
        text = rest;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(uri: &str) -> Parts {
        Request::builder().uri(uri).body(()).unwrap().into_parts().0
    }

    /// Every byte that a key may have survives the way into a URL and out again.
    #[test]
    fn every_key_has_a_status_url() {
        let path = StatusPath::new("/.idempotency/keys/").unwrap();
        let all: Vec<u8> = (0x20..=0x7e).collect();
        for bytes in [&b"8e03978e-40d5"[..], b"../../etc", b"a/b?c#d%2e", &all] {
            let key = Key::new(bytes).unwrap();
            let url = path.location(&key);
            let asked = parts(url.to_str().unwrap());
            assert!(path.is_asked(&asked));
            assert_eq!(path.key(&asked), Ok(key), "{url:?}");
        }
    }

    #[test]
    fn a_url_without_a_key_is_refused() {
        let path = StatusPath::new("/s/").unwrap();
        assert_eq!(path.key(&parts("/s/")), Err(KeyError::Empty));
        for url in ["/s/%", "/s/%4", "/s/%zz", "/s/%0"] {
            assert_eq!(path.key(&parts(url)), Err(KeyError::Malformed { position: 0 }), "{url}");
        }
        assert!(matches!(path.key(&parts("/s/%0a")), Err(KeyError::NotPrintable { .. })));
        assert!(matches!(path.key(&parts("/s/%C3%A9")), Err(KeyError::NotPrintable { .. })));
        assert!(!path.is_asked(&parts("/sx")));
    }

    #[test]
    fn a_prefix_is_a_path() {
        for bad in ["", "/", "s/", "/s", "/s?/", "/s#/", "/s /", "/\u{e9}/", "/\n/"] {
            assert!(StatusPath::new(bad).is_none(), "{bad:?}");
        }
    }
}
