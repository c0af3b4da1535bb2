//! What the tests of flows share: a database, a toy provider that dedupes by key, a flow.
#![allow(dead_code, missing_debug_implementations, unreachable_pub)]

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncekey::core::{Key, Scope};
use oncekey::flow::sqlx::SqlxSqlite;
use oncekey::flow::{
    Definition, Failed, Finished, Flow, FlowKey, Flows, Halt, Options, PhaseTx, Reply, Safety,
    migrate,
};

pub type Store = SqlxSqlite;
pub type Boxed = Pin<Box<dyn Future<Output = Result<Finished, Halt>> + Send>>;

pub struct Rig {
    _folder: tempfile::TempDir,
    pub store: Store,
}

impl Rig {
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("app.db")).await.unwrap();
        migrate(&store).await.unwrap();
        let tables = "CREATE TABLE rides (id INTEGER PRIMARY KEY, name TEXT, charge TEXT) STRICT";
        sqlx::query(tables).execute(store.pool()).await.unwrap();
        Self { _folder: folder, store }
    }

    pub async fn flows(&self, definition: Definition<Store>) -> Flows<Store> {
        self.flows_in("test", definition).await
    }

    pub async fn flows_in(
        &self,
        space: &'static str,
        definition: Definition<Store>,
    ) -> Flows<Store> {
        // Without pauses between attempts: whoever asks again goes on with the flow.
        let options = Options { pause: Duration::ZERO, ..Options::default() };
        let flows = Flows::builder(self.store.clone(), space).flow(definition);
        flows.options(options).build().unwrap()
    }

    pub async fn count(&self, table: &'static str) -> i64 {
        let sql = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        sqlx::query_scalar(sql).fetch_one(self.store.pool()).await.unwrap()
    }
}

pub fn key(text: &str) -> FlowKey {
    key_of("shared", text)
}

pub fn key_of(scope: &str, text: &str) -> FlowKey {
    FlowKey::new(Scope::new(scope).unwrap(), Key::new(text.as_bytes()).unwrap())
}

/// A payment provider that dedupes by key and counts by itself.
#[derive(Clone, Default)]
pub struct Provider {
    ledger: Arc<Mutex<HashMap<String, String>>>,
    calls: Arc<AtomicUsize>,
    pub decline: Arc<AtomicBool>,
    /// So many answers are lost after the charge was made.
    pub lose_answers: Arc<AtomicUsize>,
    /// So many calls do not arrive, which the caller cannot tell.
    pub unreachable: Arc<AtomicUsize>,
    /// So many calls are turned away, and the caller is told so.
    pub busy: Arc<AtomicUsize>,
}

fn one_less(counter: &AtomicUsize) -> bool {
    counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Provider {
    pub async fn charge(&self, key: &str, _amount: i64) -> Result<String, Failed> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        if one_less(&self.unreachable) {
            return Err(Failed::Unknown("no answer".to_owned()));
        }
        if one_less(&self.busy) {
            return Err(Failed::NotDone("busy".to_owned()));
        }
        if self.decline.load(Ordering::SeqCst) {
            return Err(Failed::Final(Reply::empty(402)));
        }
        let id = {
            let mut ledger = self.ledger.lock().unwrap();
            let next = format!("ch_{}", ledger.len() + 1);
            ledger.entry(key.to_owned()).or_insert(next).clone()
        };
        match one_less(&self.lose_answers) {
            true => Err(Failed::Unknown("the answer was lost".to_owned())),
            false => Ok(id),
        }
    }

    pub fn find(&self, key: &str) -> Option<String> {
        self.ledger.lock().unwrap().get(key).cloned()
    }

    pub fn charges(&self) -> usize {
        self.ledger.lock().unwrap().len()
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    pub fn keys(&self) -> Vec<String> {
        self.ledger.lock().unwrap().keys().cloned().collect()
    }
}

pub async fn insert_ride(tx: &mut PhaseTx<Store>, name: &str) -> Result<i64, Halt> {
    let done = sqlx::query("INSERT INTO rides (name) VALUES (?)")
        .bind(name.to_owned())
        .execute(&mut **tx)
        .await?;
    Ok(done.last_insert_rowid())
}

/// Insert, charge, insert: started, order_created, charge_created, finished.
pub fn charge_flow(provider: &Provider) -> Definition<Store> {
    let provider = provider.clone();
    Definition::new("rides.create", move |flow: Flow<Store>, amount: i64| {
        let provider = provider.clone();
        async move {
            let ride =
                flow.phase("order_created", async |tx| insert_ride(tx, "ride").await).await?;
            let window = Duration::from_secs(86_400);
            let charge: String = flow
                .effect("charge_created", Safety::Keyed { window })
                .bind(&(ride, amount))
                .call(async |key| provider.charge(key, amount).await)
                .await?;
            flow.finish(async |tx| {
                sqlx::query("UPDATE rides SET charge = ? WHERE id = ?")
                    .bind(charge)
                    .bind(ride)
                    .execute(&mut **tx)
                    .await?;
                Reply::json(201, &ride)
            })
            .await
        }
    })
}
