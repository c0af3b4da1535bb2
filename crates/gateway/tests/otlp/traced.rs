//! From the client's span to the upstream's, and from a replay to its original.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::timeout;

use crate::common::gateway::{Gateway, Home};
use crate::common::stub::{Reply, Stub, Then};
use crate::common::until;
use crate::common::wire::{Client, ask, pay};
use crate::decode::{Span, spans};

const ONE: &str = "00-11111111111111111111111111111111-aaaaaaaaaaaaaaaa-01";
const TWO: &str = "00-22222222222222222222222222222222-bbbbbbbbbbbbbbbb-01";
/// A collector is given ten seconds, which nobody here waits for.
const SOON: Duration = Duration::from_secs(8);
const UNWANTED: &str = "00-33333333333333333333333333333333-cccccccccccccccc-00";

/// A gateway that tells a collector.
fn traced(home: &Home, upstream: &Stub, collector: &str) -> Gateway {
    let rest = format!(
        "[telemetry]\notlp = \"{collector}\"\n\
         [defaults]\nscope = [\"header:X-Tenant\"]\nmode = \"optional\"\n\
         [[route]]\nname = \"pay\"\nmatch = \"POST /payments\"\n"
    );
    home.configure(&upstream.url(), &rest);
    home.run()
}

async fn collector() -> Stub {
    Stub::start(|_| Reply::ok("")).await
}

fn collected(collector: &Stub) -> Vec<Span> {
    collector.whole().iter().flat_map(|request| spans(&request.body)).collect()
}

