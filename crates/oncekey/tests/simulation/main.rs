//! The engine in a simulated world: seeded histories in which nodes pause and die, the store loses
//! questions and answers, clocks step and upstreams misbehave; and a checker that reads the log.
//!
//! A failing seed is run again with `ONCEKEY_SIM_SEED=n cargo test -p oncekey --test simulation`;
//! `ONCEKEY_SIM_HISTORIES=n` changes how many there are, and `ONCEKEY_SIM_FIRST=n` where they begin.

#![allow(clippy::print_stdout, reason = "the summary is what people run this test for")]

#[allow(dead_code, unreachable_pub, reason = "the core's tests use all of it")]
#[path = "../../../core/tests/broken/mod.rs"]
mod broken;
mod bugs;
mod chaos;
mod checker;
mod dice;
mod gate;
mod load;
mod log;
mod operator;
mod options;
mod run;
mod store;
mod time;
mod upstream;
mod work;
mod world;

use checker::check;
use run::history;

#[test]
fn one() {
    for seed in 0..50 {
        let h = history(seed, None);
        let v = check(&h);
        println!("{seed} {} events {:?} {}", h.events.len(), h.length, v.len());
        for v in v.iter().take(3) {
            println!("   {} @{} {}", v.rule, v.event, v.text);
        }
    }
}
