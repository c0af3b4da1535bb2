//! Redis: the store, and plain keys beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use oncekey::core::{KeyId, Store};
use oncekey::store::redis::RedisOptions;
use oncekey_bench::stats::Sample;
use redis::Client;
use redis::aio::MultiplexedConnection;

use super::redis_benchmark::Benchmark;
use super::{Server, Step, Width};
use crate::Result;
use crate::cells::{Setting, Verb, Way};
use crate::work::{Plain, key_text};

/// The connections of the store. All callers share them.
pub(super) const CONNECTIONS: usize = 2;

/// A day, as the seeds keep their keys.
const RETENTION: u64 = 24 * 60 * 60;

/// A server and what was made on it.
pub(super) struct Redis {
    store: Arc<dyn Store>,
    name: String,
    about: String,
    connections: Vec<MultiplexedConnection>,
    next: AtomicUsize,
    benchmark: std::result::Result<Benchmark, String>,
    plain: Plain,
}

impl Redis {
    pub(super) async fn open(url: &str, name: &str) -> Result<Self> {
        let store: Arc<dyn Store> = Arc::new(RedisOptions::new(url).prefix(name).open().await?);
        let client = Client::open(url)?;
        let mut connections = Vec::with_capacity(CONNECTIONS);
        for _ in 0..CONNECTIONS {
            connections.push(client.get_multiplexed_async_connection().await?);
        }
        let benchmark = Benchmark::prepare(url, name, &store, connections[0].clone()).await;
        let benchmark = benchmark.map_err(|error| error.to_string());
        let about = about(connections[0].clone(), &benchmark).await?;
        Ok(Self {
            store,
            name: name.to_owned(),
            about,
            connections,
            next: AtomicUsize::new(0),
            benchmark,
            plain: Plain::new(),
        })
    }

    fn connection(&self) -> MultiplexedConnection {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.connections.len();
        self.connections[number].clone()
    }
}

#[async_trait]
impl Server for Redis {
    fn about(&self) -> String {
        self.about.clone()
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// `SET NX` for the claim, `SET` for the answer.
    async fn naive(&self, _width: Width, step: Step, id: KeyId) -> Result<()> {
        let Plain { hash, headers, body, .. } = &self.plain;
        let name = format!("{}:plain:{}", self.name, key_text(&id));
        let mut connection = self.connection();
        let mut set = redis::cmd("SET");
        set.arg(&name);
        let is_done: bool = match step {
            Step::Insert => {
                set.arg(hash.as_slice()).arg("EX").arg(RETENTION).arg("NX");
                set.query_async(&mut connection).await?
            }
            Step::Update => {
                set.arg([hash.as_slice(), headers, body].concat()).arg("EX").arg(RETENTION);
                set.arg("XX").query_async(&mut connection).await?
            }
            Step::Select => {
                let found: Option<Vec<u8>> =
                    redis::cmd("GET").arg(&name).query_async(&mut connection).await?;
                found.is_some_and(|found| found.ends_with(body))
            }
        };
        if is_done { Ok(()) } else { Err("a key is missing, or was there".into()) }
    }

    fn lanes(&self) -> usize {
        CONNECTIONS
    }

    /// Only to prepare keys for the naive way: the limit is what `redis-benchmark` finds.
    async fn many(&self, step: Step, ids: Vec<KeyId>) -> Result<()> {
        let each = ids.into_iter().map(|id| self.naive(Width::Equal, step, id));
        futures_util::future::try_join_all(each).await.map(drop)
    }

    async fn row(&self, _id: KeyId) -> Result<()> {
        Err("redis-benchmark does that".into())
    }

    async fn limit(&self, verb: Verb, setting: &Setting) -> Option<Result<Sample>> {
        match &self.benchmark {
            Ok(benchmark) => Some(benchmark.run(verb, setting).await),
            Err(why) => Some(Err(why.clone().into())),
        }
    }

    fn ways(&self, verb: Verb) -> &'static [Way] {
        match verb {
            Verb::Claim | Verb::Replay if self.benchmark.is_ok() => &Way::ALL,
            // A completion needs the fence of its key, which that program cannot know.
            Verb::Claim | Verb::Complete | Verb::Pair | Verb::Replay => {
                &[Way::Store, Way::Unbatched]
            }
            Verb::Contended => &[Way::Store],
        }
    }

    async fn clean(&self) -> Result<()> {
        for pattern in [format!("{}:*", self.name), format!("{{{}*", self.name)] {
            let mut connection = self.connection();
            let mut cursor = 0_u64;
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(2_000);
                let (next, names): (u64, Vec<Vec<u8>>) = scan.query_async(&mut connection).await?;
                if !names.is_empty() {
                    let mut unlink = redis::cmd("UNLINK");
                    let _: i64 = unlink.arg(names).query_async(&mut connection).await?;
                }
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// What the figures depend on.
async fn about(
    mut connection: MultiplexedConnection,
    benchmark: &std::result::Result<Benchmark, String>,
) -> Result<String> {
    let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
    let settings: Vec<String> =
        redis::cmd("CONFIG").arg("GET").arg("append*").query_async(&mut connection).await?;
    let setting = |name: &str| {
        let place = settings.iter().position(|setting| setting == name);
        place.and_then(|place| settings.get(place + 1)).map_or("?", String::as_str).to_owned()
    };
    let by_hand = match benchmark {
        Ok(_) => {
            format!("redis-benchmark, the same script on {CONNECTIONS} connections, pipelined")
        }
        Err(why) => format!("not measured: {why}"),
    };
    Ok(format!(
        "{}, appendonly {}, appendfsync {}; by hand: {by_hand}; unbatched: SET NX and SET on \
         {CONNECTIONS} connections, pipelined",
        version.unwrap_or("?"),
        setting("appendonly"),
        setting("appendfsync")
    ))
}
