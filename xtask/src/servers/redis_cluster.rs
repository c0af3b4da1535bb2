//! A Redis cluster of three masters.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;

use super::daemon::{Launch, answers, free_port, tethered};
use super::{Place, Started};
use crate::clock::Stopwatch;
use crate::process;
use crate::tools::{Tool, companion};

/// The fewest that `redis-cli --cluster create` takes, and the fewest that can outvote one.
const MASTERS: usize = 3;
/// The masters agree within seconds; a busy machine may need many times that.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) fn start(place: &Place) -> Result<Started> {
    let server = place.tools.path(Tool::Redis)?;
    let (mut daemons, mut ports) = (Vec::new(), Vec::new());
    for number in 0..MASTERS {
        let folder = place.folder.join(number.to_string());
        fs::create_dir_all(&folder).context("cannot create the data folder")?;
        let base = tethered(place, None, server)?;
        // Otherwise it is the other port plus 10 000, which may not exist.
        let bus = free_port()?.to_string();
        let launch = Launch {
            name: &format!("redis-cluster-{number}"),
            ask: Signal::TERM,
            command: &|port| {
                let mut command = Command::new(base.get_program());
                command.args(base.get_args()).current_dir(&folder);
                command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""]);
                command.args(["--appendonly", "yes", "--appendfsync", "always"]);
                command.args(["--cluster-enabled", "yes", "--cluster-port", &bus]);
                command
            },
            probe: &|port| answers(port, "PING\r\n", "+PONG\r\n"),
        };
        let (daemon, port) = launch.start(place)?;
        daemons.push(daemon);
        ports.push(port);
    }
    let addresses: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let mut create = Command::new(companion(server, "redis-cli"));
    create.args(["--cluster", "create"]).args(&addresses).arg("--cluster-yes");
    process::output(create, &place.stop)?;
    let since = Stopwatch::start();
    // Each of them must have heard of all slots, or it refuses keys for a while.
    let agree = |port: &u16| {
        let mut info = Command::new(companion(server, "redis-cli"));
        info.args(["-p", &port.to_string(), "cluster", "info"]);
        process::output(info, &place.stop).is_ok_and(|text| text.contains("cluster_state:ok"))
    };
    while !ports.iter().all(agree) {
        place.stop.check()?;
        if since.elapsed() > DEADLINE {
            bail!("the masters do not agree after {DEADLINE:?}");
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(Started { daemons, url: addresses.join(",") })
}
