//! Measures the stores beside the raw limit of the disk, of SQLite and of the servers.
//!
//! ```text
//! cargo xtask bench store [--all] [--quick] [--large] [--callers 1,64] [--json figures.json]
//! ```
//!
//! Every figure of the store stands beside two others of the same run: the same rows written *by
//! hand*, in transactions of as many rows as there are callers, on one thread without a store;
//! and the same rows *unbatched*, one transaction per operation. All are measured in turns and
//! repeated, and the medians count, because no machine is quiet. It ends with the bars that the
//! store is held to. With `--all` the same is done on PostgreSQL, MariaDB, Redis and DynamoDB,
//! wherever the variables `ONCEKEY_TEST_*` say that there is one; `server/mod.rs` says what the
//! other two ways are there.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a report is what it is for")]

mod bars;
mod by_hand;
mod calls;
mod cells;
mod drive;
mod grid;
mod large_body;
mod large_store;
mod server;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use oncekey_bench::clock::Stopwatch;
use oncekey_bench::machine::{self, Machine};
use oncekey_bench::{Result, bars as report};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::cells::Verb;
use crate::grid::Grid;
use crate::large_body::LargeBody;
use crate::large_store::LargeStore;
use crate::server::{Found, Kind};

/// Measures the stores beside the raw limit of the disk, of SQLite and of the servers.
#[derive(Debug, Parser)]
struct Arguments {
    /// Measures the stores on servers too, wherever ONCEKEY_TEST_POSTGRES, _MYSQL, _REDIS and
    /// _DYNAMODB say that there is one. `cargo xtask bench` starts them and sets these.
    #[arg(long)]
    all: bool,
    /// Only the servers with these names, and not SQLite: postgresql, mariadb, redis, dynamodb.
    #[arg(long, value_delimiter = ',', requires = "all")]
    only: Vec<String>,
    /// Only these operations: claim, complete, claim+complete, replay, "contended claim". To look at
    /// one of them closely.
    #[arg(long, value_delimiter = ',', value_parser = Verb::named)]
    operations: Vec<Verb>,
    /// Seconds for each figure, all rounds together. Default: 2.4, or 1.5 with `--all`.
    #[arg(long)]
    seconds: Option<f64>,
    /// How often everything is measured; the medians count.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Numbers of callers.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64, 512])]
    callers: Vec<usize>,
    /// The folder to measure in. Default: the system's temporary folder, if it is on a disk.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Writes every figure of every round into this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Measures a store of millions of keys too; takes some minutes and some gigabytes.
    #[arg(long)]
    large: bool,
    /// How many millions of keys `--large` fills in.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    millions: u32,
    /// Leaves the table out: only what `--large` and the large answers measure.
    #[arg(long)]
    no_table: bool,
    /// One short round, to see that it works. Its figures mean little.
    #[arg(long)]
    quick: bool,
    /// Ends with 1 if a bar is missed.
    #[arg(long)]
    strict: bool,
}

/// What is measured, where and how long.
#[derive(Debug)]
struct Plan {
    folder: PathBuf,
    rounds: usize,
    callers: Vec<usize>,
    operations: Vec<Verb>,
    /// How long one cell runs in one round.
    span: Duration,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let watch = Stopwatch::start();
    let parent = arguments.folder.clone().map_or_else(machine::default_folder, Ok)?;
    let folder = tempfile::Builder::new().prefix("oncekey-bench-").tempdir_in(&parent)?;
    remove_when_stopped(folder.path().to_owned())?;
    let mut machine = Machine::look(folder.path())?;
    machine.add("sqlite", rusqlite::version().to_owned());
    machine.add("pragmas", by_hand::pragmas(folder.path())?);
    let plan = plan(arguments, folder.path().to_owned())?;
    let each = plan.span.as_millis();
    machine.add("measured", format!("{} rounds of {each} ms for each figure", plan.rounds));
    // Everything is printed as soon as it is known: a run that is stopped has not run for nothing.
    println!("{}", machine.text());

