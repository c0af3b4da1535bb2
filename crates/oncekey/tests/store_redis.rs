//! The Redis store keeps every promise of the suite: on one server, and on a cluster of three.

#![cfg(feature = "redis")]

use std::env;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncekey::core::conformance::Rig;
use oncekey::core::conformance::model::{Op, agrees_while_erasing, agrees_with_the_model};
use oncekey::store::redis::{RedisOptions, RedisStore};

/// Moves all times of a shard, as they are described in `store/redis/layout.rs`: those in the
/// records, those in the index of what is due, and the moment when Redis removes a record by itself.
/// The other two indexes are in the order of fences, which never move.
const SHIFT: &str = r"
    local LAST, DONE, by, sub = 9007199254740991, '\51', tonumber(ARGV[1]), string.sub
    local function moved(digits)
      local moment = tonumber(digits)
      if moment >= LAST then return digits end
      return string.format('%016.0f', math.max(0, moment + by))
    end
    for place = 1, 3 do
      local index = redis.call('ZRANGE', KEYS[place], 0, -1, 'WITHSCORES')
      for i = 1, #index, 2 do
        local id = index[i]
        if place == 3 then
          redis.call('ZADD', KEYS[3], moved(string.format('%016.0f', tonumber(index[i + 1]))), id)
        end
        local key = KEYS[4] .. id
        local found = redis.call('HGET', key, 'r')
        local is_done = found and sub(found, 101, 101) == DONE
        if found and place < 3 and is_done == (place == 2) then
          local record = sub(found, 1, 83) .. moved(sub(found, 84, 99)) .. sub(found, 100, 101)
            .. moved(sub(found, 102, 117)) .. sub(found, 118)
          if is_done then
            record = sub(record, 1, -89) .. moved(sub(record, -88, -73))
              .. moved(sub(record, -72, -57)) .. sub(record, -56)
          end
          redis.call('HSET', key, 'r', record)
          local forget = is_done and tonumber(sub(record, -72, -57)) or LAST
          if forget < LAST then
            redis.call('PEXPIREAT', key, string.format('%.0f', math.floor(forget / 1000) + 604800000))
          end
        end
      end
    end
    return 1";

/// How long a busy machine may take to move the times of 256 shards.
const PATIENCE: Duration = Duration::from_secs(30);

/// A prefix of its own on a server that others use too.
struct PrefixRig {
    url: String,
    prefix: String,
    store: Mutex<Arc<RedisStore>>,
}

fn url_of(variable: &str) -> String {
    env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run `cargo xtask test`, or `cargo xtask servers` and its exports")
    })
}

async fn one_server() -> PrefixRig {
    PrefixRig::new(url_of("ONCEKEY_TEST_REDIS")).await
}

async fn a_cluster() -> PrefixRig {
    PrefixRig::new(format!("redis+cluster://{}", url_of("ONCEKEY_TEST_REDIS_CLUSTER"))).await
}

impl PrefixRig {
    async fn new(url: String) -> Self {
        static RIGS: AtomicU32 = AtomicU32::new(0);
        let mut salt = [0; 8];
        getrandom::fill(&mut salt).expect("random bits");
        let number = RIGS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("rig-{:016x}-{number}", u64::from_be_bytes(salt));
        let store = Mutex::new(Arc::new(open(&url, &prefix).await));
        Self { url, prefix, store }
    }

    /// Moves all stored times of this rig, which looks as if the clock had moved the other way.
    async fn shift(&self, micros: i64) {
        let shards = (0..=255_u8).map(|shard| {
            let mut command = redis::cmd("EVAL");
            command.arg(SHIFT).arg(4);
            for kind in ["o", "d", "x", "r"] {
                command.arg(format!("{{{}:{shard:02x}}}{kind}", self.prefix));
            }
            command.arg(micros);
            command
        });
        if let Some(nodes) = self.url.strip_prefix("redis+cluster://") {
            let nodes = nodes.split(',').map(|node| format!("redis://{node}"));
            let builder = redis::cluster::ClusterClientBuilder::new(nodes);
            let client = builder.response_timeout(PATIENCE).build().expect("a cluster");
            let connection = client.get_async_connection().await.expect("a cluster");
            run(connection, shards).await;
        } else {
            let client = redis::Client::open(self.url.as_str()).expect("a redis:// URL");
            let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
            let connection = client.get_multiplexed_async_connection_with_config(&config).await;
            let connection = connection.expect("Redis");
            run(connection, shards).await;
        }
    }
}

