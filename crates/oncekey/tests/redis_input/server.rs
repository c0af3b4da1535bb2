//! A Redis server for one test, and what a test does with a store.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use bytes::Bytes;
use oncekey::core::health::Tier;
use oncekey::core::store::{Claim, Claimed, Completion};
use oncekey::core::{
    Answer, Class, Fingerprint, Headers, KeyId, Lease, Origin, Owner, Places, Saved, Sent, Store,
};
use oncekey::store::redis::{RedisOptions, RedisStore};
use tempfile::TempDir;

/// Every write on the disk before its answer.
pub(crate) const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

/// A server in a folder of its own. It dies with the test.
pub(crate) struct Server {
    pub(crate) port: u16,
    settings: Vec<String>,
    folder: TempDir,
    child: Child,
}

impl Server {
    pub(crate) async fn start(settings: &[&str]) -> Self {
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        for _ in 0..10 {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = free.local_addr().expect("a port").port();
            drop(free);
            let child = spawn(port, &settings, &folder);
            let mut server = Self { port, settings: settings.clone(), folder, child };
            // Somebody else may have taken the port in between: then the server has ended.
            if server.is_up().await {
                return server;
            }
        }
        panic!("no server starts");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// As if somebody pulled the plug, and put it in again.
    pub(crate) async fn crash_and_restart(&mut self) {
        self.kill();
        self.child = spawn(self.port, &self.settings, &self.folder);
        assert!(self.is_up().await, "the server comes back");
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the server runs");
        self.child.wait().expect("the server ends");
    }

    /// A connection that knows nothing of stores.
    pub(crate) async fn raw(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.url()).expect("a redis:// URL");
        client.get_multiplexed_async_connection().await.expect("Redis")
    }

    pub(crate) async fn tell(&self, words: &[&str]) -> redis::Value {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut self.raw().await).await.expect("the server does it")
    }

    async fn is_up(&mut self) -> bool {
        for _ in 0..200 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return false;
            }
            let client = redis::Client::open(self.url()).expect("a redis:// URL");
            if let Ok(mut connection) = client.get_multiplexed_async_connection().await {
                let pong: redis::RedisResult<String> =
                    redis::cmd("PING").query_async(&mut connection).await;
                if pong.is_ok_and(|pong| pong == "PONG") {
                    return true;
                }
            }
            // One that wants a password first is up, too.
            if self.settings.iter().any(|setting| setting == "--requirepass")
                && std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
            {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn spawn(port: u16, settings: &[String], folder: &TempDir) -> Child {
    Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
        .arg("--dir")
        .arg(folder.path())
        .args(settings)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is in the search path")
}

/// Accepts whatever the server promises, and does not wait long.
pub(crate) fn options(url: &str) -> RedisOptions {
    let second = Duration::from_secs(1);
    RedisOptions::new(url).accept(Tier::Volatile).timeouts(second, second)
}

pub(crate) async fn open(url: &str) -> RedisStore {
    options(url).open().await.expect("the store opens")
}

pub(crate) fn claim(key: u8, owner: u8) -> Claim {
    Claim {
        id: KeyId::from_bytes([key; 32]),
        owner: Owner::from_bytes([owner; 16]),
        fingerprint: Fingerprint::from_parts(1, [1; 32]),
        class: Class::Once,
        lease: Duration::from_secs(30),
        grace: Duration::from_secs(1),
        sent: Sent::No,
        origin: Origin { key: "a-key".into(), ..Origin::default() },
        places: Places::default(),
    }
}

pub(crate) fn completion(body: &'static str) -> Completion {
    let saved = Saved { status: 200, headers: Headers::new(), body: Bytes::from(body) };
    let hour = Duration::from_secs(3_600);
    Completion { answer: Answer::Kept(saved), retention: hour, linger: hour }
}

pub(crate) async fn win(store: &RedisStore, claim: &Claim) -> Lease {
    match store.claim(claim).await.expect("the store answers") {
        Claimed::Won { lease, .. } => lease,
        Claimed::Lost { refusal, .. } => panic!("the key is taken: {refusal:?}"),
    }
}

/// An address whose new connections lead to one server after the other. Those that stand stay where
/// they are.
pub(crate) struct Door {
    pub(crate) url: String,
    target: Arc<AtomicU16>,
}

impl Door {
    pub(crate) async fn to(server: &Server) -> Self {
        let target = Arc::new(AtomicU16::new(server.port));
        let door = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("redis://{}", door.local_addr().expect("an address"));
        tokio::spawn(forward(door, Arc::clone(&target)));
        Self { url, target }
    }

    pub(crate) fn lead_to(&self, server: &Server) {
        self.target.store(server.port, Ordering::SeqCst);
    }
}

async fn forward(door: tokio::net::TcpListener, target: Arc<AtomicU16>) {
    while let Ok((mut near, _)) = door.accept().await {
        let port = target.load(Ordering::SeqCst);
        tokio::spawn(async move {
            if let Ok(mut far) = tokio::net::TcpStream::connect(("127.0.0.1", port)).await {
                drop(tokio::io::copy_bidirectional(&mut near, &mut far).await);
            }
        });
    }
}

/// Waits until a replica has everything that there was when it was asked.
pub(crate) async fn in_step(replica: &Server) {
    for _ in 0..200 {
        let size: i64 =
            redis::cmd("DBSIZE").query_async(&mut replica.raw().await).await.expect("a size");
        if size > 257 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the replica never gets in step");
}

/// Waits until a replica has come as far as its primary, which nobody writes to.
pub(crate) async fn same_offset(primary: &Server, replica: &Server) {
    let offset = async |server: &Server| {
        let mut info = redis::cmd("INFO");
        let text: String =
            info.arg("replication").query_async(&mut server.raw().await).await.expect("INFO");
        let line = text.lines().find(|line| line.starts_with("master_repl_offset:"));
        line.expect("an offset").to_owned()
    };
    for _ in 0..200 {
        if offset(primary).await == offset(replica).await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the replica never gets in step");
}
