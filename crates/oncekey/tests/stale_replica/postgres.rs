//! PostgreSQL with a streaming replica.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oncekey::core::restore::Restore as _;
use oncekey::core::{
    Claim, Claimed, Class, ErrorKind, Fingerprint, KeyId, Origin, Owner, Places, Sent, Store as _,
};
use oncekey::store::postgres::PostgresOptions;
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use crate::forwarder::Forwarder;
use crate::process::{Process, USER, folder_of, free_port, tethered, until};
use crate::story::{Pair, tell};

struct Servers {
    folder: TempDir,
    made: usize,
    primary: Server,
    replica: Option<Server>,
    /// Where clients go.
    front: Forwarder,
    /// Where the replica gets its log from.
    link: Forwarder,
}

struct Server {
    process: Process,
    port: u16,
}

impl Server {
    async fn start(data: PathBuf) -> Self {
        let port = free_port();
        let mut command = tethered(Some(USER), &program("postgres"));
        command.arg("-D").arg(&data).current_dir("/");
        for setting in [
            "listen_addresses=127.0.0.1",
            &format!("port={port}"),
            "unix_socket_directories=",
            "wal_level=replica",
            "max_wal_senders=10",
            "hot_standby=on",
            // A killed process loses nothing that the system has; and disks are slow.
            "fsync=off",
        ] {
            command.args(["-c", setting]);
        }
        let server = Self { process: Process::start(command), port };
        until("PostgreSQL is up", async || server.client().await.is_some()).await;
        server
    }

    async fn client(&self) -> Option<Client> {
        let url = format!("postgres://oncekey@127.0.0.1:{}/postgres", self.port);
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.ok()?;
        tokio::spawn(connection);
        Some(client)
    }

    async fn ask(&self, question: &str) -> bool {
        let Some(client) = self.client().await else { return false };
        client
            .query_one(question, &[])
            .await
            .is_ok_and(|row| row.get::<_, Option<bool>>(0) == Some(true))
    }
}

impl Servers {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let data = folder.path().join("0");
        folder_of(USER, &data);
        let mut create = tethered(Some(USER), &program("initdb"));
        create.arg("-D").arg(&data).args(["-U", "oncekey", "--auth=trust", "--no-sync"]);
        create.args(["-E", "UTF8", "--locale=C"]).current_dir("/");
        assert!(create.output().unwrap().status.success());
        let primary = Server::start(data).await;
        let front = Forwarder::to(Some(primary.port)).await;
        let link = Forwarder::to(None).await;
        Self { folder, made: 0, primary, replica: None, front, link }
    }
}

impl Pair for Servers {
    async fn add_replica(&mut self) {
        self.made += 1;
        self.link.switch(Some(self.primary.port));
        let data = self.folder.path().join(self.made.to_string());
        folder_of(USER, &data);
        let mut copy = tethered(Some(USER), &program("pg_basebackup"));
        copy.arg("-D").arg(&data).args(["-R", "-X", "stream", "-c", "fast", "--no-sync"]);
        let link = format!("host=127.0.0.1 port={} user=oncekey", self.link.port);
        copy.args(["-d", &link]).current_dir("/");
        let copied = tokio::task::spawn_blocking(move || copy.output().unwrap()).await.unwrap();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        let replica = Server::start(data).await;
        let streams = "SELECT count(*) > 0 FROM pg_stat_replication WHERE state = 'streaming'";
        until("the replica follows", async || self.primary.ask(streams).await).await;
        self.replica = Some(replica);
    }

    async fn cut_off(&mut self) {
        let has_all = "SELECT bool_and(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication";
        until("the replica has all", async || self.primary.ask(has_all).await).await;
        self.link.switch(None);
        let alone = "SELECT count(*) = 0 FROM pg_stat_replication";
        until("the replica is alone", async || self.primary.ask(alone).await).await;
    }

    async fn fail_over(&mut self) {
        self.primary.process.kill();
        self.front.switch(None);
        let replica = self.replica.take().unwrap();
        assert!(replica.ask("SELECT pg_promote(true, 60)").await);
        self.front.switch(Some(replica.port));
        self.primary = replica;
    }
}

/// A snapshot of the disk, from before the last keys were granted: the same cluster, the same timeline, the
/// same tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn an_older_copy_of_the_disk_grants_nothing_until_it_is_adopted() {
    let mut servers = Servers::start().await;
    let url =
        format!("postgres://oncekey@127.0.0.1:{}/postgres?sslmode=disable", servers.front.port);
    let store = PostgresOptions::new(&url).open().await.unwrap();
    let before = store.lineage().await.unwrap();
    let [data, copy] = ["0", "copy"].map(|name| servers.folder.path().join(name));
    servers.primary.process.kill();
    servers.front.switch(None);
    let mut command = std::process::Command::new("cp");
    assert!(command.arg("-a").args([&data, &copy]).status().unwrap().success());
    for folder in [&data, &copy] {
        // The one that was killed could not remove it.
        std::fs::remove_file(folder.join("postmaster.pid")).unwrap();
    }
    servers.primary = Server::start(data).await;
    servers.front.switch(Some(servers.primary.port));
    until("the server is back", async || store.lineage().await.is_ok()).await;
    assert_eq!(store.lineage().await.unwrap(), before, "a crash loses nothing");
    let claim = claim_of(1, 1);
    assert!(matches!(store.claim(&claim).await.unwrap(), Claimed::Won { .. }));
    assert_eq!(store.lineage().await.unwrap(), before);
    servers.primary.process.kill();
    servers.front.switch(None);
    servers.primary = Server::start(copy).await;
    servers.front.switch(Some(servers.primary.port));
    until("the copy is met", async || store.get(&claim.id).await.is_ok()).await;
    let error = store.claim(&claim_of(1, 2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsuitable, "{error}");
    let after = store.lineage().await.unwrap();
    assert_ne!(after, before);
    assert!(store.claim(&claim_of(1, 2)).await.is_err(), "it was only told");
    store.adopt().await.unwrap();
    assert!(matches!(store.claim(&claim_of(1, 2)).await.unwrap(), Claimed::Won { .. }));
    assert_eq!(store.lineage().await.unwrap(), after);
}

fn claim_of(key: u8, owner: u8) -> Claim {
    Claim {
        id: KeyId::from_bytes([key; 32]),
        owner: Owner::from_bytes([owner; 16]),
        fingerprint: Fingerprint::from_parts(1, [1; 32]),
        class: Class::Once,
        lease: Duration::from_secs(3_600),
        grace: Duration::ZERO,
        sent: Sent::No,
        origin: Origin::default(),
        places: Places::default(),
    }
}

/// A program of PostgreSQL: in the search path, or where Debian has it.
fn program(name: &str) -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    folders.extend(versions.map(|version| version.path().join("bin")));
    let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is installed")).to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_stale_postgres_replica_is_noticed_and_healed() {
    let mut servers = Servers::start().await;
    let url =
        format!("postgres://oncekey@127.0.0.1:{}/postgres?sslmode=disable", servers.front.port);
    let store = PostgresOptions::new(&url).open().await.unwrap();
    let second = PostgresOptions::new(&url).open().await.unwrap();
    tell("PostgreSQL", (Arc::new(store), Arc::new(second)), &mut servers).await;
}
