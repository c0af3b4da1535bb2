//! The servers, and a place on them that belongs to one test.

use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder};
use oncekey::core::StoreError;
use oncekey::store::Opened;
use oncekey::store::dynamodb::{DynamoOptions, MissingTable};
use oncekey::store::mysql::MysqlOptions;
use oncekey::store::postgres::PostgresOptions;
use oncekey::store::redis::RedisOptions;
use tokio_postgres::NoTls;
use url::Url;

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Postgres,
    MariaDb,
    Redis,
    DynamoDb,
}

/// A schema, database, prefix or table of its own.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) kind: Kind,
    url: Url,
    name: String,
}

/// How a store is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// How long a connection, and how long an answer, may take.
    pub(crate) patience: Duration,
    /// How many connections there are for writes, and as many for reads.
    pub(crate) connections: usize,
}

/// For whoever looks behind the faults: nothing but a dead server makes it give up.
pub(crate) const CALM: Manner = Manner { patience: Duration::from_secs(20), connections: 2 };

impl Kind {
    const fn variable(self) -> &'static str {
        match self {
            Self::Postgres => "ONCEKEY_TEST_POSTGRES",
            Self::MariaDb => "ONCEKEY_TEST_MYSQL",
            Self::Redis => "ONCEKEY_TEST_REDIS",
            Self::DynamoDb => "ONCEKEY_TEST_DYNAMODB",
        }
    }
}

impl Place {
    /// A place on the server that everybody shares.
    pub(crate) async fn on_shared(kind: Kind) -> Self {
        let variable = kind.variable();
        let url = env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set: run `cargo xtask test`, or `cargo xtask servers` and its exports")
        });
        Self::on(kind, &url).await
    }

    /// A place on the server of this URL.
    pub(crate) async fn on(kind: Kind, url: &str) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("oncekey_faults_{}_{number}", std::process::id());
        let place = Self { kind, url: Url::parse(url).expect("a URL"), name };
        // Whatever a process of the same number has left behind.
        place.clean().await;
        if kind == Kind::MariaDb {
            place.tell_mariadb(&format!("CREATE DATABASE {}", place.name)).await;
        }
        place
    }

    /// The port of the server.
    pub(crate) fn port(&self) -> u16 {
        self.url.port().expect("the URL of a test server has a port")
    }

    /// Opens the store behind the faults.
    pub(crate) async fn open_calmly(&self) -> Opened {
        self.open(self.port(), CALM).await.expect("the store opens")
    }

    /// Opens the store by a port of this machine.
    pub(crate) async fn open(&self, port: u16, manner: Manner) -> Result<Opened, StoreError> {
        let Manner { patience, connections } = manner;
        let url = self.url_by(port);
        Ok(match self.kind {
            Kind::Postgres => {
                let options = PostgresOptions::new(url).schema(&self.name);
                let options = options.writers(connections).readers(connections);
                let options = options.call_timeout(patience).connect_timeout(patience);
                Opened::silent("postgres", options.lock_timeout(patience / 2).open().await?)
            }
            Kind::MariaDb => {
                let options = MysqlOptions::new(url).timeout(patience);
                let options = options.writers(connections).readers(connections);
                Opened::silent("mysql", options.open().await?)
            }
            Kind::Redis => {
                let options = RedisOptions::new(url).prefix(&self.name).connections(connections);
                Opened::silent("redis", options.timeouts(patience, patience).open().await?)
            }
            Kind::DynamoDb => {
                let options = DynamoOptions::new(&self.name).endpoint(url).region("us-east-1");
                let options = options.credentials(credentials()).timeout(patience);
                let options = options.missing_table(MissingTable::Create);
                Opened::silent("dynamodb", options.open().await?)
            }
        })
    }

    /// Removes everything.
    pub(crate) async fn clean(&self) {
        let (url, name) = (self.url.as_str(), &self.name);
        match self.kind {
            Kind::Postgres => {
                let (client, connection) =
                    tokio_postgres::connect(url, NoTls).await.expect("PostgreSQL");
                tokio::spawn(connection);
                let sql = format!("DROP SCHEMA IF EXISTS {name} CASCADE");
                client.batch_execute(&sql).await.expect("the schema goes");
            }
            Kind::MariaDb => self.tell_mariadb(&format!("DROP DATABASE IF EXISTS {name}")).await,
            Kind::Redis => {
                let client = redis::Client::open(url).expect("a redis:// URL");
                let mut raw = client.get_multiplexed_async_connection().await.expect("Redis");
                let script = "local names = redis.call('KEYS', ARGV[1])
                    for _, name in ipairs(names) do redis.call('UNLINK', name) end
                    return #names";
                let mut command = redis::cmd("EVAL");
                command.arg(script).arg(0).arg(format!("*{name}:*"));
                let _: i64 = command.query_async(&mut raw).await.expect("the keys go");
            }
            Kind::DynamoDb => {
                let config = aws_sdk_dynamodb::Config::builder()
                    .behavior_version(BehaviorVersion::latest())
                    .region(Region::new("us-east-1"))
                    .credentials_provider(credentials())
                    .endpoint_url(url)
                    .http_client(aws_smithy_http_client::Builder::new().build_http())
                    .build();
                let client = aws_sdk_dynamodb::Client::from_conf(config);
                // There may be none.
                drop(client.delete_table().table_name(name).send().await);
            }
        }
    }

    fn url_by(&self, port: u16) -> String {
        let mut url = self.url.clone();
        url.set_ip_host([127, 0, 0, 1].into()).expect("a URL with a host");
        url.set_port(Some(port)).expect("a URL with a port");
        if self.kind == Kind::MariaDb {
            url.set_path(&self.name);
        }
        url.into()
    }

    async fn tell_mariadb(&self, sql: &str) {
        let options = Opts::from_url(self.url.as_str()).expect("a mysql:// URL");
        let options = OptsBuilder::from_opts(options).prefer_socket(false);
        let mut connection = Conn::new(options).await.expect("MariaDB");
        connection.query_drop(sql).await.expect("MariaDB does it");
        connection.disconnect().await.expect("MariaDB says goodbye");
    }
}

fn credentials() -> Credentials {
    Credentials::new("test", "test", None, None, "test")
}
