//! A store of its own on each test server, opened by its URL and gone at the end.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};

use mysql_async::prelude::Queryable as _;
use tokio_postgres::NoTls;

use crate::dynamodb::{self, Table};

/// Which server a place is on, and what has to be removed there.
enum Leaves {
    /// Goes by itself: a table that is deleted when this is dropped, or keys that nobody meets again.
    Nothing(Option<Table>),
    Schema {
        server: String,
        schema: String,
    },
    Tables(String),
}

/// A place for a store that nobody else uses.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) label: &'static str,
    leaves: Leaves,
}

/// Where a server is, or a panic that says how to get one.
pub(crate) fn url_of(variable: &str) -> String {
    env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run `cargo xtask test`, or `cargo xtask servers` and its exports")
    })
}

/// A name that no other test has, in this process or another.
fn name() -> String {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let mut salt = [0; 4];
    getrandom::fill(&mut salt).expect("random bits");
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("url_{:08x}_{number}", u32::from_be_bytes(salt))
}

impl Place {
    /// PostgreSQL, directly.
    pub(crate) fn postgres() -> Self {
        Self::in_schema(&url_of("ONCEKEY_TEST_POSTGRES"), "")
    }

    /// PostgreSQL behind pgbouncer in transaction mode.
    pub(crate) fn pgbouncer() -> Self {
        Self::in_schema(&url_of("ONCEKEY_TEST_PGBOUNCER"), "&prepared=off")
    }

    fn in_schema(server: &str, more: &str) -> Self {
        let schema = name();
        let url = format!("{server}?schema={schema}&writers=2{more}");
        Self {
            url,
            label: "postgres",
            leaves: Leaves::Schema { server: server.to_owned(), schema },
        }
    }

    /// MariaDB.
    pub(crate) fn mariadb() -> Self {
        let prefix = format!("{}_", name());
        let server = url_of("ONCEKEY_TEST_MYSQL");
        let server = server.strip_prefix("mysql").expect("a mysql:// URL");
        let url = format!("mariadb{server}?prefix={prefix}&readers=4");
        Self { url, label: "mysql", leaves: Leaves::Tables(prefix) }
    }

    /// One Redis server.
    pub(crate) fn redis() -> Self {
        let url = format!("{}?prefix={}", url_of("ONCEKEY_TEST_REDIS"), name());
        Self { url, label: "redis", leaves: Leaves::Nothing(None) }
    }

    /// A cluster of Redis servers.
    pub(crate) fn cluster() -> Self {
        let nodes = url_of("ONCEKEY_TEST_REDIS_CLUSTER");
        let url = format!("redis+cluster://{nodes}?prefix={}", name());
        Self { url, label: "redis", leaves: Leaves::Nothing(None) }
    }

    /// What speaks like DynamoDB. The credentials come from the environment.
    pub(crate) async fn dynamodb() -> Self {
        let (table, endpoint) = (Table::new().await, dynamodb::endpoint());
        let name = table.name();
        let url = format!("dynamodb://{name}?region=us-east-1&endpoint={endpoint}&missing=create");
        Self { url, label: "dynamodb", leaves: Leaves::Nothing(Some(table)) }
    }

    /// One on each.
    pub(crate) async fn all() -> [Self; 6] {
        [
            Self::postgres(),
            Self::pgbouncer(),
            Self::mariadb(),
            Self::redis(),
            Self::cluster(),
            Self::dynamodb().await,
        ]
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let leaves = std::mem::replace(&mut self.leaves, Leaves::Nothing(None));
        // On a thread with a runtime of its own: the test's may be ending.
        let removing = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(remove(&leaves));
        });
        // What stays is no reason to hide why a test failed.
        let _ = removing.join();
    }
}

async fn remove(leaves: &Leaves) {
    match leaves {
        Leaves::Nothing(_) => {}
        Leaves::Schema { server, schema } => {
            let (client, wire) = tokio_postgres::connect(server, NoTls).await.expect("PostgreSQL");
            tokio::spawn(wire);
            let drop = format!("DROP SCHEMA IF EXISTS {schema} CASCADE");
            client.batch_execute(&drop).await.expect("the schema goes");
        }
        Leaves::Tables(prefix) => {
            let options = mysql_async::Opts::from_url(&url_of("ONCEKEY_TEST_MYSQL"));
            let mut connection =
                mysql_async::Conn::new(options.expect("a mysql:// URL")).await.expect("MariaDB");
            let tables = ["records", "pieces", "clock", "migrations"];
            let tables = tables.map(|table| format!("{prefix}{table}")).join(", ");
            let drop = format!("DROP TABLE IF EXISTS {tables}");
            connection.query_drop(drop).await.expect("the tables go");
        }
    }
}
