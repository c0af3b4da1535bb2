//! `oncekey run --to`, and what a client may not do to it.

use tokio::io::AsyncReadExt as _;

use crate::common::gateway::{Gateway, Home};
use crate::common::stub::{Arrived, Reply, Stub, Then};
use crate::common::wire::{Client, pay};
use crate::common::{contains, converse, until, within};

const BODY: &str = r#"{"amount": 500}"#;

fn run(home: &Home, upstream: &Stub) -> Gateway {
    home.run_with(&["--to", &upstream.url(), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
}

/// The first command of the README, without a file: POST and PATCH with a key are protected, and
/// nothing else is touched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_command_protects_an_api() {
    let upstream = Stub::start(|arrived| Reply::ok(arrived.method())).await;
    let home = Home::on_sqlite();
    let gateway = run(&home, &upstream);
    let mut client = Client::open(gateway.address).await;
    let paying = pay(BODY).path("/anything/at/all").line("authorization", "Bearer abc");
    let first = client.ask(&paying).await;
    client.ask(&paying).await.assert_replays(&first);
    assert_eq!(upstream.count("/anything/at/all"), 1);
    let keyless = paying.clone().without("idempotency-key");
    for _ in 0..2 {
        assert_eq!(client.ask(&keyless).await.text(), "POST");
    }
    assert_eq!(upstream.count("/anything/at/all"), 3);
    // Another credential is another client.
    assert!(!client.ask(&paying.line("authorization", "Bearer xyz")).await.is_replay());
    for path in ["/healthz", "/readyz"] {
        assert_eq!(gateway.look(path).await.status, 200, "{path}");
    }
}

/// The upstream of a protected route may trust the number of an attempt: it is the gateway's, or there is
/// none. Where nothing is protected, nothing is changed either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_numbers_the_attempts_of_a_protected_route() {
    const MODES: &str = r#"
[defaults]
scope = ["header:X-Tenant"]
[[route]]
match = "POST /optional"
mode = "optional"
[[route]]
match = "POST /rollout"
mode = "optional"
rollout = { percent = 0 }
[[route]]
match = "POST /observed"
mode = "observe"
[[route]]
match = "POST /off"
mode = "off"
"#;
    let upstream = Stub::start(|_| Reply::ok("done")).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), MODES);
    let gateway = home.run();
    let mut client = Client::open(gateway.address).await;
    let faked = pay(BODY).line("idempotency-attempt", "18446744073709551615");
    let keyless = faked.clone().without("idempotency-key");
    for (path, expected) in [
        ("/optional", ""),
        ("/rollout", "18446744073709551615"),
        ("/observed", "18446744073709551615"),
        ("/off", "18446744073709551615"),
        ("/elsewhere", "18446744073709551615"),
    ] {
        assert_eq!(client.ask(&keyless.clone().path(path)).await.status, 200, "{path}");
        let arrived = upstream.whole().pop().unwrap();
        assert_eq!(arrived.line("idempotency-attempt"), expected, "{path}");
    }
    assert_eq!(client.ask(&faked.path("/optional")).await.status, 200);
    let attempt = upstream.whole().pop().unwrap().line("idempotency-attempt").to_owned();
    assert!(attempt.parse::<u64>().unwrap() < u64::MAX, "{attempt}");
}

const ROUTES: &str = r#"
[server.timeouts]
header = "300ms"
body = "300ms"
answer = "5s"
[defaults]
scope = ["header:X-Tenant"]
mode = "required"
[[route]]
match = "POST /payments"
"#;

async fn start(
    answers: impl Fn(&Arrived) -> Reply + Send + Sync + 'static,
) -> (Stub, Home, Gateway) {
    let upstream = Stub::start(answers).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), ROUTES);
    let gateway = home.run();
    (upstream, home, gateway)
}

fn next() -> Vec<u8> {
    b"GET /next HTTP/1.1\r\nhost: a\r\n\r\n".to_vec()
}

/// I38: behind every kind of answer the next request is read where it begins, or not at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_request_is_read_behind_every_kind_of_answer() {
    let (upstream, _home, gateway) = start(|_| Reply::ok("done")).await;
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";
    let cases = [
        ("first", pay(smuggled), "HTTP/1.1 200 "),
        ("replay", pay(smuggled), "idempotent-replayed: true"),
        ("mismatch", pay(smuggled.repeat(2)), "HTTP/1.1 422 "),
        ("no key", pay(smuggled).without("idempotency-key"), "HTTP/1.1 400 "),
        ("no tenant", pay(smuggled).without("x-tenant"), "HTTP/1.1 403 "),
        ("a bad key", pay(smuggled).key("a, b"), "HTTP/1.1 400 "),
        ("unprotected", pay(smuggled).path("/other"), "HTTP/1.1 200 "),
    ];
    for (name, ask, expected) in cases {
        let before = upstream.count("/next");
        let answers = converse(gateway.address, &[ask.bytes(), next()].concat()).await;
        assert!(contains(&answers, expected.as_bytes()), "{name}: {}", answers.escape_ascii());
        let followed = upstream.count("/next") - before;
        let both = answers.windows(9).filter(|word| *word == b"HTTP/1.1 ").count();
        assert_eq!((both, followed), (2, 1), "{name}: {}", answers.escape_ascii());
    }
    assert_eq!(upstream.count("/smuggled"), 0);
    assert!(upstream.faults().is_empty(), "{:?}", upstream.faults());
}

