//! PostgreSQL: the store, and a plain table beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use oncekey::core::{KeyId, Store};
use oncekey::store::postgres::PostgresOptions;
use tokio_postgres::{Client, NoTls, Statement};

use super::pool::Pool;
use super::{Server, Step, WIDE, Width};
use crate::Result;
use crate::cells::{Verb, Way};
use crate::work::{Plain, key_text};

/// All connections that the store has by default: four that write batches, two that read, two for
/// single writes, one for renewals.
const CONNECTIONS: usize = 9;
/// Those of them that write batches, and those that read.
const WRITERS: usize = 4;
const READERS: usize = 2;

const TABLE: &str = "
    CREATE TABLE {schema}.idempotency (
        scope text NOT NULL, key text NOT NULL, request_hash bytea NOT NULL, status text NOT NULL,
        response_code int, response_headers bytea, response_body bytea,
        expires_at timestamptz NOT NULL, PRIMARY KEY (scope, key))";
const INSERT: &str = "
    INSERT INTO {schema}.idempotency (scope, key, request_hash, status, expires_at)
    VALUES ($1, $2, $3, 'in_progress', now() + interval '24 hours')";
const UPDATE: &str = "
    UPDATE {schema}.idempotency SET status = 'completed', response_code = $3,
        response_headers = $4, response_body = $5
    WHERE scope = $1 AND key = $2";
const SELECT: &str = "
    SELECT status, request_hash, response_code, response_headers, response_body
    FROM {schema}.idempotency WHERE scope = $1 AND key = $2";
const INSERT_MANY: &str = "
    INSERT INTO {schema}.idempotency (scope, key, request_hash, status, expires_at)
    SELECT u.scope, u.key, u.hash, 'in_progress', now() + interval '24 hours'
    FROM unnest($1::text[], $2::text[], $3::bytea[]) AS u(scope, key, hash)";
const UPDATE_MANY: &str = "
    UPDATE {schema}.idempotency AS r SET status = 'completed', response_code = u.code,
        response_headers = u.headers, response_body = u.body
    FROM unnest($1::text[], $2::text[], $3::int[], $4::bytea[], $5::bytea[])
        AS u(scope, key, code, headers, body)
    WHERE r.scope = u.scope AND r.key = u.key";
const ROW: &str = "SELECT * FROM {schema}.oncekey_records WHERE key_id = $1";

/// A server and what was made on it.
pub(super) struct Postgres {
    store: Arc<dyn Store>,
    schema: String,
    version: String,
    pool: Pool<Line>,
    wide: Pool<Line>,
    /// With several statements under way on each.
    readers: Vec<(Client, Statement)>,
    next: AtomicUsize,
    plain: Plain,
}

struct Line {
    client: Client,
    insert: Statement,
    update: Statement,
    select: Statement,
    insert_many: Statement,
    update_many: Statement,
}

impl Postgres {
    pub(super) async fn open(url: &str, schema: &str) -> Result<Self> {
        let store = PostgresOptions::new(url).schema(schema).open().await?;
        let first = connect(url).await?;
        first.batch_execute(&named(TABLE, schema)).await?;
        let version = first.query_one("SHOW server_version", &[]).await?.get(0);
        let mut lines = Vec::with_capacity(CONNECTIONS + WIDE);
        for _ in 0..CONNECTIONS + WIDE {
            let client = connect(url).await?;
            lines.push(Line {
                insert: client.prepare(&named(INSERT, schema)).await?,
                update: client.prepare(&named(UPDATE, schema)).await?,
                select: client.prepare(&named(SELECT, schema)).await?,
                insert_many: client.prepare(&named(INSERT_MANY, schema)).await?,
                update_many: client.prepare(&named(UPDATE_MANY, schema)).await?,
                client,
            });
        }
        let mut readers = Vec::with_capacity(READERS);
        for _ in 0..READERS {
            let client = connect(url).await?;
            let row = client.prepare(&named(ROW, schema)).await?;
            readers.push((client, row));
        }
        Ok(Self {
            store: Arc::new(store),
            schema: schema.to_owned(),
            version,
            wide: Pool::new(lines.split_off(CONNECTIONS)),
            pool: Pool::new(lines),
            readers,
            next: AtomicUsize::new(0),
            plain: Plain::new(),
        })
    }

    fn pool_of(&self, width: Width) -> &Pool<Line> {
        match width {
            Width::Equal => &self.pool,
            Width::Wide => &self.wide,
        }
    }
}

#[async_trait]
impl Server for Postgres {
    fn about(&self) -> String {
        format!(
            "{}; by hand: one statement on each of {WRITERS} connections, replays as plain SELECT of \
             the same row on {READERS}; unbatched: {CONNECTIONS} connections",
            self.version
        )
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    async fn naive(&self, width: Width, step: Step, id: KeyId) -> Result<()> {
        let Plain { scope, hash, code, headers, body } = &self.plain;
        let key = key_text(&id);
        let line = self.pool_of(width).hold().await;
        let touched = match step {
            Step::Insert => line.client.execute(&line.insert, &[scope, &key, hash]).await?,
            Step::Update => {
                let values: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
                    [scope, &key, code, headers, body];
                line.client.execute(&line.update, &values).await?
            }
            Step::Select => {
                let row = line.client.query_one(&line.select, &[scope, &key]).await?;
                u64::from(row.get::<_, &[u8]>(4) == body)
            }
        };
        one(touched, 1)
    }

    fn lanes(&self) -> usize {
        WRITERS
    }

    async fn many(&self, step: Step, ids: Vec<KeyId>) -> Result<()> {
        let Plain { scope, hash, code, headers, body } = &self.plain;
        let keys: Vec<String> = ids.iter().map(key_text).collect();
        let count = keys.len();
        let scopes = vec![scope; count];
        let line = self.pool.hold().await;
        let touched = if step == Step::Insert {
            line.client.execute(&line.insert_many, &[&scopes, &keys, &vec![hash; count]]).await?
        } else {
            let (codes, headers, bodies) =
                (vec![*code; count], vec![headers; count], vec![body; count]);
            let values: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
                [&scopes, &keys, &codes, &headers, &bodies];
            line.client.execute(&line.update_many, &values).await?
        };
        one(touched, count)
    }

    async fn row(&self, id: KeyId) -> Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.readers.len();
        let (client, row) = &self.readers[number];
        let row = client.query_one(row, &[&id.as_bytes().as_slice()]).await?;
        one(u64::from(!row.is_empty()), 1)
    }

    fn ways(&self, verb: Verb) -> &'static [Way] {
        match verb {
            Verb::Pair => &[Way::Store, Way::ByHand, Way::Unbatched, Way::Wide],
            Verb::Contended => &[Way::Store],
            Verb::Claim | Verb::Complete | Verb::Replay => &Way::ALL,
        }
    }

    async fn clean(&self) -> Result<()> {
        let drop = format!("DROP SCHEMA {} CASCADE", self.schema);
        Ok(self.pool.hold().await.client.batch_execute(&drop).await?)
    }
}

fn one(touched: u64, wanted: usize) -> Result<()> {
    if usize::try_from(touched)? == wanted { Ok(()) } else { Err("a row is missing".into()) }
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn named(text: &str, schema: &str) -> String {
    text.replace("{schema}", schema)
}
