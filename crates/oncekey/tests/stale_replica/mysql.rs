//! MariaDB with a replica.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, OptsBuilder, Row};
use oncekey::core::health::{Inspect as _, Verdict};
use oncekey::core::{
    Claim, Claimed, Class, Erase as _, Erased, ErrorKind, Fingerprint, KeyId, Origin, Owner,
    Places, Renewal, Restore as _, Restored, Sent, Store as _, Write,
};
use oncekey::store::mysql::MysqlOptions;
use tempfile::TempDir;

use crate::forwarder::Forwarder;
use crate::process::{Process, folder_of, free_port, tethered, until};
use crate::story::{Pair, tell};

/// The user that MariaDB runs as if we are root, which it refuses.
const USER: &str = "mysql";

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
    async fn start(folder: &TempDir, number: usize) -> Self {
        let data = folder.path().join(number.to_string());
        folder_of(USER, &data);
        let place = format!("--datadir={}", data.join("db").display());
        let mut create = tethered(Some(USER), "mariadb-install-db");
        create.args(["--no-defaults", "--auth-root-authentication-method=normal", &place]);
        create.arg("--skip-test-db").current_dir(&data).env("TMPDIR", &data);
        let created = tokio::task::spawn_blocking(move || create.output().unwrap()).await.unwrap();
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
        let program = ["/usr/sbin/mariadbd", "/usr/libexec/mariadbd"].map(PathBuf::from);
        let program = program.into_iter().find(|path| path.exists());
        let program = program.map_or("mariadbd".to_owned(), |path| path.display().to_string());
        let port = free_port();
        let mut command = tethered(Some(USER), &program);
        command.args(["--no-defaults", &place, "--bind-address=127.0.0.1", "--socket=socket"]);
        command.args([&format!("--port={port}"), &format!("--server-id={}", number + 1)]);
        command.args(["--pid-file=pid", "--log-bin=log", "--log-slave-updates"]);
        // A killed process loses nothing that the system has; and disks are slow.
        command.args(["--binlog-format=ROW", "--innodb-flush-log-at-trx-commit=2"]);
        command.current_dir(&data).env("TMPDIR", &data);
        let server = Self { process: Process::start(command), port };
        until("MariaDB is up", async || server.connect().await.is_some()).await;
        server
    }

    async fn connect(&self) -> Option<Conn> {
        let options = OptsBuilder::default().ip_or_hostname("127.0.0.1").tcp_port(self.port);
        Conn::new(options.user(Some("root")).prefer_socket(false)).await.ok()
    }

    async fn run(&self, sql: &str) {
        self.connect().await.unwrap().query_drop(sql).await.unwrap();
    }

    async fn text(&self, sql: &str) -> Option<String> {
        self.connect().await?.query_first(sql).await.ok()?
    }

    /// How the thread that gets the log is.
    async fn follows(&self) -> Option<String> {
        let row: Option<Row> = self.connect().await?.query_first("SHOW SLAVE STATUS").await.ok()?;
        row?.get("Slave_IO_Running")
    }
}

impl Servers {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let primary = Server::start(&folder, 0).await;
        primary.run("CREATE DATABASE oncekey").await;
        let front = Forwarder::to(Some(primary.port)).await;
        let link = Forwarder::to(None).await;
        Self { folder, made: 0, primary, replica: None, front, link }
    }

    fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/oncekey", self.front.port)
    }
}

const LEASE: Duration = Duration::from_secs(30);

fn claim(key: u8, owner: u8) -> Claim {
    Claim {
        id: KeyId::from_bytes([key; 32]),
        owner: Owner::from_bytes([owner; 16]),
        fingerprint: Fingerprint::from_parts(1, [1; 32]),
        class: Class::Once,
        lease: LEASE,
        grace: Duration::from_secs(2),
        sent: Sent::No,
        origin: Origin::default(),
        places: Places::default(),
    }
}

impl Pair for Servers {
    async fn add_replica(&mut self) {
        self.made += 1;
        self.link.switch(Some(self.primary.port));
        let replica = Server::start(&self.folder, self.made).await;
        let link = format!("MASTER_HOST = '127.0.0.1', MASTER_PORT = {}", self.link.port);
        replica
            .run(&format!(
                "CHANGE MASTER TO {link}, MASTER_USER = 'root', MASTER_CONNECT_RETRY = 1, \
                 MASTER_USE_GTID = slave_pos; START SLAVE"
            ))
            .await;
        let yes = Some("Yes".to_owned());
        until("the replica follows", async || replica.follows().await == yes).await;
        self.replica = Some(replica);
    }

    async fn cut_off(&mut self) {
        let replica = self.replica.as_ref().unwrap();
        until("the replica has all", async || {
            let written = self.primary.text("SELECT @@gtid_binlog_pos").await;
            written.is_some() && written == replica.text("SELECT @@gtid_slave_pos").await
        })
        .await;
        self.link.switch(None);
        let yes = Some("Yes".to_owned());
        until("the replica is alone", async || replica.follows().await != yes).await;
    }

