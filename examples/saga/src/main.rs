//! Places an order: reserve, charge, ship. `saga FOLDER KEY ARTICLE [POINT]` runs it, and kills itself
//! (`kill -9`) at the point with that number. Run again without a number, it goes on where it stopped,
//! forward or back. A piano is too heavy to ship, and nobody's card pays for a yacht.

mod order;
mod partner;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oncekey::core::{Key, Scope};
use oncekey::flow::sqlx::SqlxSqlite;
use oncekey::flow::testing::{Fault, Plan, Shaky};
use oncekey::flow::{Completer, FlowKey, Options, Outcome, migrate};
use order::Partners;

pub type Db = Shaky<SqlxSqlite>;
type Error = Box<dyn std::error::Error>;

const USAGE: &str = "saga FOLDER KEY ARTICLE [POINT]";

/// In the warehouse before the first order.
const STOCK: usize = 5;

async fn tables(db: &SqlxSqlite) -> Result<(), Error> {
    migrate(db).await?;
    let orders = "CREATE TABLE IF NOT EXISTS orders \
                  (id INTEGER PRIMARY KEY, article TEXT NOT NULL, state TEXT NOT NULL)";
    sqlx::query(orders).execute(db.pool()).await?;
    Ok(())
}

fn kill_this() {
    let me = std::process::id().to_string();
    let _ = std::process::Command::new("kill").args(["-9", &me]).status();
    std::thread::sleep(Duration::from_secs(5));
}

/// What everybody's books say: ours, and those of each partner.
async fn books(db: &SqlxSqlite, partners: &Partners) -> Result<String, Error> {
    let states = "SELECT coalesce(group_concat(state, ' '), 'none') FROM orders";
    let orders: String = sqlx::query_scalar(states).fetch_one(db.pool()).await?;
    // 3 is done and 6 is taken back: everything else waits for somebody.
    let stuck = "SELECT count(*) FROM oncekey_flows WHERE state NOT IN (3, 6)";
    let stuck: i64 = sqlx::query_scalar(stuck).fetch_one(db.pool()).await?;
    let Partners { warehouse, cards, carrier } = partners;
    let stock = STOCK + warehouse.count("released")? - warehouse.count("reserved")?;
    Ok(format!(
        "order {orders} | stock {stock} | charges {} | refunds {} | parcels {} | stuck {stuck}",
        cards.count("charged")?,
        cards.count("refunded")?,
        carrier.count("shipped")?,
    ))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut words = std::env::args().skip(1);
    let folder = PathBuf::from(words.next().ok_or(USAGE)?);
    let key = words.next().ok_or(USAGE)?;
    let article = words.next().ok_or(USAGE)?;
    let plan = Plan::new();
    plan.watch_every_statement();
    let db = SqlxSqlite::open(folder.join("orders.db")).await?;
    tables(&db).await?;
    let options =
        Options { lease: Duration::from_millis(300), grace: Duration::ZERO, ..Options::default() };
    let store = Shaky::new(db.clone(), plan.clone());
    let flows = order::flows(store, Partners::in_folder(&folder), options);
    if let Some(point) = words.next() {
        plan.arm(point.parse()?, Fault::Do(Arc::new(kill_this)));
    }
    let key = FlowKey::new(Scope::shared(), Key::new(key.as_bytes())?);
    let completer = Completer::new(flows.clone());
    let reply = loop {
        match flows.run("orders.place", &key, &article).await? {
            Outcome::Replied { reply, .. } => break reply,
            // Whoever comes first goes on with it: the client that asks again, or the completer.
            Outcome::InProgress { .. } | Outcome::Later { .. } => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                completer.run_once().await?;
            }
            other => return Err(format!("{other:?}").into()),
        }
    };
    let body = String::from_utf8_lossy(reply.body());
    let books = books(&db, &Partners::in_folder(&folder)).await?;
    println!("{} {body} | points {} | {books}", reply.status(), plan.count());
    Ok(())
}
