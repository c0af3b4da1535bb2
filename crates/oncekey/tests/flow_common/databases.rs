//! One rig for every database that can hold a flow, and every driver: a key store and the application's
//! connections on the same database, and a table of the application.
#![allow(dead_code, missing_debug_implementations, unreachable_pub)]

use std::sync::Arc;

use oncekey::core::{Key, Scope, Store};
use oncekey::flow::rusqlite::Rusqlite;
use oncekey::flow::sqlx::{SqlxMysql, SqlxPostgres, SqlxSqlite};
use oncekey::flow::tokio_postgres::TokioPostgres;
use oncekey::flow::{Dialect, FlowKey, Halt, Local, PhaseTx, TxStore, Value, migrate};
use oncekey::store::mysql::MysqlOptions;
use oncekey::store::postgres::PostgresOptions;
use oncekey::store::sqlite::{Placement, SqliteOptions};

pub struct Rig<S: TxStore> {
    pub keys: Arc<dyn Store>,
    pub db: S,
    /// The same tables by a pool with one connection: what is left on it, the next caller meets.
    pub narrow: S,
    _folder: Option<tempfile::TempDir>,
}

impl<S: TxStore> Rig<S> {
    async fn with_tables(self) -> Self {
        let text = match self.db.layout().dialect() {
            Dialect::Mysql => "VARBINARY(99)",
            Dialect::Postgres | Dialect::Sqlite => "TEXT",
        };
        migrate(&self.db).await.unwrap();
        self.script(&format!("CREATE TABLE {{records}}_orders (name {text} NOT NULL, n INTEGER)"))
            .await;
        self
    }

    /// `{records}` with something behind it is a name in the same schema or with the same prefix.
    pub async fn script(&self, sql: &str) {
        self.db.script(&self.db.layout().statement(sql)).await.unwrap();
    }

    pub fn local(&self) -> Local<S> {
        Local::new(Arc::clone(&self.keys), self.db.clone(), "test")
    }

    pub async fn count(&self, sql: &str, values: &[Value<'_>]) -> i64 {
        let sql = self.db.layout().statement(sql);
        self.db.query_once(&sql, values).await.unwrap()[0].int(0).unwrap()
    }

    pub async fn orders(&self) -> i64 {
        self.count("SELECT count(*) FROM {records}_orders", &[]).await
    }

    pub async fn orders_of(&self, name: &str) -> i64 {
        let sql = "SELECT count(*) FROM {records}_orders WHERE name = ?";
        self.count(sql, &[Value::Text(name)]).await
    }
}

pub fn key(text: &str) -> &'static FlowKey {
    let key = FlowKey::new(Scope::shared(), Key::new(text.as_bytes()).unwrap());
    Box::leak(Box::new(key))
}

pub async fn insert<S: TxStore>(tx: &mut PhaseTx<S>, name: &str) -> Result<(), Halt> {
    let sql = tx.store().layout().statement("INSERT INTO {records}_orders (name, n) VALUES (?, 0)");
    S::execute(&mut **tx, &sql, &[Value::Text(name)]).await?;
    Ok(())
}

pub async fn sqlite() -> Rig<SqlxSqlite> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let db = SqlxSqlite::open(&path).await.unwrap();
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
    let narrow =
        SqlxSqlite::new(pool.connect(&format!("sqlite:{}", path.display())).await.unwrap());
    let keys = SqliteOptions::new(&path).placement(Placement::Shared).open().unwrap();
    Rig { keys: Arc::new(keys), db, narrow, _folder: Some(folder) }.with_tables().await
}

pub async fn rusqlite() -> Rig<Rusqlite> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let db = Rusqlite::open(&path).unwrap();
    let narrow = Rusqlite::new([rusqlite::Connection::open(&path).unwrap()]).unwrap();
    let keys = SqliteOptions::new(&path).placement(Placement::Shared).open().unwrap();
    Rig { keys: Arc::new(keys), db, narrow, _folder: Some(folder) }.with_tables().await
}

