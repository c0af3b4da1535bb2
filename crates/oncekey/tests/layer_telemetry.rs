//! What operators see of the layer: metrics, spans and warnings. Never a key, never a path.

#![cfg(feature = "tower")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use http::{Request, Response};
use metrics::{Counter, CounterFn, Gauge, Histogram, HistogramFn, Metadata, Recorder, Unit};
use oncekey::clock::SystemClock;
use oncekey::core::policy::{InFlight, Limits, Verdict};
use oncekey::core::{Key, MemoryStore, Policy, Scope};
use oncekey::engine::Engine;
use oncekey::layer::{IdempotencyLayer, LayerBuilder, Rule, ScopeFrom};
use tower::{ServiceBuilder, ServiceExt as _};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};

const KEY: &str = "8e03978e-40d5-43e8-bc93-6894a57f9324";
const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// One test at a time. Whether anybody wants a span is remembered for the whole process: a thread
/// without a subscriber that comes first to a span, while another thread installs its own, can
/// switch the span off for both.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn every_request_is_counted_once_by_how_it_ended() {
    let _alone = alone();
    let meters = Meters::default();
    metrics::with_local_recorder(&meters, || on_a_runtime(every_kind_of_request()));
    let series = meters.0.lock().expect("no panic").clone();
    let counts: Vec<String> = series
        .iter()
        .filter(|(name, _)| !name.starts_with("oncekey_store") && !name.contains("duration"))
        .map(|(name, count)| format!("{name} {}", count.load(Ordering::SeqCst)))
        .collect();
    let expected = [
        "oncekey_keyless_requests_total{mode=optional,route=optional} 2",
        "oncekey_keyless_requests_total{mode=required,route=POST /charges} 1",
        "oncekey_keys_presented_total{quality=good,route=POST /charges,source=header} 4",
        "oncekey_keys_presented_total{quality=invalid,route=POST /charges,source=header} 1",
        "oncekey_keys_presented_total{quality=weak,route=POST /charges,source=header} 1",
        "oncekey_requests_total{method=PATCH,mode=optional,outcome=bypassed,route=optional} 1",
        "oncekey_requests_total{method=POST,mode=optional,outcome=bypassed,route=optional} 1",
        "oncekey_requests_total{method=POST,mode=required,outcome=executed,route=POST /charges} 2",
        "oncekey_requests_total{method=POST,mode=required,outcome=invalid_key,route=POST /charges} 1",
        "oncekey_requests_total{method=POST,mode=required,outcome=invalid_request,route=POST /charges} 1",
        "oncekey_requests_total{method=POST,mode=required,outcome=mismatch,route=POST /charges} 1",
        "oncekey_requests_total{method=POST,mode=required,outcome=missing_key,route=POST /charges} 1",
        "oncekey_requests_total{method=POST,mode=required,outcome=replayed,route=POST /charges} 1",
    ];
    let layers: Vec<&String> = counts
        .iter()
        .filter(|line| {
            expected.iter().any(|known| known.split('{').next() == line.split('{').next())
        })
        .collect();
    assert_eq!(layers, expected);
    let timed = "oncekey_request_duration_seconds{outcome=replayed,route=POST /charges}";
    assert_eq!(series.get(timed).map(|count| count.load(Ordering::SeqCst)), Some(1));
    for name in series.keys() {
        assert!(!name.contains(KEY) && !name.contains("secret"), "{name}");
    }
}

/// One request for each way to end that needs no help.
async fn every_kind_of_request() {
    let limits = Limits { request_body: 100, ..Limits::default() };
    let policy = Policy { limits, ..Policy::default() };
    let rule = Rule::new("POST /charges").required().policy(policy).expect("a policy");
    let layer = layer().rule(rule);
    let large = "x".repeat(101);
    let requests = [
        post(Some(KEY), "{}"),
        post(Some(KEY), "{}"),
        post(Some(KEY), "other"),
        post(Some(KEY), &large),
        post(Some("weak"), "{}"),
        post(Some("a,b"), "{}"),
        post(None, "{}"),
        Request::get("/secret").body(Body::empty()).expect("a request"),
    ];
    send_all(layer, requests).await;
    let mut patch = post(None, "{}");
    *patch.method_mut() = http::Method::PATCH;
    send_all(self::layer().rule(Rule::new("optional")), [post(None, "{}"), patch]).await;
}

/// The trace of a replay leads to the request that ran, and no trace shows a key.
#[test]
fn the_span_of_a_replay_leads_to_its_original() {
    let _alone = alone();
    let spans = Spans::default();
    let guard = tracing::subscriber::set_default(spans.clone());
    let engine = on_a_runtime(async {
        let engine = engine();
        let layer = IdempotencyLayer::builder(engine.clone()).scope(ScopeFrom::shared());
        let mut second = post(Some(KEY), "{}");
        second.headers_mut().insert("idempotency-attempt", http::HeaderValue::from_static("2"));
        send_all(layer.rule(Rule::new("r").required()), [post(Some(KEY), "{}"), second]).await;
        engine
    });
    drop(guard);
    let seen = spans.0.lock().expect("no panic");
    let layers: Vec<_> =
        seen.spans.iter().filter(|span| span.contains_key("idempotency.mode")).collect();
    let [first, second] = layers[..] else { panic!("two requests, {} spans", layers.len()) };

    let id = engine.key_id(&Scope::shared(), &Key::new(KEY.as_bytes()).expect("a key")).to_string();
    for (span, outcome, replayed) in [(first, "executed", "false"), (second, "replayed", "true")] {
        assert_eq!(span["idempotency.outcome"], outcome);
        assert_eq!(span["idempotency.replayed"], replayed);
        assert_eq!(span["idempotency.mode"], "required");
        assert_eq!(span["idempotency.key_hash"], id[..8]);
    }
    assert_eq!(second["idempotency.original_request_id"], first["idempotency.request_id"]);
    assert_eq!(second["idempotency.original_traceparent"], TRACE);
    assert_eq!(second["idempotency.fence"], first["idempotency.fence"]);
    assert_eq!(second["idempotency.attempt"], "2");
    assert!(!format!("{:?}", seen.spans).contains(KEY));
}

