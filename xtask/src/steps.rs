//! What `cargo xtask test` checks, in this order, but for what runs beside the tests.

use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::TestOptions;
use crate::process;
use crate::programs::cargo;
use crate::sdk::Sdk;
use crate::stop::Stop;
use crate::tools::{Tool, Tools};

/// Crates that would give the core a clock, a network, a database or randomness.
const IMPURE: [&str; 7] = ["tokio", "hyper", "http", "sqlx", "rusqlite", "rand", "getrandom"];

/// One line of the summary: commands that are run one after the other.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) commands: Vec<Command>,
    pub(crate) judge: Judge,
    pub(crate) when: When,
}

/// Whether a step waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    InTurn,
    /// It runs while tests run, with what they leave of the processors: tests wait for servers and
    /// timers half of the time.
    Beside,
}

/// What decides whether a step passes, beyond the exit codes of its commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judge {
    /// Nothing else.
    ExitCode,
    /// No test fails. These steps get to know the servers.
    Tests,
    /// The listed crates are all harmless.
    Purity,
}

/// Every test program.
const TESTS: [&str; 5] = ["test", "--workspace", "--all-features", "--no-fail-fast", "--tests"];

/// The tools that the checks below need.
pub(crate) fn tools_for(options: &TestOptions) -> Vec<Tool> {
    if !options.filter.is_empty() {
        return Vec::new();
    }
    // Services in other languages stand behind the gateway in its tests.
    let mut tools = vec![Tool::Rustfmt, Tool::Clippy, Tool::Python, Tool::Node];
    if !options.quick {
        // The README of an example has its requests in the form of commands for curl.
        tools.extend([Tool::CargoDeny, Tool::Curl]);
    }
    tools
}

/// The steps for these options.
pub(crate) fn plan(
    options: &TestOptions,
    sdk: &Sdk,
    tools: &Tools,
    stop: &Stop,
) -> Result<Vec<Step>> {
    if !options.filter.is_empty() {
        return Ok(tests(options, sdk));
    }
    let mut steps = checks();
    if !options.quick {
        steps.push(licences(tools)?);
    }
    // What runs beside the tests would wait for their build, or hold it up.
    steps.push(step("build", &[&TESTS[..], &["--no-run"]].concat()));
    if !options.quick {
        steps.push(beside(documentation()));
        steps.push(beside(build_of_examples()));
    }
    steps.push(beside(features(stop)?));
    steps.extend(tests(options, sdk));
    if !options.quick {
        steps.push(examples());
    }
    Ok(steps)
}

/// The crates in the output of `cargo tree` that the core must not depend on.
pub(crate) fn impure_crates(tree: &str) -> Vec<String> {
    let mut found: Vec<String> = tree
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| IMPURE.contains(name))
        .map(str::to_owned)
        .collect();
    found.sort();
    found.dedup();
    found
}

fn checks() -> Vec<Step> {
    // One crate's warnings must not hide another's.
    let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--keep-going"];
    vec![
        // The only commands that refuse to repair the lock files, so they come before all others.
        Step {
            commands: vec![
                cargo_with(&["fetch", "--locked"]),
                cargo_with(&["fetch", "--locked", "--manifest-path", "examples/Cargo.toml"]),
            ],
            ..step("lock files", &[])
        },
        Step {
            commands: vec![format("Cargo.toml"), format("examples/Cargo.toml")],
            ..step("format", &[])
        },
        Step {
            judge: Judge::Purity,
            ..step("purity", &["tree", "-p", "oncekey-core", "-e", "normal", "--prefix", "none"])
        },
        step("clippy", &[&clippy[..], &["--", "-D", "warnings"]].concat()),
    ]
}

fn licences(tools: &Tools) -> Result<Step> {
    let mut command = Command::new(tools.path(Tool::CargoDeny)?);
    // Advisories are left out: their database lives outside the package registry.
    command.args(["--workspace", "--all-features", "check", "licenses", "bans", "sources"]);
    Ok(Step { commands: vec![command], ..step("licences", &[]) })
}

fn documentation() -> Step {
    // The gateway's program has the name of the library, and Cargo gives both the same page. So
    // the gateway comes first, by itself, and the library's page replaces its page.
    let gateway = ["doc", "--no-deps", "--all-features", "-p", "oncekey-gateway"];
    let others =
        ["doc", "--no-deps", "--all-features", "--workspace", "--exclude", "oncekey-gateway"];
    let mut step = step("documentation", &gateway);
    step.commands.push(cargo_with(&others));
    for command in &mut step.commands {
        command.env("RUSTDOCFLAGS", "-D warnings");
    }
    step
}

fn tests(options: &TestOptions, sdk: &Sdk) -> Vec<Step> {
    // Tests that need a server are ignored in the source, so that a plain `cargo test` shows them
    // as such. Here they run, and fail if their server is missing.
    let mut rest = vec!["--"];
    if !options.quick {
        rest.push("--include-ignored");
        if *sdk == Sdk::LeftOut {
            rest.extend(["--skip", "stripe::"]);
        }
    }
    rest.extend(options.filter.iter().map(String::as_str));
    let mut documentation = vec!["--"];
    documentation.extend(options.filter.iter().map(String::as_str));

    let examples = ["test", "--workspace", "--all-features", "--no-fail-fast", "--doc"];
    let core = ["test", "-p", "oncekey-core", "--no-fail-fast", "--tests"];
    let test = |name, arguments: &[&str], rest: &[&str]| Step {
        judge: Judge::Tests,
        ..step(name, &[arguments, rest].concat())
    };
    vec![
        test("tests", &TESTS, &rest),
        test("examples in docs", &examples, &documentation),
        // The core must work without the features that its users may switch on.
        test("core by itself", &core, &rest),
    ]
}

