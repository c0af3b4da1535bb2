//! The engine in a simulated world: seeded histories in which nodes pause and die, the store loses
//! questions and answers, clocks step and upstreams misbehave; and a checker that reads the log.
//!
//! A failing seed is run again with `ONCEKEY_SIM_SEED=n cargo test -p oncekey --test simulation`;
//! `ONCEKEY_SIM_HISTORIES=n` changes how many there are, and `ONCEKEY_SIM_FIRST=n` where they begin.

#![allow(clippy::print_stdout, reason = "the summary is what people run this test for")]
#![allow(clippy::wildcard_enum_match_arm, reason = "what is not looked for is passed over")]

#[allow(dead_code, unreachable_pub, reason = "the core's tests use all of it")]
#[path = "../../../core/tests/broken/mod.rs"]
mod broken;
mod bugs;
mod chaos;
mod checker;
mod crowd;
mod dice;
mod fate;
mod gate;
mod load;
mod log;
mod operator;
mod options;
mod run;
mod signal;
mod store;
mod story;
mod teeth;
mod time;
mod totals;
mod upstream;
mod work;
mod world;

use crate::checker::check;
use crate::crowd::{number_from_environment, run_all};
use crate::run::{history, journalled_history};
use crate::story::tell;

/// Histories in an ordinary run. A bug that needs more than these is looked for in long runs.
const HISTORIES: u64 = 10_000;

/// I1 to I33, L1 to L4: whatever goes wrong, every promise is kept.
#[test]
fn every_history_keeps_every_promise() {
    if let Some(seed) = number_from_environment("ONCEKEY_SIM_SEED") {
        let history = history(seed, None);
        let violations = check(&history);
        assert!(violations.is_empty(), "{}", tell(&history, &violations));
        return;
    }
    let first = number_from_environment("ONCEKEY_SIM_FIRST").unwrap_or(0);
    let histories = number_from_environment("ONCEKEY_SIM_HISTORIES").unwrap_or(HISTORIES);
    let totals = run_all(first..first + histories, history);
    totals.lines().for_each(|line| println!("{line}"));
    // A few histories need not go through everything.
    if histories >= 1_000 {
        assert_eq!(totals.missing(), Vec::<&str>::new(), "nothing of this ever happened");
    }
}

/// F4, F6: the same with journals on real disks, which makes them slow and unlike each other.
#[test]
fn every_history_with_a_journal_keeps_every_promise() {
    let first = number_from_environment("ONCEKEY_SIM_FIRST").unwrap_or(0);
    let histories = number_from_environment("ONCEKEY_SIM_HISTORIES").unwrap_or(HISTORIES) / 50;
    let totals = run_all(first..first + histories, journalled_history);
    if histories >= 100 {
        assert!(totals.has("replies: journalled"), "no journal was ever used");
        assert!(totals.has("ends from a journal"), "no journal was ever drained");
    }
}

/// The same seed is the same history, to the last event.
#[test]
fn a_seed_tells_the_same_story_twice() {
    for seed in 0..40 {
        let (once, again) = (history(seed, None), history(seed, None));
        let differs = once.events.iter().zip(&again.events).position(|(one, two)| one != two);
        if let Some(place) = differs {
            let (one, two) = (&once.events[place], &again.events[place]);
            panic!("seed {seed} differs at event {place}:\n{one:?}\n{two:?}");
        }
        assert_eq!(once.events.len(), again.events.len(), "seed {seed}");
        assert_eq!(once.length, again.length, "seed {seed}");
    }
}
