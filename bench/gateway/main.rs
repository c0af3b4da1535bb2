//! Measures requests through the gateway, beside nginx in front of the same service.
//!
//! ```text
//! cargo xtask bench gateway [-- --quick | --rounds 9 | --json figures.json | --strict | --all]
//! ```
//!
//! A small service in a process of its own; nginx as a plain proxy and the release build of the
//! gateway in front of it; wrk drives each of them with the same requests, in turns, and the medians
//! count. Everything shares one machine: figures say how the servers compare, not what each could do
//! alone. At half load connections rest between requests, and the percentiles count. A replay that
//! reaches the service ends the benchmark.
//!
//! It ends with the bars that the gateway is held to.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a report is what it is for")]

mod allocations;
mod bars;
mod client;
mod footprint;
mod grid;
mod operation;
mod postgres;
mod rounds;
mod servers;
mod upstream;
mod wrk;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;
use oncekey_bench::clock::Stopwatch;
use oncekey_bench::machine::{self, Machine};
use oncekey_bench::table::count;
use oncekey_bench::{Result, bars as report};
use serde_json::json;

use crate::allocations::Allocations;
use crate::footprint::Footprint;
use crate::operation::Side;
use crate::postgres::Schema;
use crate::servers::Server;

/// Measures requests through the gateway, beside nginx in front of the same service.
#[derive(Debug, Parser)]
struct Arguments {
    /// How often everything is measured; the medians count.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds for one figure in one round.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// The gateway to measure. Default: the program `oncekey` beside this one.
    #[arg(long)]
    gateway: Option<PathBuf>,
    /// Workers of nginx. Default: one for each core.
    #[arg(long)]
    nginx_workers: Option<usize>,
    /// The folder for stores and logs. Default: the system's temporary folder, if it is on a disk.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Writes every figure of every round into this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// One round of a second each, to see that it works. Its figures mean little.
    #[arg(long)]
    quick: bool,
    /// Ends with 1 if a bar is missed or could not be measured.
    #[arg(long)]
    strict: bool,
    /// For `cargo xtask`: have PostgreSQL started. Here ONCEKEY_TEST_POSTGRES says where it is.
    #[arg(long)]
    all: bool,
    /// Be the service, on this port.
    #[arg(long, hide = true)]
    upstream: Option<u16>,
}

/// Everything that runs while it is measured.
#[derive(Debug)]
struct Scene {
    /// In the order in which they take turns.
    servers: Vec<(Side, Server)>,
    upstream: Server,
    script: PathBuf,
    /// What keys begin with.
    name: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = match arguments.upstream {
        Some(port) => upstream::serve(port).map(|()| ExitCode::SUCCESS),
        None => run(&arguments),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let watch = Stopwatch::start();
    let parent = arguments.folder.clone().map_or_else(machine::default_folder, Ok)?;
    let folder = tempfile::Builder::new().prefix("oncekey-bench-").tempdir_in(&parent)?;
    let mut machine = Machine::look(folder.path())?;
    let (rounds, seconds) = match arguments.quick {
        true => (1, 1),
        false => (arguments.rounds, arguments.seconds),
    };
    let program = program(arguments)?;
    let workers = arguments.nginx_workers.unwrap_or(machine.cores);
    machine.add("measured", format!("{rounds} rounds of {seconds} s for each figure"));
    machine.add("load", format!("wrk, 1 thread, {} connections", wrk::CONNECTIONS));
    machine.add("nginx", format!("{workers} workers, kept connections both ways, no log"));

    let upstream = Server::upstream(folder.path())?;
    let mut footprint = Footprint::measure(&program, folder.path(), upstream.port)?;
    let counting = program.with_file_name("oncekey-counting");
    let allocations = Allocations::measure(&counting, folder.path(), upstream.port);
    let schema = Schema::of_environment()?;
    let scene = Scene::start(&program, folder.path(), upstream, workers, schema.as_ref())?;
    let full = scene.full(usize::try_from(rounds)?, seconds)?;
    let (half, target) = scene.half(&full, seconds)?;
    footprint.after = scene.of(Side::Sqlite).map(Server::megabytes);
    drop(scene);
    schema.map(Schema::remove).transpose()?;
    machine.add("load after", machine::load());
    machine.add("took", format!("{:.0} s", watch.elapsed().as_secs_f64()));

    let mut bars = bars::of_grid(&full);
    bars.push(bars::of_half(&half, &machine));
    bars.extend(bars::of_footprint(&footprint));
    println!("{}", machine.text());
    println!("{}", full.text());
    println!("At half load, {} requests per second:\n{}", count(target), half.text());
    print!("{}", footprint.text());
    match &allocations {
        Ok(allocations) => println!("{}", allocations.text()),
        Err(why) => println!("allocations not counted: {why}\n"),
    }
    println!("{}", report::text(&bars));
    if let Some(path) = &arguments.json {
        let everything = json!({
            "machine": machine.to_json(),
            "full": full.to_json(),
            "half": half.to_json(),
            "footprint": footprint.to_json(),
            "allocations": allocations.as_ref().ok().map(Allocations::to_json),
            "bars": report::to_json(&bars),
        });
        std::fs::write(path, serde_json::to_vec_pretty(&everything)?)?;
    }
    let missed = arguments.strict && !report::are_met(&bars);
    Ok(if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Scene {
    fn start(
        program: &Path,
        folder: &Path,
        upstream: Server,
        workers: usize,
        schema: Option<&Schema>,
    ) -> Result<Self> {
        let script = folder.join("requests.lua");
        std::fs::write(&script, include_str!("requests.lua"))?;
        let sqlite = format!("sqlite://{}/keys.db", folder.display());
        let gateway =
            |store: &str| Server::gateway(Command::new(program), folder, upstream.port, store);
        let mut servers = vec![
            (Side::Direct, Server::upstream(folder)?),
            (Side::Nginx, Server::nginx(folder, upstream.port, workers)?),
            (Side::Sqlite, gateway(&sqlite)?),
        ];
        if let Some(schema) = schema {
            servers.push((Side::Postgres, gateway(schema.url())?));
        }
        // As long as those that clients make: a gateway warns of keys that are easy to guess.
        let name = format!("0f8f41c2-7d1b-4c6a-{:08}", std::process::id());
        Ok(Self { servers, upstream, script, name })
    }

    fn of(&self, wanted: Side) -> Option<&Server> {
        self.servers.iter().find(|(side, _)| *side == wanted).map(|(_, server)| server)
    }
}

/// The gateway, as `cargo xtask` has built it.
fn program(arguments: &Arguments) -> Result<PathBuf> {
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("oncekey"));
    let program = arguments.gateway.clone().map_or_else(beside, Ok)?;
    if !program.exists() {
        let what = format!("{} is not there: run `cargo xtask bench gateway`", program.display());
        return Err(what.into());
    }
    Ok(program)
}
