//! A client on one end of a pipe, a reader on the other, and a clock that does not run by itself.

use std::convert::Infallible;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{Instant, sleep, timeout};

use super::super::sieve::tests::vectors::{Vector, all};
use super::super::sieve::tests::{Run, run};
use super::super::sieve::{Limits, Place, Violation};
use super::{End, Pace, Strict, Verdict, Why};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const UPGRADE: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\n\r\n";
const POST: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";

/// Long enough for everything that happens by itself, and shorter than any patience.
const SOON: Duration = Duration::from_millis(1);

/// A client and what reads from it.
struct Scene {
    client: DuplexStream,
    strict: Strict<DuplexStream>,
    verdict: Verdict,
}

impl Scene {
    /// With a pipe that holds so many bytes.
    fn new(bytes: usize) -> Self {
        let (client, server) = duplex(bytes);
        let strict = Strict::new(server, Limits::default(), Pace::default());
        let verdict = strict.verdict();
        Self { client, strict, verdict }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.client.write_all(bytes).await.expect("the pipe is open");
    }

    /// What the reader gets now: nothing at all, or some bytes, none at the end.
    async fn read(&mut self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 100_000];
        let read = timeout(SOON, self.strict.read(&mut bytes)).await.ok()?;
        bytes.truncate(read.expect("a pipe does not fail"));
        Some(bytes)
    }

    /// Waits for the end and says how long that took.
    async fn wait_for_end(&mut self) -> Duration {
        let start = Instant::now();
        let read = self.strict.read(&mut [0; 64]).await.expect("a pipe does not fail");
        assert_eq!(read, 0);
        start.elapsed()
    }

    fn end(&self) -> Option<Why> {
        self.verdict.end().map(|end| end.why)
    }
}

