//! A way to a server on this machine that can be broken: cut at a byte, silent, slow, or closed.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// Longer than any test takes. A proxy that outlives it has been forgotten, and stops.
const LIFE: Duration = Duration::from_secs(2 * 60 * 60);

/// More connections at the same time than any store opens. Above that something leaks them.
const CONNECTIONS: usize = 512;

/// How long the bytes before a cut have to arrive: a reset overtakes what was not read yet.
const HEAD_START: Duration = Duration::from_millis(1);

/// A proxy in front of one server. It stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// With a reset: what is under way is lost, on both sides.
    Reset,
    /// In good order, as if the other side had hung up.
    Fin,
}

/// What comes after a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// New connections work.
    Heal,
    /// New connections are closed at once, until another fault is set.
    Refuse,
}

/// What is wrong with all connections, from the moment it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    Nothing,
    /// Once so many bytes have passed this way, over all connections, all of them are cut.
    Cut { way: Way, after: usize, how: How, then: Then },
    /// Everything that goes this way is lost, and nobody is told.
    Lose(Way),
    /// Everything that goes this way takes longer.
    Delay(Way, Duration),
    /// New connections are closed at once.
    Refuse,
}

/// What has passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Everything from clients, in order of arrival.
    pub(crate) up: Vec<u8>,
    /// Everything from the server.
    pub(crate) down: Vec<u8>,
    /// How often the server spoke after a client had.
    pub(crate) trips: usize,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Changes when all connections are to end.
    ends: watch::Sender<(u64, How)>,
}

#[derive(Debug)]
struct State {
    fault: Fault,
    /// Bytes that have passed since the fault was set.
    passed: [usize; 2],
    traffic: Option<Traffic>,
    total: [u64; 2],
    has_asked: bool,
    /// How many cuts have happened.
    cuts: u64,
    open: usize,
}

/// What becomes of bytes that have arrived.
enum Fate {
    Pass(Duration),
    Lost,
    /// So many of them pass, and then everything ends.
    Cut(usize, How),
}

impl Proxy {
    /// A proxy in front of a port of this machine.
    pub(crate) async fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let state = State {
            fault: Fault::Nothing,
            passed: [0; 2],
            traffic: None,
            total: [0; 2],
            has_asked: false,
            cuts: 0,
            open: 0,
        };
        let ends = watch::Sender::new((0, How::Fin));
        let shared = Arc::new(Shared { state: Mutex::new(state), ends });
        let serving = serve(listener, target, Arc::clone(&shared));
        let task = tokio::spawn(async move {
            // Dropping it ends all connections, which are its children.
            drop(tokio::time::timeout(LIFE, serving).await);
        });
        Self { port, shared, accepting: task.abort_handle() }
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// From now on this is wrong, and nothing else.
    pub(crate) fn set(&self, fault: Fault) {
        let mut state = self.shared.state();
        state.fault = fault;
        state.passed = [0; 2];
    }

    /// Nothing is wrong any more. What a fault has swallowed stays lost.
    pub(crate) fn heal(&self) {
        self.set(Fault::Nothing);
    }

    /// Ends all connections that there are.
    pub(crate) fn end_all(&self, how: How) {
        self.shared.end(how);
    }

    /// How many bytes have passed this way since the start.
    pub(crate) fn total(&self, way: Way) -> u64 {
        self.shared.state().total[way.index()]
    }

    /// How many cuts there were since the start.
    pub(crate) fn cuts(&self) -> u64 {
        self.shared.state().cuts
    }

    /// How many connections are open.
    pub(crate) fn open(&self) -> usize {
        self.shared.state().open
    }

    /// Begins to note what passes.
    pub(crate) fn listen(&self) {
        let mut state = self.shared.state();
        state.traffic = Some(Traffic::default());
        state.has_asked = false;
    }

