//! Whether the checker finds what is wrong, and nothing else.

use std::sync::Arc;

use oncekey::clock::SystemClock;
use oncekey::core::MemoryStore;

use super::SPANS;
use super::callers::{Handles, Plan, run};
use super::checker::{Rule, Violation, check};
use super::liar::{Bug, Liar};

/// Enough for dozens of occasions of every bug.
const CALLS: u64 = 20_000;

async fn history_of(bug: Bug, seed: u64) -> Vec<Violation> {
    let liar = Liar::new(bug, MemoryStore::new(Arc::new(SystemClock)));
    let handles = Handles::new(vec![Arc::new(liar)]);
    let plan = Plan { seed, calls: CALLS, part: 0, abandons: 50 };
    check(&run(&handles, plan).await, SPANS)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_honest_store_is_not_accused() {
    let found = history_of(Bug::None, 7).await;
    assert!(found.is_empty(), "{} violations, first {}", found.len(), found[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_planted_bug_is_caught() {
    for bug in Bug::ALL {
        let expected = match bug {
            Bug::None => &[][..],
            Bug::GrantsTwice | Bug::TakesOverEarly => &[Rule::OneAtATime],
            Bug::RepeatsAFence => &[Rule::OneOwner],
            Bug::LowersAFence => &[Rule::FencesRise],
            Bug::ForgetsACompletion | Bug::ForgetsASend | Bug::ForgetsARelease => &[Rule::Present],
            Bug::ForgetsARenewal => &[Rule::Present],
            Bug::ForgetsAClaim => &[Rule::Reason],
            Bug::AppliesAFencedWrite | Bug::DeniesACompletion => &[Rule::Explained],
            Bug::AcceptsAFencedWrite => &[Rule::Fenced],
            Bug::DeniesAClaim => &[Rule::OneOwner],
            Bug::ChangesAnAnswer => &[Rule::Immutable],
            Bug::ShowsThePast => &[Rule::Present, Rule::FencesRise],
        };
        // How callers meet is up to the machine: on a quick one some bugs have no occasion in a
        // history, or only to break another rule. So each gets as many as it takes, up to a bound.
        let mut rules: Vec<Rule> = Vec::new();
        for seed in 7..47 {
            rules.extend(history_of(bug, seed).await.iter().map(|violation| violation.rule));
            if !rules.is_empty() && expected.iter().all(|rule| rules.contains(rule)) {
                break;
            }
        }
        assert!(!rules.is_empty(), "{bug:?} is not noticed");
        for rule in expected {
            assert!(rules.contains(rule), "{bug:?} breaks {rule:?}, but only {rules:?} are found");
        }
    }
}
