//! Redis with a replica.

use std::sync::Arc;
use std::time::Duration;

use oncekey::core::{
    Claim, Claimed, Class, ErrorKind, Fingerprint, KeyId, Origin, Owner, Places, Restore as _,
    Sent, Store as _,
};
use oncekey::store::redis::RedisOptions;
use tempfile::TempDir;

use crate::forwarder::Forwarder;
use crate::process::{Process, free_port, tethered, until};
use crate::story::{Pair, tell};

struct Servers {
    folder: TempDir,
    made: usize,
    primary: Server,
    replica: Option<Server>,
    /// Where clients go.
    front: Forwarder,
    /// Where the replica gets its commands from.
    link: Forwarder,
}

struct Server {
    process: Process,
    port: u16,
}

impl Server {
    async fn start(folder: &TempDir, number: usize) -> Self {
        let port = free_port();
        let data = folder.path().join(number.to_string());
        std::fs::create_dir(&data).unwrap();
        let mut command = tethered(None, "redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "everysec"]).current_dir(&data);
        command.args(["--repl-diskless-sync-delay", "0"]);
        let server = Self { process: Process::start(command), port };
        until("Redis is up", async || server.ask(&["PING"]).await.is_some()).await;
        server
    }

    async fn ask(&self, words: &[&str]) -> Option<String> {
        let client = ::redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.ok()?;
        let mut command = ::redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(word);
        }
        command.query_async(&mut connection).await.ok()
    }

    /// A line of `INFO replication`.
    async fn info(&self, name: &str) -> Option<String> {
        let info = self.ask(&["INFO", "replication"]).await?;
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|line| line.trim().to_owned())
    }
}

impl Servers {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let primary = Server::start(&folder, 0).await;
        let front = Forwarder::to(Some(primary.port)).await;
        let link = Forwarder::to(None).await;
        Self { folder, made: 0, primary, replica: None, front, link }
    }
}

impl Pair for Servers {
    async fn add_replica(&mut self) {
        self.made += 1;
        self.link.switch(Some(self.primary.port));
        let replica = Server::start(&self.folder, self.made).await;
        let port = self.link.port.to_string();
        replica.ask(&["REPLICAOF", "127.0.0.1", &port]).await.unwrap();
        let up = Some("up".to_owned());
        until("the replica follows", async || replica.info("master_link_status").await == up).await;
        self.replica = Some(replica);
    }

    async fn cut_off(&mut self) {
        let replica = self.replica.as_ref().unwrap();
        until("the replica has all", async || {
            let offset = self.primary.info("master_repl_offset").await;
            offset.is_some() && offset == replica.info("slave_repl_offset").await
        })
        .await;
        self.link.switch(None);
        let down = Some("down".to_owned());
        until("the replica is alone", async || replica.info("master_link_status").await == down)
            .await;
    }

    async fn fail_over(&mut self) {
        self.primary.process.kill();
        self.front.switch(None);
        let replica = self.replica.take().unwrap();
        replica.ask(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
        self.front.switch(Some(replica.port));
        self.primary = replica;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_stale_redis_replica_is_noticed_and_healed() {
    let mut servers = Servers::start().await;
    let url = format!("redis://127.0.0.1:{}/", servers.front.port);
    let store = RedisOptions::new(&url).open().await.unwrap();
    let second = RedisOptions::new(&url).open().await.unwrap();
    tell("Redis", (Arc::new(store), Arc::new(second)), &mut servers).await;
}

/// A replica that was cut off before the store was adopted is in a life that this process has left. To
/// join it would mean to go on with marks that are behind for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_replica_from_before_the_last_adoption_begins_a_life_of_its_own() {
    let mut servers = Servers::start().await;
    let url = format!("redis://127.0.0.1:{}/", servers.front.port);
    let store = RedisOptions::new(&url).open().await.unwrap();
    servers.add_replica().await;
    servers.cut_off().await;
    let left = store.lineage().await.unwrap();
    store.adopt().await.unwrap();
    let claim = |key: u8| Claim {
        id: KeyId::from_bytes([key; 32]),
        owner: Owner::from_bytes([key; 16]),
        fingerprint: Fingerprint::from_parts(1, [1; 32]),
        class: Class::Once,
        lease: Duration::from_secs(30),
        grace: Duration::from_secs(2),
        sent: Sent::No,
        origin: Origin::default(),
        places: Places::default(),
    };
    let Claimed::Won { lease, .. } = store.claim(&claim(1)).await.unwrap() else { panic!("new") };
    servers.fail_over().await;
    until("the failover is noticed", async || {
        store.claim(&claim(1)).await.is_err_and(|error| error.kind() == ErrorKind::Unsuitable)
    })
    .await;
    // Connections to the old server break one after the other, and each says so once.
    until("the new life is adopted", async || store.adopt().await.is_ok()).await;
    let lineage = loop {
        if let Ok(lineage) = store.lineage().await {
            break lineage;
        }
    };
    assert_ne!(lineage, left, "nobody goes back into a life that was left");
    let again = loop {
        match store.claim(&claim(1)).await {
            Ok(Claimed::Won { lease, .. }) => break lease,
            Ok(Claimed::Lost { .. }) => panic!("the replica did not have it"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}"),
        }
    };
    assert!(again.fence > lease.fence, "fences rise across lives");
}