fn name() -> String {
    let mut bytes = [0; 5];
    getrandom::fill(&mut bytes).unwrap();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub async fn postgres() -> Rig<SqlxPostgres> {
    let (url, name) = (std::env::var("ONCEKEY_TEST_POSTGRES").unwrap(), format!("l{}", name()));
    let keys = PostgresOptions::new(&url).schema(&name).open().await.unwrap();
    let of = async |most| {
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(most);
        SqlxPostgres::with_schema(pool.connect(&url).await.unwrap(), &name).unwrap()
    };
    let (db, narrow) = (of(8).await, of(1).await);
    Rig { keys: Arc::new(keys), db, narrow, _folder: None }.with_tables().await
}

/// With connections that go from step to step, with the next transaction begun. The narrow one has two, because the last connection of a
/// pool is never kept; who takes turns meets the same one again.
pub async fn kept_postgres() -> Rig<SqlxPostgres> {
    let (url, name) = (std::env::var("ONCEKEY_TEST_POSTGRES").unwrap(), format!("l{}", name()));
    let keys = PostgresOptions::new(&url).schema(&name).open().await.unwrap();
    let of = async |most| {
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(most);
        let store = SqlxPostgres::with_schema(pool.connect(&url).await.unwrap(), &name).unwrap();
        store.begin_ahead()
    };
    let (db, narrow) = (of(8).await, of(2).await);
    Rig { keys: Arc::new(keys), db, narrow, _folder: None }.with_tables().await
}

pub async fn tokio_postgres() -> Rig<TokioPostgres> {
    let (url, name) = (std::env::var("ONCEKEY_TEST_POSTGRES").unwrap(), format!("l{}", name()));
    let keys = PostgresOptions::new(&url).schema(&name).open().await.unwrap();
    let (db, narrow) = (dialled(&url, 8), dialled(&url, 1));
    let (db, narrow) = (db.schema(&name).unwrap(), narrow.schema(&name).unwrap());
    Rig { keys: Arc::new(keys), db, narrow, _folder: None }.with_tables().await
}

pub fn dialled(url: &str, most: usize) -> TokioPostgres {
    let url = url.to_owned();
    TokioPostgres::dial(most, move || {
        let url = url.clone();
        async move {
            let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            Ok::<_, tokio_postgres::Error>(client)
        }
    })
}

pub async fn mysql() -> Rig<SqlxMysql> {
    let (url, name) = (std::env::var("ONCEKEY_TEST_MYSQL").unwrap(), format!("l{}_", name()));
    let keys = MysqlOptions::new(&url).prefix(&name).open().await.unwrap();
    let of = async |most| {
        let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(most);
        SqlxMysql::with_prefix(pool.connect(&url).await.unwrap(), &name).unwrap()
    };
    let (db, narrow) = (of(8).await, of(1).await);
    Rig { keys: Arc::new(keys), db, narrow, _folder: None }.with_tables().await
}

pub async fn kept_mysql() -> Rig<SqlxMysql> {
    let (url, name) = (std::env::var("ONCEKEY_TEST_MYSQL").unwrap(), format!("l{}_", name()));
    let keys = MysqlOptions::new(&url).prefix(&name).open().await.unwrap();
    let of = async |most| {
        let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(most);
        let store = SqlxMysql::with_prefix(pool.connect(&url).await.unwrap(), &name).unwrap();
        store.keep_connections()
    };
    let (db, narrow) = (of(8).await, of(2).await);
    Rig { keys: Arc::new(keys), db, narrow, _folder: None }.with_tables().await
}

/// Runs each case where connections go from step to step.
#[allow(unused_macros, reason = "not every test has cases for it")]
macro_rules! on_kept_connections {
    ($($case:ident),+ $(,)?) => {
        mod on_kept_postgres {
            $(#[tokio::test] #[ignore = "needs PostgreSQL: run cargo xtask test"]
            async fn $case() { super::$case(super::databases::kept_postgres().await).await; })+
        }
        mod on_kept_mysql {
            $(#[tokio::test] #[ignore = "needs MySQL: run cargo xtask test"]
            async fn $case() { super::$case(super::databases::kept_mysql().await).await; })+
        }
    };
}

/// Runs each case on SQLite, and on the servers where there are some, with each driver.
macro_rules! on_each_database {
    ($($case:ident),+ $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test]
            async fn $case() { super::$case(super::databases::sqlite().await).await; })+
        }
        mod on_rusqlite {
            $(#[tokio::test]
            async fn $case() { super::$case(super::databases::rusqlite().await).await; })+
        }
        mod on_postgres {
            $(#[tokio::test] #[ignore = "needs PostgreSQL: run cargo xtask test"]
            async fn $case() { super::$case(super::databases::postgres().await).await; })+
        }
        mod on_tokio_postgres {
            $(#[tokio::test] #[ignore = "needs PostgreSQL: run cargo xtask test"]
            async fn $case() { super::$case(super::databases::tokio_postgres().await).await; })+
        }
        mod on_mysql {
            $(#[tokio::test] #[ignore = "needs MySQL: run cargo xtask test"]
            async fn $case() { super::$case(super::databases::mysql().await).await; })+
        }
    };
}
