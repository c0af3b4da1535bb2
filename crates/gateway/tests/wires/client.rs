//! A client that speaks HTTP/1.1 or HTTP/2 over any connection.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::common::gateway::Gateway;
use crate::common::within;

/// What bytes go over.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Wire for T {}

/// How clients reach the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Plain,
    /// HTTP/2 without having asked.
    PriorKnowledge,
    Tls,
    TlsHttp2,
    Unix,
}

/// A connection.
pub(crate) enum Line {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

/// An answer that was read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Way {
    pub(crate) async fn open(self, gateway: &Gateway, home: &Path) -> Line {
        match self {
            Self::Plain => Line::one(TcpStream::connect(gateway.address).await.unwrap()).await,
            Self::PriorKnowledge => {
                Line::two(TcpStream::connect(gateway.address).await.unwrap()).await
            }
            Self::Tls | Self::TlsHttp2 => {
                let both: &[&[u8]] = &[b"h2", b"http/1.1"];
                let offered = if self == Self::Tls { &both[1..] } else { both };
                Line::tls(gateway, crate::certificates::client(None, offered)).await
            }
            Self::Unix => Line::one(UnixStream::connect(home.join("in.sock")).await.unwrap()).await,
        }
    }
}

/// A TLS connection to the gateway.
pub(crate) async fn tls(
    gateway: &Gateway,
    config: Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(gateway.address).await?;
    TlsConnector::from(config).connect("localhost".try_into().unwrap(), stream).await
}

impl Line {
    /// Over TLS, in whatever both sides agree on.
    pub(crate) async fn tls(gateway: &Gateway, config: Arc<ClientConfig>) -> Self {
        let stream = tls(gateway, config).await.unwrap();
        match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Self::two(stream).await,
            _ => Self::one(stream).await,
        }
    }

    pub(crate) async fn one(wire: impl Wire) -> Self {
        let (sender, connection) = http1::handshake(TokioIo::new(wire)).await.unwrap();
        tokio::spawn(connection);
        Self::One(sender)
    }

    pub(crate) async fn two(wire: impl Wire) -> Self {
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(wire)).await.unwrap();
        tokio::spawn(connection);
        Self::Two(sender)
    }

    /// Another one: over the same connection, if it can carry several requests at once.
    pub(crate) fn again(&self) -> Option<Self> {
        match self {
            Self::One(_) => None,
            Self::Two(sender) => Some(Self::Two(sender.clone())),
        }
    }

    pub(crate) async fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::One(sender) => {
                let path = request.uri().path().parse().unwrap();
                let host = request.uri().authority().unwrap().as_str().parse().unwrap();
                *request.uri_mut() = path;
                request.headers_mut().insert("host", host);
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Two(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    pub(crate) async fn ask(&mut self, request: Request<Full<Bytes>>) -> Answer {
        let response = within("an answer", self.send(request)).await.unwrap();
        let (head, body) = response.into_parts();
        let body = within("a body", body.collect()).await.unwrap().to_bytes();
        Answer { status: head.status, headers: head.headers, body }
    }
}

/// A payment under a key.
pub(crate) fn pay(path: &str, key: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::post(format!("http://api.example{path}"))
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(Full::new(body.into()))
        .unwrap()
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == "true"
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{}", self.body.escape_ascii()))
    }
}
