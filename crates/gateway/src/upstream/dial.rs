//! Making a connection to an upstream.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::stream::{Kind, Stream};
use super::target::{Place, Target, Tls};

/// Connects to one target.
#[derive(Clone)]
pub(super) struct Dialler {
    pub(super) target: Target,
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// How long name, connection and TLS may take together.
    pub(super) patience: Duration,
}

/// Which HTTP the other side chose in the TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    Http2,
    Unsaid,
}

impl Dialler {
    /// Makes a connection. Nothing of a request is written here.
    pub(super) async fn dial(&self) -> io::Result<(Stream, Chosen)> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
        timeout(self.patience, self.connect()).await.map_err(|_| late())?
    }

    async fn connect(&self) -> io::Result<(Stream, Chosen)> {
        let (host, port) = match &self.target.place {
            Place::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                return Ok((Stream::new(Kind::Unix(stream)), Chosen::Unsaid));
            }
            Place::Tcp { host, port } => (host.as_str(), *port),
        };
        let stream = TcpStream::connect((host, port)).await?;
        // A request is written at once: waiting for more would only delay it.
        stream.set_nodelay(true)?;
        let config = match (self.target.tls, &self.tls) {
            (Tls::Plain, _) => return Ok((Stream::new(Kind::Tcp(stream)), Chosen::Unsaid)),
            (Tls::Encrypted, Some(config)) => Arc::clone(config),
            (Tls::Encrypted, None) => return Err(io::Error::other("TLS is not set up")),
        };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        let chosen = match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Chosen::Http2,
            Some(_) | None => Chosen::Unsaid,
        };
        Ok((Stream::new(Kind::Tls(Box::new(stream))), chosen))
    }
}
