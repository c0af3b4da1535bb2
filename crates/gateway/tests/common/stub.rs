//! An upstream of raw sockets: reads requests as strictly as the rules allow, remembers everything
//! that arrived, and answers whatever bytes a test wants.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::until;

/// A server in this process. It ends with the test's runtime.
#[derive(Clone, Debug)]
pub(crate) struct Stub {
    pub(crate) address: SocketAddr,
    book: Arc<Mutex<Book>>,
}

/// Everything that came.
#[derive(Debug, Default)]
struct Book {
    whole: Vec<Arrived>,
    /// Requests that broke off before their end.
    broken: Vec<Arrived>,
    /// What no careful sender writes.
    faults: Vec<String>,
    connections: usize,
}

/// A request as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// The first line and the fields, as they stood there.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

/// What to do with a request.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) bytes: Vec<u8>,
    pub(crate) then: Then,
    /// How long it takes.
    pub(crate) after: Duration,
}

/// What to do after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Read the next request.
    Keep,
    /// Close the connection.
    Close,
    /// Cut it, so that the other side sees a reset.
    Reset,
    /// Say and read nothing more until the other side closes.
    Hang,
    /// Send back whatever comes.
    Echo,
}

type Answers = dyn Fn(&Arrived) -> Reply + Send + Sync;

impl Reply {
    pub(crate) fn new(bytes: impl Into<Vec<u8>>, then: Then) -> Self {
        Self { bytes: bytes.into(), then, after: Duration::ZERO }
    }

    /// A small answer.
    pub(crate) fn ok(body: &str) -> Self {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        Self::new(head, Then::Keep)
    }

    /// The same, a while later.
    pub(crate) fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }
}

impl Arrived {
    /// The value of a field; empty if there is none.
    pub(crate) fn line(&self, name: &str) -> &str {
        let fields = self.head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        let mut found = fields.filter(|(other, _)| other.eq_ignore_ascii_case(name));
        found.next().map_or("", |(_, value)| value.trim())
    }

    pub(crate) fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    pub(crate) fn method(&self) -> &str {
        self.head.split(' ').next().unwrap_or_default()
    }
}

impl Stub {
    pub(crate) async fn start(answers: impl Fn(&Arrived) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stub = Self { address: listener.local_addr().unwrap(), book: Arc::default() };
        let (book, answers) = (Arc::clone(&stub.book), Arc::new(answers));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                book.lock().unwrap().connections += 1;
                socket.set_nodelay(true).unwrap();
                let (book, answers) = (Arc::clone(&book), Arc::clone(&answers));
                tokio::spawn(async move { serve(socket, &book, &*answers).await });
            }
        });
        stub
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests that arrived as a whole, in their order.
    pub(crate) fn whole(&self) -> Vec<Arrived> {
        self.book.lock().unwrap().whole.clone()
    }

    pub(crate) fn broken(&self) -> Vec<Arrived> {
        self.book.lock().unwrap().broken.clone()
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        self.book.lock().unwrap().faults.clone()
    }

    /// How many whole requests arrived for a path.
    pub(crate) fn count(&self, path: &str) -> usize {
        self.book.lock().unwrap().whole.iter().filter(|arrived| arrived.path() == path).count()
    }

    pub(crate) async fn until_count(&self, path: &str, count: usize) {
        until(path, async || self.count(path) >= count).await;
    }
}

async fn serve(mut socket: TcpStream, book: &Mutex<Book>, answers: &Answers) {
    let mut reader = Reader { socket: &mut socket, ahead: Vec::new() };
    loop {
        let arrived = match reader.read().await {
            Ok(arrived) => arrived,
            Err(Stopped::Between) => return,
            Err(Stopped::Within(arrived)) => return book.lock().unwrap().broken.push(arrived),
            Err(Stopped::Fault(text)) => return book.lock().unwrap().faults.push(text),
        };
        // Before the answer, so that whoever has the answer finds it here.
        book.lock().unwrap().whole.push(arrived.clone());
        let Reply { bytes, then, after } = answers(&arrived);
        tokio::time::sleep(after).await;
        if reader.socket.write_all(&bytes).await.is_err() {
            return;
        }
        match then {
            Then::Keep => {}
            Then::Close => {
                let _ = reader.socket.shutdown().await;
                return;
            }
            Then::Reset => return reader.socket.set_zero_linger().unwrap(),
            Then::Hang => while reader.fill().await {},
            Then::Echo => return echo(reader).await,
        }
    }
}

async fn echo(mut reader: Reader<'_>) {
    loop {
        let ahead = std::mem::take(&mut reader.ahead);
        if reader.socket.write_all(&ahead).await.is_err() || !reader.fill().await {
            return;
        }
    }
}

