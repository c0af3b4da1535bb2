//! The saga: reserve, charge, ship. If a partner refuses, what the others did is taken back.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oncekey::flow::{
    Compensation, Definition, Did, Failed, Flow, Flows, Halt, PhaseTx, Reply, Safety,
};

use crate::Db;
use crate::partner::Partner;

/// All three know our keys again for a day.
const KEYED: Safety = Safety::Keyed { window: Duration::from_secs(24 * 60 * 60) };

pub struct Partners {
    pub warehouse: Partner,
    pub cards: Partner,
    pub carrier: Partner,
}

impl Partners {
    pub fn in_folder(folder: &Path) -> Self {
        let of = |name: &str| Partner(folder.join(name));
        Self { warehouse: of("warehouse"), cards: of("cards"), carrier: of("carrier") }
    }
}

fn no_answer(error: std::io::Error) -> Failed {
    Failed::Unknown(error.to_string())
}

/// What a partner has decided is the reply of the saga.
fn refused(status: u16, why: &str) -> Failed {
    match Reply::json(status, &why) {
        Ok(reply) => Failed::Final(reply),
        Err(halt) => Failed::NotDone(halt.to_string()),
    }
}

/// How each effect is taken back is stored before its call, with the key of that call: so what may have
/// happened is taken back too, by whoever comes next.
async fn trade(flow: &Flow<Db>, partners: &Partners, article: &str) -> Result<(), Halt> {
    flow.effect::<()>("reserve", KEYED)
        .bind(&article)
        .undo("release", &flow.foreign_key("reserve"))
        .call(async |key| {
            let entry = format!("reserved {article}");
            partners.warehouse.once(key, &entry).map(drop).map_err(no_answer)
        })
        .await?;
    flow.effect::<()>("charge", KEYED)
        .undo("refund", &flow.foreign_key("charge"))
        .call(async |key| {
            let entry = if article == "yacht" { "declined" } else { "charged" };
            match partners.cards.once(key, entry).map_err(no_answer)?.as_str() {
                "charged" => Ok(()),
                _ => Err(refused(402, "the card was declined")),
            }
        })
        .await?;
    flow.effect::<()>("ship", KEYED)
        .call(async |key| {
            let entry = if article == "piano" { "refused" } else { "shipped" };
            match partners.carrier.once(key, entry).map_err(no_answer)?.as_str() {
                "shipped" => Ok(()),
                _ => Err(refused(409, "too heavy to ship")),
            }
        })
        .await?;
    // A parcel on its way is not called back: from here on there is only forward.
    flow.pivot("shipped").await
}

pub fn place(partners: Arc<Partners>) -> Definition<Db> {
    Definition::new("orders.place", move |flow: Flow<Db>, article: String| {
        let partners = Arc::clone(&partners);
        async move {
            let order = flow
                .phase("order_created", async |tx| {
                    let row = sqlx::query("INSERT INTO orders (article, state) VALUES (?, 'open')");
                    Ok(row.bind(&article).execute(&mut **tx).await?.last_insert_rowid())
                })
                .await?;
            match trade(&flow, &partners, &article).await {
                Ok(()) => {
                    flow.finish(async |tx| {
                        mark(tx, order, "shipped").await?;
                        Reply::json(201, &order)
                    })
                    .await
                }
                // Our own row is ours to correct; the compensations follow.
                Err(Halt::Stop(reply)) => {
                    flow.phase("order_cancelled", async |tx| mark(tx, order, "cancelled").await)
                        .await?;
                    Err(Halt::Stop(reply))
                }
                Err(halt) => Err(halt),
            }
        }
    })
}

async fn mark(tx: &mut PhaseTx<Db>, order: i64, state: &'static str) -> Result<(), Halt> {
    let row = sqlx::query("UPDATE orders SET state = ? WHERE id = ?").bind(state).bind(order);
    row.execute(&mut **tx).await?;
    Ok(())
}

/// Each gets the key of the call that it takes back, and a key of its own. Whether that call arrived is
/// for the partner to know: that of `Did` is only what we know.
pub fn compensations(
    flows: oncekey::flow::Builder<Db>,
    partners: &Arc<Partners>,
) -> oncekey::flow::Builder<Db> {
    let (warehouse, cards) = (partners.warehouse.clone(), partners.cards.clone());
    let release = move |of: String, _: Did<()>, key: String| {
        let done = warehouse.take_back(&key, &of, "released", "reserved").map_err(no_answer);
        async move { done }
    };
    let refund = move |of: String, _: Did<()>, key: String| {
        let done = cards.take_back(&key, &of, "refunded", "charged").map_err(no_answer);
        async move { done }
    };
    flows
        .compensation("release", Compensation::new(release))
        .compensation("refund", Compensation::new(refund))
}

pub fn flows(store: Db, partners: Partners, options: oncekey::flow::Options) -> Flows<Db> {
    let partners = Arc::new(partners);
    let flows = Flows::builder(store, "saga").options(options).flow(place(Arc::clone(&partners)));
    compensations(flows, &partners).build().expect("names that differ")
}
