//! `cargo xtask bench`: benchmarks by name.

use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::programs;

/// Name, what it measures, and which program of the package `oncekey-bench` does it.
const BENCHES: &[(&str, &str, &str)] = &[
    (
        "fingerprint",
        "the fingerprint of a JSON body beside a digest and a parse of it",
        "bench-fingerprint",
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
    let status = programs::cargo()
        .args(["run", "--release", "-p", "oncekey-bench", "--bin", program, "--"])
        .args(arguments)
        .current_dir(crate::root())
        .status()
        .context("cannot run cargo")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
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