struct Reader<'s> {
    socket: &'s mut TcpStream,
    ahead: Vec<u8>,
}

/// Why no request was read.
enum Stopped {
    Between,
    Within(Arrived),
    Fault(String),
}

impl Reader<'_> {
    async fn read(&mut self) -> Result<Arrived, Stopped> {
        let head = loop {
            if let Some(end) = self.ahead.windows(4).position(|four| four == b"\r\n\r\n") {
                let head: Vec<u8> = self.ahead.drain(..end + 4).collect();
                break head;
            }
            if !self.fill().await {
                let head = String::from_utf8_lossy(&self.ahead).into_owned();
                return Err(match head.is_empty() {
                    true => Stopped::Between,
                    false => Stopped::Within(Arrived { head, body: Vec::new() }),
                });
            }
        };
        let fault = |why: &str| Stopped::Fault(format!("{why}: {}", head.escape_ascii()));
        let framing = framing(&head).map_err(fault)?;
        let head = head.iter().copied().map(char::from).collect();
        let mut arrived = Arrived { head, body: Vec::new() };
        let read = match framing {
            Framing::Length(length) => self.take(length, &mut arrived.body).await,
            Framing::Chunked => self.chunks(&mut arrived.body).await,
        };
        match read {
            Ok(()) => Ok(arrived),
            Err(Gone::Away) => Err(Stopped::Within(arrived)),
            Err(Gone::Wrong(why)) => Err(Stopped::Fault(format!("{why} behind {}", arrived.head))),
        }
    }

    async fn take(&mut self, length: usize, into: &mut Vec<u8>) -> Result<(), Gone> {
        let mut left = length;
        loop {
            let count = left.min(self.ahead.len());
            into.extend(self.ahead.drain(..count));
            left -= count;
            if left == 0 {
                return Ok(());
            }
            if !self.fill().await {
                return Err(Gone::Away);
            }
        }
    }

    async fn chunks(&mut self, into: &mut Vec<u8>) -> Result<(), Gone> {
        loop {
            let line = self.text_line().await?;
            let plain = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_hexdigit());
            let size = usize::from_str_radix(&line, 16);
            let Ok(size) = size.map_err(drop).and_then(|size| plain.then_some(size).ok_or(()))
            else {
                return Err(Gone::Wrong(format!("{line:?} is no chunk size")));
            };
            if size == 0 {
                while !self.text_line().await?.is_empty() {}
                return Ok(());
            }
            self.take(size, into).await?;
            let end = self.text_line().await?;
            if !end.is_empty() {
                return Err(Gone::Wrong(format!("{end:?} behind a chunk")));
            }
        }
    }

    async fn text_line(&mut self) -> Result<String, Gone> {
        loop {
            if let Some(end) = self.ahead.windows(2).position(|pair| pair == b"\r\n") {
                let mut line: Vec<u8> = self.ahead.drain(..end + 2).collect();
                line.truncate(end);
                return Ok(line.into_iter().map(char::from).collect());
            }
            if !self.fill().await {
                return Err(Gone::Away);
            }
        }
    }

    async fn fill(&mut self) -> bool {
        let mut piece = [0; 16_384];
        let length = self.socket.read(&mut piece).await.unwrap_or(0);
        self.ahead.extend_from_slice(&piece[..length]);
        length > 0
    }
}

/// Why a body has no end.
enum Gone {
    Away,
    Wrong(String),
}

enum Framing {
    Length(usize),
    Chunked,
}

/// How a body is delimited, or what is wrong with the head.
fn framing(head: &[u8]) -> Result<Framing, &'static str> {
    let mut lines = head[..head.len() - 4].split(|byte| *byte == b'\n');
    let mut fields: Vec<(String, String)> = Vec::new();
    let first = lines.next().unwrap_or_default();
    if first.split(|byte| *byte == b' ').count() != 3 {
        return Err("the first line has not three parts");
    }
    for line in lines {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return Err("a line without a colon");
        };
        let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        if colon == 0 || !line[..colon].iter().all(token) || line.contains(&b'\r') {
            return Err("a name that is none");
        }
        let value = line[colon + 1..].trim_ascii().iter().copied().map(char::from).collect();
        fields.push((String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase(), value));
    }
    let all = |wanted: &str| -> Vec<&str> {
        fields.iter().filter(|(name, _)| name == wanted).map(|(_, value)| &**value).collect()
    };
    match (&all("content-length")[..], &all("transfer-encoding")[..]) {
        ([], []) => Ok(Framing::Length(0)),
        ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            length.parse().map(Framing::Length).map_err(|_| "a length that is none")
        }
        ([], [coding]) if coding.eq_ignore_ascii_case("chunked") => Ok(Framing::Chunked),
        _ => Err("a body whose end nobody knows"),
    }
}
