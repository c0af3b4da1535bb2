//! What upstreams answer (`research/reliability.md` 3.4 in the project's papers; F14 to F17): each
//! unusual answer to a payment, what its client sees, and what a retry then meets.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::common::gateway::{Gateway, Home};
use crate::common::stub::{Arrived, Reply, Stub, Then};
use crate::common::{contains, converse};

/// What a client sees first.
#[derive(Clone, Copy, Debug)]
enum First {
    /// These bytes are in the answer.
    Has(&'static str),
    /// A problem of ours with this code.
    Problem(&'static str),
}

/// What a retry in the class `once` meets. In the other classes everything that is unknown runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Later {
    /// The first answer.
    Replay,
    /// It ran, and its answer is not there.
    NotRetained,
    /// Nobody knows.
    Unknown,
    /// It runs again.
    Runs,
}

struct Case {
    name: &'static str,
    answer: Vec<u8>,
    then: Then,
    first: First,
    later: Later,
}

use First::{Has, Problem};
use Later::{NotRetained, Replay, Runs, Unknown};

fn case(name: &'static str, answer: impl Into<Vec<u8>>, first: First, later: Later) -> Case {
    Case { name, answer: answer.into(), then: Then::Keep, first, later }
}

fn closing(name: &'static str, answer: impl Into<Vec<u8>>, first: First, later: Later) -> Case {
    Case { then: Then::Close, ..case(name, answer, first, later) }
}

const NONE: First = Problem("upstream_no_answer");

/// An answer with this first line and these fields, and the body `hello`.
fn hello(line: &str, fields: &str) -> String {
    format!("HTTP/1.1 {line}\r\n{fields}content-length: 5\r\n\r\nhello")
}

fn statuses() -> Vec<Case> {
    vec![
        case("status 000", hello("000 x", ""), NONE, Unknown),
        case("status 099", hello("099 x", ""), NONE, Unknown),
        case("status 1000", hello("1000 x", ""), NONE, Unknown),
        case("status 2x0", hello("2x0 x", ""), NONE, Unknown),
        case("no status", "HTTP/1.1\r\n\r\n", NONE, Unknown),
        case("status 999", hello("999 Odd", ""), Has("HTTP/1.1 999 Odd"), Replay),
        case("no reason", hello("200 ", ""), Has("HTTP/1.1 200 "), Replay),
        case("206", hello("206 Part", "content-range: bytes 0-4/9\r\n"), Has("206 Part"), Replay),
        case("421", hello("421 Elsewhere", ""), Has("HTTP/1.1 421"), Runs),
        case("425", hello("425 Early", ""), Has("HTTP/1.1 425"), Runs),
        case("429", hello("429 Slow", "retry-after: 7\r\n"), Has("retry-after: 7"), Runs),
        case("502", hello("502 Bad", ""), Has("HTTP/1.1 502"), Unknown),
        case("504", hello("504 Late", ""), Has("HTTP/1.1 504"), Unknown),
        case(
            "100 first",
            format!("HTTP/1.1 100 Continue\r\n\r\n{}", hello("201 Made", "")),
            Has("HTTP/1.1 201 Made"),
            Replay,
        ),
        case(
            "early hints",
            format!("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n{}", hello("201 Made", "")),
            Has("HTTP/1.1 201 Made"),
            Replay,
        ),
        case(
            "a storm of 1xx",
            "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(200) + &hello("201 Made", ""),
            Has("HTTP/1.1 201 Made"),
            Replay,
        ),
        case("204 with a body", "HTTP/1.1 204 None\r\n\r\nhello", Has("HTTP/1.1 204 None"), Replay),
        case(
            "304 with a length",
            "HTTP/1.1 304 Same\r\ncontent-length: 5\r\n\r\n",
            Has("HTTP/1.1 304 Same"),
            Replay,
        ),
        closing(
            "101 that nobody asked for",
            "HTTP/1.1 101 Switch\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
            NONE,
            Unknown,
        ),
    ]
}

fn ends() -> Vec<Case> {
    let made = "HTTP/1.1 201 Made\r\n";
    let chunked = format!("{made}transfer-encoding: chunked\r\n\r\n");
    let cut = Has("HTTP/1.1 201 Made");
    vec![
        closing("nothing", "", NONE, Unknown),
        Case { then: Then::Reset, ..case("a reset", "", NONE, Unknown) },
        closing("half a status line", "HTTP/1.1 20", NONE, Unknown),
        closing("half a head", format!("{made}x-a: b\r\n"), NONE, Unknown),
        closing("no body", format!("{made}content-length: 5\r\n\r\n"), cut, Unknown),
        closing("half a body", format!("{made}content-length: 5\r\n\r\nhel"), cut, Unknown),
        Case {
            then: Then::Reset,
            ..case(
                "half a body, then a reset",
                format!("{made}content-length: 5\r\n\r\nhel"),
                cut,
                Unknown,
            )
        },
        case("more than its length", hello("201 Made", "") + "and more", cut, Replay),
        closing("a chunk without its end", format!("{chunked}5\r\nhel"), cut, Unknown),
        closing("chunks without an end", format!("{chunked}5\r\nhello\r\n"), cut, Unknown),
        closing("half of the last chunk", format!("{chunked}5\r\nhello\r\n0\r\n"), cut, Unknown),
        closing("a bad chunk size", format!("{chunked}5\r\nhello\r\nx\r\n\r\n"), cut, Unknown),
        closing(
            "no line end behind a chunk",
            format!("{chunked}5\r\nhelloXX0\r\n\r\n"),
            cut,
            Unknown,
        ),
        closing(
            "a huge chunk size",
            format!("{chunked}FFFFFFFFFFFFFFFF1\r\nhello\r\n0\r\n\r\n"),
            cut,
            Unknown,
        ),
        case("trailers", format!("{chunked}5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n"), cut, Replay),
        closing("until the connection ends", format!("{made}\r\nhello"), cut, Replay),
        closing("not HTTP", "SSH-2.0-OpenSSH_9.2\r\n", NONE, Unknown),
        closing(
            "HTTP/2 in the clear",
            b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\xff\xff".to_vec(),
            NONE,
            Unknown,
        ),
    ]
}

/// Heads that say in more than one way where the answer ends, or in none that anybody knows.
fn lengths() -> Vec<Case> {
    vec![
        case(
            "two lengths",
            "HTTP/1.1 201 Made\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
            NONE,
            Unknown,
        ),
        case(
            "a length said twice",
            "HTTP/1.1 201 Made\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
            Has("hello"),
            Replay,
        ),
        case(
            "a length beside chunks",
            "HTTP/1.1 201 Made\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            Has("hello"),
            Replay,
        ),
        case(
            "a coding that nobody behind us would know of",
            "HTTP/1.1 201 Made\r\ntransfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            NONE,
            Unknown,
        ),
        case(
            "a length that is none",
            "HTTP/1.1 201 Made\r\ncontent-length: five\r\n\r\nhello",
            NONE,
            Unknown,
        ),
        case(
            "a negative length",
            "HTTP/1.1 201 Made\r\ncontent-length: -5\r\n\r\nhello",
            NONE,
            Unknown,
        ),
    ]
}

fn fields() -> Vec<Case> {
    let with = |fields: &str| hello("201 Made", fields);
    let cookies: String = (0..1_000).fold(String::new(), |mut lines, at| {
        let _ = write!(lines, "set-cookie: c{at}=1\r\n");
        lines
    });
    let bytes =
        |line: &[u8]| [b"HTTP/1.1 201 Made\r\n", line, b"content-length: 0\r\n\r\n"].concat();
    vec![
        case("a thousand cookies", with(&cookies), Has("set-cookie: c999=1"), Replay),
        case("commas", with("x-list: a, b,c\r\nx-list: d\r\n"), Has("x-list: a, b,c"), Replay),
        case("latin letters", bytes(b"x-name: caf\xe9\r\n"), Has("HTTP/1.1 201 Made"), Replay),
        case("NUL", bytes(b"x-a: a\0b\r\n"), NONE, Unknown),
        case("a bare CR", bytes(b"x-a: a\rb\r\n"), NONE, Unknown),
        case("a line without a colon", bytes(b"x-a\r\n"), NONE, Unknown),
        case("a space before the colon", bytes(b"x-a : b\r\n"), NONE, Unknown),
        case(
            "two content types",
            with("content-type: a/b\r\ncontent-type: c/d\r\n"),
            Has("content-type: c/d"),
            Replay,
        ),
        case(
            "no-store",
            with("cache-control: no-store\r\nvary: *\r\n"),
            Has("cache-control: no-store"),
            Replay,
        ),
        case(
            "a compressed body",
            with("content-encoding: gzip\r\netag: \"x\"\r\n"),
            Has("content-encoding: gzip"),
            Replay,
        ),
        case(
            "a secret for one hop",
            with("connection: x-secret\r\nx-secret: 1\r\n"),
            Has("HTTP/1.1 201 Made"),
            Replay,
        ),
    ]
}

fn sizes() -> Vec<Case> {
    let with = |fields: &str| hello("201 Made", fields);
    vec![
        case(
            "a head of a megabyte",
            with(&format!("x-a: {}\r\n", "y".repeat(1_000_000))),
            NONE,
            Unknown,
        ),
        case(
            "a large head",
            with(&format!("x-a: {}\r\n", "y".repeat(100_000))),
            Has("HTTP/1.1 201 Made"),
            NotRetained,
        ),
        case(
            "a large body",
            format!(
                "HTTP/1.1 201 Made\r\ncontent-length: 9000000\r\n\r\n{}",
                "x".repeat(9_000_000)
            ),
            Has("HTTP/1.1 201 Made"),
            NotRetained,
        ),
        case(
            "events",
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n6\r\nevent\n\r\n0\r\n\r\n",
            Has("event\n"),
            NotRetained,
        ),
    ]
}

fn cases() -> Vec<Case> {
    [statuses(), ends(), lengths(), fields(), sizes()].into_iter().flatten().collect()
}

const ROUTES: &str = r#"
[defaults]
scope = ["header:X-Tenant"]
mode = "required"
[[route]]
match = "POST /once/{case}"
[[route]]
match = "POST /retry/{case}"
class = "retry"
"#;

/// Answers a first attempt as the case says, and every other with what can be recognised.
fn answer(
    cases: &[Case],
    seen: &std::sync::Mutex<std::collections::HashSet<String>>,
    arrived: &Arrived,
) -> Reply {
    let number: usize = arrived.path().rsplit('/').next().unwrap().parse().unwrap();
    if !seen.lock().unwrap().insert(arrived.path().to_owned()) {
        return Reply::ok("ran again");
    }
    Reply::new(cases[number].answer.clone(), cases[number].then)
}

async fn attempt(gateway: &Gateway, path: &str) -> Vec<u8> {
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\nx-tenant: acme\r\nidempotency-key: {path}\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    converse(gateway.address, request.as_bytes()).await
}

fn check(case: &Case, class: &str, first: &[u8], second: &[u8], runs: usize) -> Result<(), String> {
    let fails = |what: &str| {
        let shown = |answer: &[u8]| answer.get(..900).unwrap_or(answer).escape_ascii().to_string();
        Err(format!(
            "{} ({class}): {what}\n  first {}\n  then {}",
            case.name,
            shown(first),
            shown(second)
        ))
    };
    let has_first = match case.first {
        First::Has(text) => contains(first, text.as_bytes()),
        First::Problem(code) => contains(first, format!("\"code\":\"{code}\"").as_bytes()),
    };
    if !has_first {
        return fails(&format!("the first answer is not {:?}", case.first));
    }
    if contains(first, b"x-secret: 1") || contains(second, b"x-secret: 1") {
        return fails("a field of one hop went on");
    }
    let (text, expected): (&[u8], usize) = match (case.later, class) {
        (Later::Replay, _) => (b"idempotent-replayed: true", 1),
        (Later::NotRetained, _) => (b"idempotency_response_not_retained", 1),
        (Later::Unknown, "once") => (b"idempotency_outcome_unknown", 1),
        (Later::Unknown, _) | (Later::Runs, _) => (b"ran again", 2),
    };
    match (contains(second, text), runs == expected) {
        (true, true) => Ok(()),
        (false, _) => fails(&format!("the retry is not {:?}", case.later)),
        (true, false) => fails(&format!("{runs} runs instead of {expected}")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_of_an_upstream_is_kept_or_not_as_the_table_says() {
    let (known, seen) = (cases(), Arc::default());
    let upstream = Stub::start(move |arrived| answer(&known, &seen, arrived)).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), ROUTES);
    let gateway = home.run();
    let mut wrong = Vec::new();
    for (number, case) in cases().iter().enumerate() {
        for class in ["once", "retry"] {
            let path = format!("/{class}/{number}");
            let first = attempt(&gateway, &path).await;
            let second = attempt(&gateway, &path).await;
            wrong.extend(check(case, class, &first, &second, upstream.count(&path)).err());
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(gateway.memory("VmHWM") < 200_000, "{} kB", gateway.memory("VmHWM"));
}

/// F14: an upstream that never answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_never_answers_is_an_unknown_outcome() {
    let upstream = Stub::start(|_| Reply::new("HTTP/1.1 20", Then::Hang)).await;
    let home = Home::on_sqlite();
    home.configure(&upstream.url(), ROUTES);
    let impatient = "upstream = \"";
    let text = std::fs::read_to_string(home.config()).unwrap();
    let text =
        text.replacen(impatient, &format!("timeouts = {{ answer = \"200ms\" }}\n{impatient}"), 1);
    std::fs::write(home.config(), text).unwrap();
    let gateway = home.run();
    let first = attempt(&gateway, "/once/0").await;
    assert!(
        contains(&first, b"HTTP/1.1 504 ") && contains(&first, b"upstream_timeout"),
        "{}",
        first.escape_ascii()
    );
    let second = attempt(&gateway, "/once/0").await;
    assert!(contains(&second, b"idempotency_outcome_unknown"), "{}", second.escape_ascii());
    assert_eq!(upstream.count("/once/0"), 1);
}

/// F13: nobody is there, and then somebody is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_is_not_there_has_executed_nothing() {
    let place = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = place.local_addr().unwrap();
    drop(place);
    let home = Home::on_sqlite();
    home.configure(&format!("http://{address}"), ROUTES);
    let gateway = home.run();
    for _ in 0..2 {
        let refused = attempt(&gateway, "/once/0").await;
        assert!(contains(&refused, b"upstream_unreachable"), "{}", refused.escape_ascii());
        assert!(contains(&refused, b"\"executed\":\"no\"") && contains(&refused, b"retry-after: "));
    }
    let upstream = Stub::start(|_| Reply::ok("made")).await;
    home.configure(&upstream.url(), ROUTES);
    gateway.tell(rustix::process::Signal::HUP);
    gateway.says("config reloaded").await;
    let made = attempt(&gateway, "/once/0").await;
    assert!(
        contains(&made, b"HTTP/1.1 200 ") && contains(&made, b"made"),
        "{}",
        made.escape_ascii()
    );
    assert_eq!(upstream.count("/once/0"), 1);
}
