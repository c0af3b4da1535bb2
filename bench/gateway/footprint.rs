//! What the gateway takes besides time: memory, disk, its start, and instructions for a request.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use oncekey_bench::Result;
use oncekey_bench::stats::median;
use oncekey_bench::table::count;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::client::Client;
use crate::servers::Server;

/// What was found.
#[derive(Debug)]
pub(crate) struct Footprint {
    /// Memory after the start and one request, in megabytes.
    pub(crate) idle: f64,
    /// Memory after all that was measured, in megabytes.
    pub(crate) after: Option<f64>,
    /// The size of the program, in megabytes.
    pub(crate) program: f64,
    /// From its start to the first answer of the service, in milliseconds.
    pub(crate) start: f64,
    /// Instructions for a GET that passes through; or why nobody knows.
    pub(crate) instructions: std::result::Result<f64, String>,
}

/// Starts that are measured.
const STARTS: usize = 5;
/// GETs whose instructions are counted.
const COUNTED: u32 = 10_000;
/// GETs before that: connections, pools and caches are made by then.
const WARM: u32 = 200;
/// How long perf takes to begin.
const ATTACH: Duration = Duration::from_millis(500);

impl Footprint {
    pub(crate) fn measure(program: &Path, folder: &Path, upstream: u16) -> Result<Self> {
        let (mut starts, mut idle) = (Vec::new(), Vec::new());
        for start in 0..STARTS {
            let store = format!("sqlite://{}/start-{start}.db", folder.display());
            let server = Server::gateway(Command::new(program), folder, upstream, &store)?;
            starts.push(server.took.as_secs_f64() * 1e3);
            idle.push(server.megabytes());
        }
        Ok(Self {
            idle: median(idle),
            after: None,
            program: fs::metadata(program)?.len() as f64 / 1e6,
            start: median(starts),
            instructions: instructions(program, folder, upstream)
                .map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned()),
        })
    }

    pub(crate) fn text(&self) -> String {
        let Self { idle, after, program, start, instructions } = self;
        let after =
            after.map_or_else(String::new, |after| format!(", {after:.1} MB after the load"));
        let instructions = match instructions {
            Ok(number) => format!("{} instructions for a GET that passes through", count(*number)),
            Err(why) => format!("instructions not counted: {why}"),
        };
        format!(
            "gateway: {idle:.1} MB idle{after}; program {program:.1} MB; {start:.0} ms from its \
             start to the first answer of the service; {instructions}\n"
        )
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "idle_mb": self.idle, "after_mb": self.after, "program_mb": self.program,
            "start_ms": self.start, "instructions": self.instructions.as_ref().ok(),
        })
    }
}

/// Counts what the processor does for a request, which does not depend on what else the machine does.
/// Many virtual machines have no such counters: then the processor time of the table must do.
/// valgrind is no way out: it hides the pages of the kernel that rustix reads at the start.
fn instructions(program: &Path, folder: &Path, upstream: u16) -> Result<f64> {
    let mut command = Command::new(program);
    // One thread: then nobody steals work, and the count is the same every time.
    command.env("TOKIO_WORKER_THREADS", "1");
    let store = format!("sqlite://{}/counted.db", folder.display());
    let server = Server::gateway(command, folder, upstream, &store)?;
    let mut client = Client::connect(server.port)?;
    for _ in 0..WARM {
        client.get("/v1/charges/1042")?;
    }
    let report = folder.join("perf");
    let mut perf = Command::new("perf")
        .args(["stat", "-x", ",", "-e", "instructions:u", "-p", &server.id().to_string(), "-o"])
        .arg(&report)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|_| "there is no perf")?;
    thread::sleep(ATTACH);
    let asked = (0..COUNTED).try_for_each(|_| client.get("/v1/charges/1042").map(drop));
    // It may be gone already, if it cannot count.
    let _ = kill_process(Pid::from_child(&perf), Signal::INT);
    perf.wait()?;
    asked?;
    let text = fs::read_to_string(report)?;
    let counted = text.lines().find(|line| line.contains("instructions:u"));
    let counted = counted.and_then(|line| line.split(',').next()?.parse::<f64>().ok());
    counted.map(|all| all / f64::from(COUNTED)).ok_or_else(|| NO_COUNTERS.into())
}

const NO_COUNTERS: &str = "this machine has no counters of instructions";
