//! `cargo xtask bench`: benchmarks by name.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::folder::{Folder, Logs};
use crate::programs;
use crate::screen::{Detail, Screen};
use crate::servers::{self, Server, Servers};
use crate::stop::Stop;
use crate::tools::{Tool, Tools};

/// Name, what it measures, and which program of the package `oncekey-bench` does it.
const BENCHES: &[(&str, &str, &str)] = &[
    (
        "fingerprint",
        "the fingerprint of a JSON body beside a digest and a parse of it",
        "bench-fingerprint",
    ),
    ("flow", "what the safety of a flow costs, beside no safety and a peer", "bench-flow"),
    (
        "gateway",
        "requests through the gateway, beside nginx in front of the same service",
        "bench-gateway",
    ),
    ("layer", "what the layer adds to a request, beside the crate idempotent", "bench-layer"),
    ("store", "claims and completions per second of each store", "bench-store"),
];

/// Runs one benchmark with the terminal as its own, and ends as it ends.
pub(crate) fn run(what: Option<&str>, arguments: &[String]) -> Result<ExitCode> {
    let Some((_, _, program)) = BENCHES.iter().find(|(name, ..)| Some(*name) == what) else {
        eprintln!("{}", menu(what));
        return Ok(ExitCode::from(crate::EXIT_USAGE));
    };
    let mut command = programs::cargo();
    command.args(["run", "--release", "-p", "oncekey-bench", "--bin", program]);
    match *program {
        "bench-store" => drop(command.args(["--features", "servers"])),
        "bench-flow" => drop(command.args(["--features", "flows"])),
        _ => {}
    }
    command.arg("--").args(arguments).current_dir(crate::root());
    let all = arguments.iter().any(|argument| argument == "--all");
    match *program {
        "bench-store" if all => beside_servers(command, &MEASURED, &Stop::on_signals()?),
        "bench-flow" => beside_servers(command, &MEASURED[..1], &Stop::on_signals()?),
        "bench-gateway" => {
            let stop = Stop::on_signals()?;
            prepare_gateway(&mut command, &stop)?;
            let servers = if all { &MEASURED[..1] } else { &[] };
            beside_servers(command, servers, &stop)
        }
        _ => finish(command),
    }
}

/// What stands around the gateway when it is measured, and the gateway itself.
fn prepare_gateway(command: &mut Command, stop: &Stop) -> Result<()> {
    let screen = Screen::new(Detail::Short);
    let tools = Tools::prepare(&[Tool::Nginx, Tool::Wrk], screen, stop)?;
    command.env("ONCEKEY_BENCH_NGINX", tools.path(Tool::Nginx)?);
    command.env("ONCEKEY_BENCH_WRK", tools.path(Tool::Wrk)?);
    // First the one that counts what it allocates, under another name. Both stay where Cargo built
    // them, so only the first time takes long.
    build_gateway(&["--features", "count-allocations"], stop)?;
    let here = std::env::current_exe().context("this program has no path")?;
    let built = here.parent().and_then(Path::parent).context("this program has no folder")?;
    let built = built.join("release/oncekey");
    fs::copy(&built, built.with_file_name("oncekey-counting"))
        .with_context(|| format!("cannot copy {}", built.display()))?;
    // As people build it, with whatever stores it has then.
    build_gateway(&[], stop)
}

fn build_gateway(more: &[&str], stop: &Stop) -> Result<()> {
    let mut build = programs::cargo();
    build.args(["build", "--release", "-p", "oncekey-gateway"]).args(more);
    let built = build.current_dir(crate::root()).status().context("cannot run cargo")?;
    stop.check()?;
    anyhow::ensure!(built.success(), "the gateway does not compile");
    Ok(())
}

fn finish(mut command: Command) -> Result<ExitCode> {
    let status = command.status().context("cannot run cargo")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}

/// The servers that stores are measured on.
const MEASURED: [Server; 4] = [Server::Postgres, Server::MariaDb, Server::Redis, Server::DynamoDb];

/// Runs a benchmark with servers. It is told why one cannot be had, and shows that.
fn beside_servers(mut command: Command, measured: &[Server], stop: &Stop) -> Result<ExitCode> {
    let screen = Screen::new(Detail::Short);
    let (mut tools, mut able) = (Tools::default(), Vec::new());
    for server in servers::unprovided().into_iter().filter(|server| measured.contains(server)) {
        match Tools::prepare(&servers::tools_for(&[server]), screen, stop) {
            Ok(found) => {
                tools.add(found);
                able.push(server);
            }
            Err(error) => {
                stop.check()?;
                command.env(reason_of(server), format!("{error:#}"));
            }
        }
    }
    let folder = Folder::create(Logs::Remove)?;
    let mut servers = Servers::start(&able, &tools, &folder);
    let (settings, failures) = servers.ready(stop)?;
    for failure in failures {
        let failed = able.iter().find(|server| failure.to_string() == server.label());
        if let Some(server) = failed {
            command.env(reason_of(*server), format!("{failure:#}"));
        }
    }
    command.envs(settings);
    let code = finish(command)?;
    for error in servers.stop() {
        screen.say(&format!("{error:#}"));
    }
    Ok(code)
}

/// The variable that tells the benchmark why there is no such server.
fn reason_of(server: Server) -> String {
    format!("{}_WHY", server.variable())
}

fn menu(what: Option<&str>) -> String {
    let problem = what.map_or_else(
        || "Which benchmark?".to_owned(),
        |what| format!("There is no benchmark `{what}`."),
    );
    let known = BENCHES.iter().map(|(name, about, _)| format!("\n  {name:12}{about}"));
    format!("{problem} These exist:{}", known.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_benchmark_shows_the_known_ones() {
        let menu = menu(Some("nonsense"));
        assert!(menu.contains("`nonsense`") && menu.contains("store"), "{menu}");
    }
}
