//! A pooler that swallows the settings that connections are started with. Nobody can tell from its answers
//! that it is there, and statements that were prepared through it are shared by all who come.

use std::env;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use oncekey::core::{Claimed, Refusal, Store, Write};
use oncekey::store::postgres::{PostgresOptions, PostgresStore};
use tempfile::TempDir;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::process::{Process, USER, free_port, tethered, until};
use crate::scene::{admin, admin_at, claim, completion, drop_schema, fresh_schema, url, win};

/// pgbouncer in transaction mode with two connections to the server, which tells nobody that it does not
/// pass settings on.
struct Pooler {
    url: String,
    _process: Process,
    _folder: TempDir,
}

impl Pooler {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))
            .expect("a folder");
        let server = url::Url::parse(&url()).expect("a URL");
        let (behind, port) = (server.port().unwrap_or(5432), free_port());
        let settings = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={behind} user={}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = transaction\ndefault_pool_size = 2\n\
             ignore_startup_parameters = options,extra_float_digits\n",
            server.username()
        );
        std::fs::write(&settings, text).expect("a file");
        let mut command = tethered(Some(USER), &program());
        command.arg(&settings).current_dir("/");
        let process = Process::start(command);
        let url = format!("postgres://{}@127.0.0.1:{port}{}", server.username(), server.path());
        let is_up = async || tokio_postgres::connect(&url, tokio_postgres::NoTls).await.is_ok();
        until("pgbouncer is up", is_up).await;
        Self { url, _process: process, _folder: folder }
    }
}

fn program() -> String {
    let path = env::var("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin".into()]);
    let found = folders.map(|folder| folder.join("pgbouncer")).find(|path| path.exists());
    found.expect("pgbouncer is installed").to_str().expect("a plain path").to_owned()
}

async fn open(pooler: &str, schema: &str) -> PostgresStore {
    PostgresOptions::new(pooler).schema(schema).writers(1).readers(1).open().await.expect("a store")
}

/// How many statements others have prepared on the connection to the server that `client` has.
async fn prepared(client: &Client) -> usize {
    let asked =
        client.simple_query("SELECT name FROM pg_prepared_statements").await.expect("PostgreSQL");
    asked.iter().filter(|message| matches!(message, SimpleQueryMessage::Row(_))).count()
}

/// Where the other process finds the pooler, and in which schema.
const OTHER: &str = "ONCEKEY_TEST_OTHER_PROCESS";

/// Not a test of its own: the other process of the next one, which prepares other statements under the
/// same names.
#[tokio::test]
#[ignore = "needs pgbouncer: run cargo xtask test"]
async fn another_process_releases_its_own_key() {
    let Ok(where_to) = env::var(OTHER) else { return };
    let (pooler, schema) = where_to.split_once(' ').unwrap();
    let store = open(pooler, schema).await;
    let lease = win(&store, &claim(20, 2)).await;
    assert_eq!(store.release(&lease).await.unwrap(), Write::Applied);
}

/// A send mark of one process was carried out as the release of another, and somebody else was granted
/// the key.
#[tokio::test]
#[ignore = "needs pgbouncer: run cargo xtask test"]
async fn processes_behind_a_pooler_that_swallows_settings_do_not_run_each_others_statements() {
    let direct = admin().await;
    let schema = fresh_schema(&direct).await;
    let pooler = Pooler::start().await;
    let (one, two) = (admin_at(&pooler.url).await, admin_at(&pooler.url).await);
    // Of the two connections to the server one is kept from the store.
    one.batch_execute("BEGIN").await.unwrap();
    let store = open(&pooler.url, &schema).await;
    let first = win(&store, &claim(1, 1)).await;
    assert_eq!(store.send(&first).await.unwrap(), Write::Applied);
    assert_eq!(store.complete(&first, &completion()).await.unwrap(), Write::Applied);
    let second = win(&store, &claim(2, 1)).await;
    // Now the other one.
    two.batch_execute("BEGIN").await.unwrap();
    let (one_has, two_has) = (prepared(&one).await, prepared(&two).await);
    one.batch_execute("COMMIT").await.unwrap();
    let mut other = Command::new(env::current_exe().unwrap());
    other.args(["pooler::another_process_releases_its_own_key", "--exact", "--include-ignored"]);
    other.env(OTHER, format!("{} {schema}", pooler.url));
    let other = tokio::task::spawn_blocking(move || other.output().unwrap()).await.unwrap();
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stdout));
    assert_eq!(store.send(&second).await.unwrap(), Write::Applied);
    match store.claim(&claim(2, 3)).await.unwrap() {
        Claimed::Lost { refusal, .. } => {
            assert!(matches!(refusal, Refusal::InProgress(_)), "{refusal:?}");
        }
        Claimed::Won { .. } => panic!("the key has an owner"),
    }
    assert_eq!((one_has, two_has), (0, 0), "nothing is prepared through a pooler");
    drop((store, one, two));
    drop_schema(&direct, &schema).await;
}
