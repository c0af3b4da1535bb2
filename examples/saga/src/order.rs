//! The saga: reserve, charge, ship. If a partner refuses, what the others did is taken back.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oncekey::flow::testing::Shaky;
use oncekey::flow::{
    Builder, Compensation, Definition, Did, Failed, Flow, Flows, Halt, Options, Reply, Safety,
    TxStore,
};
use serde::{Deserialize, Serialize};

use crate::partner::Partner;
use crate::rows::Rows;

/// What a client asks for, and the key of its request.
#[derive(Serialize, Deserialize)]
pub struct Request {
    pub key: String,
    pub article: String,
}

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
async fn trade<S: TxStore>(flow: &Flow<S>, partners: &Partners, article: &str) -> Result<(), Halt> {
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

pub fn place<S: Rows>(partners: Arc<Partners>) -> Definition<Shaky<S>> {
    Definition::new("orders.place", move |flow: Flow<Shaky<S>>, request: Request| {
        let partners = Arc::clone(&partners);
        async move {
            let Request { key, article } = request;
            let order = flow
                .phase("order_created", async |tx| Ok(S::add_order(tx, &key, &article).await?))
                .await?;
            match trade(&flow, &partners, &article).await {
                Ok(()) => {
                    flow.finish(async |tx| {
                        S::set_state(tx, order, "shipped").await?;
                        Reply::json(201, &order)
                    })
                    .await
                }
                // Our own row is ours to correct; the compensations follow.
                Err(Halt::Stop(reply)) => {
                    flow.phase("order_cancelled", async |tx| {
                        Ok(S::set_state(tx, order, "cancelled").await?)
                    })
                    .await?;
                    Err(Halt::Stop(reply))
                }
                Err(halt) => Err(halt),
            }
        }
    })
}

/// Each gets the key of the call that it takes back, and a key of its own. Whether that call arrived is
/// for the partner to know: that of `Did` is only what we know.
pub fn compensations<S: TxStore>(flows: Builder<S>, partners: &Arc<Partners>) -> Builder<S> {
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

pub fn flows<S: Rows>(store: Shaky<S>, partners: Partners, options: Options) -> Flows<Shaky<S>> {
    let partners = Arc::new(partners);
    let flows = Flows::builder(store, "saga").options(options).flow(place(Arc::clone(&partners)));
    compensations(flows, &partners).build().expect("names that differ")
}
