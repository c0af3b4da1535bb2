//! Clients on connections that stay open, and what they get.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::common::stub::{Arrived, Reply};
use crate::common::until;

/// Clients who send one request after the other.
pub(crate) struct Load {
    clients: JoinSet<Vec<String>>,
    done: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

/// What all clients got together.
#[derive(Debug, Default)]
pub(crate) struct Got {
    /// The keys that were answered.
    pub(crate) keys: Vec<String>,
}

pub(crate) const ROUTES: &str = r#"
[defaults]
scope = ["header:X-Tenant"]
mode = "optional"
[[route]]
match = "POST /payments"
"#;

/// Says which payment it was.
pub(crate) fn receipt(arrived: &Arrived) -> Reply {
    Reply::ok(&String::from_utf8_lossy(&arrived.body))
}

/// One in four has a key: they are the slow ones, and there should be many requests.
fn request(key: &str) -> Vec<u8> {
    let body = format!("\"{key}\"");
    let protected = match key.ends_with(['0', '4', '8']) {
        true => format!("idempotency-key: {key}\r\n"),
        false => String::new(),
    };
    let head = "POST /payments HTTP/1.1\r\nhost: a\r\nx-tenant: acme\r\n";
    format!("{head}{protected}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

impl Load {
    /// So many clients who send, together, so many requests, or until they are stopped.
    pub(crate) fn start(address: SocketAddr, clients: usize, requests: usize) -> Self {
        let (done, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let mut set = JoinSet::new();
        for number in 0..clients {
            let (done, stop) = (Arc::clone(&done), Arc::clone(&stop));
            set.spawn(async move {
                let mut answered = Vec::new();
                let mut line = Some(TcpStream::connect(address).await.unwrap());
                for at in 0..requests / clients {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let key = format!("key-{number}-{at}");
                    match pay(&mut line, address, &key).await {
                        Paid::Yes => answered.push(key),
                        Paid::NobodyThere => break,
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                }
                answered
            });
        }
        Self { clients: set, done, stop }
    }

    /// Waits until so many requests were answered.
    pub(crate) async fn until_done(&self, requests: usize) {
        until("requests", async || self.done.load(Ordering::SeqCst) >= requests).await;
    }

    pub(crate) async fn end(self) -> Got {
        let keys = self.clients.join_all().await.concat();
        Got { keys }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

enum Paid {
    Yes,
    /// Connections are refused, or closed before a request was sent on them.
    NobodyThere,
}

/// Sends one request and reads its answer. A connection that the server has closed between two
/// requests is replaced, as every client does it; an answer that breaks off is a failed request.
async fn pay(line: &mut Option<TcpStream>, address: SocketAddr, key: &str) -> Paid {
    for _ in 0..2 {
        let socket = match line.take() {
            Some(socket) => Some(socket),
            None => TcpStream::connect(address).await.ok(),
        };
        let Some(mut socket) = socket else { return Paid::NobodyThere };
        let mut heard = Vec::new();
        let sent = socket.write_all(&request(key)).await;
        while sent.is_ok() && !is_whole(&heard) {
            match socket.read_buf(&mut heard).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => break,
            }
        }
        if heard.is_empty() {
            continue;
        }
        let text = String::from_utf8_lossy(&heard).into_owned();
        assert!(text.starts_with("HTTP/1.1 200 "), "{key}: {text}");
        assert!(text.ends_with(&format!("\"{key}\"")), "{key}: {text}");
        if !text.to_ascii_lowercase().contains("connection: close") {
            *line = Some(socket);
        }
        return Paid::Yes;
    }
    Paid::NobodyThere
}

fn is_whole(heard: &[u8]) -> bool {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut fields);
    let Ok(httparse::Status::Complete(head)) = response.parse(heard) else { return false };
    let length =
        response.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
    let length =
        length.and_then(|field| str::from_utf8(field.value).ok()?.parse().ok()).unwrap_or(0);
    heard.len() >= head + length
}
