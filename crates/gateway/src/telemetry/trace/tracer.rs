//! Spans of requests, from their beginning to their end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri};
use oncekey::clock::{SystemClock, SystemUptime, Uptime as _};
use oncekey::core::Clock as _;
use oncekey::entropy::SystemEntropy;
use oncekey::layer::{OriginalTrace, Outcome};

use super::context::{Context, Said};
use super::exporter::{Collector, Exporter};
use super::proto::{Kind, Span, Status, Value};
use crate::config::Config;
use crate::exit::{self, Exit};
use crate::route::Route;
use crate::upstream::{Patience, Target, Tls, Trust, Upstream};

/// Traces requests, if a collector is configured. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Tracer(Option<Arc<Tracing>>);

struct Tracing {
    exporter: Exporter,
    entropy: SystemEntropy,
}

/// The span of a request. It ends when this goes.
#[derive(Debug)]
pub(crate) struct Serving(Option<Box<Open>>);

/// The span of a call of the upstream.
#[derive(Debug)]
pub(crate) struct Calling(Option<Box<Open>>);

/// A span that has not ended.
#[derive(Debug)]
struct Open {
    tracing: Arc<Tracing>,
    span: Span,
    /// By the clock that never steps.
    began: Duration,
}

/// How long a connection to the collector, and its answer, may take.
const PATIENCE: Patience =
    Patience { connect: Duration::from_secs(5), answer: Duration::from_secs(10) };
/// What the standard puts behind the address of a collector.
const PATH: &str = "/v1/traces";

impl Tracer {
    /// Whether the configuration can be followed.
    pub(crate) fn check(config: &Config) -> Result<(), Exit> {
        config.telemetry.otlp.as_deref().map_or(Ok(()), |url| place(url).map(drop))
    }

    /// Starts to trace. Needs a runtime.
    pub(crate) fn start(config: &Config) -> Result<Self, Exit> {
        let Some(url) = &config.telemetry.otlp else { return Ok(Self(None)) };
        let (target, authority, path) = place(url)?;
        let trust = match target.tls {
            Tls::Plain => Ok(Trust::nobody()),
            Tls::Encrypted => Trust::of_machine(),
        };
        let trust = trust.map_err(|error| refused(Some(&error)))?;
        let host = HeaderValue::try_from(authority.as_str()).map_err(|_| refused(None))?;
        let resource = vec![
            ("service.name", Value::from("oncekey")),
            ("service.version", Value::from(env!("CARGO_PKG_VERSION"))),
            ("service.instance.id", Value::from(config.server.instance.clone())),
        ];
        let upstream = Upstream::new(target, &trust, PATIENCE);
        let exporter = Exporter::start(Collector { upstream, path, host, resource });
        Ok(Self(Some(Arc::new(Tracing { exporter, entropy: SystemEntropy::default() }))))
    }

    /// Begins the span of a request, and puts it in the place of the client's: what is kept with the
    /// answer, and what the upstream is told, is this one.
    pub(crate) fn request(&self, head: &mut Parts, route: Option<&Route>) -> Serving {
        let Some(tracing) = &self.0 else { return Serving(None) };
        let (context, parent) = match Said::by(&mut head.headers) {
            Said::Unwanted => return Serving(None),
            Said::Recorded(parent) => (parent.child(&tracing.entropy), Some(parent.span)),
            Said::Nothing => (Context::new(&tracing.entropy), None),
        };
        context.write(&mut head.headers);
        let method = method(&head.method);
        let mut attributes = vec![("http.request.method", Value::from(method))];
        let name = match route {
            None => method.to_owned(),
            Some(route) => {
                let path = route.spec.pattern.path().to_owned();
                let name = format!("{method} {path}");
                attributes.extend([
                    ("http.route", Value::from(path)),
                    ("idempotency.route", Value::from(route.name().to_owned())),
                    ("idempotency.mode", Value::from(route.mode().label())),
                ]);
                name
            }
        };
        Serving(Some(tracing.open(context, parent, name, Kind::Server, attributes)))
    }

