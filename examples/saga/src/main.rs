//! Places an order: reserve, charge, ship. `saga [--database URL] FOLDER KEY ARTICLE [POINT]` runs it, and
//! kills itself (`kill -9`) at the point with that number. Run again without a number, it goes on where it
//! stopped, forward or back. A piano is too heavy to ship, and nobody's card pays for a yacht. Without a URL,
//! the database is a SQLite file in the folder.

mod order;
mod partner;
mod rows;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oncekey::core::{Key, KeyId, Scope};
use oncekey::flow::sqlx::{SqlxMysql, SqlxPostgres, SqlxSqlite};
use oncekey::flow::testing::{Fault, Plan, Shaky};
use oncekey::flow::{Completer, FlowKey, Options, Outcome, migrate};
use order::{Partners, Request};
use rows::Rows;

type Error = Box<dyn std::error::Error>;

const USAGE: &str = "saga [--database postgres://…|mysql://…] FOLDER KEY ARTICLE [POINT]";

/// In the warehouse before the first order.
const STOCK: usize = 5;

fn kill_this() {
    let me = std::process::id().to_string();
    let _ = std::process::Command::new("kill").args(["-9", &me]).status();
    std::thread::sleep(Duration::from_secs(5));
}

/// What the books of the partners say.
fn books(partners: &Partners) -> Result<String, Error> {
    let Partners { warehouse, cards, carrier } = partners;
    let stock = STOCK + warehouse.count("released")? - warehouse.count("reserved")?;
    Ok(format!(
        "stock {stock} | charges {} | refunds {} | parcels {}",
        cards.count("charged")?,
        cards.count("refunded")?,
        carrier.count("shipped")?,
    ))
}

async fn run<S: Rows>(
    db: S,
    folder: PathBuf,
    request: Request,
    point: Option<u64>,
) -> Result<(), Error> {
    migrate(&db).await?;
    db.make_tables().await?;
    let plan = Plan::new();
    plan.watch_every_statement();
    let options =
        Options { lease: Duration::from_millis(300), grace: Duration::ZERO, ..Options::default() };
    let store = Shaky::new(db.clone(), plan.clone());
    let flows = order::flows(store, Partners::in_folder(&folder), options);
    if let Some(point) = point {
        plan.arm(point, Fault::Do(Arc::new(kill_this)));
    }
    let (scope, key) = (Scope::shared(), Key::new(request.key.as_bytes())?);
    let id = KeyId::derive("saga", &scope, &key, None);
    let key = FlowKey::new(scope, key);
    let completer = Completer::new(flows.clone());
    let reply = loop {
        match flows.run("orders.place", &key, &request).await? {
            Outcome::Replied { reply, .. } => break reply,
            // Whoever comes first goes on with it: the client that asks again, or the completer.
            Outcome::InProgress { .. } | Outcome::Later { .. } => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                completer.run_once().await?;
            }
            other => return Err(format!("{other:?}").into()),
        }
    };
    let (points, body) = (plan.count(), String::from_utf8_lossy(reply.body()));
    let (orders, books) = (db.states(&request.key).await?, books(&Partners::in_folder(&folder))?);
    let flow = flows.history(&id).await?.ok_or("no such flow")?.state;
    let status = reply.status();
    let orders = orders.join(" ");
    println!("{status} {body} | points {points} | order {orders} | {books} | flow {flow}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut words = std::env::args().skip(1).peekable();
    let url = words.next_if_eq("--database").and_then(|_| words.next());
    let folder = PathBuf::from(words.next().ok_or(USAGE)?);
    let (key, article) = (words.next().ok_or(USAGE)?, words.next().ok_or(USAGE)?);
    let request = Request { key, article };
    let point = words.next().map(|point| point.parse()).transpose()?;
    // A completer goes on with every order that it finds, and would book it in this folder. So on a server,
    // orders that are placed at the same time have tables of their own.
    match url.as_deref() {
        None => {
            let db = SqlxSqlite::open(folder.join("orders.db")).await?;
            run(db, folder, request, point).await
        }
        Some(url) if url.starts_with("postgres") => {
            let place = format!("saga_{}", request.article);
            let db = SqlxPostgres::with_schema(sqlx::PgPool::connect(url).await?, &place)?;
            run(db, folder, request, point).await
        }
        Some(url) if url.starts_with("mysql") => {
            let place = format!("saga_{}_", request.article);
            let db = SqlxMysql::with_prefix(sqlx::MySqlPool::connect(url).await?, &place)?;
            run(db, folder, request, point).await
        }
        Some(_) => Err(USAGE.into()),
    }
}
