//! Databases of their own for tests of the outbox.
#![allow(dead_code, missing_debug_implementations, unreachable_pub, clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncekey::flow::sqlx::{SqlxMysql, SqlxPostgres, SqlxSqlite};
use oncekey::flow::{TxStore, migrate};
use oncekey::outbox::{Delivery, Message, MessageId, Outbox, Sink, Staged};

/// Which database, and where in it.
#[derive(Clone, Debug)]
pub enum Place {
    Sqlite(PathBuf),
    Postgres(String),
    Mysql(String),
}

impl Place {
    /// As an argument of a child process.
    pub fn spec(&self) -> PathBuf {
        match self {
            Self::Sqlite(path) => format!("sqlite:{}", path.display()).into(),
            Self::Postgres(name) => format!("postgres:{name}").into(),
            Self::Mysql(name) => format!("mysql:{name}").into(),
        }
    }

    pub fn of(spec: &str) -> Self {
        let (kind, rest) = spec.split_once(':').unwrap();
        match kind {
            "sqlite" => Self::Sqlite(rest.into()),
            "postgres" => Self::Postgres(rest.to_owned()),
            _ => Self::Mysql(rest.to_owned()),
        }
    }

    /// A place that nobody else uses.
    pub fn fresh(kind: &str, folder: &tempfile::TempDir) -> Self {
        let mut bytes = [0; 5];
        getrandom::fill(&mut bytes).unwrap();
        let name: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match kind {
            "sqlite" => Self::Sqlite(folder.path().join("app.db")),
            "postgres" => Self::Postgres(format!("o{name}")),
            _ => Self::Mysql(format!("o{name}_")),
        }
    }
}

fn url_of(variable: &str) -> String {
    std::env::var(variable).expect("run `cargo xtask servers` and its exports")
}

pub async fn sqlite(path: PathBuf) -> SqlxSqlite {
    SqlxSqlite::open(path).await.unwrap()
}

pub async fn postgres(schema: &str, connections: u32) -> SqlxPostgres {
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(connections);
    let pool = pool.connect(&url_of("ONCEKEY_TEST_POSTGRES")).await.unwrap();
    SqlxPostgres::with_schema(pool, schema).unwrap()
}

pub async fn mysql(prefix: &str, connections: u32) -> SqlxMysql {
    let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(connections);
    let pool = pool.connect(&url_of("ONCEKEY_TEST_MYSQL")).await.unwrap();
    SqlxMysql::with_prefix(pool, prefix).unwrap()
}

#[cfg(feature = "flow-rusqlite")]
pub fn rusqlite(path: PathBuf) -> oncekey::flow::rusqlite::Rusqlite {
    oncekey::flow::rusqlite::Rusqlite::open(path).unwrap()
}

#[cfg(feature = "flow-tokio-postgres")]
pub fn tokio_postgres(schema: &str, most: usize) -> oncekey::flow::tokio_postgres::TokioPostgres {
    let url = url_of("ONCEKEY_TEST_POSTGRES");
    let store = oncekey::flow::tokio_postgres::TokioPostgres::dial(most, move || {
        let url = url.clone();
        async move {
            let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            Ok::<_, tokio_postgres::Error>(client)
        }
    });
    store.schema(schema).unwrap()
}

/// Does something with the store of a place, whichever it is.
#[macro_export]
macro_rules! with_store {
    ($place:expr, $connections:expr, $store:ident => $body:expr) => {
        match $place {
            $crate::outbox_common::Place::Sqlite(path) => {
                let $store = $crate::outbox_common::sqlite(path).await;
                $body
            }
            $crate::outbox_common::Place::Postgres(name) => {
                let $store = $crate::outbox_common::postgres(&name, $connections).await;
                $body
            }
            $crate::outbox_common::Place::Mysql(name) => {
                let $store = $crate::outbox_common::mysql(&name, $connections).await;
                $body
            }
        }
    };
}

