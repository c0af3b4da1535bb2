//! A broker for one test, which may be killed.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

/// RabbitMQ starts in eight seconds; a busy machine with two cores may need many times that.
const START: Duration = Duration::from_secs(120);
/// Who runs RabbitMQ if root must not.
const USER: &str = "rabbitmq";

/// Which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Nats,
    RabbitMq,
}

/// A server in a folder of its own. It dies with the test, and with the thread that started it.
pub(crate) struct Server {
    kind: Kind,
    ports: [u16; 3],
    folder: TempDir,
    children: Vec<Child>,
}

impl Server {
    pub(crate) fn start(kind: Kind) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The server's user must get through to its own folder.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let mut make = Command::new("install");
        make.args(["-d", "-m", "700"]);
        if kind == Kind::RabbitMq && is_root() {
            make.args(["-o", USER, "-g", USER]);
        }
        assert!(make.arg(folder.path().join("data")).status().unwrap().success());
        let ports = [free_port(), free_port(), free_port()];
        let mut server = Self { kind, ports, folder, children: Vec::new() };
        server.start_again();
        server
    }

    pub(crate) fn url(&self) -> String {
        let port = self.ports[0];
        match self.kind {
            Kind::Nats => format!("nats://127.0.0.1:{port}"),
            Kind::RabbitMq => format!("amqp://guest:guest@127.0.0.1:{port}/%2f"),
        }
    }

    /// `kill -9`, and waits until it is dead.
    pub(crate) fn kill(&mut self) {
        for mut child in self.children.drain(..) {
            drop(child.kill());
            child.wait().unwrap();
        }
    }

    /// Starts it on what is in its folder, and waits until it answers.
    pub(crate) fn start_again(&mut self) {
        let begun = Instant::now();
        while !self.answers() {
            assert!(begun.elapsed() < START, "{:?} does not start: {}", self.kind, self.log());
            if !self.children.iter_mut().all(|child| matches!(child.try_wait(), Ok(None)))
                || self.children.is_empty()
            {
                self.kill();
                self.children = self.spawn();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until RabbitMQ has written down that there is a queue of this name, for good.
    ///
    /// It acknowledges a declaration before that. Its log then has the transaction, to be presumed aborted
    /// unless a line further down says "committed"; killed between the two, it comes back without the queue
    /// and all that was in it ("Recovering 0 queues"): one of twelve times on a busy machine.
    pub(crate) async fn wrote_down(&self, queue: &str) {
        let tables = self.folder.path().join("data/broker@localhost");
        let is_there = || {
            let mut files = fs::read_dir(&tables).unwrap().map(|file| file.unwrap().path());
            files.any(|file| {
                let bytes = fs::read(&file).unwrap_or_default();
                let after = bytes.windows(queue.len()).rposition(|some| some == queue.as_bytes());
                let Some(after) = after.map(|at| &bytes[at..]) else { return false };
                match file.extension().and_then(OsStr::to_str) {
                    Some("LOG") => after.windows(9).any(|some| some == b"committed"),
                    // What comes here is true.
                    Some("DCL" | "DCD") => true,
                    _ => false,
                }
            })
        };
        let begun = Instant::now();
        while !is_there() {
            assert!(begun.elapsed() < START, "{queue} is nowhere in {}", tables.display());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What it wrote since it was started last.
    pub(crate) fn log(&self) -> String {
        let log = fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn answers(&self) -> bool {
        match self.kind {
            Kind::Nats => replies(self.ports[0], "", "INFO "),
            // The header of the protocol, and the beginning of the first frame.
            Kind::RabbitMq => replies(self.ports[0], "AMQP\0\0\u{9}\u{1}", "\u{1}\0\0"),
        }
    }

    /// The main process first.
    fn spawn(&self) -> Vec<Child> {
        let data = self.folder.path().join("data");
        let log = File::create(self.folder.path().join("log")).unwrap();
        let begin = |mut command: Command| {
            command.stdin(Stdio::null()).stdout(log.try_clone().unwrap());
            command.stderr(log.try_clone().unwrap()).current_dir(&data);
            command.spawn().expect("the server is installed: cargo xtask test sees to that")
        };
        let [port, nodes, between] = self.ports.map(|port| port.to_string());
        match self.kind {
            Kind::Nats => {
                let mut command = tethered(None, Path::new("nats-server"));
                command.args(["--addr", "127.0.0.1", "--port", &port, "--jetstream"]);
                command.arg("--store_dir").arg(&data);
                vec![begin(command)]
            }
            Kind::RabbitMq => {
                let among = |program: &str| {
                    let mut command = tethered(Some(USER), Path::new(program));
                    command.env("HOME", &data).env("ERL_EPMD_PORT", &nodes);
                    command.env("ERL_EPMD_ADDRESS", "127.0.0.1");
                    command
                };
                let directory = begin(among("epmd"));
                let mut command = among("/usr/lib/rabbitmq/bin/rabbitmq-server");
                let folder = data.to_str().unwrap();
                let settings = [
                    ("NODENAME", "broker@localhost"),
                    ("NODE_IP_ADDRESS", "127.0.0.1"),
                    ("NODE_PORT", &port),
                    ("DIST_PORT", &between),
                    ("LOGS", "-"),
                    ("LOG_BASE", folder),
                    ("MNESIA_BASE", folder),
                    ("CONF_ENV_FILE", "/dev/null"),
                    ("ENABLED_PLUGINS_FILE", "/dev/null"),
                    // Otherwise the server is the child of a shell, and outlives it.
                    ("ALLOW_INPUT", "1"),
                    ("SERVER_ADDITIONAL_ERL_ARGS", "-noinput"),
                ];
                for (name, value) in settings {
                    command.env(format!("RABBITMQ_{name}"), value);
                }
                vec![begin(command), directory]
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Dies with the thread that starts it, and runs as this user if we are root.
fn tethered(user: Option<&str>, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if let Some(user) = user.filter(|_| is_root()) {
        command.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
        command.arg("--clear-groups");
    }
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn replies(port: u16, question: &str, answer: &str) -> bool {
    let ask = || -> std::io::Result<bool> {
        let limit = Duration::from_secs(2);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(question.as_bytes())?;
        let mut bytes = vec![0; answer.len()];
        stream.read_exact(&mut bytes)?;
        Ok(bytes == answer.as_bytes())
    };
    ask().unwrap_or(false)
}

fn free_port() -> u16 {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    free.local_addr().unwrap().port()
}
