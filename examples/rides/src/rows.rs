//! The rows of the application, in the words of each database: a program of your own has one of these three.

use oncekey::flow::TxStore;
use oncekey::flow::sqlx::{SqlxMysql, SqlxPostgres, SqlxSqlite};
use sqlx::{MySqlConnection, PgConnection, SqliteConnection};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Rides and their receipts.
pub trait Rows: TxStore {
    fn make_tables(&self) -> impl Future<Output = Result<()>> + Send;

    /// Writes a ride, and says its number.
    fn add_ride(
        conn: &mut Self::Conn,
        order: &str,
        cents: i64,
    ) -> impl Future<Output = Result<i64>> + Send;

    /// Writes down what was charged for a ride, and a receipt.
    fn add_charge(
        conn: &mut Self::Conn,
        ride: i64,
        charge: &str,
    ) -> impl Future<Output = Result<()>> + Send;

    /// How many rides and receipts an order has.
    fn count(&self, order: &str) -> impl Future<Output = Result<(i64, i64)>> + Send;
}

const RIDES: &str = "SELECT count(*) FROM rides WHERE ordered = ";
const RECEIPTS: &str =
    "SELECT count(*) FROM receipts JOIN rides ON rides.id = receipts.ride WHERE ordered = ";

impl Rows for SqlxSqlite {
    async fn make_tables(&self) -> Result<()> {
        for table in [
            "CREATE TABLE IF NOT EXISTS rides \
             (id INTEGER PRIMARY KEY, ordered TEXT, cents INTEGER, charge TEXT)",
            "CREATE TABLE IF NOT EXISTS receipts (ride INTEGER)",
        ] {
            sqlx::query(table).execute(self.pool()).await?;
        }
        Ok(())
    }

    async fn add_ride(conn: &mut SqliteConnection, order: &str, cents: i64) -> Result<i64> {
        let row = sqlx::query("INSERT INTO rides (ordered, cents) VALUES (?, ?)");
        Ok(row.bind(order).bind(cents).execute(conn).await?.last_insert_rowid())
    }

    async fn add_charge(conn: &mut SqliteConnection, ride: i64, charge: &str) -> Result<()> {
        let row = sqlx::query("UPDATE rides SET charge = ? WHERE id = ?");
        row.bind(charge).bind(ride).execute(&mut *conn).await?;
        sqlx::query("INSERT INTO receipts (ride) VALUES (?)").bind(ride).execute(conn).await?;
        Ok(())
    }

    async fn count(&self, order: &str) -> Result<(i64, i64)> {
        let of = async |sql: &str| {
            let sql = sqlx::AssertSqlSafe(format!("{sql}?"));
            sqlx::query_scalar(sql).bind(order).fetch_one(self.pool()).await
        };
        Ok((of(RIDES).await?, of(RECEIPTS).await?))
    }
}

impl Rows for SqlxPostgres {
    async fn make_tables(&self) -> Result<()> {
        for table in [
            "CREATE TABLE IF NOT EXISTS rides (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
             ordered TEXT, cents BIGINT, charge TEXT)",
            "CREATE TABLE IF NOT EXISTS receipts (ride BIGINT)",
        ] {
            sqlx::query(table).execute(self.pool()).await?;
        }
        Ok(())
    }

    async fn add_ride(conn: &mut PgConnection, order: &str, cents: i64) -> Result<i64> {
        let row = "INSERT INTO rides (ordered, cents) VALUES ($1, $2) RETURNING id";
        sqlx::query_scalar(row).bind(order).bind(cents).fetch_one(conn).await
    }

    async fn add_charge(conn: &mut PgConnection, ride: i64, charge: &str) -> Result<()> {
        let row = sqlx::query("UPDATE rides SET charge = $1 WHERE id = $2");
        row.bind(charge).bind(ride).execute(&mut *conn).await?;
        sqlx::query("INSERT INTO receipts (ride) VALUES ($1)").bind(ride).execute(conn).await?;
        Ok(())
    }

    async fn count(&self, order: &str) -> Result<(i64, i64)> {
        let of = async |sql: &str| {
            let sql = sqlx::AssertSqlSafe(format!("{sql}$1"));
            sqlx::query_scalar(sql).bind(order).fetch_one(self.pool()).await
        };
        Ok((of(RIDES).await?, of(RECEIPTS).await?))
    }
}

impl Rows for SqlxMysql {
    async fn make_tables(&self) -> Result<()> {
        for table in [
            "CREATE TABLE IF NOT EXISTS rides (id BIGINT AUTO_INCREMENT PRIMARY KEY, \
             ordered VARCHAR(255), cents BIGINT, charge VARCHAR(255))",
            "CREATE TABLE IF NOT EXISTS receipts (ride BIGINT)",
        ] {
            sqlx::query(table).execute(self.pool()).await?;
        }
        Ok(())
    }

    async fn add_ride(conn: &mut MySqlConnection, order: &str, cents: i64) -> Result<i64> {
        let row = sqlx::query("INSERT INTO rides (ordered, cents) VALUES (?, ?)");
        let id = row.bind(order).bind(cents).execute(conn).await?.last_insert_id();
        Ok(i64::try_from(id).expect("the column is a BIGINT"))
    }

    async fn add_charge(conn: &mut MySqlConnection, ride: i64, charge: &str) -> Result<()> {
        let row = sqlx::query("UPDATE rides SET charge = ? WHERE id = ?");
        row.bind(charge).bind(ride).execute(&mut *conn).await?;
        sqlx::query("INSERT INTO receipts (ride) VALUES (?)").bind(ride).execute(conn).await?;
        Ok(())
    }

    async fn count(&self, order: &str) -> Result<(i64, i64)> {
        let of = async |sql: &str| {
            let sql = sqlx::AssertSqlSafe(format!("{sql}?"));
            sqlx::query_scalar(sql).bind(order).fetch_one(self.pool()).await
        };
        Ok((of(RIDES).await?, of(RECEIPTS).await?))
    }
}
