//! MariaDB: the store, and a plain table beside it.

use std::sync::Arc;

use async_trait::async_trait;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder, Params, Value};
use oncekey::core::{KeyId, Store};
use oncekey::store::mysql::MysqlOptions;

use super::pool::Pool;
use super::{Server, Step, WIDE, Width};
use crate::Result;
use crate::cells::{Verb, Way};
use crate::work::{Plain, key_text};

/// All connections that the store has by default: four that write batches, eight for the rest.
const CONNECTIONS: usize = 12;
/// Those of them that write batches. They serve replays, too.
const WRITERS: usize = 4;

const TABLE: &str = "
    CREATE TABLE {name}_idempotency (
        scope VARBINARY(64) NOT NULL, `key` VARBINARY(255) NOT NULL,
        request_hash BINARY(32) NOT NULL, status VARCHAR(16) NOT NULL,
        response_code INT, response_headers BLOB, response_body MEDIUMBLOB,
        expires_at DATETIME NOT NULL, PRIMARY KEY (scope, `key`)) ENGINE = InnoDB";
const INSERT: &str = "
    INSERT INTO {name}_idempotency (scope, `key`, request_hash, status, expires_at)
    VALUES (?, ?, ?, 'in_progress', NOW() + INTERVAL 24 HOUR)";
const UPDATE: &str = "
    UPDATE {name}_idempotency SET status = 'completed', response_code = ?,
        response_headers = ?, response_body = ?
    WHERE scope = ? AND `key` = ?";
const SELECT: &str = "
    SELECT response_body FROM {name}_idempotency WHERE scope = ? AND `key` = ?";
const ROW: &str = "
    SELECT * FROM {name}_records AS r
    JOIN {name}_answers AS a ON a.fence = r.fence AND a.key_id = r.key_id
    WHERE r.key_id = ?";
const INSERT_MANY: (&str, &str) = (
    "INSERT INTO {name}_idempotency (scope, `key`, request_hash, status, expires_at) VALUES ",
    "(?, ?, ?, 'in_progress', NOW() + INTERVAL 24 HOUR)",
);
const UPDATE_MANY: (&str, &str, &str) = (
    "INSERT INTO {name}_idempotency (scope, `key`, request_hash, status, expires_at,
        response_code, response_headers, response_body) VALUES ",
    "(?, ?, ?, 'completed', NOW() + INTERVAL 24 HOUR, ?, ?, ?)",
    " ON DUPLICATE KEY UPDATE status = VALUES(status), response_code = VALUES(response_code),
        response_headers = VALUES(response_headers), response_body = VALUES(response_body)",
);

/// A server and what was made on it.
pub(super) struct MariaDb {
    store: Arc<dyn Store>,
    name: String,
    version: String,
    pool: Pool<Conn>,
    wide: Pool<Conn>,
    /// The connections for what is read by hand.
    readers: Pool<Conn>,
    plain: Plain,
}

impl MariaDb {
    pub(super) async fn open(url: &str, name: &str) -> Result<Self> {
        let store = MysqlOptions::new(url).prefix(format!("{name}_")).open().await?;
        let mut first = connect(url).await?;
        first.query_drop(named(TABLE, name)).await?;
        let version: Option<String> = first.query_first("SELECT VERSION()").await?;
        let mut connections = vec![first];
        while connections.len() < CONNECTIONS + WIDE {
            connections.push(connect(url).await?);
        }
        let mut readers = Vec::with_capacity(WRITERS);
        for _ in 0..WRITERS {
            readers.push(connect(url).await?);
        }
        Ok(Self {
            store: Arc::new(store),
            name: name.to_owned(),
            version: version.unwrap_or_default(),
            wide: Pool::new(connections.split_off(CONNECTIONS)),
            pool: Pool::new(connections),
            readers: Pool::new(readers),
            plain: Plain::new(),
        })
    }
}

#[async_trait]
impl Server for MariaDb {
    fn about(&self) -> String {
        format!(
            "{}; by hand: one statement on each of {WRITERS} connections, replays as plain SELECT of \
             the same row on as many; unbatched: {CONNECTIONS} connections",
            self.version
        )
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    async fn naive(&self, width: Width, step: Step, id: KeyId) -> Result<()> {
        let Plain { scope, hash, code, headers, body } = &self.plain;
        let key = key_text(&id);
        let mut conn = match width {
            Width::Equal => self.pool.hold().await,
            Width::Wide => self.wide.hold().await,
        };
        match step {
            Step::Insert => conn.exec_drop(named(INSERT, &self.name), (scope, key, hash)).await?,
            Step::Update => {
                let values = (code, headers, body, scope, key);
                conn.exec_drop(named(UPDATE, &self.name), values).await?;
            }
            Step::Select => {
                let found: Option<Vec<u8>> =
                    conn.exec_first(named(SELECT, &self.name), (scope, key)).await?;
                if found.as_ref() != Some(body) {
                    return Err("a row is missing".into());
                }
            }
        }
        Ok(())
    }

    fn lanes(&self) -> usize {
        WRITERS
    }

    async fn many(&self, step: Step, ids: Vec<KeyId>) -> Result<()> {
        let Plain { scope, hash, code, headers, body } = &self.plain;
        let (head, one, end) = match step {
            Step::Insert => (INSERT_MANY.0, INSERT_MANY.1, ""),
            Step::Update | Step::Select => UPDATE_MANY,
        };
        let mut text = named(head, &self.name);
        let mut values: Vec<Value> = Vec::with_capacity(6 * ids.len());
        for (place, id) in ids.iter().enumerate() {
            text.push_str(if place == 0 { "" } else { ", " });
            text.push_str(one);
            values.extend([scope.into(), key_text(id).into(), hash.into()]);
            if step != Step::Insert {
                values.extend([code.into(), headers.into(), body.into()]);
            }
        }
        text.push_str(end);
        let mut conn = self.pool.hold().await;
        Ok(conn.exec_drop(text, Params::Positional(values)).await?)
    }

    async fn row(&self, id: KeyId) -> Result<()> {
        let mut conn = self.readers.hold().await;
        let row: Option<mysql_async::Row> =
            conn.exec_first(named(ROW, &self.name), (id.as_bytes().as_slice(),)).await?;
        if row.is_some() { Ok(()) } else { Err("a row is missing".into()) }
    }

    fn ways(&self, verb: Verb) -> &'static [Way] {
        match verb {
            Verb::Pair => &[Way::Store, Way::ByHand, Way::Unbatched, Way::Wide],
            Verb::Contended => &[Way::Store],
            Verb::Claim | Verb::Complete | Verb::Replay => &Way::ALL,
        }
    }

    async fn clean(&self) -> Result<()> {
        let mut conn = self.pool.hold().await;
        for table in ["idempotency", "records", "answers", "pieces", "clock", "migrations"] {
            conn.query_drop(format!("DROP TABLE IF EXISTS {}_{table}", self.name)).await?;
        }
        Ok(())
    }
}

async fn connect(url: &str) -> Result<Conn> {
    // By the network, as the store does it.
    let options: Opts = OptsBuilder::from_opts(Opts::from_url(url)?).prefer_socket(false).into();
    Ok(Conn::new(options).await?)
}

fn named(text: &str, name: &str) -> String {
    text.replace("{name}", name)
}
