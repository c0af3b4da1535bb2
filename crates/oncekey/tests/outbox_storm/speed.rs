//! How fast a relay drains to a sink in its own process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncekey::clock::{SystemUptime, Uptime as _};
use oncekey::outbox::{Delivery, Handler, Relay, Staged};

use crate::outbox_common::{Place, made, postgres, stage_all};

const MESSAGES: usize = 50_000;

/// A figure, and a bar low enough for a busy machine and a build without optimisation.
#[test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
#[expect(clippy::print_stdout, reason = "a figure for people")]
fn a_relay_drains_fast_on_postgres() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let Place::Postgres(name) = Place::fresh("postgres", &folder) else { return };
        let store = made(postgres(&name, 8).await).await;
        for (lanes, keys) in [(1, 0), (2, 0), (1, 1_000)] {
            for part in 0..MESSAGES / 5_000 {
                let staged = (0..5_000).map(|number| {
                    let staged = Staged::raw("speed", vec![b'x'; 200]);
                    match keys {
                        0 => staged,
                        keys => staged.order_key(format!("key-{}", (part * 5_000 + number) % keys)),
                    }
                });
                stage_all(&store, staged.collect()).await;
            }
            sqlx::query("ANALYZE").execute(store.pool()).await.unwrap();
            let count = Arc::new(AtomicUsize::new(0));
            let done = Arc::clone(&count);
            let sink = Handler::new(move |_| {
                done.fetch_add(1, Ordering::Relaxed);
                async { Delivery::Sent }
            });
            let relay = Relay::new(store.clone()).route("*", sink).lanes(lanes).batch(1_000);
            let begun = SystemUptime.elapsed();
            let task = tokio::spawn(async move { relay.run(std::future::pending()).await });
            let all = async {
                while count.load(Ordering::Relaxed) < MESSAGES {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(120), all).await.expect("it is drained");
            let took = (SystemUptime.elapsed() - begun).as_secs_f64();
            let rate = f64::from(u32::try_from(MESSAGES).unwrap()) / took;
            println!("{MESSAGES} messages, {lanes} lanes, {keys} keys: {rate:.0}/s");
            assert!(rate > 500.0, "{rate}");
            // The last batch is settled, too.
            tokio::time::sleep(Duration::from_millis(500)).await;
            task.abort();
        }
    });
}
