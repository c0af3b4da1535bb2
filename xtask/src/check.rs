//! `cargo xtask test`: tools, servers, steps, summary.

use std::panic::resume_unwind;
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{fs, mem, thread};

use anyhow::Result;

use crate::TestOptions;
use crate::clock::Stopwatch;
use crate::folder::{Folder, Logs};
use crate::libtest::{self, Results};
use crate::process::{self, Event, Finished};
use crate::programs::gently;
use crate::report::{Report, Row, Verdict};
use crate::screen::{Detail, Screen, seconds};
use crate::sdk::{self, Sdk};
use crate::servers::{self, Servers, Settings};
use crate::steps::{self, Judge, Step, When};
use crate::stop::Stop;
use crate::tools::Tools;

/// Runs everything; a failed step does not keep the others from running.
pub(crate) fn run(options: &TestOptions) -> Result<ExitCode> {
    let stop = Stop::on_signals()?;
    let screen = Screen::new(if options.verbose { Detail::Everything } else { Detail::Short });
    let own = if options.quick { Vec::new() } else { servers::unprovided() };
    let mut wanted = steps::tools_for(options);
    wanted.extend(servers::tools_for(&own));
    let sdk = if options.quick { Sdk::LeftOut } else { Sdk::wanted() };
    wanted.extend(sdk.tools());
    let tools = Tools::prepare(&wanted, screen, &stop)?;
    let python = if options.quick { None } else { sdk.prepare(&tools, screen, &stop)? };
    let plan = steps::plan(options, &sdk, &tools, &stop)?;

    let logs = if options.keep_logs { Logs::Keep } else { Logs::Remove };
    let folder = Folder::create(logs)?;
    let mut run = Run {
        stop: &stop,
        screen,
        folder: &folder,
        settings: Settings::new(),
        python,
        report: Report::default(),
    };
    // They start while the first steps run.
    let mut servers = (!options.quick).then(|| Servers::start(&own, &tools, &folder));
    let (mut beside, in_turn): (Vec<Step>, Vec<Step>) =
        plan.into_iter().partition(|step| step.when == When::Beside);
    let total = in_turn.len();
    thread::scope(|scope| {
        let mut others = None;
        for (index, step) in in_turn.into_iter().enumerate() {
            if step.judge == Judge::Tests && others.is_none() {
                let (steps, stop) = (mem::take(&mut beside), &stop);
                others = Some(scope.spawn(move || run_beside(steps, screen, stop)));
                run.meet(servers.as_mut())?;
            }
            run.step(step, &format!("[{}/{total}]", index + 1))?;
        }
        let others = match others {
            Some(others) => others.join().unwrap_or_else(|panic| resume_unwind(panic)),
            None => run_beside(beside, screen, &stop),
        };
        for (name, judge, carried, took) in others? {
            run.end(name, judge, &carried, took);
        }
        anyhow::Ok(())
    })?;
    run.part(servers)?;
    if options.filter.is_empty() {
        run.see_that_no_case_was_forgotten();
    }
    let report = run.report;
    // First everything is put away, so that the count is the last line whatever happens.
    drop(folder);
    print!("\n{}", report.text());
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A run in progress.
struct Run<'a> {
    stop: &'a Stop,
    screen: Screen,
    folder: &'a Folder,
    /// What the tests must know about the servers; empty until these have come up.
    settings: Settings,
    /// A Python with the SDK of Stripe.
    python: Option<String>,
    report: Report,
}

