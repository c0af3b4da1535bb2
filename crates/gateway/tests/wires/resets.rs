//! An upstream of HTTP/2 that breaks off: what is known afterwards.

use http_body_util::BodyExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::client::{Answer, Line, Way, pay};
use crate::clients::ROUTES;
use crate::common::gateway::{Gateway, Home};
use crate::frames::{DATA, END_HEADERS, Frames, HEADERS, Manner, RESET, SETTINGS, write};

async fn scene() -> (Frames, Home, Gateway) {
    let (frames, home) = (Frames::start().await, Home::on_sqlite());
    let hurry = "[server.timeouts]\nanswer = \"1s\"\n";
    home.configure(&format!("h2c://{}", frames.address), &format!("{hurry}{ROUTES}"));
    let gateway = home.run();
    (frames, home, gateway)
}

async fn asked(line: &mut Line, key: &str) -> Answer {
    line.ask(pay("/payments", key, "1")).await
}

/// It refused the stream: nothing happened, and a retry runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_was_refused_was_not_executed() {
    let (frames, home, gateway) = scene().await;
    let mut line = Way::Plain.open(&gateway, home.path()).await;
    assert_eq!(asked(&mut line, "warm-up").await.status, 200);
    frames.next(Manner::Refuse);
    let before = frames.whole();
    let lost = asked(&mut line, "key-1").await;
    assert_eq!(lost.status, 502, "{lost:?}");
    assert_eq!(lost.json()["executed"], "no");
    assert_eq!(lost.json()["retryable"], true);
    let again = asked(&mut line, "key-1").await;
    assert_eq!((again.status.as_u16(), again.is_replay()), (200, false), "{again:?}");
    assert_eq!(frames.whole() - before, 1);
}

/// I8: it ended the connection before it looked at the stream. That is not believed, because the same
/// is heard of a request whose head is written a moment later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_connection_leaves_its_requests_unknown() {
    let (frames, home, gateway) = scene().await;
    let mut line = Way::Plain.open(&gateway, home.path()).await;
    assert_eq!(asked(&mut line, "warm-up").await.status, 200);
    frames.next(Manner::GoAwayBefore);
    let before = frames.whole();
    let lost = asked(&mut line, "key-1").await;
    assert_eq!(lost.json()["executed"], "unknown", "{lost:?}");
    let again = asked(&mut line, "key-1").await;
    assert_eq!(again.status, 409, "{again:?}");
    assert_eq!(frames.whole(), before, "it is not sent again");
}

/// It had the request: nobody knows, and nobody tries again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_ends_after_the_request_is_unknown() {
    let (frames, home, gateway) = scene().await;
    let mut line = Way::Plain.open(&gateway, home.path()).await;
    let manners = [
        Manner::ResetAfter,
        Manner::HalfAnswer,
        Manner::HalfAnswerKindly,
        Manner::HalfAnswerSilently,
        Manner::GoAwayWith,
        Manner::HangUp,
    ];
    let halves = [Manner::HalfAnswer, Manner::HalfAnswerKindly, Manner::HalfAnswerSilently];
    for (at, manner) in manners.into_iter().enumerate() {
        let key = format!("key-{at}");
        frames.next(manner);
        if halves.contains(&manner) {
            // Its head was passed on already, so all that is left is to break off, too.
            let half = line.send(pay("/payments", &key, "1")).await.unwrap();
            assert!(half.collect().await.is_err(), "half an answer is none");
            line = Way::Plain.open(&gateway, home.path()).await;
        } else {
            let lost = asked(&mut line, &key).await;
            assert_eq!(lost.json()["executed"], "unknown", "{manner:?}: {lost:?}");
        }
        let again = asked(&mut line, &key).await;
        assert_eq!(again.status, 409, "{manner:?}: {again:?}");
        assert_eq!(again.json()["code"], "idempotency_outcome_unknown", "{manner:?}");
        assert_eq!(frames.whole(), at + 1, "{manner:?} was sent once");
    }
}

/// A connection that ended while nobody used it is replaced without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_ended_between_requests_is_replaced() {
    let (frames, home, gateway) = scene().await;
    let mut line = Way::Plain.open(&gateway, home.path()).await;
    for at in 0..5 {
        frames.next(Manner::HangUp);
        let lost = asked(&mut line, &format!("lost-{at}")).await;
        assert_eq!(lost.json()["executed"], "unknown", "{lost:?}");
        assert_eq!(asked(&mut line, &format!("key-{at}")).await.status, 200);
    }
    assert_eq!(frames.connections(), 6);
}

/// A connection on which nobody answers any more costs one request its answer, not all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_fell_silent_is_replaced() {
    let (frames, home, gateway) = scene().await;
    let mut line = Way::Plain.open(&gateway, home.path()).await;
    assert_eq!(asked(&mut line, "key-1").await.status, 200);
    frames.next(Manner::Silence);
    let lost = asked(&mut line, "key-2").await;
    assert_eq!((lost.status.as_u16(), &lost.json()["executed"]), (504, &"unknown".into()));
    assert_eq!(asked(&mut line, "key-3").await.status, 200);
    assert_eq!(frames.connections(), 2);
}

/// F11: a request that breaks off is none, also if its stream says that nothing was wrong. hyper takes
/// such a body for one that has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_request_is_never_sent() {
    let (frames, home, gateway) = scene().await;
    for code in [0_u32, 8] {
        let mut socket = TcpStream::connect(gateway.address).await.unwrap();
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        write(&mut socket, SETTINGS, 0, 0, &[]).await.unwrap();
        // POST and http by their numbers, then texts as they are.
        let mut head = vec![0x83, 0x86];
        let mut text = |prefix: &[u8], text: &str| {
            head.extend(prefix);
            head.push(u8::try_from(text.len()).unwrap());
            head.extend(text.as_bytes());
        };
        text(&[0x04], "/payments");
        text(&[0x01], "api.example");
        text(&[0x00], "idempotency-key");
        text(&[], "key-of-a-broken-request");
        text(&[0x00], "content-type");
        text(&[], "application/json");
        write(&mut socket, HEADERS, END_HEADERS, 1, &head).await.unwrap();
        write(&mut socket, DATA, 0, 1, b"1").await.unwrap();
        // Its first half has arrived before the rest does not.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        write(&mut socket, RESET, 0, 1, &code.to_be_bytes()).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        assert_eq!(frames.whole(), 0, "code {code}: half a request was sent");
    }
    let mut line = Way::Plain.open(&gateway, home.path()).await;
    let whole = line.ask(pay("/payments", "key-of-a-broken-request", "100")).await;
    assert_eq!((whole.status.as_u16(), whole.is_replay()), (200, false), "{whole:?}");
}