    /// What has passed since [`listen`](Self::listen).
    pub(crate) fn heard(&self) -> Traffic {
        self.shared.state().traffic.take().expect("it listens")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Way {
    pub(crate) const BOTH: [Self; 2] = [Self::Up, Self::Down];

    const fn index(self) -> usize {
        match self {
            Self::Up => 0,
            Self::Down => 1,
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, how: How) {
        self.ends.send_modify(|(number, last)| {
            *number += 1;
            *last = how;
        });
    }

    fn judge(&self, way: Way, bytes: &[u8]) -> Fate {
        let mut state = self.state();
        let passed = state.passed[way.index()];
        let (count, fate) = match state.fault {
            Fault::Lose(lost) if lost == way => return Fate::Lost,
            Fault::Cut { way: cut, after, how, then }
                if cut == way && passed + bytes.len() >= after =>
            {
                state.fault = match then {
                    Then::Heal => Fault::Nothing,
                    Then::Refuse => Fault::Refuse,
                };
                state.cuts += 1;
                let rest = after - passed;
                (rest, Fate::Cut(rest, how))
            }
            // A connection that slipped in while all others were cut.
            Fault::Refuse => return Fate::Cut(0, How::Reset),
            Fault::Delay(slow, span) if slow == way => (bytes.len(), Fate::Pass(span)),
            Fault::Nothing | Fault::Cut { .. } | Fault::Lose(_) | Fault::Delay(..) => {
                (bytes.len(), Fate::Pass(Duration::ZERO))
            }
        };
        state.note(way, &bytes[..count]);
        fate
    }
}

impl State {
    fn note(&mut self, way: Way, bytes: &[u8]) {
        self.passed[way.index()] += bytes.len();
        self.total[way.index()] += u64::try_from(bytes.len()).expect("lengths fit 64 bits");
        let Some(traffic) = &mut self.traffic else { return };
        match way {
            Way::Up => {
                self.has_asked = true;
                traffic.up.extend_from_slice(bytes);
            }
            Way::Down => {
                traffic.trips += usize::from(std::mem::take(&mut self.has_asked));
                traffic.down.extend_from_slice(bytes);
            }
        }
    }
}

async fn serve(listener: TcpListener, target: u16, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        // Those that have ended make room.
        while connections.try_join_next().is_some() {}
        let Ok((client, _)) = listener.accept().await else { return };
        let is_refused = shared.state().fault == Fault::Refuse;
        if is_refused || connections.len() >= CONNECTIONS {
            close(client, How::Reset);
            continue;
        }
        connections.spawn(connection(client, target, Arc::clone(&shared)));
    }
}

async fn connection(mut client: TcpStream, target: u16, shared: Arc<Shared>) {
    let mut ends = shared.ends.subscribe();
    let target = SocketAddr::from(([127, 0, 0, 1], target));
    let Ok(mut server) = TcpStream::connect(target).await else {
        return close(client, How::Reset);
    };
    // A small question must not wait for company: it is not what is tested here.
    drop((client.set_nodelay(true), server.set_nodelay(true)));
    shared.state().open += 1;
    let how = {
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = server.split();
        tokio::select! {
            how = pump(Way::Up, &mut from_client, &mut to_server, &shared) => how,
            how = pump(Way::Down, &mut from_server, &mut to_client, &shared) => how,
            _ = ends.changed() => ends.borrow().1,
        }
    };
    close(client, how);
    close(server, how);
    shared.state().open -= 1;
}

/// Passes bytes on until the connection ends, and says how.
async fn pump(way: Way, from: &mut ReadHalf<'_>, to: &mut WriteHalf<'_>, shared: &Shared) -> How {
    let mut buffer = vec![0; 64 * 1024];
    let mut has_lost = false;
    loop {
        let bytes = match from.read(&mut buffer).await {
            Ok(0) => return How::Fin,
            Ok(count) => &buffer[..count],
            Err(_) => return How::Reset,
        };
        let passing = match shared.judge(way, bytes) {
            Fate::Lost => {
                has_lost = true;
                continue;
            }
            // TCP loses a connection, but never something in the middle of one.
            Fate::Pass(_) if has_lost => return How::Reset,
            Fate::Pass(delay) => {
                if delay > Duration::ZERO {
                    tokio::time::sleep(delay).await;
                }
                bytes
            }
            Fate::Cut(count, how) => {
                if count > 0 && to.write_all(&bytes[..count]).await.is_ok() {
                    tokio::time::sleep(HEAD_START).await;
                }
                shared.end(how);
                return how;
            }
        };
        if to.write_all(passing).await.is_err() {
            return How::Reset;
        }
    }
}

fn close(stream: TcpStream, how: How) {
    if how == How::Reset {
        // A connection that is gone already cannot be reset.
        drop(stream.set_zero_linger());
    }
    drop(stream);
}
