//! Orders a ride: a row, a charge, a receipt. `rides FOLDER KEY [POINT]` runs it, and kills itself
//! (`kill -9`) at the point with that number. Run again without a number, it goes on where it stopped.

mod provider;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oncekey::core::{Key, Scope};
use oncekey::flow::sqlx::SqlxSqlite;
use oncekey::flow::testing::{Fault, Plan, Shaky};
use oncekey::flow::{
    Definition, Failed, Flow, FlowKey, Flows, Options, Outcome, Reply, Safety, migrate,
};
use provider::Provider;

type Db = Shaky<SqlxSqlite>;
type Error = Box<dyn std::error::Error>;

/// started → ride_created → charge_created → finished.
fn create_ride(provider: Provider) -> Definition<Db> {
    let provider = Arc::new(provider);
    Definition::new("rides.create", move |flow: Flow<Db>, cents: i64| {
        let provider = Arc::clone(&provider);
        async move {
            let ride = flow
                .phase("ride_created", async |tx| {
                    let row = sqlx::query("INSERT INTO rides (cents) VALUES (?)").bind(cents);
                    Ok(row.execute(&mut **tx).await?.last_insert_rowid())
                })
                .await?;
            let window = Duration::from_secs(24 * 60 * 60);
            let charge: String = flow
                .effect("charge_created", Safety::Keyed { window })
                .bind(&(ride, cents))
                .call(async |key| {
                    let charged = provider.charge(key, cents);
                    charged.map_err(|error| Failed::Unknown(error.to_string()))
                })
                .await?;
            flow.finish(async |tx| {
                let row = sqlx::query("UPDATE rides SET charge = ? WHERE id = ?");
                row.bind(&charge).bind(ride).execute(&mut **tx).await?;
                let row = sqlx::query("INSERT INTO receipts (ride) VALUES (?)");
                row.bind(ride).execute(&mut **tx).await?;
                Reply::json(201, &(ride, charge))
            })
            .await
        }
    })
}

async fn tables(db: &SqlxSqlite) -> Result<(), Error> {
    migrate(db).await?;
    let tables = [
        "CREATE TABLE IF NOT EXISTS rides (id INTEGER PRIMARY KEY, cents INTEGER, charge TEXT)",
        "CREATE TABLE IF NOT EXISTS receipts (ride INTEGER)",
    ];
    for table in tables {
        sqlx::query(table).execute(db.pool()).await?;
    }
    Ok(())
}

async fn count(db: &SqlxSqlite, sql: &'static str) -> Result<i64, Error> {
    Ok(sqlx::query_scalar(sql).fetch_one(db.pool()).await?)
}

fn kill_this() {
    let me = std::process::id().to_string();
    let _ = std::process::Command::new("kill").args(["-9", &me]).status();
    std::thread::sleep(Duration::from_secs(5));
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut words = std::env::args().skip(1);
    let folder = PathBuf::from(words.next().ok_or("rides FOLDER KEY [POINT]")?);
    let key = words.next().ok_or("rides FOLDER KEY [POINT]")?;
    let plan = Plan::new();
    let db = SqlxSqlite::open(folder.join("rides.db")).await?;
    tables(&db).await?;
    let options = Options { lease: Duration::from_millis(300), ..Options::default() };
    let flows = Flows::builder(Shaky::new(db.clone(), plan.clone()), "rides")
        .options(options)
        .flow(create_ride(Provider(folder.join("provider.txt"))))
        .build()?;
    if let Some(point) = words.next() {
        plan.arm(point.parse()?, Fault::Do(Arc::new(kill_this)));
    }
    let key = FlowKey::new(Scope::shared(), Key::new(key.as_bytes())?);
    let reply = loop {
        match flows.run("rides.create", &key, &2_000_i64).await? {
            Outcome::Replied { reply, .. } => break reply,
            Outcome::InProgress { .. } | Outcome::Later { .. } => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            other => return Err(format!("{other:?}").into()),
        }
    };
    println!(
        "{} {} | points {} | rides {} | receipts {} | charges {}",
        reply.status(),
        String::from_utf8_lossy(reply.body()),
        plan.count(),
        count(&db, "SELECT count(*) FROM rides").await?,
        count(&db, "SELECT count(*) FROM receipts").await?,
        Provider(folder.join("provider.txt")).books()?.len(),
    );
    Ok(())
}
