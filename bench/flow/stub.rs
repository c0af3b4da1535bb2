//! The foreign system: it knows a key again and takes no time of its own.
//!
//! A line with a key, and a line with a charge: every contender asks it in the same way, over
//! connections that stay open.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A way to the foreign system. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Stub {
    address: SocketAddr,
    idle: Arc<Mutex<Vec<BufReader<TcpStream>>>>,
}

/// Answers until the program ends.
#[allow(dead_code, reason = "the peer only calls")]
pub(crate) async fn serve() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let books: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let books = Arc::clone(&books);
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut key = String::new();
                while let Ok(1..) = stream.read_line(&mut key).await {
                    let charge = {
                        let mut books = books.lock().unwrap_or_else(PoisonError::into_inner);
                        let next = books.len();
                        *books.entry(key.trim_end().to_owned()).or_insert(next)
                    };
                    if stream.write_all(format!("ch_{charge}\n").as_bytes()).await.is_err() {
                        return;
                    }
                    key.clear();
                }
            });
        }
    });
    Ok(address)
}

impl Stub {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, idle: Arc::default() }
    }

    /// Charges once for a key.
    pub(crate) async fn charge(&self, key: &str) -> io::Result<String> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(self.address).await?;
                stream.set_nodelay(true)?;
                BufReader::new(stream)
            }
        };
        stream.write_all(format!("{key}\n").as_bytes()).await?;
        let mut charge = String::new();
        if stream.read_line(&mut charge).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        charge.truncate(charge.trim_end().len());
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        Ok(charge)
    }
}
