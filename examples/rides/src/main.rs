//! Orders a ride: a row, a charge, a receipt. `rides [--database URL] FOLDER KEY [POINT]` runs it, and kills
//! itself (`kill -9`) at the point with that number. Run again without a number, it goes on where it stopped.
//! Without a URL, the database is a SQLite file in the folder.

mod provider;
mod rows;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oncekey::core::{Key, KeyId, Scope};
use oncekey::flow::sqlx::{SqlxMysql, SqlxPostgres, SqlxSqlite};
use oncekey::flow::testing::{Fault, Plan, Shaky};
use oncekey::flow::{
    Definition, Failed, Flow, FlowKey, Flows, Options, Outcome, Reply, Safety, migrate,
};
use provider::Provider;
use rows::Rows;

type Error = Box<dyn std::error::Error>;

const USAGE: &str = "rides [--database postgres://…|mysql://…] FOLDER KEY [POINT]";

/// started → ride_created → charge_created → finished.
fn create_ride<S: Rows>(provider: Provider) -> Definition<Shaky<S>> {
    let provider = Arc::new(provider);
    Definition::new("rides.create", move |flow: Flow<Shaky<S>>, (order, cents): (String, i64)| {
        let provider = Arc::clone(&provider);
        async move {
            let ride = flow
                .phase("ride_created", async |tx| Ok(S::add_ride(tx, &order, cents).await?))
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
                S::add_charge(tx, ride, &charge).await?;
                Reply::json(201, &(ride, charge))
            })
            .await
        }
    })
}

fn kill_this() {
    let me = std::process::id().to_string();
    let _ = std::process::Command::new("kill").args(["-9", &me]).status();
    std::thread::sleep(Duration::from_secs(5));
}

/// An order: its books, its key, and where it is killed.
struct Order {
    folder: PathBuf,
    key: String,
    point: Option<u64>,
}

async fn run<S: Rows>(db: S, order: Order) -> Result<(), Error> {
    migrate(&db).await?;
    db.make_tables().await?;
    let (plan, books) = (Plan::new(), order.folder.join("provider.txt"));
    plan.watch_every_statement();
    let options = Options { lease: Duration::from_millis(300), ..Options::default() };
    let flows = Flows::builder(Shaky::new(db.clone(), plan.clone()), "rides")
        .options(options)
        .flow(create_ride(Provider(books.clone())))
        .build()?;
    if let Some(point) = order.point {
        plan.arm(point, Fault::Do(Arc::new(kill_this)));
    }
    let (scope, key) = (Scope::shared(), Key::new(order.key.as_bytes())?);
    let id = KeyId::derive("rides", &scope, &key, None);
    let key = FlowKey::new(scope, key);
    let reply = loop {
        match flows.run("rides.create", &key, &(&order.key, 2_000_i64)).await? {
            Outcome::Replied { reply, .. } => break reply,
            Outcome::InProgress { .. } | Outcome::Later { .. } => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            other => return Err(format!("{other:?}").into()),
        }
    };
    let points = plan.count();
    let (rides, receipts) = db.count(&order.key).await?;
    let charges = Provider(books).books()?.len();
    let flow = flows.history(&id).await?.ok_or("no such flow")?.state;
    println!(
        "{} {} | points {points} | rides {rides} | receipts {receipts} | charges {charges} | flow {flow}",
        reply.status(),
        String::from_utf8_lossy(reply.body()),
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut words = std::env::args().skip(1).peekable();
    let url = words.next_if_eq("--database").and_then(|_| words.next());
    let folder = PathBuf::from(words.next().ok_or(USAGE)?);
    let key = words.next().ok_or(USAGE)?;
    let point = words.next().map(|point| point.parse()).transpose()?;
    let file = folder.join("rides.db");
    let order = Order { folder, key, point };
    match url.as_deref() {
        None => run(SqlxSqlite::open(file).await?, order).await,
        Some(url) if url.starts_with("postgres") => {
            run(SqlxPostgres::new(sqlx::PgPool::connect(url).await?), order).await
        }
        Some(url) if url.starts_with("mysql") => {
            run(SqlxMysql::new(sqlx::MySqlPool::connect(url).await?), order).await
        }
        Some(_) => Err(USAGE.into()),
    }
}
