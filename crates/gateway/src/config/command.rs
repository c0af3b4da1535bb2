//! `oncekey validate` and `oncekey config`.

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value as Json, json};

use super::explain::{Explanation, Question};
use super::problem::ConfigProblem;
use super::source::SourceKind;
use super::{Config, Env, Severity, schema, show};
use crate::args::{ConfigCommand, ValidateArgs};
use crate::exit::{self, Exit};
use crate::rehearsal::refusals;
use crate::route::{RouteMode, RouteTable, Secrets};

/// Says whether a file is right, and everything that is wrong with it.
pub(crate) fn validate(args: &ValidateArgs) -> Result<(), Exit> {
    let loaded = Config::load(&args.config, &Env::of_process()).and_then(rehearsed);
    let problems = match &loaded {
        Ok(config) => &config.warnings,
        Err(problems) => problems,
    };
    let code = match (&loaded, problems.is_empty()) {
        (Err(_), _) => exit::INVALID,
        (Ok(_), false) if args.strict => exit::WARNINGS,
        (Ok(_), _) => 0,
    };
    if args.json {
        let problems: Vec<Json> = problems.iter().map(ConfigProblem::to_json).collect();
        print_json(&json!({ "valid": loaded.is_ok(), "problems": problems }))?;
        return if code == 0 { Ok(()) } else { Err(Exit::silent(code)) };
    }
    let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
    if let Ok(config) = &loaded {
        crate::print(&format!("{}\n", summary(&args.config, config)))?;
    }
    if code == 0 {
        // Nothing is lost if nobody can read warnings.
        drop(io::stderr().lock().write_all(said.join("\n").as_bytes()));
        return Ok(());
    }
    let mut text = said.join("\n");
    text += &format!("\n{}\n", count(problems));
    Err(Exit::verbatim(code, text))
}

/// The configuration, if `run` would take it, too.
fn rehearsed(config: Config) -> Result<Config, Vec<ConfigProblem>> {
    let problem = |(setting, exit): (&str, Exit)| {
        // The first line says what, the others why.
        let mut lines = exit.text().lines();
        let what = lines.next().unwrap_or_default();
        let problem = ConfigProblem::error("unusable", what.trim_start_matches("error: "))
            .maybe_at(config.values().globals.place(setting))
            .about(setting);
        lines.fold(problem, |problem, line| problem.note(line.trim()))
    };
    let mut problems: Vec<_> = refusals(&config).into_iter().map(problem).collect();
    if problems.is_empty() {
        return Ok(config);
    }
    problems.extend(config.warnings);
    Err(problems)
}

/// Prints what holds, which route a request takes, or the schema.
pub(crate) fn run_config(command: &ConfigCommand) -> Result<(), Exit> {
    match command {
        ConfigCommand::Schema => print_json(&schema::schema()),
        ConfigCommand::Show { config, json } => {
            let config = load(config)?;
            if *json {
                print_json(&show::json(&config))
            } else {
                crate::print(&show::text(&config))
            }
        }
        ConfigCommand::Explain { request, config, json } => {
            let question =
                Question::parse(request).map_err(|message| Exit::new(exit::USAGE, &message))?;
            let config = load(config)?;
            let table = RouteTable::new(&config.routes, &Secrets::default())
                .map_err(|error| Exit::new(exit::INVALID, &error.to_string()))?;
            let explanation = Explanation::new(question, &table);
            match json {
                true => print_json(&explanation.json(&config)),
                false => crate::print(&explanation.text(&config)),
            }
        }
    }
}

fn load(path: &Path) -> Result<Config, Exit> {
    Config::load(path, &Env::of_process()).map_err(|problems| refusal(&problems))
}

/// The end of a program that cannot go on with its configuration. If only the command line is wrong,
/// no file has to be looked at.
pub(crate) fn refusal(problems: &[ConfigProblem]) -> Exit {
    let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let option = |problem: &ConfigProblem| problem.written_in() == Some(SourceKind::Option);
    let code = if problems.iter().all(option) { exit::USAGE } else { exit::INVALID };
    Exit::verbatim(code, format!("{}\n{}\n", said.join("\n"), count(problems)))
}

/// `2 errors, 1 warning`
fn count(problems: &[ConfigProblem]) -> String {
    let of = |severity: Severity| {
        let number = problems.iter().filter(|problem| problem.severity == severity).count();
        let plural = if number == 1 { "" } else { "s" };
        (number > 0).then(|| format!("{number} {}{plural}", severity.label()))
    };
    let counts = [of(Severity::Error), of(Severity::Warning)];
    counts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// `oncekey.toml is valid: 12 routes (3 required, 4 optional, 5 observe)`
fn summary(path: &Path, config: &Config) -> String {
    let of = |mode: RouteMode| {
        let number = config.routes.iter().filter(|route| route.mode == mode).count();
        (number > 0).then(|| format!("{number} {}", mode.label()))
    };
    let modes: Vec<String> = RouteMode::ALL.into_iter().rev().filter_map(of).collect();
    let (path, routes) = (path.display(), config.routes.len());
    match (routes, modes.join(", ")) {
        (0, _) => format!("{path} is valid: no routes, so nothing is protected"),
        (1, modes) => format!("{path} is valid: 1 route ({modes})"),
        (routes, modes) => format!("{path} is valid: {routes} routes ({modes})"),
    }
}

fn print_json(value: &Json) -> Result<(), Exit> {
    crate::print(&format!("{value:#}\n"))
}
