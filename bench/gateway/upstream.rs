//! The service behind everything that is measured: as fast as it can be, in a process of its own.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use oncekey_bench::Result;

/// What every request gets: the size of a small JSON document.
const ANSWER: &[u8] =
    br#"{"id":"ch_1042","amount":1000,"currency":"EUR","status":"succeeded","customer":"cus_8fj2"}"#;
/// Says how many charges were made, to see that a replay makes none.
pub(crate) const COUNT: &str = "/count";

/// Serves on this port until the process is killed. One thread: it is not what is measured, and the
/// less of the machine it takes the better.
pub(crate) fn serve(port: u16) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async move {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let charges = Arc::new(AtomicU64::new(0));
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let charges = Arc::clone(&charges);
            let service = service_fn(move |request| answer(request, Arc::clone(&charges)));
            let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A client that goes away is no news.
            tokio::spawn(async move { drop(serving.await) });
        }
    })
}

async fn answer(
    request: Request<Incoming>,
    charges: Arc<AtomicU64>,
) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() == COUNT {
        let count = charges.load(Ordering::Relaxed).to_string();
        return Ok(Response::new(Full::from(count)));
    }
    if request.method() == Method::POST {
        charges.fetch_add(1, Ordering::Relaxed);
        drop(request.into_body().collect().await);
    }
    let mut response = Response::new(Full::from(ANSWER));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