/// Builds the library with each of its features alone: a missing dependency shows only there. And the
/// program as people build it, without the stores that they have to ask for.
fn features(stop: &Stop) -> Result<Step> {
    let mut command = cargo();
    command.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(crate::root());
    let metadata = process::output(command, stop)?;
    let base = ["check", "-p", "oncekey", "--no-default-features"];
    let mut step = step("each feature", &base);
    for feature in features_of(&metadata, "oncekey")? {
        step.commands.push(cargo_with(&[&base[..], &["--features", &feature]].concat()));
    }
    step.commands.push(cargo_with(&["check", "-p", "oncekey-gateway"]));
    Ok(step)
}

/// Runs the programs of the examples' own workspace, and their tests. One of them has sqlx beside
/// our SQLite store, so it also proves the lower end of the range of `rusqlite` versions.
fn examples() -> Step {
    let run = [&of_examples("run")[..], &["-p", "beside-sqlx"]].concat();
    // Some run on servers, too: ignored in the source, and here they fail if their server is missing.
    let all = ["--workspace", "--no-fail-fast", "--", "--include-ignored"];
    let test = [&of_examples("test")[..], &all].concat();
    let commands = vec![cargo_with(&run), cargo_with(&test)];
    Step { commands, judge: Judge::Tests, ..step("examples", &[]) }
}

/// Builds what [`examples`] runs.
fn build_of_examples() -> Step {
    let program = [&of_examples("build")[..], &["-p", "beside-sqlx"]].concat();
    let tests = [&of_examples("test")[..], &["--workspace", "--no-run"]].concat();
    let commands = vec![cargo_with(&program), cargo_with(&tests)];
    Step { commands, ..step("build of examples", &[]) }
}

fn of_examples(command: &str) -> [&str; 6] {
    let (place, target) = ("examples/Cargo.toml", "target/examples");
    [command, "--locked", "--manifest-path", place, "--target-dir", target]
}

fn features_of(metadata: &str, package: &str) -> Result<Vec<String>> {
    // Cargo may warn on the same stream before it prints its one line of JSON.
    let json = metadata.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    let metadata: Value = serde_json::from_str(json).context("cannot read cargo's metadata")?;
    let packages = metadata["packages"].as_array().context("cargo's metadata has no packages")?;
    let package = packages
        .iter()
        .find(|candidate| candidate["name"] == package)
        .with_context(|| format!("there is no package {package}"))?;
    let features = package["features"].as_object().context("a package has no list of features")?;
    Ok(features.keys().filter(|name| *name != "default").cloned().collect())
}

fn format(manifest: &str) -> Command {
    cargo_with(&["fmt", "--all", "--manifest-path", manifest, "--check"])
}

fn step(name: &'static str, arguments: &[&str]) -> Step {
    let commands = vec![cargo_with(arguments)];
    Step { name, commands, judge: Judge::ExitCode, when: When::InTurn }
}

fn beside(step: Step) -> Step {
    Step { when: When::Beside, ..step }
}

fn cargo_with(arguments: &[&str]) -> Command {
    let mut command = cargo();
    command.args(arguments);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impure_crates_are_found_by_their_whole_name() {
        let tree =
            "oncekey-core v0.1.0\nhttparse v1.0.0\nrand v0.9.0\nsha2 v0.11.1\nrand v0.9.0 (*)\n";
        assert_eq!(impure_crates(tree), ["rand"]);
    }

    #[test]
    fn features_are_read_from_metadata_below_a_warning() {
        let metadata = r#"warning: unused key
{"packages":[{"name":"other","features":{}},
"#;
        assert!(features_of(metadata, "oncekey").is_err());
        let metadata = "warning: unused key\n{\"packages\":[{\"name\":\"oncekey\",\
                        \"features\":{\"default\":[],\"sqlite\":[]}}]}\n";
        assert_eq!(features_of(metadata, "oncekey").unwrap(), ["sqlite"]);
    }

    #[test]
    fn a_filter_leaves_only_the_tests() {
        let options = TestOptions {
            quick: true,
            keep_logs: false,
            verbose: false,
            filter: vec!["claim".to_owned()],
        };
        let steps = super::tests(&options, &Sdk::Ours);
        assert!(steps.iter().all(|step| step.judge == Judge::Tests));
        let line = process::line_of(&steps[0].commands[0]);
        assert!(line.ends_with("--tests -- claim"), "{line}");
        assert!(tools_for(&options).is_empty());
    }

    /// They are killed on servers, too, which only a step with this judge gets to know.
    #[test]
    fn examples_that_need_a_server_run() {
        let step = super::examples();
        assert_eq!(step.judge, Judge::Tests);
        let line = process::line_of(step.commands.last().unwrap());
        assert!(line.ends_with("-- --include-ignored"), "{line}");
    }

    /// The README says `cargo run`: that needs exactly one program among the default members.
    #[test]
    fn plain_cargo_run_starts_the_one_program_of_the_project() {
        let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
        let output = cargo().args(arguments).current_dir(crate::root()).output().unwrap();
        let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
        let defaults = metadata["workspace_default_members"].as_array().unwrap();
        let packages = metadata["packages"].as_array().unwrap();
        let programs: Vec<&str> = packages
            .iter()
            .filter(|package| defaults.contains(&package["id"]))
            .flat_map(|package| package["targets"].as_array().unwrap())
            .filter(|target| target["kind"][0] == "bin")
            .filter_map(|target| target["name"].as_str())
            .collect();
        assert_eq!(programs, ["oncekey"]);
    }
}
