//! An upstream of HTTP/2 that takes few requests at once, or takes them slowly.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};

use crate::client::{Way, pay};
use crate::clients::ROUTES;
use crate::common::gateway::{Gateway, Home};
use crate::common::within;
use crate::frames::{Frames, Manner};

async fn scene(frames: &Frames) -> (Home, Gateway) {
    let home = Home::on_sqlite();
    let hurry = "[server.timeouts]\nanswer = \"1s\"\n";
    home.configure(&format!("h2c://{}", frames.address), &format!("{hurry}{ROUTES}"));
    let gateway = home.run();
    (home, gateway)
}

/// A request that nobody protects, so that its answer may take as long as it likes.
fn listen() -> Request<Full<Bytes>> {
    Request::get("http://api.example/events").body(Full::default()).unwrap()
}

/// I8: not a byte of it was written, so nothing happened, and its key is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_found_no_place_was_not_executed() {
    let frames = Frames::taking(1).await;
    let (home, gateway) = scene(&frames).await;
    let mut line = Way::Plain.open(&gateway, home.path()).await;
    assert_eq!(line.ask(pay("/payments", "warm-up", "1")).await.status, 200);
    frames.next(Manner::HalfAnswerSilently);
    // Over HTTP/2 the gateway notices at once that a client has left.
    let mut listener = Way::PriorKnowledge.open(&gateway, home.path()).await;
    let endless = within("a head", listener.send(listen())).await.unwrap();
    let before = frames.whole();
    let mut waiting = Vec::new();
    for key in ["key-1", "key-2"] {
        let mut line = Way::Plain.open(&gateway, home.path()).await;
        waiting.push(tokio::spawn(async move { line.ask(pay("/payments", key, "1")).await }));
    }
    for waiting in waiting {
        let lost = waiting.await.unwrap();
        assert_eq!(lost.json()["executed"], "no", "{lost:?}");
        assert_eq!(lost.json()["retryable"], true, "{lost:?}");
    }
    drop((endless, listener));
    for key in ["key-1", "key-2"] {
        let again = line.ask(pay("/payments", key, "1")).await;
        assert_eq!((again.status.as_u16(), again.is_replay()), (200, false), "{again:?}");
    }
    assert_eq!(frames.whole() - before, 2, "each was sent once");
}

/// Whoever waits gets the place of the first that has its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_for_a_place_is_sent_when_there_is_one() {
    let frames = Frames::taking(1).await;
    let (home, gateway) = scene(&frames).await;
    let mut line = Way::Plain.open(&gateway, home.path()).await;
    assert_eq!(line.ask(pay("/payments", "warm-up", "1")).await.status, 200);
    let mut asked = Vec::new();
    for at in 0..20 {
        let mut line = Way::Plain.open(&gateway, home.path()).await;
        asked.push(tokio::spawn(async move {
            line.ask(pay("/payments", &format!("key-{at}"), "1")).await
        }));
    }
    for asked in asked {
        assert_eq!(asked.await.unwrap().status, 200);
    }
    assert_eq!((frames.whole(), frames.connections()), (21, 1));
}

/// The upstream has all its time from the last byte on, however slowly it takes them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_may_take_a_long_body_slowly() {
    /// Twenty pieces, each of which takes the upstream a tenth of a second.
    const LONG: usize = 300 << 10;
    let frames = Frames::start().await;
    let (home, gateway) = scene(&frames).await;
    let mut line = Way::Plain.open(&gateway, home.path()).await;
    frames.next(Manner::Drips);
    let answer = line.ask(pay("/payments", "key-1", vec![b'1'; LONG])).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    // An answer that does not come is still missed.
    frames.next(Manner::HalfAnswerSilently);
    let half = line.send(pay("/payments", "key-2", "1")).await.unwrap();
    assert!(half.collect().await.is_err());
}
