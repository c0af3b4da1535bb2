//! An upstream in this process that speaks whatever a test wants, and remembers what it did.

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::certificates;
use crate::client::Wire;
use crate::common::until;

/// What it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Plain,
    PriorKnowledge,
    /// HTTP/1.1 over TLS, with this certificate.
    Tls(&'static str),
    TlsHttp2(&'static str),
    /// The same, one request at a time; and HTTP/1.1 after [`Upstream::hang_up`].
    TlsHttp2Once(&'static str),
    Unix,
}

/// A server. It ends with the test's runtime.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) url: String,
    book: Arc<Book>,
}

struct Book {
    runs: Mutex<Vec<Run>>,
    /// Whether work on `/held` may end.
    open: watch::Sender<bool>,
    /// Whether it has hung up.
    over: watch::Sender<bool>,
}

/// One time that it did something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) path: String,
    pub(crate) version: Version,
    pub(crate) scheme: Option<String>,
    /// From `:authority` or `Host`.
    pub(crate) host: String,
    pub(crate) cookie: String,
    pub(crate) length: usize,
}

impl Upstream {
    pub(crate) async fn start(speaks: Speaks, folder: &Path) -> Self {
        let ((open, _), (over, _)) = (watch::channel(false), watch::channel(false));
        let book = Arc::new(Book { runs: Mutex::default(), open, over });
        if speaks == Speaks::Unix {
            let path = folder.join("out.sock");
            let listener = UnixListener::bind(&path).unwrap();
            let (url, shared) = (format!("unix:{}", path.display()), Arc::clone(&book));
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve_one(stream, Arc::clone(&shared)));
                }
            });
            return Self { url, book };
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = match speaks {
            Speaks::Plain | Speaks::Unix => format!("http://127.0.0.1:{port}"),
            Speaks::PriorKnowledge => format!("h2c://127.0.0.1:{port}"),
            Speaks::Tls(_) | Speaks::TlsHttp2(_) | Speaks::TlsHttp2Once(_) => {
                format!("https://localhost:{port}")
            }
        };
        let shared = Arc::clone(&book);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let book = Arc::clone(&shared);
                tokio::spawn(serve(speaks, stream, book));
            }
        });
        Self { url, book }
    }

    pub(crate) fn runs(&self) -> Vec<Run> {
        self.book.runs.lock().unwrap().clone()
    }

    /// How often something was done for a path.
    pub(crate) fn count(&self, path: &str) -> usize {
        self.runs().iter().filter(|run| run.path == path).count()
    }

    pub(crate) async fn until_count(&self, path: &str, count: usize) {
        until(path, async || self.count(path) >= count).await;
    }

    /// Ends every connection without a word.
    pub(crate) fn hang_up(&self) {
        self.book.over.send_replace(true);
    }

    /// Lets work on `/held` end.
    pub(crate) fn release(&self) {
        self.book.open.send_replace(true);
    }
}

async fn serve(speaks: Speaks, stream: TcpStream, book: Arc<Book>) {
    let is_over = *book.over.borrow();
    let tls = |name, protocol: &[u8]| TlsAcceptor::from(certificates::server(name, &[protocol]));
    match speaks {
        Speaks::Plain | Speaks::Unix => serve_one(stream, book).await,
        Speaks::PriorKnowledge => serve_two(stream, book, MANY).await,
        Speaks::TlsHttp2(name) => {
            if let Ok(stream) = tls(name, b"h2").accept(stream).await {
                serve_two(stream, book, MANY).await;
            }
        }
        Speaks::TlsHttp2Once(name) if !is_over => {
            if let Ok(stream) = tls(name, b"h2").accept(stream).await {
                let mut over = book.over.subscribe();
                tokio::select! {
                    () = serve_two(stream, book, 1) => {}
                    _ = over.wait_for(|over| *over) => {}
                }
            }
        }
        Speaks::Tls(name) | Speaks::TlsHttp2Once(name) => {
            if let Ok(stream) = tls(name, b"http/1.1").accept(stream).await {
                serve_one(stream, book).await;
            }
        }
    }
}

/// More requests at once than any test sends.
const MANY: u32 = 1_000;

async fn serve_one(wire: impl Wire, book: Arc<Book>) {
    let service = service_fn(move |request| work(Arc::clone(&book), request));
    drop(http1::Builder::new().serve_connection(TokioIo::new(wire), service).await);
}

async fn serve_two(wire: impl Wire, book: Arc<Book>, most: u32) {
    let service = service_fn(move |request| work(Arc::clone(&book), request));
    let mut server = http2::Builder::new(TokioExecutor::new());
    server.max_concurrent_streams(most);
    drop(server.serve_connection(TokioIo::new(wire), service).await);
}

async fn work(
    book: Arc<Book>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else { return Ok(Response::default()) };
    let text =
        |name: &str| head.headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    let authority = head.uri.authority().map(ToString::to_string);
    let run = Run {
        path: head.uri.path().to_owned(),
        version: head.version,
        scheme: head.uri.scheme_str().map(str::to_owned),
        host: authority.unwrap_or_else(|| text("host")),
        cookie: text("cookie"),
        length: body.to_bytes().len(),
    };
    let (length, held) = (run.length, run.path == "/held");
    let number = {
        let mut runs = book.runs.lock().unwrap();
        runs.push(run);
        runs.len()
    };
    if held {
        drop(book.open.subscribe().wait_for(|open| *open).await);
    }
    let answer = json!({ "number": number, "length": length }).to_string();
    Ok(Response::new(Full::from(answer)))
}
