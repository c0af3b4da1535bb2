//! The gateway as a process, as people start it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::{LONGEST, until};

/// A folder with a configuration and, unless it is elsewhere, the store. Outlives the process.
#[derive(Debug)]
pub(crate) struct Home {
    folder: TempDir,
    store: Option<String>,
}

/// A gateway that serves. It is killed when this goes, however that happens.
#[derive(Debug)]
pub(crate) struct Gateway {
    child: Child,
    /// Nowhere, if clients come in over a socket in a file.
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    log: Arc<Mutex<String>>,
}

impl Home {
    /// A store in a file.
    pub(crate) fn on_sqlite() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), store: None }
    }

    /// A schema of its own on the PostgreSQL of the tests. It goes with the server.
    pub(crate) fn on_postgres(name: &str) -> Self {
        let url = std::env::var("ONCEKEY_TEST_POSTGRES").unwrap_or_else(|_| {
            panic!("ONCEKEY_TEST_POSTGRES is not set: run `cargo xtask test`, or `cargo xtask servers` and its exports")
        });
        let store = format!("{url}?schema=gateway_{name}_{}", std::process::id());
        Self { folder: tempfile::tempdir().unwrap(), store: Some(store) }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.path().join("oncekey.toml")
    }

    /// Writes the configuration: an upstream, free ports, and whatever else is said.
    pub(crate) fn configure(&self, upstream: &str, rest: &str) {
        self.configure_at("127.0.0.1:0", upstream, rest);
    }

    /// The same for clients that come in elsewhere.
    pub(crate) fn configure_at(&self, listen: &str, upstream: &str, rest: &str) {
        let text = format!(
            "version = 1\n\
             [server]\nlisten = \"{listen}\"\nupstream = \"{upstream}\"\n\
             drain = {{ delay = \"0s\", timeout = \"30s\" }}\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n{rest}"
        );
        // As editors do it: nobody ever sees half a file.
        let new = self.path().join("oncekey.toml.new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.config()).unwrap();
    }

    /// Removes a store in a file, which nobody may have open.
    pub(crate) fn forget(&self) {
        for name in ["keys.db", "keys.db-wal", "keys.db-shm"] {
            let _ = fs::remove_file(self.path().join(name));
        }
    }

    /// Starts the gateway on the configuration.
    pub(crate) fn run(&self) -> Gateway {
        let config = self.config();
        self.run_with(&["-c", config.to_str().unwrap()])
    }

    /// Starts the gateway with these options.
    pub(crate) fn run_with(&self, options: &[&str]) -> Gateway {
        self.run_in(options, &[])
    }

    /// The same, with further variables.
    pub(crate) fn run_in(&self, options: &[&str], variables: &[(&str, &str)]) -> Gateway {
        let own = || format!("sqlite://{}", self.path().join("keys.db").display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
        command
            .arg("run")
            .args(options)
            .env("ONCEKEY_STORE", self.store.clone().unwrap_or_else(own))
            .envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let log = Arc::new(Mutex::new(String::new()));
        let serving = listen(child.stderr.take().unwrap(), Arc::clone(&log));
        let Ok(line) = serving.recv_timeout(LONGEST) else {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the gateway does not serve:\n{}", log.lock().unwrap());
        };
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let at = |name: &str| line[name].as_str().unwrap().parse().unwrap_or(nowhere);
        Gateway { child, address: at("listen"), admin: at("admin"), log }
    }
}

/// Keeps the log, and gives the line that says that clients are served.
fn listen(stderr: ChildStderr, log: Arc<Mutex<String>>) -> mpsc::Receiver<Value> {
    let (serving, served) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let parsed: Value = serde_json::from_str(&line).unwrap_or_default();
            if parsed["message"] == "serving" || parsed["msg"] == "serving" {
                let _ = serving.send(parsed);
            }
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            log.push_str(&line);
            log.push('\n');
        }
    });
    served
}

impl Gateway {
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn tell(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.unwrap(), signal).unwrap();
    }

    /// `kill -9`, and nobody is left.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let mut ended = None;
        until("the end of the gateway", async || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        })
        .await;
        ended.unwrap()
    }

    /// Waits until the log says something.
    pub(crate) async fn says(&self, words: &str) {
        until(words, async || self.log().contains(words)).await;
    }

    /// Kilobytes of memory, by a name in `/proc/<pid>/status`: `VmRSS`, `VmHWM`.
    pub(crate) fn memory(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            // Shown with the failed test: why it failed often stands here.
            let log = self.log();
            let from = log.len().saturating_sub(6_000);
            let tail: String = log.chars().skip(from).collect();
            std::io::Write::write_all(&mut std::io::stderr(), tail.as_bytes()).unwrap_or_default();
        }
    }
}
