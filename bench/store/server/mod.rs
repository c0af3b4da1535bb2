//! The stores on servers: each beside what its server can do at most, and beside the way in which
//! it is usually done.
//!
//! The *unbatched* way is the naive one: a transaction that inserts the key and one that updates it
//! with the answer, on as many connections as the store has. *By hand* is the limit of the server:
//! as many rows in one statement as there are callers, without a decision, without a fence.

mod by_hand;
mod dynamodb;
mod mysql;
mod pool;
mod postgres;
mod redis;
mod redis_benchmark;

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use oncekey::core::{Claim, Claimed, KeyId, Lease, Store};
use oncekey_bench::stats::Sample;
use oncekey_bench::table::count;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use self::by_hand::Rows;
use crate::calls::{self, Calls};
use crate::cells::{Setting, Verb, Way};
use crate::grid::Grid;
use crate::work::{self, Work};
use crate::{Plan, Result};

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Postgres,
    MariaDb,
    Redis,
    DynamoDb,
}

/// What was measured on a server, or why nothing was.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) kind: Kind,
    pub(crate) grid: std::result::Result<(Grid, String), String>,
}

/// One statement about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The key is new.
    Insert,
    /// It gets its answer.
    Update,
    /// Its answer is read.
    Select,
}

/// On how many connections the naive way is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    /// As many as the store has.
    Equal,
    /// [`WIDE`], if connections are what limits it.
    Wide,
}

/// A server with a store on it, and with a table beside it for what is written without the store.
#[async_trait]
trait Server: Send + Sync + 'static {
    /// What it is: the version, and what the figures depend on.
    fn about(&self) -> String;

    /// The store, with its defaults.
    fn store(&self) -> Arc<dyn Store>;

    /// One transaction of the naive way.
    async fn naive(&self, width: Width, step: Step, id: KeyId) -> Result<()>;

    /// How many statements by hand are under way at the same time.
    fn lanes(&self) -> usize;

    /// Inserts or updates all of these in one statement.
    async fn many(&self, step: Step, ids: Vec<KeyId>) -> Result<()>;

    /// Reads the row of the store for this key with a plain statement.
    async fn row(&self, id: KeyId) -> Result<()>;

    /// More answers than it takes in a second. So many keys are claimed before completions are measured.
    fn most_completions(&self) -> usize {
        MOST_COMPLETIONS
    }

    /// The limit of the server, if another program finds it.
    async fn limit(&self, _verb: Verb, _setting: &Setting) -> Option<Result<Sample>> {
        None
    }

    /// Who can do it.
    fn ways(&self, verb: Verb) -> &'static [Way] {
        match verb {
            Verb::Contended => &[Way::Store],
            Verb::Claim | Verb::Complete | Verb::Pair | Verb::Replay => &Way::ALL,
        }
    }

    /// Removes everything that was made.
    async fn clean(&self) -> Result<()>;
}

/// Finished keys that are replayed.
const REPLAYED: usize = 2_000;
/// The keys that are replayed have a seed of their own.
const REPLAY_SEED: u64 = 1 << 20;
/// The most claimed keys to prepare for a second of completions, and for each caller: no database or
/// Redis here is faster. The cell ends early without.
const MOST_COMPLETIONS: usize = 40_000;
const MOST_COMPLETIONS_EACH: usize = 4_000;
/// As many connections as a generous web service has to its database.
const WIDE: usize = 64;
/// How many prepare keys at the same time.
const PREPARING: usize = 256;

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Postgres, Self::MariaDb, Self::Redis, Self::DynamoDb];

    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::MariaDb => "MariaDB",
            Self::Redis => "Redis",
            Self::DynamoDb => "DynamoDB",
        }
    }

    /// Says where the server is. The same with `_WHY` behind it says why there is none.
    const fn variable(self) -> &'static str {
        match self {
            Self::Postgres => "ONCEKEY_TEST_POSTGRES",
            Self::MariaDb => "ONCEKEY_TEST_MYSQL",
            Self::Redis => "ONCEKEY_TEST_REDIS",
            Self::DynamoDb => "ONCEKEY_TEST_DYNAMODB",
        }
    }

    /// Where the server is, or why there is none.
    fn url(self) -> std::result::Result<String, String> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let variable = self.variable();
        set(variable).ok_or_else(|| {
            set(&format!("{variable}_WHY")).unwrap_or_else(|| format!("{variable} is not set"))
        })
    }

    /// `name` is in the names of all that is made.
    async fn open(self, url: &str, name: &str) -> Result<Arc<dyn Server>> {
        Ok(match self {
            Self::Postgres => Arc::new(postgres::Postgres::open(url, name).await?),
            Self::MariaDb => Arc::new(mysql::MariaDb::open(url, name).await?),
            Self::Redis => Arc::new(redis::Redis::open(url, name).await?),
            Self::DynamoDb => Arc::new(dynamodb::DynamoDb::open(url, name).await?),
        })
    }

    /// Measures everything on this server. What goes wrong is the reason why there are no figures.
    pub(crate) fn measure(self, runtime: &Runtime, plan: &Plan) -> Found {
        let grid = self.url().and_then(|url| {
            self.measure_at(&url, runtime, plan).map_err(|error| error.to_string())
        });
        Found { kind: self, grid }
    }

    fn measure_at(self, url: &str, runtime: &Runtime, plan: &Plan) -> Result<(Grid, String)> {
        let name = format!("bench_{}", std::process::id());
        let server = runtime.block_on(self.open(url, &name))?;
        let measured = measure(self, &server, runtime, plan);
        // Whatever became of it: nothing is left behind.
        runtime.block_on(server.clean())?;
        Ok((measured?, server.about()))
    }
}

