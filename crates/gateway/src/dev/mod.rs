//! `oncekey dev`: the gateway on a developer's machine, with everything it does in the terminal.
//!
//! Records lie in a temporary folder. However it ends, short of `kill -9`, nothing is left behind.

mod banner;
mod demo;
mod screen;
mod tail;
mod tries;

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::sleep;

use self::banner::Banner;
use self::demo::Demo;
use self::screen::Screen;
use self::tail::Tail;
use crate::args::DevArgs;
use crate::config::{Config, Drain, Options};
use crate::exit::{self, Exit};
use crate::notify::Notify;
use crate::run::install_metrics;
use crate::serve::{Origin, Ports, Running};
use crate::telemetry::logs::{self, Flush, Format, Logs};

/// The tail shows duplicates already; the log would only say them again. And keys that people type
/// to try something are weak, the ones that we print for them included.
const LOG: &str = "warn,oncekey::proxy::exchange=error,oncekey::layer=error";
/// How long work that has begun may take after Ctrl-C. Whoever presses it waits for the prompt.
const PATIENCE: Duration = Duration::from_secs(3);

/// What stands behind the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// The toy payment API of this process.
    Demo,
    /// An API of the developer's.
    Upstream,
}

/// Runs until somebody presses Ctrl-C.
pub(crate) async fn run(args: DevArgs) -> Result<(), Exit> {
    let mut end = End::listen()?;
    let folder = tempfile::Builder::new().prefix("oncekey-dev-").tempdir().map_err(|error| {
        Exit::chain(exit::FAILURE, "cannot make a temporary folder", Some(&error))
    })?;
    let ended = serve(args, folder.path(), &mut end).await;
    remove(folder).await.and(ended)
}

async fn serve(args: DevArgs, folder: &Path, end: &mut End) -> Result<(), Exit> {
    let DevArgs { to, demo: _, port, mode } = args;
    let (behind, demo, upstream) = match to {
        Some(upstream) => (Behind::Upstream, None, upstream),
        None => {
            let demo = Demo::start().await?;
            let upstream = format!("http://{}", demo.address);
            (Behind::Demo, Some(demo), upstream)
        }
    };
    let options = Options {
        upstream: Some(upstream.clone()),
        listen: Some(format!("127.0.0.1:{port}")),
        admin: Some(format!("127.0.0.1:{}", beside(port))),
        store: Some(store(folder)?),
        mode: Some(mode.unwrap_or_else(|| behind.mode().to_owned())),
    };
    // Nobody sends clients here who would have to look away first.
    let drain = Drain { delay: Duration::ZERO, timeout: PATIENCE };
    let origin = Origin { file: None, options, drain: Some(drain), ports: Ports::One };
    let config = origin.load()?;
    let _flush = install_logs(&config)?;
    let metrics = install_metrics(&config)?;
    let mode = config.routes.first().map_or("optional", |route| route.mode.label());
    let running = Running::start(config, origin, metrics, Notify::default()).await?;
    let mut screen = Screen::of_process();
    let banner = Banner { behind, listen: &running.listen, admin: running.admin, upstream, mode };
    let tail = Tail::new(behind);
    // If nobody can read it, there is nothing to do.
    let watched = match screen.say(&banner.text()) {
        Ok(()) => watch(&running, end, &mut screen, tail).await,
        Err(_) => tail,
    };
    running.finish().await;
    drop(demo);
    drop(screen.say(&watched.sum()));
    Ok(())
}

/// Shows what happens until somebody wants the end.
async fn watch(running: &Running, end: &mut End, screen: &mut Screen, mut tail: Tail) -> Tail {
    let mut events = running.events().listen();
    loop {
        let line = tokio::select! {
            () = end.wanted() => return tail,
            () = running.drain_wanted() => return tail,
            event = events.recv() => match event {
                Ok(event) => tail.line(&event, screen.colour),
                Err(RecvError::Lagged(missed)) => tail::missed(missed),
                Err(RecvError::Closed) => return tail,
            },
        };
        if screen.say(&line).is_err() {
            return tail;
        }
    }
}

impl Behind {
    /// What somebody wants to see first: the demonstration protects, and an API of theirs is only
    /// watched until they say otherwise.
    const fn mode(self) -> &'static str {
        match self {
            Self::Demo => "optional",
            Self::Upstream => "observe",
        }
    }
}

/// The port of operators: the one beside the clients', so that `oncekey status` finds it at its
/// usual place; any free one if the clients' is any free one.
const fn beside(port: u16) -> u16 {
    match port {
        0 | u16::MAX => 0,
        port => port + 1,
    }
}

/// The URL of a file in the folder.
fn store(folder: &Path) -> Result<String, Exit> {
    let file = folder.join("oncekey.db");
    let Some(path) = file.to_str() else {
        let what = "the path of the temporary folder is no text; set TMPDIR";
        return Err(Exit::new(exit::FAILURE, what));
    };
    // These mean something in a URL.
    let path = path.replace('%', "%25").replace('?', "%3f").replace('@', "%40").replace('#', "%23");
    Ok(format!("sqlite://{path}"))
}

fn install_logs(config: &Config) -> Result<Flush, Exit> {
    let instance = config.server.listen.to_string();
    let logs = Logs { format: Format::Pretty, filter: LOG.to_owned(), instance };
    logs::install(&logs)
        .map_err(|error| Exit::chain(exit::FAILURE, "there is no log", Some(&error)))
}

/// Removes the folder. The store's thread may still be closing its file, so a folder that is not
/// empty the first time gets a second and a third one.
async fn remove(folder: TempDir) -> Result<(), Exit> {
    let path = folder.keep();
    for _ in 0..20 {
        match std::fs::remove_dir_all(&path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
    let what = format!("{} could not be removed; please do it", path.display());
    Err(Exit::new(exit::FAILURE, &what))
}

/// Who can want the end: Ctrl-C, a supervisor, a terminal that is closed.
struct End([tokio::signal::unix::Signal; 3]);

impl End {
    fn listen() -> Result<Self, Exit> {
        let one = |kind| {
            signal(kind).map_err(|error| {
                Exit::chain(exit::FAILURE, "cannot listen to signals", Some(&error))
            })
        };
        Ok(Self([
            one(SignalKind::interrupt())?,
            one(SignalKind::terminate())?,
            one(SignalKind::hangup())?,
        ]))
    }

    async fn wanted(&mut self) {
        let Self([interrupt, terminate, hang_up]) = self;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_beside_clients() {
        assert_eq!([0, 8787, u16::MAX].map(beside), [0, 8788, 0]);
    }

    #[test]
    fn a_folder_with_odd_letters_is_a_url() {
        let url = store(Path::new("/tmp/50% @home?")).unwrap();
        assert_eq!(url, "sqlite:///tmp/50%25 %40home%3f/oncekey.db");
    }
}