impl Run<'_> {
    /// Waits for the servers. Tests of one that does not come up fail for lack of its variable.
    fn meet(&mut self, servers: Option<&mut Servers>) -> Result<()> {
        let Some(servers) = servers else { return Ok(()) };
        let task = self.screen.begin("servers");
        let (settings, failures) = servers.ready(self.stop)?;
        self.settings = settings;
        let verdict = if failures.is_empty() { Verdict::Passed } else { Verdict::Failed };
        let took = task.end(verdict.label());
        for failure in &failures {
            self.screen.say(&format!("{failure:#}"));
        }
        self.report.add(Row { step: "servers", verdict, counts: None, took, failures: vec![] });
        Ok(())
    }

    /// Stops the servers. One that ended by itself is a failure, whatever the tests say.
    fn part(&mut self, servers: Option<Servers>) -> Result<()> {
        let Some(mut servers) = servers else { return Ok(()) };
        let since = Stopwatch::start();
        let errors = servers.stop();
        for error in &errors {
            self.screen.say(&format!("{error:#}"));
        }
        if !errors.is_empty() {
            let (verdict, took) = (Verdict::Failed, since.elapsed());
            let step = "end of servers";
            self.report.add(Row { step, verdict, counts: None, took, failures: vec![] });
        }
        self.stop.check()
    }

    /// A configuration without one of the cases of its kind promises less than it seems to.
    fn see_that_no_case_was_forgotten(&mut self) {
        let (since, failures) = (Stopwatch::start(), self.report.suites.forgotten());
        if !failures.is_empty() {
            let (verdict, took) = (Verdict::Failed, since.elapsed());
            self.report.add(Row { step: "suite", verdict, counts: None, took, failures });
        }
    }

    fn step(&mut self, step: Step, position: &str) -> Result<()> {
        let mut task = self.screen.begin(&format!("{position} {}", step.name));
        let mut commands = step.commands;
        if step.judge == Judge::Tests {
            for command in &mut commands {
                command.envs(self.settings.iter().map(|(name, value)| (name, value)));
                command.envs(self.python.iter().map(|python| (sdk::VARIABLE, python)));
            }
        }
        let carried = carry_out(commands, self.stop, |event| task.show(event))?;
        let took = task.end(carried.verdict(step.judge).label());
        self.end(step.name, step.judge, &carried, took);
        Ok(())
    }

    /// Takes note of a step that has ended.
    fn end(&mut self, name: &'static str, judge: Judge, carried: &Carried, took: Duration) {
        let verdict = carried.verdict(judge);
        let (counts, failures) = match judge {
            Judge::ExitCode => (None, Vec::new()),
            Judge::Tests => {
                let Results { counts, failures, tests } = libtest::read(&carried.output);
                for (target, test, fate) in tests {
                    self.report.suites.note(&target, &test, fate);
                }
                (Some(counts), failures)
            }
            Judge::Purity => {
                let impure = steps::impure_crates(&carried.output);
                (None, impure.iter().map(|name| format!("the core depends on {name}")).collect())
            }
        };
        if verdict == Verdict::Failed {
            self.screen.say(carried.output.trim_end());
        }
        let log = self.folder.logs().join(format!("step {name}.log").replace(' ', "-"));
        // The log is a convenience; the run does not depend on it.
        let _ = fs::write(log, &carried.output);
        self.report.add(Row { step: name, verdict, counts, took, failures });
    }
}

/// What came of the commands of a step.
struct Carried {
    output: String,
    all_succeeded: bool,
}

impl Carried {
    fn verdict(&self, judge: Judge) -> Verdict {
        let is_sound = match judge {
            Judge::ExitCode => true,
            Judge::Tests => libtest::read(&self.output).failures.is_empty(),
            Judge::Purity => steps::impure_crates(&self.output).is_empty(),
        };
        if self.all_succeeded && is_sound { Verdict::Passed } else { Verdict::Failed }
    }
}

/// Runs commands one after the other. One that cannot be run fails its own step only.
fn carry_out(
    commands: Vec<Command>,
    stop: &Stop,
    mut watch: impl FnMut(Event<'_>),
) -> Result<Carried> {
    let mut carried = Carried { output: String::new(), all_succeeded: true };
    for mut command in commands {
        command.current_dir(crate::root());
        let line = process::line_of(&command);
        match process::run(command, stop, &mut watch) {
            Ok(Finished { status, output }) => {
                carried.all_succeeded &= status.success();
                carried.output.push_str(&format!("$ {line}\n{output}"));
            }
            Err(error) => {
                stop.check()?;
                carried.all_succeeded = false;
                carried.output.push_str(&format!("{error:#}\n"));
            }
        }
    }
    Ok(carried)
}

/// Runs the steps that wait for nobody, while others run.
fn run_beside(
    steps: Vec<Step>,
    screen: Screen,
    stop: &Stop,
) -> Result<Vec<(&'static str, Judge, Carried, Duration)>> {
    let mut ended = Vec::new();
    for step in steps {
        let since = Stopwatch::start();
        let commands = step.commands.iter().map(gently).collect();
        let carried = carry_out(commands, stop, |event| screen.overhear(event))?;
        let (label, took) = (carried.verdict(step.judge).label(), since.elapsed());
        screen.say(&format!("beside: {}: {label}, {}", step.name, seconds(took)));
        ended.push((step.name, step.judge, carried, took));
    }
    Ok(ended)
}