/// I39, over the wire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_cannot_have_fields_removed_that_others_decide_by() {
    let (upstream, _home, gateway) = start(|_| Reply::ok("")).await;
    let nominated = "close, idempotency-key, x-tenant, authorization, content-length, host, x-mine";
    let ask = pay(BODY)
        .line("connection", nominated)
        .line("authorization", "Bearer abc")
        .line("x-forwarded-for", "6.6.6.6")
        .line("forwarded", "for=6.6.6.6")
        .line("idempotency-attempt", "99999999999999999")
        .line("x-mine", "1")
        .line("te", "trailers");
    let answer = converse(gateway.address, &ask.bytes()).await;
    assert!(contains(&answer, b"HTTP/1.1 200 "), "{}", answer.escape_ascii());
    let arrived = &upstream.whole()[0];
    assert!(arrived.line("idempotency-key").starts_with("ok1_"), "{arrived:?}");
    for (name, value) in [
        ("x-tenant", "acme"),
        ("authorization", "Bearer abc"),
        ("host", "localhost"),
        ("x-forwarded-for", "127.0.0.1"),
        ("forwarded", ""),
        ("x-mine", ""),
        ("te", ""),
        ("connection", ""),
    ] {
        assert_eq!(arrived.line(name), value, "{name}");
    }
    assert_ne!(arrived.line("idempotency-attempt"), "99999999999999999");
    assert_eq!(arrived.body, BODY.as_bytes());
}

/// F12: who does not go on is told so, and has claimed nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_client_is_told_so_and_claims_nothing() {
    let (upstream, _home, gateway) = start(|_| Reply::ok("done")).await;
    let whole = pay(BODY).bytes();
    for sent in [10, whole.len() - 3] {
        let mut client = Client::open(gateway.address).await;
        client.write(&whole[..sent]).await;
        let mut heard = Vec::new();
        within("the end", client.socket.read_to_end(&mut heard)).await.unwrap();
        assert!(heard.starts_with(b"HTTP/1.1 408 "), "{sent}: {}", heard.escape_ascii());
    }
    assert_eq!(upstream.whole().len() + upstream.broken().len(), 0);
    let first = Client::open(gateway.address).await.ask(&pay(BODY)).await;
    assert_eq!((first.status, first.is_replay()), (200, false));
}

/// What is wrong with the second of two requests is not said about the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mistake_in_the_next_request_does_not_hide_why_this_one_failed() {
    let (upstream, _home, gateway) = start(|_| Reply::new("", Then::Close)).await;
    let ask = pay(BODY).path("/other").bytes();
    let answers =
        converse(gateway.address, &[&ask[..], b"GET / HTTP/1.1\nhost: a\n\n"].concat()).await;
    let text = String::from_utf8(answers).unwrap();
    assert!(text.starts_with("HTTP/1.1 502 "), "{text}");
    assert!(text.contains("upstream_no_answer") && text.contains("HTTP/1.1 400 "), "{text}");
    // And it is sent again by nobody.
    assert_eq!(upstream.count("/other"), 1);
}

/// A client that leaves in the middle of an upload is no failure of the upstream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_is_no_failure_of_the_upstream() {
    let (upstream, _home, gateway) = start(|_| Reply::ok("done")).await;
    let mut client = Client::open(gateway.address).await;
    client.write(b"POST /upload HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nhalf").await;
    drop(client);
    until("half of a request", async || upstream.broken().len() == 1).await;
    let mut client = Client::open(gateway.address).await;
    assert_eq!(client.ask(&pay(BODY)).await.status, 200);
    assert!(
        gateway.metric("oncekey_upstream_failures_total", &[]).await < 0.5,
        "{}",
        gateway.log()
    );
}

/// What the page about logs promises of every keyed request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_of_the_log_says_how_a_request_ended() {
    let (_upstream, _home, gateway) = start(|_| Reply::ok("done")).await;
    let mut client = Client::open(gateway.address).await;
    for _ in 0..2 {
        client.ask(&pay(BODY)).await;
    }
    gateway.says("duplicate stopped").await;
    let log = gateway.log();
    let line = log.lines().find(|line| line.contains("duplicate stopped")).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    for (member, value) in [
        ("http.request.method", serde_json::json!("POST")),
        ("http.response.status_code", serde_json::json!(200)),
        ("outcome", serde_json::json!("replayed")),
        ("route", serde_json::json!("POST /payments")),
        ("mode", serde_json::json!("required")),
        ("replayed", serde_json::json!(true)),
    ] {
        assert_eq!(line[member], value, "{member} in {line}");
    }
    for member in ["request_id", "key_hash", "original_request_id", "fence", "duration_ms"] {
        assert!(!line[member].is_null(), "{member} in {line}");
    }
}
