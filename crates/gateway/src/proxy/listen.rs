//! Where clients come in.

use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::certificate::client_name;
use super::connection::{Deadlines, Dialect, serve};
use super::front::{Front, Peer};
use super::headers::forwarded_for;
use super::tls::Encryption;
use crate::config::Listen;
use crate::stop::Stop;

/// A socket that takes clients.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// On what terms clients are served. A reload swaps them; whoever is connected keeps those that it
/// came under.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) tls: Option<Encryption>,
    pub(crate) deadlines: Deadlines,
}

/// A machine without file descriptors has some again when a few clients have left.
const OUT_OF_FILES: Duration = Duration::from_millis(50);

impl Listener {
    pub(crate) async fn bind(listen: &Listen) -> io::Result<Self> {
        match listen {
            Listen::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Listen::Unix(path) => Self::bind_unix(path.clone()),
        }
    }

    /// A socket in the file system. One that a dead process left behind is replaced; a file that is
    /// something else is not.
    fn bind_unix(path: PathBuf) -> io::Result<Self> {
        let is_socket = fs::symlink_metadata(&path).is_ok_and(|file| file.file_type().is_socket());
        if is_socket && std::os::unix::net::UnixStream::connect(&path).is_err() {
            fs::remove_file(&path)?;
        }
        UnixListener::bind(&path).map(|listener| Self::Unix(listener, path))
    }

    /// The address as a client writes it.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| "?".to_owned(), |address| address.to_string())
            }
            Self::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }

    /// Takes clients until `stop` is raised, listens no longer from then on, and returns when the last
    /// of them has left.
    /// No more than `most` are connected at the same time.
    pub(crate) async fn serve(
        self,
        front: Arc<Front>,
        terms: Arc<ArcSwap<Terms>>,
        most: usize,
        stop: Stop,
    ) {
        let places = Arc::new(Semaphore::new(most));
        loop {
            let place = tokio::select! {
                biased;
                () = stop.raised() => break,
                place = Arc::clone(&places).acquire_owned() => place,
            };
            let Ok(place) = place else { break };
            let accepted = tokio::select! {
                biased;
                () = stop.raised() => break,
                accepted = self.accept() => accepted,
            };
            match accepted {
                Ok(client) => {
                    let (front, stop) = (Arc::clone(&front), stop.clone());
                    let terms = Terms::clone(&terms.load());
                    tokio::spawn(client.welcome(front, terms, Arc::new(place), stop));
                }
                Err(error) => {
                    tracing::warn!(%error, "a client could not be accepted");
                    sleep(OUT_OF_FILES).await;
                }
            }
        }
        // Whoever comes now is refused at once, and goes elsewhere: behind an open socket it would wait
        // until the last client has left, which may be long, only to be cut off. And a successor can
        // take the address. A socket in a file has to go now, too, while the file is surely our own.
        drop(self);
        // Whoever holds all places knows that nobody is left.
        let all = u32::try_from(most).unwrap_or(u32::MAX);
        drop(places.acquire_many(all).await);
    }

    async fn accept(&self) -> io::Result<Client> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Client::Tcp(stream, address))
            }
            Self::Unix(listener, _) => {
                listener.accept().await.map(|(stream, _)| Client::Unix(stream))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            drop(std::fs::remove_file(path));
        }
    }
}

/// Somebody who has just connected.
enum Client {
    Tcp(TcpStream, SocketAddr),
    Unix(tokio::net::UnixStream),
}

impl Client {
    /// Serves it. Its place is taken until it has left, also if its connection becomes something else.
    async fn welcome(
        self,
        front: Arc<Front>,
        terms: Terms,
        place: Arc<OwnedSemaphorePermit>,
        stop: Stop,
    ) {
        let deadlines = terms.deadlines;
        match (self, terms.tls) {
            (Self::Unix(stream), _) => {
                let peer = Peer::new(&place, None, "http", None);
                serve(front, stream, (peer, Dialect::Http1), deadlines, stop).await;
            }
            (Self::Tcp(stream, address), None) => {
                let peer = Peer::new(&place, forwarded_for(address.ip()), "http", None);
                let Ok(Ok(dialect)) = timeout(deadlines.head, dialect(&stream)).await else {
                    return;
                };
                serve(front, stream, (peer, dialect), deadlines, stop).await;
            }
            (Self::Tcp(stream, address), Some(tls)) => {
                let handshake = TlsAcceptor::from(tls.config).accept(stream);
                let stream = match timeout(deadlines.head, handshake).await {
                    Ok(Ok(stream)) => stream,
                    Ok(Err(error)) => return without_tls(&error),
                    Err(_) => return,
                };
                let dialect = match stream.get_ref().1.alpn_protocol() {
                    Some(b"h2") => Dialect::Http2,
                    Some(_) | None => Dialect::Http1,
                };
                let name = stream.get_ref().1.peer_certificates().and_then(client_name);
                let peer = Peer::new(&place, forwarded_for(address.ip()), "https", name);
                serve(front, stream, (peer, dialect), deadlines, stop).await;
            }
        }
    }
}

/// Somebody could not agree with us: its certificate is not known here, ours is not believed there,
/// or it speaks something else. Whoever looks after clients wants to know which.
fn without_tls(error: &io::Error) {
    // Whoever only looks whether somebody listens connects and leaves. Balancers do so all day.
    if error.kind() != io::ErrorKind::InvalidData {
        return tracing::debug!(%error, "a client left during the handshake");
    }
    metrics::counter!("oncekey_requests_refused_total", "reason" => "tls").increment(1);
    tracing::info!(%error, reason = "tls", "a client was stopped");
}

/// Looks at the first bytes and leaves them where they are. Clients that speak HTTP/2 without having
/// asked begin with `PRI `, which is no method of HTTP/1.
async fn dialect(stream: &TcpStream) -> io::Result<Dialect> {
    const PREFACE: &[u8] = b"PRI ";
    let mut first = [0; PREFACE.len()];
    loop {
        let seen = stream.peek(&mut first).await?;
        if seen == 0 || first[..seen] != PREFACE[..seen] {
            return Ok(Dialect::Http1);
        }
        if seen == PREFACE.len() {
            return Ok(Dialect::Http2);
        }
        // Rare: the first packet ends within the first word. Peeking returns at once until more
        // comes, so this waits a little instead of spinning.
        sleep(Duration::from_millis(1)).await;
    }
}
