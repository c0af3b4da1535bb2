//! `oncekey run`: the gateway, from its settings to its end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use oncekey::engine::Engine;
use oncekey::store::{self, Opened};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::RunArgs;
use crate::exit::{self, Exit};
use crate::plan::{Manners, Plan};
use crate::proxy::{Deadlines, Forward, Front, Listener, Settings, Terms};
use crate::route::RouteTable;
use crate::stop::stop;
use crate::upstream::{Patience, Target, Trust, Upstream};

/// Runs the gateway until it is told to stop.
pub(crate) async fn run(args: RunArgs) -> Result<(), Exit> {
    let target: Target = args
        .to
        .parse()
        .map_err(|error| Exit::chain(exit::USAGE, "--to is no upstream", Some(&error)))?;
    let store = store::open(&args.store).await;
    let store = store.map_err(|error| Exit::of_store("cannot open the store", &error))?;
    let engine = engine(&store)?;
    let upstream = Upstream::new(
        target,
        &Trust::nobody(),
        Patience { connect: Duration::from_secs(5), answer: Duration::from_secs(60) },
    );
    let forward = Forward::new(Settings {
        upstream,
        host: None,
        problems: oncekey::problem::DEFAULT_BASE.into(),
    });
    let manners = Manners { problems: oncekey::problem::DEFAULT_BASE.into(), status_path: None };
    let plan = Plan::new(&engine, RouteTable::all(), forward, &manners)
        .map_err(|error| Exit::chain(exit::USAGE, "the settings contradict", Some(&error)))?;
    let front = Arc::new(Front { plan: ArcSwap::from_pointee(plan) });
    let listener = Listener::bind(args.listen).await.map_err(|error| {
        Exit::chain(exit::FAILURE, &format!("cannot listen on {}", args.listen), Some(&error))
    })?;
    let terms = Terms {
        tls: None,
        deadlines: Deadlines { head: Duration::from_secs(10) },
        connections: 10_000,
    };
    let (stopper, stopped) = stop();
    let serving = tokio::spawn(listener.serve(front, terms, stopped));
    wait_for_signal().await;
    stopper.raise();
    drop(tokio::time::timeout(Duration::from_secs(30), serving).await);
    let drained = engine.shutdown(Duration::from_secs(30)).await;
    tracing::info!(?drained, "stopped");
    Ok(())
}

fn engine(store: &Opened) -> Result<Engine, Exit> {
    let mut builder = Engine::builder(Arc::new(store.clone())).store_label(store.label());
    if let Some(wake) = store.wake() {
        builder = builder.wake(wake);
    }
    builder.build().map_err(|error| {
        Exit::chain(exit::FAILURE, "the engine does not start", Some(&error))
    })
}

/// Waits until a person or a supervisor wants the program to end.
async fn wait_for_signal() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

#[allow(dead_code)]
fn unused(_: SocketAddr, _: PathBuf) {}
