//! What the gateway allocates for a request: a number that is the same every time, on whatever
//! machine. It needs a gateway that counts, which `cargo xtask` builds beside the one that is timed.

use std::path::Path;
use std::process::Command;

use oncekey_bench::Result;
use oncekey_bench::table::count;
use serde_json::{Value, json};

use crate::client::Client;
use crate::operation::Operation;
use crate::servers::Server;

/// Figures by kind of request.
#[derive(Debug)]
pub(crate) struct Allocations(Vec<(Operation, Figures)>);

/// What one request takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Figures {
    times: f64,
    bytes: f64,
}

/// Those that pass through, and the two that the store has to do with.
const KINDS: [Operation; 4] = [Operation::Get, Operation::Post, Operation::Replay, Operation::New];
/// Requests of each kind. What the gateway does besides is then a fraction of one for each.
const COUNTED: u32 = 2_000;
/// Requests before that: connections, pools and caches are made by then.
const WARM: u32 = 200;

impl Allocations {
    pub(crate) fn measure(program: &Path, folder: &Path, upstream: u16) -> Result<Self> {
        if !program.exists() {
            return Err("there is no gateway that counts: run `cargo xtask bench gateway`".into());
        }
        let mut command = Command::new(program);
        command.env("TOKIO_WORKER_THREADS", "1");
        let store = format!("sqlite://{}/allocations.db", folder.display());
        let server = Server::gateway(command, folder, upstream, &store)?;
        let admin = server.admin_port()?;
        let mut client = Client::connect(server.port)?;
        let mut figures = Vec::new();
        for kind in KINDS {
            for number in 0..WARM {
                send(&mut client, kind, number)?;
            }
            // Asking costs something, too.
            let (first, before) = (asked(admin)?, asked(admin)?);
            for number in WARM..WARM + COUNTED {
                send(&mut client, kind, number)?;
            }
            let spent = asked(admin)?.since(before).since(before.since(first));
            figures.push((kind, spent.for_each_of(f64::from(COUNTED))));
        }
        Ok(Self(figures))
    }

    pub(crate) fn text(&self) -> String {
        let each = self.0.iter().map(|(kind, figures)| {
            let Figures { times, bytes } = *figures;
            format!("{} {times:.1} ({} bytes)", kind.label(), count(bytes))
        });
        format!("allocations for a request: {}\n", each.collect::<Vec<_>>().join(", "))
    }

    pub(crate) fn to_json(&self) -> Value {
        let each = self.0.iter().map(|(kind, figures)| {
            let Figures { times, bytes } = figures;
            json!({ "request": kind.label(), "allocations": times, "bytes": bytes })
        });
        each.collect()
    }
}

impl Figures {
    fn since(self, before: Self) -> Self {
        Self { times: self.times - before.times, bytes: self.bytes - before.bytes }
    }

    fn for_each_of(self, requests: f64) -> Self {
        Self { times: self.times / requests, bytes: self.bytes / requests }
    }
}

fn send(client: &mut Client, kind: Operation, number: u32) -> Result<()> {
    match kind {
        Operation::Get => client.get("/v1/charges/1042"),
        Operation::Post => client.pay(None),
        Operation::New => client.pay(Some(&format!("counted-{number}"))),
        Operation::Replay | Operation::Hot => client.pay(Some("counted-again")),
    }
    .map(drop)
}

/// What the gateway has allocated so far. Over a new connection: operators who say nothing for a
/// while are sent away.
fn asked(admin: u16) -> Result<Figures> {
    let status = Client::connect(admin)?.get("/api/v1/status")?;
    let status: Value = serde_json::from_str(&status)?;
    let number = |name: &str| status["allocations"][name].as_f64().ok_or("nobody has counted");
    Ok(Figures { times: number("count")?, bytes: number("bytes")? })
}
