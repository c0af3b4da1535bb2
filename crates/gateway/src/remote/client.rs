//! One request to the admin API, and what came back.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request, Uri, request};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::args::Target;
use super::text::{block, plain};
use crate::admin::{ACTOR, IDENTITY};
use crate::exit::{self, Exit};
use crate::upstream::port_of;

/// Knows where a gateway is and how to be let in.
#[derive(Debug)]
pub(super) struct Client {
    authority: String,
    port: u16,
    token: Option<HeaderValue>,
}

/// Why nothing came back that could be believed.
enum Failure {
    /// Somebody else answers there.
    Stranger,
    Broken(Box<dyn Error + Send + Sync>),
}

/// What came back.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Value,
}

/// The port of the admin listener, unless told otherwise.
const DEFAULT_PORT: u16 = 8788;
/// How long everything may take: more than the gateway gives its store.
const WITHIN: Duration = Duration::from_secs(15);
/// The largest answer: a page of a thousand records, or one answer as hexadecimal digits.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

impl Client {
    pub(super) fn new(target: &Target) -> Result<Self, Exit> {
        let usage = |why: &str| Exit::new(exit::USAGE, &format!("--admin {why}"));
        let uri: Uri = target.admin.parse().map_err(|_| usage("is not a URL"))?;
        match uri.scheme_str() {
            Some("http") => {}
            // A tunnel or a proxy with TLS is the way to another machine.
            _ => return Err(usage("must begin with http://: the admin API has no TLS of its own")),
        }
        let authority = uri.authority().ok_or_else(|| usage("has no host"))?;
        if authority.as_str().contains('@') {
            return Err(usage("must not hold a password: use --token-file"));
        }
        let port = port_of(authority).map_err(|error| usage(&format!("is wrong: {error}")))?;
        let port = port.unwrap_or(DEFAULT_PORT);
        let authority = format!("{}:{port}", authority.host());
        Ok(Self { authority, port, token: token(target)? })
    }

    pub(super) async fn get(&self, path: &str) -> Result<Reply, Exit> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Reply, Exit> {
        self.ask(Method::POST, path, Bytes::from(body.to_string())).await
    }

    /// Asks, once it is known who answers: a change or a token that has reached another program cannot
    /// be taken back.
    async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Reply, Exit> {
        let asked = async {
            let introduction = self.request(Method::GET, "/healthz").body(Full::default())?;
            self.talk(introduction).await?;
            self.talk(self.signed(method, path, body)?).await
        };
        let reply = match tokio::time::timeout(WITHIN, asked).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(Failure::Stranger)) => return Err(self.stranger()),
            Ok(Err(Failure::Broken(error))) => return Err(self.unreachable(&*error)),
            Err(_) => {
                let seconds = WITHIN.as_secs();
                let message = format!("{} did not answer within {seconds} s", self.authority);
                return Err(Exit::new(exit::FAILURE, &message));
            }
        };
        if reply.code() == "admin_token_required" { Err(self.denied()) } else { Ok(reply) }
    }

    fn request(&self, method: Method, path: &str) -> request::Builder {
        Request::builder().method(method).uri(path).header(header::HOST, &self.authority)
    }

    /// A request with everything by which a gateway knows who asks.
    fn signed(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut request = self.request(method, path);
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token);
        }
        if let Some(actor) = actor() {
            request = request.header(ACTOR, actor);
        }
        request.body(Full::new(body))
    }

    async fn talk(&self, request: Request<Full<Bytes>>) -> Result<Reply, Failure> {
        // An address in brackets is looked up without them.
        let host = self.authority.rsplit_once(':').map_or("", |(host, _)| host);
        let stream = TcpStream::connect((host.trim_matches(['[', ']']), self.port)).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Ends with the sender. Its errors are those of the request.
        tokio::spawn(async move { drop(connection.await) });
        let response = sender.send_request(request).await?;
        if !response.headers().contains_key(IDENTITY) {
            return Err(Failure::Stranger);
        }
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(Failure::Broken)?.to_bytes();
        let body = serde_json::from_slice(&body)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
        Ok(Reply { status, body })
    }

    fn stranger(&self) -> Exit {
        let message = format!(
            "what answers at http://{} is not the admin listener of oncekey, and was asked for \
             nothing; another address is given with --admin or ONCEKEY_ADMIN",
            self.authority
        );
        Exit::new(exit::FAILURE, &message)
    }

    fn denied(&self) -> Exit {
        let message = match &self.token {
            None => {
                "this gateway asks for a token: name a file that holds it with --token-file, or \
                 put it into ONCEKEY_ADMIN_TOKEN"
            }
            Some(_) => {
                "the token is not the one of this gateway: look into the file of --token-file \
                 (or ONCEKEY_ADMIN_TOKEN_FILE), or else at ONCEKEY_ADMIN_TOKEN"
            }
        };
        Exit::new(exit::DENIED, message)
    }

    fn unreachable(&self, error: &(dyn Error + 'static)) -> Exit {
        let message = format!(
            "cannot ask the gateway: is it running? tried http://{}; another address is given \
             with --admin or ONCEKEY_ADMIN",
            self.authority
        );
        Exit::chain(exit::FAILURE, &message, Some(error))
    }
}

impl Reply {
    /// The document, or the words and the number for what went wrong.
    pub(super) fn document(self) -> Result<Value, Exit> {
        let Some(number) = self.failed() else { return Ok(self.body) };
        let detail = self.body["detail"].as_str().unwrap_or("the gateway did not say why");
        // Somebody has made a block for people of it already.
        if detail.contains('\n') {
            return Err(Exit::verbatim(number, block(detail)));
        }
        let (status, code) = (self.status, plain(self.code()));
        Err(Exit::new(number, &format!("{} ({status} {code})", plain(detail))))
    }

    /// The number for what went wrong, if something did.
    pub(super) fn failed(&self) -> Option<u8> {
        Some(match (self.status, self.code()) {
            (200..300, _) => return None,
            (_, "admin_reload_failed") => exit::INVALID,
            (_, "admin_confirmation_required" | "admin_lease_alive" | "admin_state_conflict") => {
                exit::REFUSED
            }
            (_, "admin_store_unavailable") => exit::UNREACHABLE,
            (401 | 403, _) => exit::DENIED,
            (400, _) => exit::USAGE,
            _ => exit::FAILURE,
        })
    }

    /// The code of a problem.
    pub(super) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Broken(error.into())
    }
}

/// The token, from a file or the environment. Never from the command line: everybody on the machine
/// can read that.
fn token(target: &Target) -> Result<Option<HeaderValue>, Exit> {
    let text = match &target.token_file {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            Some(text.map_err(|error| {
                let message = format!("cannot read {}", path.display());
                Exit::chain(exit::USAGE, &message, Some(&error))
            })?)
        }
        None => std::env::var("ONCEKEY_ADMIN_TOKEN").ok(),
    };
    let Some(text) = text else { return Ok(None) };
    let mut value = HeaderValue::from_str(&format!("Bearer {}", text.trim()))
        .map_err(|_| Exit::new(exit::USAGE, "the token has a character that cannot be sent"))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// Who runs this, for the audit of the gateway, which does not take it for proven.
fn actor() -> Option<HeaderValue> {
    let name = std::env::var("USER").ok()?;
    HeaderValue::from_str(&name).ok().filter(|name| name.to_str().is_ok())
}
