//! Accepts connections to the admin API.
//!
//! Not `axum::serve`: that keeps a connection whose headers never end for as long as the client
//! likes, and takes any number of them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tower_service::Service as _;

use super::endpoint::router;
use super::guard::Peer;
use super::state::Admin;

/// Connections at once. Operators, probes and a scraper need a handful; what is more waits.
const CONNECTIONS: usize = 64;
/// How long the head of a request may take, an idle connection included.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// How large the head of a request may be.
const MAX_HEAD: usize = 16 * 1024;
/// How long answers that are under way may take after the end was announced.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long to wait when nothing can be accepted, as when every file handle is in use.
const BREATH: Duration = Duration::from_millis(100);

/// Serves until `end` comes to pass. Streams are cut then; answers that are under way get a moment.
pub(crate) async fn serve(listener: TcpListener, admin: Arc<Admin>, end: impl Future<Output = ()>) {
    let router = router(admin);
    let seats = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    let mut end = std::pin::pin!(end);
    loop {
        let accepted = async {
            // Never closed, so there is always a seat in the end.
            let seat = Arc::clone(&seats).acquire_owned().await.map_err(io::Error::other)?;
            Ok::<_, io::Error>((listener.accept().await?, seat))
        };
        let accepted = tokio::select! {
            () = &mut end => break,
            Some(_) = connections.join_next() => continue,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok(((stream, peer), seat)) => {
                let router = router.clone();
                connections.spawn(async move {
                    converse(stream, Peer(peer), router).await;
                    drop(seat);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the admin listener cannot accept");
                tokio::time::sleep(BREATH).await;
            }
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    // What is left is dropped with the set.
    drop(tokio::time::timeout(LAST_WORDS, all).await);
}

/// One connection to its end. How it ends is the client's business.
async fn converse(stream: TcpStream, peer: Peer, router: axum::Router) {
    let service = service_fn(move |mut request: http::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        router.clone().call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    drop(connection.await);
}