    /// Begins the span of a call, and tells the upstream. A request that nobody traces has none.
    pub(crate) fn upstream(&self, headers: &mut HeaderMap) -> Calling {
        let Some(tracing) = &self.0 else { return Calling(None) };
        let Said::Recorded(parent) = Said::by(headers) else { return Calling(None) };
        let context = parent.child(&tracing.entropy);
        context.write(headers);
        let (name, attributes) = ("upstream".to_owned(), Vec::new());
        Calling(Some(tracing.open(context, Some(parent.span), name, Kind::Client, attributes)))
    }

    /// Sends what has ended so far.
    pub(crate) async fn flush(&self, within: Duration) {
        if let Some(tracing) = &self.0 {
            tracing.exporter.flush(within).await;
        }
    }
}

impl Serving {
    /// Whether somebody wants to know when the request ends.
    pub(crate) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Notes the answer. Without one, the client has left before.
    pub(crate) fn answered<B>(&mut self, response: &Response<B>) {
        let Some(open) = &mut self.0 else { return };
        open.answered(response.status());
        let Some(outcome) = response.extensions().get::<Outcome>() else { return };
        let replayed = matches!(outcome, Outcome::Replayed | Outcome::Coalesced);
        open.span.attributes.extend([
            ("idempotency.outcome", Value::from(outcome.label())),
            ("idempotency.replayed", Value::Flag(replayed)),
        ]);
        let original = response.extensions().get::<OriginalTrace>();
        open.span.link = original.and_then(|trace| Context::parse(trace.as_str()));
    }

    /// Ends the span, as going does.
    pub(crate) fn end(self) {
        drop(self);
    }
}

impl Calling {
    /// Ends the span: with the status of the answer, or without one.
    pub(crate) fn ended(mut self, status: Option<StatusCode>) {
        if let (Some(open), Some(status)) = (&mut self.0, status) {
            open.answered(status);
        }
    }
}

impl Tracing {
    fn open(
        self: &Arc<Self>,
        context: Context,
        parent: Option<[u8; 8]>,
        name: String,
        kind: Kind,
        attributes: Vec<(&'static str, Value)>,
    ) -> Box<Open> {
        let start = SystemClock.now().micros();
        let start = u64::try_from(start).unwrap_or_default().saturating_mul(1_000);
        let (end, link) = (start, None);
        // Until somebody says that there is an answer.
        let status = Status::Error;
        let span = Span { context, parent, name, kind, start, end, attributes, link, status };
        Box::new(Open { tracing: Arc::clone(self), span, began: SystemUptime.elapsed() })
    }
}

impl Open {
    fn answered(&mut self, status: StatusCode) {
        let faulty = match self.span.kind {
            Kind::Server => status.is_server_error(),
            Kind::Client => status.is_client_error() || status.is_server_error(),
        };
        self.span.status = if faulty { Status::Error } else { Status::Unset };
        let code = Value::Number(status.as_u16());
        self.span.attributes.push(("http.response.status_code", code));
    }

    fn end(self) {
        let Self { tracing, mut span, began } = self;
        let took = SystemUptime.elapsed().saturating_sub(began).as_nanos();
        span.end = span.start.saturating_add(u64::try_from(took).unwrap_or_default());
        tracing.exporter.take(span);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            open.end();
        }
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            open.end();
        }
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Tracer({})", if self.0.is_some() { "on" } else { "off" })
    }
}

impl fmt::Debug for Tracing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Tracing")
    }
}

/// Where the collector is, and what it is asked there.
fn place(url: &str) -> Result<(Target, Authority, PathAndQuery), Exit> {
    let uri: Uri = url.parse().map_err(|error| refused(Some(&error)))?;
    let authority = uri.authority().cloned().ok_or_else(|| refused(None))?;
    let target = format!("{}://{authority}", uri.scheme_str().unwrap_or("http"));
    let target: Target = target.parse().map_err(|error| refused(Some(&error)))?;
    let path = format!("{}{PATH}", uri.path().trim_end_matches('/'));
    let path = PathAndQuery::try_from(path).map_err(|error| refused(Some(&error)))?;
    Ok((target, authority, path))
}

fn refused(error: Option<&(dyn std::error::Error + 'static)>) -> Exit {
    Exit::chain(exit::INVALID, "telemetry.otlp cannot be used", error)
}

/// A method as a name: clients can make up any number of them, and the standard has a word for that.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "_OTHER",
    }
}
