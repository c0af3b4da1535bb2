//! Random calls by many callers, with random faults; every call and every answer is written down and
//! checked afterwards.
//!
//! `ONCEKEY_HISTORY_OPS` says how many calls there are, `ONCEKEY_HISTORY_SEED` repeats the draws of a
//! run. The calls themselves run at the same time and never meet twice in the same way.

mod book;
mod callers;
mod checker;
mod liar;
mod log;
mod teeth;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncekey::core::Erase;
use oncekey::store::sqlite::SqliteOptions;

use self::book::Spans;
use self::callers::{Handles, Plan, Totals, run};
use self::checker::check;
use crate::common::proxy::{Fault, How, Proxy, Then, Way};
use crate::common::{Bits, say};
use crate::place::{Kind, Manner, Place};

/// Short enough that every record lives through everything within a second.
pub(crate) const SPANS: Spans = Spans {
    lease: Duration::from_millis(80),
    grace: Duration::from_millis(10),
    retention: Duration::from_millis(150),
    linger: Duration::from_millis(100),
};

/// The calls of a part of a history. Each part has keys of its own and is checked by itself, so that a
/// long history takes no more memory than a short one.
const PART: u64 = 25_000;

/// How many violations are shown: the first few tell the story, or nothing does.
const SHOWN: usize = 12;

fn number_of(variable: &str, default: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.map_or(default, |number| {
        number.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {number}"))
    })
}

/// Runs a whole history in parts, and checks each.
async fn check_history(name: &str, handles: &Handles, abandons: u64) {
    let calls = number_of("ONCEKEY_HISTORY_OPS", 100_000);
    let seed = number_of("ONCEKEY_HISTORY_SEED", 0x5eed);
    say(&format!("{name}: {calls} calls with ONCEKEY_HISTORY_SEED={seed}"));
    let mut totals = Totals::default();
    for part in 0..calls.div_ceil(PART) {
        let plan = Plan { seed: seed.wrapping_add(part), calls: PART, part, abandons };
        let events = run(handles, plan).await;
        totals.add(&events);
        let found = check(&events, SPANS);
        for violation in found.iter().take(SHOWN) {
            say(&format!("{name}: {violation}"));
        }
        let (seed, count) = (plan.seed, found.len());
        assert_eq!(count, 0, "{name}: violations in part {part}, seed {seed}");
        if (part + 1).is_multiple_of(10) {
            say(&format!("{name}: {totals:?} so far"));
        }
    }
    say(&format!("{name}: {totals:?}, no violation"));
    totals.must_be_varied();
}

/// Breaks the way in all the ways there are, until it is told to stop.
async fn sabotage(proxy: Arc<Proxy>, is_over: Arc<AtomicBool>, seed: u64) {
    let mut bits = Bits::seeded(seed);
    while !is_over.load(Ordering::Relaxed) {
        let how = if bits.below(2) == 0 { How::Reset } else { How::Fin };
        let way = Way::BOTH[bits.index(2)];
        let after = bits.index(6_000);
        match bits.below(10) {
            0 => proxy.end_all(how),
            1..=3 => proxy.set(Fault::Cut { way, after, how, then: Then::Heal }),
            4 => proxy.set(Fault::Cut { way, after, how, then: Then::Refuse }),
            5 => proxy.set(Fault::Lose(way)),
            6 | 7 => proxy.set(Fault::Delay(way, Duration::from_millis(1 + bits.below(12)))),
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(10 + bits.below(60))).await;
        proxy.heal();
        tokio::time::sleep(Duration::from_millis(30 + bits.below(300))).await;
    }
}

/// Two stores behind a way that breaks again and again, and one beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn postgres_keeps_its_promises_in_random_histories() {
    let place = Place::on_shared(Kind::Postgres).await;
    // Makes the tables, for which there is more time than for an answer.
    drop(place.open_calmly().await);
    let proxy = Arc::new(Proxy::start(place.port()).await);
    let manner = Manner { patience: Duration::from_millis(250), connections: 2 };
    let mut stores: Vec<Arc<dyn Erase>> = Vec::new();
    for port in [proxy.port(), proxy.port(), place.port()] {
        stores.push(Arc::new(place.open(port, manner).await.expect("the store opens")));
    }
    let handles = Handles::new(stores);
    let is_over = Arc::new(AtomicBool::new(false));
    let seed = number_of("ONCEKEY_HISTORY_SEED", 0x5eed);
    let sabotage = tokio::spawn(sabotage(Arc::clone(&proxy), Arc::clone(&is_over), seed));
    check_history("PostgreSQL", &handles, 50).await;
    is_over.store(true, Ordering::Relaxed);
    sabotage.await.expect("nothing goes wrong there");
    say(&format!("PostgreSQL: {} cuts", proxy.cuts()));
    drop(handles);
    place.clean().await;
}

/// Three handles on one file; callers are dropped midway, and handles are closed and opened anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn sqlite_keeps_its_promises_in_random_histories() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oncekey.db");
    let open = move || -> Arc<dyn Erase> {
        Arc::new(SqliteOptions::new(&path).small_map(500).open().expect("the file opens"))
    };
    let handles = Handles::new(vec![open(), open(), open()]);
    let is_over = Arc::new(AtomicBool::new(false));
    let renewing = {
        let (handles, is_over) = (handles.clone(), Arc::clone(&is_over));
        tokio::task::spawn_blocking(move || {
            let mut bits = Bits::seeded(1);
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(100 + bits.below(300)));
                // The old one closes when the last call on it has ended.
                handles.replace(bits.index(3), open());
            }
        })
    };
    check_history("SQLite", &handles, 8).await;
    is_over.store(true, Ordering::Relaxed);
    renewing.await.expect("nothing goes wrong there");
}
