//! A server for one test, which may be killed.

use std::fs::{self, File, Permissions};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

use crate::place::Kind;

/// A server starts in a second; a busy machine with two cores may need many times that.
const START: Duration = Duration::from_secs(90);

/// A server in a folder of its own, with the durability that its store asks for. It dies with the
/// test, and with the thread that started it.
#[derive(Debug)]
pub(crate) struct Server {
    kind: Kind,
    port: u16,
    settings: Vec<String>,
    folder: TempDir,
    child: Child,
}

impl Server {
    /// Starts a server with more settings than it needs.
    pub(crate) fn start(kind: Kind, settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // The server's user must get through to its own folder.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it is ours");
        prepare(kind, folder.path());
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        let port = free_port();
        let child = spawn(kind, port, folder.path(), &settings);
        let mut server = Self { kind, port, settings, folder, child };
        server.wait();
        if kind == Kind::MariaDb {
            run(administer(port, &["create", "oncekey"]));
        }
        server
    }

    pub(crate) fn url(&self) -> String {
        let port = self.port;
        match self.kind {
            Kind::Postgres => format!("postgres://oncekey@127.0.0.1:{port}/postgres"),
            Kind::MariaDb => format!("mysql://root@127.0.0.1:{port}/oncekey"),
            Kind::Redis => format!("redis://127.0.0.1:{port}/"),
            Kind::DynamoDb => format!("http://127.0.0.1:{port}"),
        }
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// `kill -9`, and waits until it is dead.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the server runs");
        self.child.wait().expect("a dead server is reaped");
    }

    /// Starts it again on what is in its folder, at the same port.
    pub(crate) fn start_again(&mut self) {
        self.child = spawn(self.kind, self.port, self.folder.path(), &self.settings);
        self.wait();
    }

    /// Waits until it answers. One that ends before that is started again: the processes of its
    /// predecessor may need a moment to notice that they are alone.
    fn wait(&mut self) {
        let begun = Instant::now();
        while !answers(self.kind, self.port) {
            if begun.elapsed() > START {
                let log = fs::read(self.folder.path().join("log")).unwrap_or_default();
                panic!("{:?} does not start: {}", self.kind, String::from_utf8_lossy(&log));
            }
            std::thread::sleep(Duration::from_millis(20));
            if !matches!(self.child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(50));
                self.child = spawn(self.kind, self.port, self.folder.path(), &self.settings);
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Where MariaDB has its temporary tables. Not in the shared place: a server that starts removes what
/// it finds there, and with it what another one is using.
const SCRATCH: &str = "TMPDIR";

/// Makes an empty data folder.
fn prepare(kind: Kind, folder: &Path) {
    let data = folder.join("data");
    let Some(user) = user(kind) else { return fs::create_dir(&data).expect("a data folder") };
    let mut make = Command::new("install");
    make.args(["-d", "-m", "700"]);
    if is_root() {
        make.args(["-o", user, "-g", user]);
    }
    make.arg(&data);
    run(make);
    let mut create = match kind {
        Kind::Postgres => {
            let mut create = tethered(kind, &postgres("initdb"));
            create.args(["-U", "oncekey", "--auth=trust", "--no-sync", "-E", "UTF8"]);
            create.arg("--locale=C").arg("-D").arg(data.join("db"));
            create
        }
        Kind::MariaDb | Kind::Redis | Kind::DynamoDb => {
            let mut create = tethered(kind, Path::new("mariadb-install-db"));
            create.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
            create.arg("--skip-test-db").arg(format!("--datadir={}", data.join("db").display()));
            create
        }
    };
    create.current_dir(&data).env(SCRATCH, &data);
    run(create);
}

fn spawn(kind: Kind, port: u16, folder: &Path, settings: &[String]) -> Child {
    let data = folder.join("data");
    let port = port.to_string();
    let mut command = match kind {
        Kind::Postgres => {
            let mut command = tethered(kind, &postgres("postgres"));
            command.arg("-D").arg(data.join("db")).args(["-c", "listen_addresses=127.0.0.1"]);
            command.args(["-c", &format!("port={port}"), "-c", "unix_socket_directories="]);
            command
        }
        Kind::MariaDb => {
            let program = ["/usr/sbin/mariadbd", "/usr/libexec/mariadbd"].map(Path::new);
            let program = program.into_iter().find(|path| path.exists());
            let mut command = tethered(kind, program.unwrap_or(Path::new("mariadbd")));
            let place = format!("--datadir={}", data.join("db").display());
            command.args(["--no-defaults", &place, "--bind-address=127.0.0.1"]);
            command.args([&format!("--port={port}"), "--socket=socket", "--pid-file=pid"]);
            command
        }
        Kind::Redis => {
            let mut command = tethered(kind, Path::new("redis-server"));
            command.args(["--bind", "127.0.0.1", "--port", &port, "--save", ""]);
            command.args(["--appendonly", "yes", "--appendfsync", "always"]);
            command
        }
        Kind::DynamoDb => {
            let mut command = tethered(kind, &dynoxide());
            command.args(["serve", "--host", "127.0.0.1", "--port", &port, "--db-path", "db"]);
            command
        }
    };
    let log = File::create(folder.join("log")).expect("a log file");
    let errors = log.try_clone().expect("a log file");
    command.args(settings).current_dir(&data).env(SCRATCH, &data);
    command.stdin(Stdio::null()).stdout(log).stderr(errors);
    command.spawn().expect("the server is installed: cargo xtask test sees to that")
}

/// Dies with the thread that starts it, and runs as the server's own user if we are root.
fn tethered(kind: Kind, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if let Some(user) = user(kind).filter(|_| is_root()) {
        command.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
        command.arg("--clear-groups");
    }
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Who runs the server if root must not.
const fn user(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Postgres => Some("postgres"),
        Kind::MariaDb => Some("mysql"),
        Kind::Redis | Kind::DynamoDb => None,
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn answers(kind: Kind, port: u16) -> bool {
    match kind {
        Kind::Postgres => {
            let mut probe = Command::new(postgres("pg_isready"));
            probe.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()]);
            succeeds(probe)
        }
        Kind::MariaDb => succeeds(administer(port, &["ping"])),
        Kind::Redis => replies(port, "PING\r\n", "+PONG"),
        Kind::DynamoDb => replies(port, "GET / HTTP/1.0\r\n\r\n", "HTTP/1."),
    }
}

fn administer(port: u16, arguments: &[&str]) -> Command {
    let mut command = Command::new("mariadb-admin");
    command.args(["--no-defaults", "--protocol=tcp", "-h127.0.0.1", "-uroot"]);
    command.arg(format!("-P{port}")).args(arguments);
    command
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

fn succeeds(mut command: Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn run(mut command: Command) {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
}

/// A program of the newest PostgreSQL: Debian keeps them out of the search path.
fn postgres(program: &str) -> PathBuf {
    let folders = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let versions = folders.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    match versions.max() {
        Some(version) => format!("/usr/lib/postgresql/{version}/bin/{program}").into(),
        None => program.into(),
    }
}

/// Where `cargo xtask test` keeps what it has built, or the search path.
fn dynoxide() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let folder = set("ONCEKEY_TOOLS")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("oncekey-tools")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/oncekey-tools")));
    let built = folder.map(|folder| folder.join("bin/dynoxide"));
    built.filter(|path| path.exists()).unwrap_or_else(|| "dynoxide".into())
}

fn free_port() -> u16 {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    free.local_addr().expect("an address").port()
}
