//! Clients that hang up on a real socket. I41: that never cancels owned work.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::middleware::Next;
use axum::routing::post;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use crate::rig::{layer, required};

const REQUEST: &[u8] = b"POST /charges HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\n\
                         content-length: 2\r\n\r\n{}";

/// How a client goes away.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    /// FIN: it closes the socket.
    Closing,
    /// RST: it is killed, or its machine is.
    Resetting,
    /// It ends its sending side, and may or may not still read.
    HalfClosing,
}

/// axum's own server, and a handler that takes until it is told to end.
struct Server {
    address: SocketAddr,
    runs: Arc<AtomicUsize>,
    running: mpsc::Receiver<()>,
    dropped: mpsc::Receiver<()>,
    release: watch::Sender<bool>,
}

impl Server {
    async fn start() -> Self {
        let runs = Arc::new(AtomicUsize::new(0));
        let (started, running) = mpsc::channel(9);
        let (release, gate) = watch::channel(false);
        let (gone, dropped) = mpsc::channel(9);
        let count = Arc::clone(&runs);
        let handler = async move || {
            count.fetch_add(1, Ordering::SeqCst);
            started.send(()).await.unwrap();
            gate.clone().wait_for(|open| *open).await.unwrap();
            "charged"
        };
        let app = Router::new().route("/charges", post(handler));
        let app = app.layer(layer().rule(required()).build());
        // Outside of the layer: tells when the server drops the exchange.
        let watch = move |request: Request, next: Next| {
            let guard = Guard(gone.clone());
            async move {
                let response = next.run(request).await;
                std::mem::forget(guard);
                response
            }
        };
        let app = app.layer(axum::middleware::from_fn(watch));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, runs, running, dropped, release }
    }
}

/// Says so if an exchange is dropped before its end.
struct Guard(mpsc::Sender<()>);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.try_send(());
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_stops_nothing_and_its_retry_gets_the_answer() {
    for leaves in [Leaves::Closing, Leaves::Resetting, Leaves::HalfClosing] {
        let mut server = Server::start().await;
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.write_all(REQUEST).await.unwrap();
        server.running.recv().await.unwrap();
        match leaves {
            Leaves::Closing => drop(socket),
            Leaves::Resetting => {
                socket.set_zero_linger().unwrap();
                drop(socket);
            }
            Leaves::HalfClosing => {
                socket.shutdown().await.unwrap();
                let mut nothing = Vec::new();
                let _ = socket.read_to_end(&mut nothing).await;
            }
        }
        // hyper drops the exchange for all three, a half-close included; the work is not its own.
        server.dropped.recv().await.unwrap();
        server.release.send(true).unwrap();

        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.write_all(REQUEST).await.unwrap();
        let mut answer = String::new();
        while !answer.ends_with("charged") {
            let mut piece = [0; 1_024];
            let length = socket.read(&mut piece).await.unwrap();
            assert_ne!(length, 0, "{leaves:?}: {answer}");
            answer.push_str(std::str::from_utf8(&piece[..length]).unwrap());
        }
        assert!(answer.contains("idempotent-replayed: true\r\n"), "{leaves:?}: {answer}");
        assert_eq!(server.runs.load(Ordering::SeqCst), 1, "{leaves:?}");
    }
}
