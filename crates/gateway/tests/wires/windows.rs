//! Clients of HTTP/2 that keep their windows shut (T12).

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::clients::ROUTES;
use crate::common::gateway::{Gateway, Home};
use crate::common::within;

/// More than the buffers of two connections hold.
const LARGE: usize = 64 << 20;
/// Of a window of 1 MiB.
const HALF: usize = 512 << 10;
const HURRY: &str = "[server.timeouts]\nidle = \"1s\"\n";

/// A gateway in front of an upstream that answers `/large` with much, `/halves` with a few halves of a
/// window and everything else with little, and says how the first of them ended.
async fn scene() -> (Home, Gateway, mpsc::Receiver<std::io::Result<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let home = Home::on_sqlite();
    let url = format!("http://{}", listener.local_addr().unwrap());
    home.configure(&url, &format!("{HURRY}{ROUTES}"));
    let (ended, end) = mpsc::channel(8);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let ended = ended.clone();
            tokio::spawn(async move {
                let mut head = [0; 1024];
                while let Ok(count @ 1..) = socket.read(&mut head).await {
                    let is_large = head[..count].starts_with(b"GET /large");
                    let length = match &head[..count] {
                        _ if is_large => LARGE,
                        head if head.starts_with(b"GET /halves") => HALF * 5,
                        _ => 20,
                    };
                    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
                    let answer = [answer.as_bytes(), &vec![b'x'; length]].concat();
                    let written = socket.write_all(&answer).await;
                    if is_large {
                        ended.send(written).await.unwrap();
                    }
                }
            });
        }
    });
    let gateway = home.run();
    (home, gateway, end)
}

/// A client with such a window for each stream, and its connection.
async fn client(
    gateway: &Gateway,
    window: u32,
) -> (SendRequest<Empty<Bytes>>, JoinHandle<hyper::Result<()>>) {
    let socket = TcpStream::connect(gateway.address).await.unwrap();
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(socket))
        .await
        .unwrap();
    (sender, tokio::spawn(connection))
}

fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("http://api.example{path}")).body(Empty::new()).unwrap()
}

/// What else goes over its connection has nothing to do with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_takes_nothing_of_a_stream_loses_it_and_nothing_else() {
    let (_home, gateway, mut end) = scene().await;
    for window in [100, 40_000] {
        let (mut sender, connection) = client(&gateway, window).await;
        let large = within("a head", sender.send_request(get("/large"))).await.unwrap();
        let cut = within("the end of the upstream's answer", async {
            loop {
                let small = sender.send_request(get("/small")).await.unwrap();
                assert_eq!(small.collect().await.unwrap().to_bytes().len(), 20);
                tokio::select! {
                    ended = end.recv() => return ended.unwrap(),
                    () = tokio::time::sleep(Duration::from_millis(200)) => {}
                }
            }
        });
        assert!(cut.await.is_err(), "the gateway has let go of it");
        assert!(large.collect().await.is_err(), "an answer that was cut is not whole");
        let small = within("an answer", sender.send_request(get("/small"))).await.unwrap();
        assert_eq!(small.collect().await.unwrap().to_bytes().len(), 20);
        assert!(!connection.is_finished());
    }
}

/// A client that takes a little now and then is served for as long as it likes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_takes_its_answer_slowly_gets_all_of_it() {
    let (_home, gateway, mut end) = scene().await;
    let (mut sender, _connection) = client(&gateway, 1 << 20).await;
    let mut large = within("a head", sender.send_request(get("/large"))).await.unwrap().into_body();
    let (mut length, mut rests) = (0, 0);
    while let Some(frame) = within("a piece", large.frame()).await {
        length += frame.unwrap().into_data().unwrap().len();
        if length / (8 << 20) > rests {
            rests += 1;
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
    }
    assert_eq!((length, rests), (LARGE, 8));
    end.recv().await.unwrap().unwrap();
}

/// Many clients say that they have room again only when half of their window was read, however long that
/// takes. Nobody can see from here that they read all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_announces_half_of_its_window_at_once_gets_all_of_its_answer() {
    let (_home, gateway, _end) = scene().await;
    let socket = TcpStream::connect(gateway.address).await.unwrap();
    let window = u32::try_from(HALF * 2).unwrap();
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(window)
        .initial_connection_window_size(window)
        .handshake::<_, Bytes>(socket)
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = Request::get("http://api.example/halves").body(()).unwrap();
    let (answer, _) = sender.ready().await.unwrap().send_request(request, true).unwrap();
    let mut body = within("a head", answer).await.unwrap().into_body();
    let mut length = 0;
    for most in 2..=5 {
        while length < HALF * most {
            length += within("a piece", body.data()).await.unwrap().unwrap().len();
        }
        assert_eq!(length, HALF * most, "no more than the window");
        if most < 5 {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            body.flow_control().release_capacity(HALF).unwrap();
        }
    }
    assert!(within("the end", body.data()).await.is_none(), "an answer that is whole");
}

/// Nor does a place belong to whoever leaves the last bytes of its answer with us.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_take_the_last_piece_loses_its_place() {
    let (_home, gateway, _end) = scene().await;
    for window in [0, 10] {
        let (mut sender, connection) = client(&gateway, window).await;
        let small = within("a head", sender.send_request(get("/small"))).await.unwrap();
        drop(within("the end of its connection", connection).await.unwrap());
        assert!(small.collect().await.is_err());
    }
}
