//! Asks a URL of the route what became of a request whose answer was lost.
//!
//! `docs/reference/wire.md` has the contract. Whoever answers repeats the derived key: a page that
//! says 404 to everybody, or a wrong address, must not be taken for somebody who knows.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, LOCATION};
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use oncekey::core::{Headers, Saved};
use oncekey::engine::{Doubt, Happened, Probe};
use oncekey::layer::RequestBody;
use tokio::time::timeout;

use crate::proxy::STEP;
use crate::upstream::{Answer, Care, Upstream};

/// Those who can be asked, by route. A reload puts others in their place.
#[derive(Default)]
pub(crate) struct Probes(ArcSwap<HashMap<Box<str>, Knower>>);

/// Somebody who may know.
#[derive(Clone)]
pub(crate) struct Knower {
    pub(crate) upstream: Upstream,
    pub(crate) path: PathAndQuery,
    pub(crate) host: HeaderValue,
}

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The status of the answer that was lost, if it was not 200.
const ORIGINAL_STATUS: HeaderName = HeaderName::from_static("original-status");
/// What an answer may weigh: as much as is kept of one by default.
const LARGEST: usize = 1024 * 1024;
/// A client waits for this, so it is shorter than what most clients wait.
const PATIENCE: Duration = Duration::from_secs(5);
/// What is kept of the lines of an answer; the rest is about the probe.
const KEPT: [HeaderName; 2] = [CONTENT_TYPE, LOCATION];

impl Probes {
    /// Puts others in place of those who were asked so far.
    pub(crate) fn replace(&self, knowers: HashMap<Box<str>, Knower>) {
        self.0.store(knowers.into());
    }
}

impl Knower {
    /// Somebody at the path of a URL. `None` if the URL has no host that a header could hold.
    pub(crate) fn new(upstream: Upstream, url: &Uri) -> Option<Self> {
        let host = HeaderValue::try_from(url.authority()?.as_str()).ok()?;
        let root = || PathAndQuery::from_static("/");
        let path = url.path_and_query().cloned().unwrap_or_else(root);
        Some(Self { upstream, path, host })
    }

    async fn ask(&self, key: &HeaderValue) -> Happened {
        let mut request = Request::new(RequestBody::from(Bytes::new()));
        *request.uri_mut() = Uri::from(self.path.clone());
        request.headers_mut().insert(HOST, self.host.clone());
        request.headers_mut().insert(KEY, key.clone());
        match self.upstream.send(Box::new(request), Care::Usual).await {
            Ok(response) => understand(response, key).await,
            Err(_) => Happened::CannotTell,
        }
    }
}

async fn understand(response: Response<Answer>, key: &HeaderValue) -> Happened {
    let (head, body) = response.into_parts();
    if head.headers.get(KEY) != Some(key) {
        return Happened::CannotTell;
    }
    match head.status {
        StatusCode::NOT_FOUND => Happened::No,
        StatusCode::OK => {
            let Some(saved) = answer(&head.headers) else { return Happened::CannotTell };
            match Limited::new(body, LARGEST).collect().await {
                Ok(body) => Happened::Yes(Saved { body: body.to_bytes(), ..saved }),
                Err(_) => Happened::CannotTell,
            }
        }
        _ => Happened::CannotTell,
    }
}

/// The answer without its body; `None` if it has a status that no answer has.
fn answer(lines: &http::HeaderMap) -> Option<Saved> {
    let status = match lines.get(ORIGINAL_STATUS) {
        None => 200,
        Some(status) => status.to_str().ok()?.parse().ok()?,
    };
    let mut headers = Headers::new();
    for name in &KEPT {
        for value in lines.get_all(name) {
            headers.push(name.as_str().as_bytes(), value.as_bytes()).ok()?;
        }
    }
    let saved = Saved { status, headers, body: Bytes::new() };
    (200..=599).contains(&status).then_some(saved)
}

#[async_trait]
impl Probe for Probes {
    async fn did_it_happen(&self, doubt: &Doubt<'_>) -> Happened {
        let Some(origin) = &doubt.origin else { return Happened::CannotTell };
        let route = String::from_utf8_lossy(origin.route.as_bytes()).into_owned();
        let Some(knower) = self.0.load().get(route.as_str()).cloned() else {
            return Happened::CannotTell;
        };
        let Ok(key) = HeaderValue::try_from(doubt.derived_key(STEP)) else {
            return Happened::CannotTell;
        };
        let happened = timeout(PATIENCE, knower.ask(&key)).await.unwrap_or(Happened::CannotTell);
        let result = match &happened {
            Happened::Yes(_) => "happened",
            Happened::No => "did_not_happen",
            Happened::CannotTell => "cannot_tell",
        };
        metrics::counter!("oncekey_probes_total", "route" => route, "result" => result)
            .increment(1);
        happened
    }
}

impl fmt::Debug for Probes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Probes({} routes)", self.0.load().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_its_own_status_and_few_lines() {
        let mut lines = http::HeaderMap::new();
        lines.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        lines.insert("set-cookie", HeaderValue::from_static("a=b"));
        assert_eq!(answer(&lines).unwrap().status, 200);
        assert_eq!(answer(&lines).unwrap().headers.len(), 1);
        for (status, expected) in
            [("201", Some(201)), ("402", Some(402)), ("100", None), ("x", None), ("70000", None)]
        {
            lines.insert(ORIGINAL_STATUS, HeaderValue::from_static(status));
            assert_eq!(answer(&lines).map(|saved| saved.status), expected, "{status}");
        }
    }
}
