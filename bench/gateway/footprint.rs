//! What the gateway takes besides time: memory, disk, its start, and instructions for a request.

use std::fs;
use std::path::Path;
use std::process::Command;

use oncekey_bench::Result;
use oncekey_bench::stats::median;
use oncekey_bench::table::count;
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
/// GETs that are counted: two runs differ by so many.
const COUNTED: u32 = 2_000;
/// GETs that both runs have: connections, pools and caches are made by then.
const WARM: u32 = 200;

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
        let after = after.map_or_else(String::new, |after| format!(", {after:.1} MB after the load"));
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

/// Counts what valgrind sees in two runs of different length. The difference belongs to the
/// requests alone, and does not depend on what else the machine does.
fn instructions(program: &Path, folder: &Path, upstream: u16) -> Result<f64> {
    let short = counted(program, folder, upstream, WARM)?;
    let long = counted(program, folder, upstream, WARM + COUNTED)?;
    Ok((long - short) / f64::from(COUNTED))
}

fn counted(program: &Path, folder: &Path, upstream: u16, requests: u32) -> Result<f64> {
    let report = folder.join(format!("callgrind-{requests}"));
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--quiet"]);
    command.arg(format!("--callgrind-out-file={}", report.display())).arg(program);
    // One thread: then nobody steals work, and the count is the same every time.
    command.env("TOKIO_WORKER_THREADS", "1");
    let store = format!("sqlite://{}/counted-{requests}.db", folder.display());
    let mut server = Server::gateway(command, folder, upstream, &store)?;
    let mut client = Client::connect(server.port)?;
    for _ in 0..requests {
        client.get("/v1/charges/1042")?;
    }
    drop(client);
    server.end();
    let text = fs::read_to_string(report)?;
    let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let totals = totals.and_then(|totals| totals.trim().parse().ok());
    totals.ok_or_else(|| "callgrind says no totals".into())
}