    async fn fail_over(&mut self) {
        self.primary.process.kill();
        self.front.switch(None);
        let replica = self.replica.take().unwrap();
        replica.run("STOP SLAVE; RESET SLAVE ALL").await;
        self.front.switch(Some(replica.port));
        self.primary = replica;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn a_stale_mysql_replica_is_noticed_and_healed() {
    let mut servers = Servers::start().await;
    let store = MysqlOptions::new(servers.url()).open().await.unwrap();
    let second = MysqlOptions::new(servers.url()).open().await.unwrap();
    tell("MySQL", (Arc::new(store), Arc::new(second)), &mut servers).await;
}

/// A primary that was made a replica still answers, and its connections stand. Whoever is refused there
/// asks where the address leads by now, and no call is lost for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn a_mysql_primary_that_was_demoted_is_left_for_the_new_one() {
    let servers = Servers::start().await;
    let next = Server::start(&servers.folder, 1).await;
    next.run("CREATE DATABASE oncekey").await;
    // Root may write to a server that is read-only.
    for server in [&servers.primary, &next] {
        server.run("CREATE USER app@'%'; GRANT ALL ON oncekey.* TO app@'%'").await;
    }
    let direct = |port| MysqlOptions::new(format!("mysql://app@127.0.0.1:{port}/oncekey"));
    let store = direct(servers.front.port).writers(1).readers(1).open().await.unwrap();
    let there = direct(next.port).open().await.unwrap();
    let Claimed::Won { lease, .. } = store.claim(&claim(1, 1)).await.unwrap() else {
        panic!("new")
    };
    let renewed = store.renew(&[lease], LEASE).await.unwrap();
    assert!(matches!(renewed[..], [Renewal::Until(_)]), "{renewed:?}");
    store.purge(1).await.unwrap();
    let record = store.get(&lease.id).await.unwrap().unwrap();
    assert_eq!(there.restore(&record).await.unwrap(), Restored::Written, "as if replicated");
    // As long as the address leads there, it is a failover that has not ended.
    servers.primary.run("SET GLOBAL read_only = 1").await;
    for _ in 0..2 {
        let error = store.claim(&claim(2, 1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    servers.primary.run("SET GLOBAL read_only = 0").await;
    until("it is back", async || store.claim(&claim(2, 1)).await.is_ok()).await;
    servers.primary.run("SET GLOBAL read_only = 1").await;
    servers.front.lead_on(next.port);
    // Connections of writers, for renewals and for the rest.
    let Claimed::Won { .. } = store.claim(&claim(3, 1)).await.unwrap() else { panic!("new") };
    assert!(there.get(&claim(3, 1).id).await.unwrap().is_some(), "it is at the new primary");
    let renewed = store.renew(&[lease], LEASE).await.unwrap();
    assert!(matches!(renewed[..], [Renewal::Until(_)]), "{renewed:?}");
    assert_eq!(store.erase(&claim(3, 1).id).await.unwrap(), Erased::Unfinished);
    assert_eq!(store.send(&lease).await.unwrap(), Write::Applied);
}

/// From the first question for the lineage on, another life grants nothing before it is adopted: not
/// even the claim for which the first connection to it was made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn another_life_of_mysql_grants_nothing_before_it_is_adopted() {
    let mut servers = Servers::start().await;
    let store = MysqlOptions::new(servers.url()).open().await.unwrap();
    let careless = MysqlOptions::new(servers.url()).open().await.unwrap();
    let before = store.lineage().await.unwrap();
    servers.add_replica().await;
    servers.cut_off().await;
    let claim = |owner| claim(1, owner);
    let Claimed::Won { lease, .. } = store.claim(&claim(1)).await.unwrap() else { panic!("new") };
    assert_eq!(store.send(&lease).await.unwrap(), Write::Applied);
    servers.fail_over().await;
    until("the failover is noticed", async || match store.claim(&claim(2)).await {
        Ok(claimed) => panic!("granted in another life: {claimed:?}"),
        Err(error) => error.kind() == ErrorKind::Unsuitable,
    })
    .await;
    until("it can be read", async || store.lineage().await.is_ok_and(|it| it != before)).await;
    assert_eq!(store.get(&lease.id).await.unwrap(), None, "the replica did not have it");
    let error = store.claim(&claim(2)).await.unwrap_err();
    assert!(error.to_string().contains("adopt"), "the fix: {error}");
    let lineage = async || {
        let findings = store.inspect().await.unwrap().findings;
        findings.into_iter().find(|finding| finding.check == "lineage").unwrap().verdict
    };
    assert_eq!(lineage().await, Verdict::Refused, "health says so, too");
    store.adopt().await.unwrap();
    assert_eq!(lineage().await, Verdict::Good);
    let Claimed::Won { lease: again, .. } = store.claim(&claim(2)).await.unwrap() else {
        panic!("it is free")
    };
    assert!(again.fence > lease.fence, "by the clock");
    // Whoever has never asked has relied on nothing.
    until("others go on", async || careless.claim(&claim(3)).await.is_ok()).await;
}
