//! `oncekey status`: a running gateway on one screen.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use serde_json::Value;

use super::args::StatusArgs;
use super::table::pairs;
use super::text::{plain, span, word};
use super::{Client, shown};
use crate::exit::Exit;

/// How often a screen is drawn again: often enough to watch, too seldom to be a load.
const EVERY: Duration = Duration::from_secs(2);
/// To the upper left, and everything after that away.
const CLEAR: &str = "\u{1b}[H\u{1b}[J";

pub(super) async fn run(args: &StatusArgs) -> Result<(), Exit> {
    if !args.watch {
        return crate::print(&ask(args).await?);
    }
    let clear = if io::stdout().is_terminal() && !args.json { CLEAR } else { "" };
    loop {
        // A gateway that is being restarted is what people watch for.
        match ask(args).await {
            Ok(screen) => crate::print(&format!("{clear}{screen}"))?,
            Err(exit) => crate::print(&format!("{clear}{}", exit.text()))?,
        }
        tokio::time::sleep(EVERY).await;
    }
}

pub(super) async fn ask(args: &StatusArgs) -> Result<String, Exit> {
    let client = Client::new(&args.target)?;
    let status = client.get("/api/v1/status").await?.document()?;
    Ok(shown(args.json, &status, || screen(&status)))
}

fn screen(status: &Value) -> String {
    let uptime = span(status["uptime_seconds"].as_u64().unwrap_or_default());
    let (version, instance) = (word(&status["version"]), word(&status["instance"]));
    let mut text = format!("oncekey {version} · {instance} · up {uptime}");
    text.push_str(if status["draining"] == true { " · DRAINING\n" } else { "\n" });
    let oldest = status["in_flight_oldest_seconds"].as_f64().unwrap_or_default();
    text.push_str(&pairs(&[
        ("store", store(&status["store"])),
        (
            "in flight",
            format!(
                "{} (oldest {oldest:.1} s), {} waiting",
                word(&status["in_flight"]),
                word(&status["waiters"])
            ),
        ),
        ("unknown", unknown(&status["unknown"])),
        ("routes", routes(&status["routes"])),
    ]));
    for finding in status["store"]["findings"].as_array().into_iter().flatten() {
        if finding["verdict"] != "good" {
            let (check, why) = (word(&finding["check"]), word(&finding["text"]));
            text.push_str(&format!("  ⚠ {check}: {why}\n"));
        }
    }
    text
}

fn store(store: &Value) -> String {
    if store["reachable"] != true {
        return format!("{} DOES NOT ANSWER: {}", word(&store["kind"]), word(&store["why"]));
    }
    let skew = match store["skew_seconds"].as_f64() {
        Some(skew) => format!(", clock {skew:+.3} s"),
        None => String::new(),
    };
    let (name, tier) = (word(&store["name"]), word(&store["tier"]));
    let claims = match store["claims"].as_str() {
        Some("answers") | None => String::new(),
        Some(trouble) => format!(", claims {}", plain(trouble)),
    };
    format!("{name}, {tier}, {}{skew}{claims}", word(&store["verdict"]))
}

fn unknown(unknown: &Value) -> String {
    match (unknown["count"].as_u64(), unknown["exact"].as_bool()) {
        (None, _) => "–".to_owned(),
        (Some(0), _) => "none".to_owned(),
        (Some(count), exact) => {
            let least = if exact == Some(true) { "" } else { "at least " };
            format!("{least}{count}  → oncekey keys list --state unknown")
        }
    }
}

fn routes(routes: &Value) -> String {
    let modes = routes.as_object().into_iter().flatten();
    let modes: Vec<String> =
        modes.map(|(mode, count)| format!("{} {}", word(count), plain(mode))).collect();
    if modes.is_empty() { "none".to_owned() } else { modes.join(", ") }
}
