//! `oncekey store check`: what a store says of itself.

use oncekey::core::Inspect as _;
use oncekey::core::health::{Skew, StoreHealth, Verdict};
use oncekey::store::{open_existing, shown};
use serde_json::json;

use crate::exit::{self, Exit};

pub(super) async fn run(url: &str, json: bool) -> Result<(), Exit> {
    let about = shown(url);
    let failed = |error| Exit::of_store(&about, &error);
    let store = open_existing(url).await.map_err(failed)?;
    let health = store.inspect().await.map_err(failed)?;
    crate::print(&if json { as_json(&health) } else { as_text(&health) })?;
    match health.verdict() {
        Verdict::Good | Verdict::Degraded => Ok(()),
        Verdict::Refused => Err(Exit::silent(exit::FAILURE)),
    }
}

fn as_text(health: &StoreHealth) -> String {
    let StoreHealth { name, tier, findings, skew } = health;
    let mut text = format!("{name}, {}\n", tier.label());
    for finding in findings {
        let mark = match finding.verdict {
            Verdict::Good => '✔',
            Verdict::Degraded => '⚠',
            Verdict::Refused => '✖',
        };
        text.push_str(&format!("  {mark} {:<15} {}\n", finding.check, finding.text));
    }
    if let Some(skew) = skew {
        let (side, by) = match skew {
            Skew::Ahead(by) => ("ahead of", by),
            Skew::Behind(by) => ("behind", by),
        };
        text.push_str(&format!("  its clock is {by:?} {side} this machine's\n"));
    }
    let [good, degraded, refused] = [Verdict::Good, Verdict::Degraded, Verdict::Refused]
        .map(|verdict| findings.iter().filter(|finding| finding.verdict == verdict).count());
    text.push_str(&format!("{good} good, {degraded} degraded, {refused} refused\n"));
    text
}

fn as_json(health: &StoreHealth) -> String {
    let findings = health.findings.iter().map(|finding| {
        json!({
            "check": finding.check,
            "verdict": finding.verdict.label(),
            "text": finding.text,
        })
    });
    // Above zero if the store's clock is ahead.
    let skew = health.skew.map(|skew| match skew {
        Skew::Ahead(by) => by.as_secs_f64(),
        Skew::Behind(by) => -by.as_secs_f64(),
    });
    let document = json!({
        "name": health.name,
        "tier": health.tier.label(),
        "verdict": health.verdict().label(),
        "skew_seconds": skew,
        "findings": findings.collect::<Vec<_>>(),
    });
    format!("{document:#}\n")
}