/// Makes a test of each case for each database, and for each driver.
#[macro_export]
macro_rules! on_each_database {
    ($($case:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")] async fn $case() {
                let folder = tempfile::tempdir().unwrap();
                let store = $crate::outbox_common::sqlite(folder.path().join("app.db")).await;
                super::$case($crate::outbox_common::made(store).await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs PostgreSQL: run cargo xtask test"]
            async fn $case() {
                let folder = tempfile::tempdir().unwrap();
                let place = $crate::outbox_common::Place::fresh("postgres", &folder);
                let $crate::outbox_common::Place::Postgres(name) = place else { return };
                let store = $crate::outbox_common::postgres(&name, 4).await;
                super::$case($crate::outbox_common::made(store).await).await;
            })+
        }
        #[cfg(feature = "flow-rusqlite")]
        mod rusqlite {
            $(#[tokio::test(flavor = "multi_thread")] async fn $case() {
                let folder = tempfile::tempdir().unwrap();
                let store = $crate::outbox_common::rusqlite(folder.path().join("app.db"));
                super::$case($crate::outbox_common::made(store).await).await;
            })+
        }
        #[cfg(feature = "flow-tokio-postgres")]
        mod tokio_postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs PostgreSQL: run cargo xtask test"]
            async fn $case() {
                let folder = tempfile::tempdir().unwrap();
                let place = $crate::outbox_common::Place::fresh("postgres", &folder);
                let $crate::outbox_common::Place::Postgres(name) = place else { return };
                let store = $crate::outbox_common::tokio_postgres(&name, 4);
                super::$case($crate::outbox_common::made(store).await).await;
            })+
        }
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs MySQL: run cargo xtask test"]
            async fn $case() {
                let folder = tempfile::tempdir().unwrap();
                let place = $crate::outbox_common::Place::fresh("mysql", &folder);
                let $crate::outbox_common::Place::Mysql(name) = place else { return };
                let store = $crate::outbox_common::mysql(&name, 4).await;
                super::$case($crate::outbox_common::made(store).await).await;
            })+
        }
    };
}

pub async fn made<S: TxStore>(store: S) -> S {
    migrate(&store).await.unwrap();
    store
}

/// Stages in a transaction of its own.
pub async fn stage<S: TxStore>(store: &S, staged: Staged) -> MessageId {
    stage_all(store, vec![staged]).await[0]
}

pub async fn stage_all<S: TxStore>(store: &S, staged: Vec<Staged>) -> Vec<MessageId> {
    let outbox = Outbox::new(store.clone());
    let mut tx = store.begin().await.unwrap();
    let ids = outbox.stage_all(S::conn(&mut tx), staged).await.unwrap();
    S::commit(tx).await.unwrap();
    ids
}

/// A sink that remembers what came, and answers as it is told.
#[derive(Clone, Default)]
pub struct Heard {
    came: Arc<Mutex<Vec<(MessageId, i64, String)>>>,
    answers: Arc<Mutex<Vec<(String, Delivery)>>>,
}

impl Heard {
    /// Answers a body so from now on.
    pub fn answer(&self, body: &str, delivery: Delivery) {
        let mut answers = self.answers.lock().unwrap();
        answers.retain(|(known, _)| known != body);
        answers.push((body.to_owned(), delivery));
    }

    pub fn bodies(&self) -> Vec<String> {
        self.came.lock().unwrap().iter().map(|(_, _, body)| body.clone()).collect()
    }

    /// Ids and attempts.
    pub fn ids(&self) -> Vec<(MessageId, i64)> {
        self.came.lock().unwrap().iter().map(|(id, attempt, _)| (*id, *attempt)).collect()
    }
}

#[async_trait::async_trait]
impl Sink for Heard {
    async fn deliver(&self, message: &Message) -> Delivery {
        let body = String::from_utf8(message.body().to_vec()).unwrap();
        self.came.lock().unwrap().push((message.id(), message.attempt(), body.clone()));
        let answers = self.answers.lock().unwrap();
        let answer = answers.iter().find(|(known, _)| *known == body);
        answer.map_or(Delivery::Sent, |(_, delivery)| delivery.clone())
    }
}

pub const MOMENT: Duration = Duration::from_millis(30);