    let runtime = Runtime::new()?;
    let mut bars = Vec::new();
    let grid = if arguments.no_table || !arguments.only.is_empty() {
        Grid::default()
    } else {
        Grid::measure("SQLite", &plan, Verb::ways, |verb, way, setting| {
            cells::run(&runtime, verb, way, setting)
        })?
    };
    if !arguments.no_table && arguments.only.is_empty() {
        println!("SQLite\n{}", grid.text());
    }
    bars.extend(bars::of_grid(&grid, &machine));
    let found = servers(arguments, &runtime, &plan);
    bars.extend(found.iter().flat_map(bars::of_server));
    let large_body =
        if arguments.only.is_empty() { Some(LargeBody::measure(&runtime, &plan)?) } else { None };
    bars.extend(large_body.iter().flat_map(bars::of_large_body));
    let large_store = if arguments.large {
        let stored = usize::try_from(arguments.millions)? * 1_000_000;
        Some(LargeStore::measure(&runtime, &plan, stored)?)
    } else {
        None
    };
    bars.extend(large_store.iter().flat_map(|found| bars::of_large_store(found, &machine)));
    machine.add("load after", machine::load());
    machine.add("took", format!("{:.0} s", watch.elapsed().as_secs_f64()));

    println!("load after {}, {:.0} s", machine::load(), watch.elapsed().as_secs_f64());
    if let Some(found) = &large_body {
        println!("{}", found.text());
    }
    if let Some(found) = &large_store {
        println!("{}", found.text());
    }
    println!("{}", report::text(&bars));
    if let Some(path) = &arguments.json {
        let everything = json!({
            "machine": machine.to_json(),
            "table": grid.to_json(),
            "servers": found.iter().map(Found::to_json).collect::<Vec<_>>(),
            "large_body": large_body.map(|found| found.to_json()),
            "large_store": large_store.map(|found| found.to_json()),
            "bars": report::to_json(&bars),
        });
        std::fs::write(path, serde_json::to_vec_pretty(&everything)?)?;
    }
    let missed = arguments.strict && !report::are_met(&bars);
    Ok(if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Measures the stores on servers that were asked for.
fn servers(arguments: &Arguments, runtime: &Runtime, plan: &Plan) -> Vec<Found> {
    let is_wanted = |kind: &Kind| {
        let named = |name: &String| name.eq_ignore_ascii_case(kind.label());
        arguments.all && (arguments.only.is_empty() || arguments.only.iter().any(named))
    };
    let show = |kind: Kind| {
        let found = kind.measure(runtime, plan);
        println!("{}", found.text());
        found
    };
    Kind::ALL.into_iter().filter(is_wanted).map(show).collect()
}

fn plan(arguments: &Arguments, folder: PathBuf) -> Result<Plan> {
    // Half a second for a figure in each of three rounds. In half of that, 512 callers come round eight
    // times, and what is measured is how a store begins: two runs differed by a third. All stores together
    // take some eight minutes.
    let seconds = arguments.seconds.unwrap_or(if arguments.all { 1.5 } else { 2.4 });
    let (rounds, seconds) = if arguments.quick { (1, 0.2) } else { (arguments.rounds, seconds) };
    let span = Duration::try_from_secs_f64(seconds / f64::from(rounds))?;
    let callers = arguments.callers.clone();
    if callers.contains(&0) || span.is_zero() {
        return Err("no callers or no time: nothing to measure".into());
    }
    let operations = match arguments.operations.as_slice() {
        [] => Verb::ALL.to_vec(),
        some => some.to_vec(),
    };
    Ok(Plan { folder, rounds: usize::try_from(rounds)?, callers, operations, span })
}

/// Removes the files of a run that is interrupted.
fn remove_when_stopped(folder: PathBuf) -> Result<()> {
    ctrlc::set_handler(move || {
        // Whatever cannot be removed is in the system's temporary folder.
        let _ = std::fs::remove_dir_all(&folder);
        std::process::exit(130);
    })?;
    Ok(())
}
