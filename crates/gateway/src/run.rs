//! `oncekey run`: the gateway, from its command line to its end.

use std::future::pending;
use std::time::Duration;

use oncekey::engine::Drained;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::interval;

use crate::args::RunArgs;
use crate::config::{Config, LogFormat, Options};
use crate::exit::{self, Exit};
use crate::notify::Notify;
use crate::serve::{Origin, Ports, Running};
use crate::telemetry::logs::{self, Flush, Format, Logs};
use crate::telemetry::prometheus::{self, Prometheus};
use crate::watch::Watch;

/// Runs the gateway until it is told to stop.
pub(crate) async fn run(args: RunArgs) -> Result<(), Exit> {
    let RunArgs { config: file, to, listen, admin, store, mode, watch } = args;
    // Before the first look at the file, so that no change comes too early.
    let mut watch = match &file {
        Some(file) if watch => Some(Watch::new(vec![file.clone()]).await),
        Some(_) | None => None,
    };
    let options = Options { upstream: to, listen, admin, store, mode };
    let origin = Origin { file, options, drain: None, ports: Ports::Addresses };
    let config = origin.load()?;
    let _flush = install_logs(&config)?;
    config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if config.store.kind() == "memory" {
        tracing::warn!(
            "records are kept in memory only: after a restart every retry runs again, and other \
             gateways know nothing of them; for more than a trial use --store sqlite://oncekey.db"
        );
    }
    let metrics = install_metrics(&config)?;
    let mut signals = Signals::listen()?;
    let upstream = config.server.upstream.clone();
    let manager = Notify::from_env();
    if let Some(every) = manager.heartbeat() {
        tokio::spawn(beat(manager.clone(), every));
    }
    let running = Running::start(config, origin, metrics, manager).await?;
    tracing::info!(listen = running.listen, admin = %running.admin, upstream, "serving");
    let mut wanted = Wanted::Nothing;
    while wanted != Wanted::End {
        // Files may lie where nobody answers: a signal is heard all the same.
        wanted = tokio::select! {
            wanted = signals.next() => wanted,
            () = running.drain_wanted() => Wanted::End,
            next = follow(wanted, &running, &mut watch) => next,
        };
    }
    tracing::info!("draining");
    let drained = tokio::select! {
        drained = running.finish() => drained,
        () = signals.interrupted() => {
            // Records say that the work runs, and then that nobody knows: as after a crash.
            let message = "ended at once by a second signal, with requests under way";
            return Err(Exit::new(exit::FAILURE, message));
        }
    };
    let Drained { stopped, left, journalled } = drained;
    tracing::info!(stopped, left, journalled, "stopped");
    Ok(())
}

/// Does what is wanted, and then waits for a change of a file, if somebody wants that.
///
/// # Cancellation
/// A reload that has not begun to change anything is given up.
async fn follow(wanted: Wanted, running: &Running, watch: &mut Option<Watch>) -> Wanted {
    if wanted == Wanted::Reload {
        reload(running).await;
    }
    let Some(watch) = watch else { return pending().await };
    watch.instead(running.files()).await;
    watch.changed().await;
    Wanted::Reload
}

/// Says again and again that the program is not stuck. That takes a thread that can still run tasks,
/// which is what clients need, too.
async fn beat(manager: Notify, every: Duration) {
    let mut ticks = interval(every);
    loop {
        ticks.tick().await;
        manager.alive();
    }
}

async fn reload(running: &Running) {
    match running.reload().await {
        // What changed is in the log already.
        Ok(_) => {}
        Err(why) => tracing::error!("the old configuration stays in force: {why}"),
    }
}

fn install_logs(config: &Config) -> Result<Flush, Exit> {
    let format = match config.telemetry.format {
        LogFormat::Auto => Format::Auto,
        LogFormat::Json => Format::Json,
        LogFormat::Pretty => Format::Pretty,
    };
    let instance = config.server.instance.clone();
    let logs = Logs { format, filter: config.telemetry.level.clone(), instance };
    logs::install(&logs)
        .map_err(|error| Exit::chain(exit::INVALID, "there is no log", Some(&error)))
}

/// Metrics of everything that is started afterwards.
pub(crate) fn install_metrics(config: &Config) -> Result<Prometheus, Exit> {
    let metrics = prometheus::install(config.store.kind())
        .map_err(|error| Exit::chain(exit::FAILURE, "there are no metrics", Some(&error)))?;
    tokio::spawn(metrics.clone().upkeep());
    Ok(metrics)
}

/// What somebody wants of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// That it goes on.
    Nothing,
    /// That it ends.
    End,
    /// That it reads its configuration again.
    Reload,
}

/// What the system or a person tells the program.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Exit> {
        let one = |kind| {
            signal(kind).map_err(|error| {
                Exit::chain(exit::FAILURE, "cannot listen to signals", Some(&error))
            })
        };
        Ok(Self {
            terminate: one(SignalKind::terminate())?,
            interrupt: one(SignalKind::interrupt())?,
            hang_up: one(SignalKind::hangup())?,
        })
    }

    /// Somebody at a terminal does not want to wait any longer. A supervisor that tells twice still
    /// does, so `SIGTERM` is not heard here.
    async fn interrupted(&mut self) {
        self.interrupt.recv().await;
    }

    async fn next(&mut self) -> Wanted {
        tokio::select! {
            _ = self.terminate.recv() => Wanted::End,
            _ = self.interrupt.recv() => Wanted::End,
            _ = self.hang_up.recv() => Wanted::Reload,
        }
    }
}