async fn ended(mut gateway: Gateway) {
    gateway.tell(Signal::TERM);
    assert!(gateway.ended().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_is_linked_to_the_request_that_ran() {
    let (upstream, collector) = (Stub::start(|_| Reply::ok("{}")).await, collector().await);
    let home = Home::on_sqlite();
    let gateway = traced(&home, &upstream, &collector.url());
    let mut client = Client::open(gateway.address).await;
    let first = client.ask(&pay("1").line("traceparent", ONE).line("tracestate", "v=1")).await;
    let again = client.ask(&pay("1").line("traceparent", TWO)).await;
    assert_eq!((first.status, again.status), (200, 200));
    // The end of the program sends what is left.
    ended(gateway).await;

    let all = collected(&collector);
    let [ran, called, replayed] = {
        let find = |trace: &str, kind| {
            let found: Vec<&Span> = all
                .iter()
                .filter(|span| span.trace.starts_with(trace) && span.kind == kind)
                .collect();
            let [only] = found[..] else { panic!("{all:#?}") };
            only
        };
        [find("11", 2), find("11", 3), find("22", 2)]
    };
    assert_eq!(all.len(), 3, "{all:#?}");
    assert_eq!((&*ran.parent, &*ran.name), ("aaaaaaaaaaaaaaaa", "POST /payments"));
    assert_eq!(called.parent, ran.id);
    assert_eq!(replayed.parent, "bbbbbbbbbbbbbbbb");
    assert_eq!(replayed.links, [(ran.trace.clone(), ran.id.clone())]);
    assert!(ran.links.is_empty() && called.links.is_empty());
    for (name, of_first, of_second) in [
        ("http.request.method", "POST", "POST"),
        ("http.route", "/payments", "/payments"),
        ("http.response.status_code", "200", "200"),
        ("idempotency.route", "pay", "pay"),
        ("idempotency.mode", "optional", "optional"),
        ("idempotency.outcome", "executed", "replayed"),
        ("idempotency.replayed", "false", "true"),
    ] {
        assert_eq!((&*ran.attributes[name], &*replayed.attributes[name]), (of_first, of_second));
    }
    assert_eq!(called.attributes["http.response.status_code"], "200");
    for span in &all {
        assert_eq!((span.status, &*span.resource["service.name"]), (0, "oncekey"));
        assert_eq!(span.resource["service.instance.id"], "127.0.0.1:0");
        assert!(span.end >= span.start && span.start > 1_700_000_000_000_000_000, "{span:?}");
    }
    assert!(ran.start <= called.start && called.end <= ran.end);

    let [arrived] = &upstream.whole()[..] else { panic!("the replay went upstream") };
    let told = format!("00-{}-{}-01", called.trace, called.id);
    assert_eq!((arrived.line("traceparent"), arrived.line("tracestate")), (&*told, "v=1"));
    let [request, ..] = &collector.whole()[..] else { panic!("nothing was sent") };
    assert!(request.head.starts_with("POST /v1/traces "), "{}", request.head);
    assert_eq!(request.line("content-type"), "application/x-protobuf");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_begins_here_or_is_left_alone() {
    let (upstream, collector) = (Stub::start(|_| Reply::ok("{}")).await, collector().await);
    let home = Home::on_sqlite();
    let gateway = traced(&home, &upstream, &collector.url());
    let mut client = Client::open(gateway.address).await;
    for request in [
        ask("GET", "/secret/path?token=hunter2"),
        pay("2").key("hunter2").line("traceparent", UNWANTED),
        pay("3").key("other").line("traceparent", "nonsense").line("tracestate", "v=1"),
    ] {
        assert_eq!(client.ask(&request).await.status, 200);
    }
    // They come by themselves, too, a moment later.
    until("spans", async || collected(&collector).len() >= 4).await;
    ended(gateway).await;
    let all = collected(&collector);
    assert_eq!(all.len(), 4, "two requests and two calls: {all:#?}");
    assert!(all.iter().all(|span| !span.trace.starts_with("33")));
    let roots: Vec<&Span> = all.iter().filter(|span| span.parent.is_empty()).collect();
    assert_eq!(roots.len(), 2);
    assert_ne!(roots[0].trace, roots[1].trace);
    let shown = format!("{all:?}");
    assert!(!shown.contains("secret") && !shown.contains("hunter2"), "{shown}");
    let [get, unwanted, nonsense] = &upstream.whole()[..] else { panic!("three requests") };
    assert!(get.line("traceparent").ends_with("-01"));
    assert_eq!(unwanted.line("traceparent"), UNWANTED);
    assert_eq!(nonsense.line("tracestate"), "", "it belongs to no trace");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_is_away_is_an_error() {
    let (upstream, collector) =
        (Stub::start(|_| Reply::new("", Then::Reset)).await, collector().await);
    let home = Home::on_sqlite();
    let gateway = traced(&home, &upstream, &collector.url());
    let answer = Client::open(gateway.address).await.ask(&pay("1").line("traceparent", ONE)).await;
    assert_eq!(answer.status, 502);
    ended(gateway).await;
    let all = collected(&collector);
    assert_eq!(all.len(), 2, "{all:#?}");
    assert!(all.iter().all(|span| span.status == 2), "{all:#?}");
    let server = all.iter().find(|span| span.kind == 2).unwrap();
    assert_eq!(server.attributes["http.response.status_code"], "502");
}

/// Traces are for people who look at them later. Nobody waits for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_hangs_refuses_or_is_away_holds_nobody_up() {
    let upstream = Stub::start(|_| Reply::ok("{}")).await;
    let hangs = Stub::start(|_| Reply::new("", Then::Hang)).await;
    let refuses =
        Stub::start(|_| Reply::new("HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n", Then::Keep))
            .await;
    let nobody = "http://127.0.0.1:9".to_owned();
    for (url, reason) in
        [(hangs.url(), None), (refuses.url(), Some("refused")), (nobody, Some("unreachable"))]
    {
        let home = Home::on_sqlite();
        let gateway = traced(&home, &upstream, &url);
        let mut client = Client::open(gateway.address).await;
        let all = async {
            for number in 0..100 {
                let request = pay("1").key(&format!("key {number}"));
                assert_eq!(client.ask(&request).await.status, 200);
            }
        };
        timeout(SOON, all).await.expect(&url);
        if let Some(reason) = reason {
            let label = format!("reason=\"{reason}\"");
            let lost = async || gateway.metric("oncekey_spans_lost_total", &[&label]).await;
            until("lost spans", async || lost().await >= 1.0).await;
        }
        timeout(SOON * 2, ended(gateway)).await.expect(&url);
    }
}