impl Found {
    pub(crate) fn text(&self) -> String {
        let name = self.kind.label();
        match &self.grid {
            Ok((grid, about)) => {
                format!("{name} ({about})\n{}{}", grid.text(), wide_text(grid))
            }
            Err(why) => format!("{name}: not measured: {why}\n"),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let name = self.kind.label();
        match &self.grid {
            Ok((grid, about)) => json!({ "store": name, "about": about, "table": grid.to_json() }),
            Err(why) => json!({ "store": name, "not_measured": why }),
        }
    }
}

/// What the naive way gains from more connections than the store has.
fn wide_text(grid: &Grid) -> String {
    let mut text = String::new();
    for callers in grid.callers() {
        let wide = grid.median(Verb::Pair, callers, Way::Wide);
        let times = grid.times(Verb::Pair, callers, Way::Wide);
        if let (Some(wide), Some(times)) = (wide, times) {
            let rate = count(wide.rate);
            text.push_str(&format!(
                "claim+complete at {callers} callers, unbatched on {WIDE} connections: {rate}/s; the \
                 store is {times:.2} x as fast\n"
            ));
        }
    }
    text
}

fn measure(kind: Kind, server: &Arc<dyn Server>, runtime: &Runtime, plan: &Plan) -> Result<Grid> {
    runtime.block_on(prepare_replays(server))?;
    let ways = |verb: Verb| server.ways(verb);
    Grid::measure(kind.label(), plan, ways, |verb, way, setting| {
        runtime.block_on(run(server, verb, way, setting))
    })
}

/// Finishes the keys that are replayed, in the store and beside it.
async fn prepare_replays(server: &Arc<dyn Server>) -> Result<()> {
    let work = Work::new(REPLAY_SEED);
    let claims = (0..REPLAYED).map(|number| work.claim(number, number)).collect();
    let store = server.store();
    let leases = claimed(&store, claims).await?;
    finish(&store, &leases).await;
    let ids: Vec<_> = (0..REPLAYED).map(|number| work.key(number)).collect();
    for step in [Step::Insert, Step::Update] {
        for ids in ids.chunks(PREPARING) {
            server.many(step, ids.to_vec()).await?;
        }
    }
    Ok(())
}

/// Claims new keys, many at a time. The leases are in their order.
async fn claimed(store: &Arc<dyn Store>, claims: Vec<Claim>) -> Result<Vec<Lease>> {
    let mut leases = Vec::with_capacity(claims.len());
    for some in claims.chunks(PREPARING) {
        for claimed in join_all(some.iter().map(|claim| store.claim(claim))).await {
            let Claimed::Won { lease, .. } = claimed? else {
                return Err("a new key was refused: is this the server of another run?".into());
            };
            leases.push(lease);
        }
    }
    Ok(leases)
}

/// Completes keys, many at a time.
async fn finish(store: &Arc<dyn Store>, leases: &[Lease]) {
    let completion = work::completion();
    for some in leases.chunks(PREPARING) {
        join_all(some.iter().map(|lease| calls::complete(&**store, lease, &completion))).await;
    }
}

async fn run(server: &Arc<dyn Server>, verb: Verb, way: Way, setting: &Setting) -> Result<Sample> {
    let seed = if verb == Verb::Replay { REPLAY_SEED } else { setting.seed };
    let work = Work::new(seed);
    let prepared = if verb == Verb::Complete { completions(&**server, setting)? } else { 0 };
    if way == Way::Store {
        let store = server.store();
        let claims = (0..prepared).map(|number| work.claim(number, number)).collect();
        let leases = claimed(&store, claims).await?;
        let replayed = if verb == Verb::Replay { REPLAYED } else { 0 };
        let calls = Calls::new((verb, setting.callers), store, work, leases, replayed);
        return Ok(calls.run(setting.span).await);
    }
    if way == Way::ByHand
        && let Some(limit) = server.limit(verb, setting).await
    {
        return limit;
    }
    let rows = Rows::new(Arc::clone(server), verb, work, prepared).await?;
    match way {
        Way::ByHand => rows.by_hand(setting).await,
        Way::Store | Way::Unbatched => rows.unbatched(Width::Equal, setting).await,
        Way::Wide => rows.unbatched(Width::Wide, setting).await,
    }
}

fn completions(server: &dyn Server, setting: &Setting) -> Result<usize> {
    let each_second = server.most_completions().min(MOST_COMPLETIONS_EACH * setting.callers);
    Ok(each_second * usize::try_from(setting.span.as_millis())? / 1_000)
}
