//! The rows of the application, in the words of each database: a program of your own has one of these three.

use oncekey::flow::TxStore;
use oncekey::flow::sqlx::{SqlxMysql, SqlxPostgres, SqlxSqlite};
use sqlx::{MySqlConnection, PgConnection, SqliteConnection};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Orders and their states.
pub trait Rows: TxStore {
    fn make_tables(&self) -> impl Future<Output = Result<()>> + Send;

    /// Writes an open order, and says its number.
    fn add_order(
        conn: &mut Self::Conn,
        key: &str,
        article: &str,
    ) -> impl Future<Output = Result<i64>> + Send;

    fn set_state(
        conn: &mut Self::Conn,
        order: i64,
        state: &str,
    ) -> impl Future<Output = Result<()>> + Send;

    /// The states of all orders that were placed with a key.
    fn states(&self, key: &str) -> impl Future<Output = Result<Vec<String>>> + Send;
}

impl Rows for SqlxSqlite {
    async fn make_tables(&self) -> Result<()> {
        let orders = "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, \
                      placed TEXT NOT NULL, article TEXT NOT NULL, state TEXT NOT NULL)";
        sqlx::query(orders).execute(self.pool()).await.map(drop)
    }

    async fn add_order(conn: &mut SqliteConnection, key: &str, article: &str) -> Result<i64> {
        let row = "INSERT INTO orders (placed, article, state) VALUES (?, ?, 'open')";
        let row = sqlx::query(row).bind(key).bind(article);
        Ok(row.execute(conn).await?.last_insert_rowid())
    }

    async fn set_state(conn: &mut SqliteConnection, order: i64, state: &str) -> Result<()> {
        let row = sqlx::query("UPDATE orders SET state = ? WHERE id = ?").bind(state).bind(order);
        row.execute(conn).await.map(drop)
    }

    async fn states(&self, key: &str) -> Result<Vec<String>> {
        let states = sqlx::query_scalar("SELECT state FROM orders WHERE placed = ? ORDER BY id");
        states.bind(key).fetch_all(self.pool()).await
    }
}

impl Rows for SqlxPostgres {
    async fn make_tables(&self) -> Result<()> {
        let orders = "CREATE TABLE IF NOT EXISTS orders \
                      (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
                      placed TEXT NOT NULL, article TEXT NOT NULL, state TEXT NOT NULL)";
        sqlx::query(orders).execute(self.pool()).await.map(drop)
    }

    async fn add_order(conn: &mut PgConnection, key: &str, article: &str) -> Result<i64> {
        let row =
            "INSERT INTO orders (placed, article, state) VALUES ($1, $2, 'open') RETURNING id";
        sqlx::query_scalar(row).bind(key).bind(article).fetch_one(conn).await
    }

    async fn set_state(conn: &mut PgConnection, order: i64, state: &str) -> Result<()> {
        let row = sqlx::query("UPDATE orders SET state = $1 WHERE id = $2").bind(state).bind(order);
        row.execute(conn).await.map(drop)
    }

    async fn states(&self, key: &str) -> Result<Vec<String>> {
        let states = sqlx::query_scalar("SELECT state FROM orders WHERE placed = $1 ORDER BY id");
        states.bind(key).fetch_all(self.pool()).await
    }
}

impl Rows for SqlxMysql {
    async fn make_tables(&self) -> Result<()> {
        let orders = "CREATE TABLE IF NOT EXISTS orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, \
                      placed VARCHAR(255) NOT NULL, article VARCHAR(255) NOT NULL, \
                      state VARCHAR(255) NOT NULL)";
        sqlx::query(orders).execute(self.pool()).await.map(drop)
    }

    async fn add_order(conn: &mut MySqlConnection, key: &str, article: &str) -> Result<i64> {
        let row = "INSERT INTO orders (placed, article, state) VALUES (?, ?, 'open')";
        let id = sqlx::query(row).bind(key).bind(article).execute(conn).await?.last_insert_id();
        Ok(i64::try_from(id).expect("the column is a BIGINT"))
    }

    async fn set_state(conn: &mut MySqlConnection, order: i64, state: &str) -> Result<()> {
        let row = sqlx::query("UPDATE orders SET state = ? WHERE id = ?").bind(state).bind(order);
        row.execute(conn).await.map(drop)
    }

    async fn states(&self, key: &str) -> Result<Vec<String>> {
        let states = sqlx::query_scalar("SELECT state FROM orders WHERE placed = ? ORDER BY id");
        states.bind(key).fetch_all(self.pool()).await
    }
}
