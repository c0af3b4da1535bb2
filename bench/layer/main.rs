//! Measures what the layer adds to a request, beside the same for the crate `idempotent`.
//!
//! ```text
//! cargo xtask bench layer [-- --quick | --rounds 15 | --json figures.json | --strict]
//! ```
//!
//! The service is an axum router in this process that is called without a socket; the peer's is
//! the same in a process of its own. With and without a layer, and ours and the peer's, are
//! measured in turns, and the medians of the differences count. What is compared is processor
//! time of all threads, which does not depend on what else the machine does; the wall is shown
//! too. Another program counts allocations, because counting costs time.
//!
//! It ends with the bars that the layer is held to.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a report is what it is for")]

mod answer;
mod bars;
mod child;
mod clock;
mod drive;
mod grid;
mod ours;
mod rounds;
mod service;
mod waiters;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use oncekey_bench::machine::{self, Machine};
use oncekey_bench::{Result, bars as report};
use serde_json::json;

use crate::child::{Child, Peer};
use crate::grid::Grid;
use crate::waiters::Crowd;

/// Measures what the layer adds to a request, beside the same for the crate `idempotent`.
#[derive(Debug, Parser)]
struct Arguments {
    /// How often everything is measured; the medians count.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Requests for one figure in one round.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    requests: u32,
    /// The folder for the SQLite store. Default: the system's temporary folder, if it is on a
    /// disk.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Writes every figure of every round into this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// One short round, to see that it works. Its figures mean little.
    #[arg(long)]
    quick: bool,
    /// Ends with 1 if a bar is missed or could not be measured.
    #[arg(long)]
    strict: bool,
    /// Measures what the input asks for, for profilers: `echo new 1 20000 | bench-layer --answer`.
    #[arg(long)]
    answer: bool,
}

/// What is measured, where and how long.
#[derive(Debug)]
struct Plan {
    folder: PathBuf,
    rounds: usize,
    requests: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.answer {
        answer::answer(ours::memory_lanes, clock::times);
        return ExitCode::SUCCESS;
    }
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let parent = arguments.folder.clone().map_or_else(machine::default_folder, Ok)?;
    let folder = tempfile::Builder::new().prefix("oncekey-bench-").tempdir_in(&parent)?;
    let mut machine = Machine::look(folder.path())?;
    let (rounds, requests) =
        if arguments.quick { (1, 2_000) } else { (arguments.rounds, arguments.requests) };
    let plan = Plan {
        folder: folder.path().to_owned(),
        rounds: usize::try_from(rounds)?,
        requests: usize::try_from(requests)?,
    };
    machine.add("measured", format!("{rounds} rounds of {requests} requests for each figure"));

    let crowd = Crowd::measure(&plan)?;
    let mut peer = Peer::start().map_err(|error| error.to_string());
    let mut counting = Child::of_ours("bench-layer-allocations")?;
    let grid = Grid::measure(&plan, peer.as_mut().ok(), &mut counting)?;
    let no_peer = peer.as_ref().err().map(|why| format!("no peer: {why}"));
    machine.add("peer", no_peer.clone().unwrap_or_else(|| PEER.to_owned()));
    machine.add("load after", machine::load());
    machine.add("took", format!("{:.0} s", clock::wall().as_secs_f64()));

    let mut bars = bars::of_grid(&grid, no_peer.as_deref());
    bars.extend(bars::of_crowd(&crowd));
    println!("{}", machine.text());
    println!("{}", grid.text());
    println!("{}", crowd.text());
    println!("{}", report::text(&bars));
    if let Some(path) = &arguments.json {
        let everything = json!({
            "machine": machine.to_json(),
            "table": grid.to_json(),
            "waiters": crowd.to_json(),
            "bars": report::to_json(&bars),
        });
        std::fs::write(path, serde_json::to_vec_pretty(&everything)?)?;
    }
    let missed = arguments.strict && !report::are_met(&bars);
    Ok(if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What stands in the template of the scratch project.
const PEER: &str = "idempotent 2.0.0, its memory store, default settings";
