//! A client with nothing between it and the socket: what it sends is what a row says, and what it
//! reads is what was sent, line by line.

use std::fmt;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

pub(crate) const KEY: &str = "8e03978e-40d5-43e8-bc93-6894a57f9324";

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    method: &'static str,
    path: String,
    lines: Vec<(String, String)>,
    body: Vec<u8>,
}

/// An answer, as it stood on the wire.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) status: u16,
    pub(crate) lines: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    /// What was read and belongs to the next answer.
    ahead: Vec<u8>,
}

/// A payment: JSON under [`KEY`] for the tenant `acme`.
pub(crate) fn pay(body: impl Into<Vec<u8>>) -> Ask {
    let lines = [("host", "localhost"), ("x-tenant", "acme"), ("content-type", "application/json")];
    let ask = Ask {
        method: "POST",
        path: "/payments".into(),
        lines: lines.map(|(name, value)| (name.into(), value.into())).to_vec(),
        body: body.into(),
    };
    ask.line("idempotency-key", KEY)
}

/// A request without a body.
pub(crate) fn ask(method: &'static str, path: &str) -> Ask {
    let lines = [("host", "localhost"), ("x-tenant", "acme")];
    let lines = lines.map(|(name, value)| (name.into(), value.into())).to_vec();
    Ask { method, path: path.into(), lines, body: Vec::new() }
}

impl Ask {
    pub(crate) fn path(mut self, path: &str) -> Self {
        self.path = path.into();
        self
    }

    /// Sets a line, in the place of all that have its name.
    pub(crate) fn line(self, name: &str, value: &str) -> Self {
        self.without(name).and_line(name, value)
    }

    /// Adds a line.
    pub(crate) fn and_line(mut self, name: &str, value: &str) -> Self {
        self.lines.push((name.into(), value.into()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.lines.retain(|(other, _)| other != name);
        self
    }

    pub(crate) fn key(self, key: &str) -> Self {
        self.line("idempotency-key", key)
    }

    /// The head, with these lines about the body.
    pub(crate) fn head(&self, framing: &str) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        for (name, value) in &self.lines {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(framing);
        head.push_str("\r\n");
        head.into_bytes()
    }

    /// The whole message.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let framing = match (self.body.len(), self.method) {
            (0, "GET" | "HEAD") => String::new(),
            (length, _) => format!("content-length: {length}\r\n"),
        };
        [self.head(&framing), self.body.clone()].concat()
    }
}