/// A doubt that begins with an answer of the upstream can be found: the answer went out as it came.
#[test]
fn the_span_of_an_answer_that_is_not_kept_says_so() {
    let _alone = alone();
    for (verdict, recorded) in [
        (Verdict::Keep, None),
        (Verdict::Unknown, Some("unknown")),
        (Verdict::Release, Some("released")),
    ] {
        let spans = Spans::default();
        let guard = tracing::subscriber::set_default(spans.clone());
        on_a_runtime(async {
            let policy = Policy::default();
            let policy = Policy { keep: policy.keep.clone().first(201, verdict), ..policy };
            let rule = Rule::new("r").policy(policy).expect("a policy");
            send_all(layer().rule(rule), [post(Some(KEY), "{}")]).await;
        });
        drop(guard);
        let seen = spans.0.lock().expect("no panic");
        let span = seen.spans.iter().find(|span| span.contains_key("idempotency.mode"));
        let span = span.expect("a span");
        assert_eq!(span["idempotency.outcome"], "executed");
        assert_eq!(span.get("idempotency.recorded").map(String::as_str), recorded);
    }
}

/// T1: nobody shares keys by accident without having been told.
#[test]
fn a_layer_without_a_scope_warns_once() {
    let _alone = alone();
    for (scope, warnings) in [(None, 1), (Some(ScopeFrom::shared()), 0)] {
        let builder = IdempotencyLayer::builder(on_a_runtime(async { engine() }));
        let builder = match scope {
            Some(scope) => builder.scope(scope),
            None => builder,
        };
        assert_eq!(warnings_of(builder, "no scope is configured"), warnings);
    }
}

#[test]
fn a_layer_that_promises_status_urls_and_has_none_warns() {
    let _alone = alone();
    let rule = || {
        let policy = Policy { in_flight: InFlight::Accepted, ..Policy::default() };
        Rule::new("r").policy(policy).expect("a policy")
    };
    let without = on_a_runtime(async { layer() }).rule(rule());
    assert_eq!(warnings_of(without, "status URL"), 1);
    let with = on_a_runtime(async { layer() }).rule(rule()).status_path("/status/");
    assert_eq!(warnings_of(with.expect("a path"), "status URL"), 0);
}

fn warnings_of(builder: LayerBuilder, about: &str) -> usize {
    let spans = Spans::default();
    tracing::subscriber::with_default(spans.clone(), || drop(builder.build()));
    let seen = spans.0.lock().expect("no panic");
    seen.events.iter().filter(|event| event.contains(about)).count()
}

fn engine() -> Engine {
    Engine::new(Arc::new(MemoryStore::new(Arc::new(SystemClock)))).expect("an engine")
}

fn layer() -> LayerBuilder {
    IdempotencyLayer::builder(engine()).scope(ScopeFrom::shared())
}

/// Everything on this thread, so that its recorder and subscriber see it.
fn on_a_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

fn post(key: Option<&str>, body: &str) -> Request<Body> {
    let mut request = Request::post("/charges/secret").header("traceparent", TRACE);
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    request.body(Body::from(body.to_owned())).expect("a request")
}

async fn send_all(layer: LayerBuilder, requests: impl IntoIterator<Item = Request<Body>>) {
    let service = ServiceBuilder::new()
        .layer(layer.build())
        .service_fn(async |_: Request<Body>| Response::builder().status(201).body(Body::empty()));
    for request in requests {
        service.clone().oneshot(request).await.expect("an answer");
    }
}

/// Remembers how often each series was touched.
#[derive(Default)]
struct Meters(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Meters {
    fn series(&self, key: &metrics::Key) -> Arc<AtomicU64> {
        let mut labels: Vec<String> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        labels.sort();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Arc::clone(self.0.lock().expect("no panic").entry(name).or_default())
    }
}

impl Recorder for Meters {
    fn describe_counter(&self, _: metrics::KeyName, _: Option<Unit>, _: metrics::SharedString) {}
    fn describe_gauge(&self, _: metrics::KeyName, _: Option<Unit>, _: metrics::SharedString) {}
    fn describe_histogram(&self, _: metrics::KeyName, _: Option<Unit>, _: metrics::SharedString) {}

    fn register_counter(&self, key: &metrics::Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key))
    }

    fn register_gauge(&self, _: &metrics::Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &metrics::Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Times(self.series(key))))
    }
}

struct Times(Arc<AtomicU64>);

impl HistogramFn for Times {
    fn record(&self, seconds: f64) {
        assert!(seconds > 0.0, "nothing takes no time");
        self.0.increment(1);
    }
}

/// Remembers spans with their fields, and the messages of events.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    spans: Vec<BTreeMap<String, String>>,
    events: Vec<String>,
}

impl Spans {
    fn with(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.0.lock().expect("no panic"));
    }
}

impl Subscriber for Spans {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let mut seen = self.0.lock().expect("no panic");
        seen.spans.push(fields.0);
        Id::from_u64(seen.spans.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let place = usize::try_from(id.into_u64() - 1).expect("a few spans");
        let mut fields = Fields::default();
        values.record(&mut fields);
        self.with(|seen| seen.spans[place].extend(fields.0));
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.with(|seen| seen.events.extend(fields.0.remove("message")));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}
