//! `cargo xtask test`: tools, servers, steps, summary.

use std::fs;
use std::process::ExitCode;

use anyhow::Result;

use crate::TestOptions;
use crate::clock::Stopwatch;
use crate::folder::{Folder, Logs};
use crate::libtest::{self, Results};
use crate::process::{self, Finished};
use crate::report::{Report, Row, Verdict};
use crate::screen::{Detail, Screen};
use crate::sdk::{self, Sdk};
use crate::servers::{self, Servers, Settings};
use crate::steps::{self, Judge, Step};
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
    let total = plan.len();
    for (index, step) in plan.into_iter().enumerate() {
        if step.judge == Judge::Tests && run.settings.is_empty() {
            run.meet(servers.as_mut())?;
        }
        run.step(step, &format!("[{}/{total}]", index + 1))?;
    }
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
        let mut output = String::new();
        let mut passed = true;
        for mut command in step.commands {
            command.current_dir(crate::root());
            if step.judge == Judge::Tests {
                command.envs(self.settings.iter().map(|(name, value)| (name, value)));
                command.envs(self.python.iter().map(|python| (sdk::VARIABLE, python)));
            }
            let line = process::line_of(&command);
            let finished = process::run(command, self.stop, |event| task.show(event));
            match finished {
                Ok(Finished { status, output: text }) => {
                    passed &= status.success();
                    output.push_str(&format!("$ {line}\n{text}"));
                }
                // A program that cannot be run fails its own step only.
                Err(error) => {
                    self.stop.check()?;
                    passed = false;
                    output.push_str(&format!("{error:#}\n"));
                }
            }
        }
        let (counts, failures) = match step.judge {
            Judge::ExitCode => (None, Vec::new()),
            Judge::Tests => {
                let Results { counts, failures, tests } = libtest::read(&output);
                for (target, test, fate) in tests {
                    self.report.suites.note(&target, &test, fate);
                }
                (Some(counts), failures)
            }
            Judge::Purity => {
                let impure = steps::impure_crates(&output);
                (None, impure.iter().map(|name| format!("the core depends on {name}")).collect())
            }
        };
        passed &= failures.is_empty();
        let verdict = if passed { Verdict::Passed } else { Verdict::Failed };
        let took = task.end(verdict.label());
        if verdict == Verdict::Failed {
            self.screen.say(output.trim_end());
        }
        let log = self.folder.logs().join(format!("step {}.log", step.name).replace(' ', "-"));
        // The log is a convenience; the run does not depend on it.
        let _ = fs::write(log, &output);
        self.report.add(Row { step: step.name, verdict, counts, took, failures });
        Ok(())
    }
}