impl Client {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket, ahead: Vec::new() }
    }

    pub(crate) async fn ask(&mut self, ask: &Ask) -> Seen {
        self.write(&ask.bytes()).await;
        self.read(ask.method).await
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.unwrap();
    }

    /// Reads one answer to a request with this method.
    pub(crate) async fn read(&mut self, method: &str) -> Seen {
        let (status, lines) = self.read_head().await;
        let mut seen = Seen { status, lines, body: Vec::new() };
        let bodiless = method == "HEAD" || matches!(status, 100..=199 | 204 | 304);
        if bodiless {
            return seen;
        }
        seen.body = if seen.line("transfer-encoding") == "chunked" {
            self.read_chunks().await
        } else if seen.has("content-length") {
            let length = seen.line("content-length").parse().unwrap();
            self.take(length).await
        } else {
            self.read_to_end().await
        };
        seen
    }

    pub(crate) async fn read_head(&mut self) -> (u16, Vec<(String, Vec<u8>)>) {
        let first = self.read_line().await;
        let first = String::from_utf8(first).unwrap();
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
        let status = status.unwrap_or_else(|| panic!("{first:?} is no status line"));
        let mut lines = Vec::new();
        loop {
            let line = self.read_line().await;
            if line.is_empty() {
                return (status.parse().unwrap(), lines);
            }
            let colon = line.iter().position(|byte| *byte == b':').unwrap();
            let name = String::from_utf8(line[..colon].to_vec()).unwrap();
            lines.push((name, line[colon + 1..].trim_ascii().to_vec()));
        }
    }

    /// One chunk; empty for the last.
    pub(crate) async fn read_chunk(&mut self) -> Vec<u8> {
        let size = String::from_utf8(self.read_line().await).unwrap();
        let size = usize::from_str_radix(&size, 16).unwrap();
        let chunk = self.take(size).await;
        assert!(self.read_line().await.is_empty(), "trailers are a matter of another row");
        chunk
    }

    /// Whether the server has ended the connection, with nothing more to say.
    pub(crate) async fn is_at_its_end(&mut self) -> bool {
        self.read_to_end().await.is_empty()
    }

    async fn read_chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let chunk = self.read_chunk().await;
            if chunk.is_empty() {
                return body;
            }
            body.extend(chunk);
        }
    }

    async fn read_line(&mut self) -> Vec<u8> {
        loop {
            if let Some(end) = self.ahead.windows(2).position(|pair| pair == b"\r\n") {
                let mut line: Vec<u8> = self.ahead.drain(..end + 2).collect();
                line.truncate(end);
                return line;
            }
            assert!(self.fill().await, "the connection ends in a line: {:?}", self.ahead);
        }
    }

    async fn take(&mut self, length: usize) -> Vec<u8> {
        while self.ahead.len() < length {
            assert!(self.fill().await, "the connection ends in a body");
        }
        self.ahead.drain(..length).collect()
    }

    async fn read_to_end(&mut self) -> Vec<u8> {
        while self.fill().await {}
        std::mem::take(&mut self.ahead)
    }

    async fn fill(&mut self) -> bool {
        let mut piece = [0; 4_096];
        // A connection that was reset has ended too.
        let length = self.socket.read(&mut piece).await.unwrap_or(0);
        self.ahead.extend_from_slice(&piece[..length]);
        length > 0
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}", self.status)?;
        for (name, value) in &self.lines {
            writeln!(out, "{name}: {}", value.escape_ascii())?;
        }
        write!(out, "\n{}", self.body.get(..1_000).unwrap_or(&self.body).escape_ascii())
    }
}

impl Seen {
    /// The value of a line; empty if there is none.
    pub(crate) fn line(&self, name: &str) -> &str {
        let found = self.lines.iter().find(|(other, _)| other == name);
        found.map_or("", |(_, value)| std::str::from_utf8(value).unwrap())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.lines.iter().any(|(other, _)| other == name)
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.line("idempotent-replayed") == "true"
    }

    /// The same answer as `first`, and marked as a replay of it.
    #[track_caller]
    pub(crate) fn assert_replays(&self, first: &Self) {
        assert!(!first.is_replay(), "the first answer is no replay");
        assert!(self.is_replay(), "{self:?}");
        assert_eq!((self.status, self.text()), (first.status, first.text()));
        assert_eq!(self.line("original-request"), first.line("request-id"));
        assert_ne!(self.line("request-id"), first.line("request-id"));
    }

    /// The problem document, checked against the status line and the other lines.
    #[track_caller]
    pub(crate) fn problem(&self) -> Value {
        assert_eq!(self.line("content-type"), "application/problem+json", "{}", self.text());
        assert!(!self.has("idempotent-replayed"), "a problem is never a replay");
        let problem: Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], self.status);
        assert_eq!(problem["request_id"], self.line("request-id"));
        let link = format!("<{}>; rel=\"describedby\"", problem["type"].as_str().unwrap());
        assert_eq!(self.line("link"), link);
        problem
    }

    #[track_caller]
    pub(crate) fn assert_refused(&self, status: u16, code: &str, executed: &str) {
        let problem = self.problem();
        assert_eq!(self.status, status, "{problem}");
        assert_eq!(
            (problem["code"].as_str(), problem["executed"].as_str()),
            (Some(code), Some(executed))
        );
    }
}