async fn run<C: redis::aio::ConnectionLike + Clone>(
    connection: C,
    commands: impl Iterator<Item = redis::Cmd>,
) {
    let runs = commands.map(|command| {
        let mut connection = connection.clone();
        async move { command.query_async::<i64>(&mut connection).await.expect("times are moved") }
    });
    futures_util::future::join_all(runs).await;
}

async fn open(url: &str, prefix: &str) -> RedisStore {
    RedisOptions::new(url)
        .prefix(prefix)
        .timeouts(PATIENCE, PATIENCE)
        .open()
        .await
        .expect("the store opens")
}

impl Rig for PrefixRig {
    type Store = RedisStore;

    fn store(&self) -> Arc<RedisStore> {
        Arc::clone(&self.store.lock().expect("no test panics while it holds this"))
    }

    async fn reopen(&self) -> Arc<RedisStore> {
        let store = Arc::new(open(&self.url, &self.prefix).await);
        *self.store.lock().expect("no test panics while it holds this") = Arc::clone(&store);
        store
    }

    async fn advance(&self, by: Duration) {
        self.shift(-micros(by)).await;
    }

    async fn step_back(&self, by: Duration) {
        self.shift(micros(by)).await;
    }
}

fn micros(by: Duration) -> i64 {
    i64::try_from(by.as_micros()).expect("a span of a test")
}

mod on_one_server {
    oncekey::core::conformance!(
        #[ignore = "needs Redis: run cargo xtask test"]
        async || super::one_server().await
    );
    oncekey::core::browse_conformance!(
        #[ignore = "needs Redis: run cargo xtask test"]
        async || super::one_server().await
    );
    oncekey::core::erase_conformance!(
        #[ignore = "needs Redis: run cargo xtask test"]
        async || super::one_server().await
    );
    oncekey::core::erase_browse_conformance!(
        #[ignore = "needs Redis: run cargo xtask test"]
        async || super::one_server().await
    );
    oncekey::core::wake_conformance!(
        #[ignore = "needs Redis: run cargo xtask test"]
        async || super::one_server().await
    );
    oncekey::core::restore_conformance!(
        #[ignore = "needs Redis: run cargo xtask test"]
        async || super::one_server().await
    );
    oncekey::core::restore_browse_conformance!(
        #[ignore = "needs Redis: run cargo xtask test"]
        async || super::one_server().await
    );
}

mod on_a_cluster {
    oncekey::core::conformance!(
        #[ignore = "needs a Redis cluster: run cargo xtask test"]
        async || super::a_cluster().await
    );
    oncekey::core::browse_conformance!(
        #[ignore = "needs a Redis cluster: run cargo xtask test"]
        async || super::a_cluster().await
    );
    oncekey::core::erase_conformance!(
        #[ignore = "needs a Redis cluster: run cargo xtask test"]
        async || super::a_cluster().await
    );
    oncekey::core::erase_browse_conformance!(
        #[ignore = "needs a Redis cluster: run cargo xtask test"]
        async || super::a_cluster().await
    );
    oncekey::core::wake_conformance!(
        #[ignore = "needs a Redis cluster: run cargo xtask test"]
        async || super::a_cluster().await
    );
    oncekey::core::restore_conformance!(
        #[ignore = "needs a Redis cluster: run cargo xtask test"]
        async || super::a_cluster().await
    );
    oncekey::core::restore_browse_conformance!(
        #[ignore = "needs a Redis cluster: run cargo xtask test"]
        async || super::a_cluster().await
    );
}

/// Random histories: the store says what the decision tables say, and shows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: run cargo xtask test"]
async fn one_server_agrees_with_the_model_in_every_history() {
    for seed in 0..16 {
        agrees_with_the_model(&one_server().await, &Op::history(seed, 60)).await;
        agrees_while_erasing(&one_server().await, &Op::history(seed + 1_000, 60)).await;
    }
    agrees_with_the_model(&one_server().await, &Op::history(7, 600)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Redis cluster: run cargo xtask test"]
async fn a_cluster_agrees_with_the_model_in_every_history() {
    for seed in 0..6 {
        agrees_with_the_model(&a_cluster().await, &Op::history(seed, 60)).await;
        agrees_while_erasing(&a_cluster().await, &Op::history(seed + 1_000, 60)).await;
    }
}
