//! Measures what the safety of a flow costs, on PostgreSQL.
//!
//! ```text
//! cargo xtask bench flow [-- --quick | --rounds 5 | --seconds 5 | --json figures.json | --strict]
//! ```
//!
//! The same request (a row, a keyed call of a foreign system, a staged receipt, a reply) by hand and
//! without any safety, as a flow, with the statements of rocket-rides, and as a workflow of the crate
//! `durare`. They take turns on one server with as many connections each. It ends with the relay, and
//! with the bars that flows are held to.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a report is what it is for")]

mod bars;
mod by_hand;
mod drive;
mod grid;
mod ours;
mod stub;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use oncekey_bench::machine::{self, Machine};
use oncekey_bench::{Result, bars as report};
use serde_json::json;

use crate::grid::{Contender, Grid, Plan};

/// Measures what the safety of a flow costs, on PostgreSQL.
#[derive(Debug, Parser)]
struct Arguments {
    /// How often everything is measured; the medians count.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// How long each figure is measured in each round.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Writes every figure into this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// One short round, to see that it works. Its figures mean little.
    #[arg(long)]
    quick: bool,
    /// Only one contender and no relay, to see where its time goes. No bar is met then.
    #[arg(long)]
    only: Option<Contender>,
    /// Ends with 1 if a bar is missed or could not be measured.
    #[arg(long)]
    strict: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Arguments::parse()).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<ExitCode> {
    let url = std::env::var("ONCEKEY_TEST_POSTGRES").map_err(|_| {
        let why = std::env::var("ONCEKEY_TEST_POSTGRES_WHY").unwrap_or_default();
        format!("there is no PostgreSQL: run `cargo xtask bench flow` {why}")
    })?;
    let plan = match arguments.quick {
        true => Plan {
            rounds: 1,
            span: Duration::from_millis(500),
            staged: 5_000,
            only: arguments.only,
        },
        false => Plan {
            rounds: usize::try_from(arguments.rounds)?,
            span: Duration::from_secs(arguments.seconds),
            staged: 50_000,
            only: arguments.only,
        },
    };
    let mut machine = Machine::look(&machine::default_folder()?)?;
    machine.add("measured", format!("{} rounds of {:?} for each figure", plan.rounds, plan.span));
    let grid = Grid::measure(&plan, &url).await?;
    machine.add("peer", grid.peer_text());
    machine.add("load after", machine::load());
    let bars = bars::of(&grid);
    println!("{}", machine.text());
    println!("{}", grid.text());
    println!("{}", report::text(&bars));
    if let Some(path) = &arguments.json {
        let everything = json!({
            "machine": machine.to_json(),
            "figures": grid.to_json(),
            "bars": report::to_json(&bars),
        });
        std::fs::write(path, serde_json::to_string_pretty(&everything)?)?;
    }
    let failed = arguments.strict && !report::are_met(&bars);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