/// Whatever the client sends, however it is cut: the reader gets what the sieve lets pass.
#[tokio::test(start_paused = true)]
async fn the_reader_gets_what_passes_and_nothing_else() {
    for Vector { name, bytes, .. } in all() {
        let Run { passed, refused, place } = run(&bytes, []);
        for (pipe, buffer) in [(1 << 21, 1 << 16), (13, 1 << 16), (1 << 21, 5)] {
            let Scene { mut client, mut strict, verdict } = Scene::new(pipe);
            let sent = bytes.clone();
            let sending = tokio::spawn(async move { client.write_all(&sent).await });
            let (mut got, mut piece) = (Vec::new(), vec![0; buffer]);
            while let Ok(Ok(count @ 1..)) = timeout(SOON, strict.read(&mut piece)).await {
                got.extend_from_slice(&piece[..count]);
            }
            sending.abort();
            assert_eq!(got.len(), passed, "{name}, pipe {pipe}, buffer {buffer}");
            assert_eq!(got, bytes[..passed], "{name}");
            let end = refused.map(|reason| End { why: Why::Refused(reason), place });
            assert_eq!(verdict.end(), end, "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_ends_the_connection_however_it_trickles() {
    let mut scene = Scene::new(1024);
    let start = Instant::now();
    while scene.end().is_none() {
        scene.send(b"X").await;
        scene.read().await;
        sleep(Duration::from_millis(999)).await;
    }
    assert_eq!(scene.end(), Some(Why::SlowHead));
    assert!(start.elapsed() <= Duration::from_secs(11), "{:?}", start.elapsed());
    assert_eq!(scene.read().await, Some(Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn each_head_has_its_own_time() {
    let mut scene = Scene::new(1024);
    scene.send(&GET[..9]).await;
    for _ in 0..5 {
        assert_eq!(scene.read().await, None);
        sleep(Duration::from_secs(9)).await;
        scene.send(&GET[9..]).await;
        scene.send(&GET[..9]).await;
        assert_eq!(scene.read().await.as_deref(), Some(GET));
    }
    let waited = scene.wait_for_end().await;
    assert_eq!(scene.end(), Some(Why::SlowHead));
    assert!(waited > Duration::from_secs(9), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn silence_between_requests_is_no_offence() {
    let mut scene = Scene::new(1024);
    for behind in [&b""[..], b"\r\n"] {
        scene.send(GET).await;
        scene.send(behind).await;
        assert!(scene.read().await.is_some());
        assert_eq!(scene.read().await, None);
        sleep(Duration::from_secs(3_600)).await;
        assert_eq!(scene.read().await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stands_still_ends_the_connection() {
    let mut scene = Scene::new(1024);
    scene.send(POST).await;
    assert_eq!(scene.read().await.as_deref(), Some(POST));
    let waited = scene.wait_for_end().await;
    assert_eq!(scene.verdict.end(), Some(End { why: Why::SlowBody, place: Place::Body }));
    assert!((29..=30).contains(&waited.as_secs()), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_lives_as_long_as_it_keeps_the_pace() {
    for (each_second, end) in [(1_100, None), (900, Some(Why::SlowBody))] {
        let Scene { mut client, mut strict, verdict } = Scene::new(4096);
        let trickle = async {
            client.write_all(POST).await.unwrap();
            for _ in 0..600 {
                sleep(Duration::from_secs(1)).await;
                client.write_all(&vec![b'x'; each_second]).await.unwrap();
            }
        };
        let read = async { while !matches!(strict.read(&mut [0; 4096]).await, Ok(0)) {} };
        tokio::select! { () = trickle => {}, () = read => {} }
        assert_eq!(verdict.end().map(|end| end.why), end, "{each_second} bytes a second");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_takes_its_time_does_not_cost_the_client() {
    let mut scene = Scene::new(1024);
    scene.send(POST).await;
    scene.read().await;
    for _ in 0..5 {
        scene.send(b"x").await;
        sleep(Duration::from_secs(60)).await;
        assert_eq!(scene.read().await.as_deref(), Some(&b"x"[..]));
    }
    assert_eq!(scene.end(), None);
}

#[tokio::test(start_paused = true)]
async fn the_reader_is_woken_when_the_server_has_decided() {
    for agreed in [true, false] {
        let mut scene = Scene::new(1024);
        scene.send(UPGRADE).await;
        scene.send(GET).await;
        assert_eq!(scene.read().await.as_deref(), Some(UPGRADE));
        let verdict = scene.verdict.clone();
        // In a task of its own, so that nothing else wakes the reader.
        tokio::spawn(async move {
            sleep(Duration::from_secs(100)).await;
            if agreed { verdict.upgraded() } else { verdict.declined() }
        });
        let start = Instant::now();
        let mut bytes = [0; 100];
        let read = timeout(Duration::from_secs(200), scene.strict.read(&mut bytes));
        let count = read.await.expect("an answer").unwrap();
        assert_eq!(&bytes[..count], GET);
        assert!(start.elapsed() < Duration::from_secs(101), "nobody woke the reader");
        // A request in the one case, and bytes of the other protocol in the other.
        scene.send(b"\0").await;
        assert_eq!(scene.read().await, Some(if agreed { vec![0] } else { Vec::new() }));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_is_noticed_while_it_waits() {
    for request in [UPGRADE, b"GET / HTTP/1.0\r\n\r\n", &GET[..5]] {
        let mut scene = Scene::new(1024);
        scene.send(request).await;
        scene.read().await;
        scene.client.shutdown().await.unwrap();
        assert_eq!(scene.read().await, Some(Vec::new()));
        assert_eq!(scene.end(), None);
    }
}

/// The requests before a mistake are answered, and then the connection knows what it owes.
#[tokio::test(start_paused = true)]
async fn a_server_answers_what_came_before_a_mistake() {
    let Scene { mut client, strict, verdict } = Scene::new(4096);
    let serve = service_fn(|_: Request<Incoming>| async {
        sleep(Duration::from_secs(5)).await;
        Ok::<_, Infallible>(Response::new(String::from("done")))
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .half_close(true)
        .serve_connection(TokioIo::new(strict), serve);
    let serving = tokio::spawn(connection);
    client.write_all(&[GET, GET, b"GET / HTTP/1.1\nHost: a\n\n", GET].concat()).await.unwrap();
    client.shutdown().await.unwrap();
    let mut answers = String::new();
    client.read_to_string(&mut answers).await.unwrap();
    drop(serving.await.unwrap());
    let end = verdict.end().expect("a mistake");
    assert_eq!(end, End { why: Why::Refused(Violation::BareLf), place: Place::Head });
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2);
    assert_eq!(answers.matches("HTTP/1.1 ").count(), 3);
    assert!(answers.contains("HTTP/1.1 400") && answers.contains("a line ends with LF alone"));
}
