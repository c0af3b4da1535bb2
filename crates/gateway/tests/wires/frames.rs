//! An upstream of HTTP/2 by hand, frame by frame.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What is done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Answer,
    /// The stream is refused when its head has come.
    Refuse,
    /// The connection ends, and an earlier stream is named as the last that was looked at.
    GoAwayBefore,
    /// The connection ends, and this stream is named as one that was looked at.
    GoAwayWith,
    /// The stream is reset when the whole request has come.
    ResetAfter,
    /// Half of an answer comes, and a reset.
    HalfAnswer,
    /// The same, and the reset says that nothing was wrong.
    HalfAnswerKindly,
    /// Half of an answer comes, and then nothing.
    HalfAnswerSilently,
    /// The connection ends when the whole request has come.
    HangUp,
    /// Nothing ever comes back.
    Silence,
    /// The body is taken in small steps, with a pause after each.
    Drips,
}

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RESET: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// The name of a setting: how many streams there may be at once.
const MOST_STREAMS: u16 = 3;
/// Of a body that it takes in steps: so much at a time, and what it rests after each.
const STEP: u32 = 16 << 10;
const REST: Duration = Duration::from_millis(100);
/// Of the last frame of a stream.
const END: u8 = 1;
/// Of settings and pings.
const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
/// `:status 200` in HPACK.
const OK: &[u8] = &[0x88];

/// The upstream: manners of its next requests, and how many came as a whole.
#[derive(Clone)]
pub(crate) struct Frames {
    pub(crate) address: SocketAddr,
    /// What it says at first.
    settings: Vec<u8>,
    book: Arc<Mutex<Book>>,
}

#[derive(Default)]
struct Book {
    next: VecDeque<Manner>,
    whole: usize,
    connections: usize,
}

impl Frames {
    pub(crate) async fn start() -> Self {
        Self::with(Vec::new()).await
    }

    /// One that takes no more than so many requests at once.
    pub(crate) async fn taking(most: u32) -> Self {
        Self::with([&MOST_STREAMS.to_be_bytes()[..], &most.to_be_bytes()].concat()).await
    }

    async fn with(settings: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let frames = Self { address, settings, book: Arc::default() };
        let shared = frames.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                shared.book.lock().unwrap().connections += 1;
                let shared = shared.clone();
                tokio::spawn(async move { drop(shared.serve(socket).await) });
            }
        });
        frames
    }

    pub(crate) fn next(&self, manner: Manner) {
        self.book.lock().unwrap().next.push_back(manner);
    }

    pub(crate) fn whole(&self) -> usize {
        self.book.lock().unwrap().whole
    }

    /// How many connections there were.
    pub(crate) fn connections(&self) -> usize {
        self.book.lock().unwrap().connections
    }

    async fn serve(&self, mut socket: TcpStream) -> std::io::Result<()> {
        let mut preface = [0; 24];
        socket.read_exact(&mut preface).await?;
        write(&mut socket, SETTINGS, 0, 0, &self.settings).await?;
        let (mut manner, mut refused, mut taken) = (Manner::Answer, 0, 0);
        loop {
            let mut head = [0; 9];
            socket.read_exact(&mut head).await?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            socket.read_exact(&mut payload).await?;
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            match kind {
                SETTINGS if flags & ACK == 0 => write(&mut socket, SETTINGS, ACK, 0, &[]).await?,
                PING if flags & ACK == 0 => write(&mut socket, PING, ACK, 0, &payload).await?,
                HEADERS => {
                    manner = self.book.lock().unwrap().next.pop_front().unwrap_or(Manner::Answer);
                    match manner {
                        Manner::Refuse => {
                            refused = stream;
                            write(&mut socket, RESET, 0, stream, &7_u32.to_be_bytes()).await?;
                        }
                        Manner::GoAwayBefore => return go_away(&mut socket, stream - 2).await,
                        Manner::Answer
                        | Manner::GoAwayWith
                        | Manner::ResetAfter
                        | Manner::HalfAnswer
                        | Manner::HalfAnswerKindly
                        | Manner::HalfAnswerSilently
                        | Manner::HangUp
                        | Manner::Silence
                        | Manner::Drips => {}
                    }
                }
                DATA if manner == Manner::Drips && length > 0 && flags & END == 0 => {
                    taken += length;
                    if taken >= STEP {
                        tokio::time::sleep(REST).await;
                        make_room(&mut socket, stream, std::mem::take(&mut taken)).await?;
                    }
                }
                _ => {}
            }
            if matches!(kind, HEADERS | DATA) && flags & END != 0 && stream != refused {
                self.book.lock().unwrap().whole += 1;
                match manner {
                    Manner::ResetAfter => {
                        write(&mut socket, RESET, 0, stream, &2_u32.to_be_bytes()).await?;
                    }
                    Manner::HalfAnswer | Manner::HalfAnswerKindly | Manner::HalfAnswerSilently => {
                        write(&mut socket, HEADERS, END_HEADERS, stream, OK).await?;
                        write(&mut socket, DATA, 0, stream, b"ha").await?;
                        let code: u32 = if manner == Manner::HalfAnswer { 2 } else { 0 };
                        if manner != Manner::HalfAnswerSilently {
                            write(&mut socket, RESET, 0, stream, &code.to_be_bytes()).await?;
                        }
                    }
                    Manner::GoAwayWith => return go_away(&mut socket, stream).await,
                    Manner::HangUp => return Ok(()),
                    Manner::Silence => {}
                    Manner::Answer | Manner::Refuse | Manner::GoAwayBefore | Manner::Drips => {
                        write(&mut socket, HEADERS, END_HEADERS, stream, OK).await?;
                        write(&mut socket, DATA, END, stream, b"done").await?;
                    }
                }
            }
        }
    }
}

pub(crate) async fn write(
    socket: &mut TcpStream,
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &[u8],
) -> std::io::Result<()> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    socket.write_all(&frame).await
}

/// Lets so many more bytes come, on a stream and on its connection.
async fn make_room(socket: &mut TcpStream, stream: u32, bytes: u32) -> std::io::Result<()> {
    write(socket, WINDOW_UPDATE, 0, 0, &bytes.to_be_bytes()).await?;
    write(socket, WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes()).await
}

/// The last words on a connection, and a while for the other side to read them.
async fn go_away(socket: &mut TcpStream, last: u32) -> std::io::Result<()> {
    write(socket, GO_AWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat()).await?;
    socket.shutdown().await?;
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).await.map(drop)
}
