//! An upstream in another language, as a process: a script of `tests/battery/upstreams`.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::wire::{Client, ask};
use super::within;

/// The languages of upstreams.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Language {
    Python,
    Node,
}

/// A script that serves. It is killed when this goes; it also ends by itself when nobody holds its
/// standard input any more.
#[derive(Debug)]
pub(crate) struct Script {
    child: Child,
    pub(crate) address: SocketAddr,
}

/// One time that the upstream did something for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) path: String,
    /// The derived key, as it arrived.
    pub(crate) key: String,
    pub(crate) attempt: String,
    pub(crate) body: String,
}

impl Language {
    fn command(self) -> (&'static str, &'static str) {
        match self {
            Self::Python => ("python3", "server.py"),
            Self::Node => ("node", "server.js"),
        }
    }
}

/// A file of these tests.
pub(crate) fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path)
}

impl Script {
    pub(crate) fn start(language: Language) -> Self {
        let (program, name) = language.command();
        let mut command = Command::new(program);
        command.arg(file("battery/upstreams").join(name));
        Self::run(program, &mut command)
    }

    /// Starts a server that prints its port first.
    pub(crate) fn run(program: &str, command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| {
            panic!("{program} does not start ({error}): this test needs {program} on the PATH")
        });
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let port = port.trim().parse();
        let port = port.unwrap_or_else(|_| panic!("the server in {program} prints no port"));
        Self { child, address: SocketAddr::from(([127, 0, 0, 1], port)) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    async fn control(&self, path: &str) -> Value {
        let request = ask("GET", path).line("connection", "close");
        let seen = Client::open(self.address).await.ask(&request).await;
        assert_eq!(seen.status, 200, "{seen:?}");
        serde_json::from_slice(&seen.body).unwrap()
    }

    /// Everything that was done for a tenant.
    pub(crate) async fn runs(&self, tenant: &str) -> Vec<Ran> {
        let runs = self.control(&format!("/control/runs?tenant={tenant}")).await;
        let text = |run: &Value, name: &str| run[name].as_str().unwrap_or_default().to_owned();
        let runs = runs.as_array().unwrap().iter().map(|run| Ran {
            path: text(run, "path"),
            key: text(run, "key"),
            attempt: text(run, "attempt"),
            body: text(run, "body"),
        });
        runs.collect()
    }

    /// Waits until something was begun so many times for a tenant.
    pub(crate) async fn until_begun(&self, tenant: &str, times: usize) {
        let path = format!("/control/begun?tenant={tenant}&times={times}");
        within("the upstream's work", self.control(&path)).await;
    }

    /// Lets what is held for a tenant go on, now and later.
    pub(crate) async fn release(&self, tenant: &str) {
        self.control(&format!("/control/release?tenant={tenant}")).await;
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
