//! Child processes that measure on demand, and how they are built.
//!
//! The peer lives in a scratch project outside of this repository, which is written from the
//! templates in `peer/` and compiled once. If that cannot be done, for example without a network,
//! its figures are missing and the report says why.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio};

use oncekey_bench::Result;
use oncekey_bench::scratch::{self, cargo};

use crate::drive::Callers;
use crate::service::Operation;

/// A program that answers questions as `answer.rs` does.
#[derive(Debug)]
pub(crate) struct Child {
    process: Process,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// The program of the scratch project that measures time, and the one that counts allocations.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) timed: Child,
    pub(crate) counted: Child,
}

/// What the scratch project consists of.
const FILES: [(&str, &str); 9] = [
    ("Cargo.toml", include_str!("peer/manifest.toml")),
    ("src/allocations.rs", include_str!("allocations.rs")),
    ("src/answer.rs", include_str!("answer.rs")),
    ("src/clock.rs", include_str!("clock.rs")),
    ("src/counted.rs", include_str!("peer/counted.rs")),
    ("src/drive.rs", include_str!("drive.rs")),
    ("src/peer.rs", include_str!("peer/peer.rs")),
    ("src/service.rs", include_str!("service.rs")),
    ("src/timed.rs", include_str!("peer/timed.rs")),
];

impl Child {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let answers = process.stdout.take().ok_or("a child without an output")?;
        let questions = process.stdin.take();
        Ok(Self { process, questions, answers: BufReader::new(answers) })
    }

    /// Our own program that counts allocations.
    pub(crate) fn of_ours(program: &str) -> Result<Self> {
        let mut command = cargo();
        command.args(["run", "--release", "--quiet", "--package", env!("CARGO_PKG_NAME")]);
        Self::start(command.args(["--bin", program]).current_dir(root()))
    }

    /// Has it measure. The counters of each service, for one request.
    pub(crate) fn ask(
        &mut self,
        (operation, callers): (Operation, Callers),
        requests: usize,
    ) -> Result<Vec<[f64; 2]>> {
        let questions = self.questions.as_mut().ok_or("a child without an input")?;
        writeln!(questions, "{} {} {requests}", operation.label(), callers.label())?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let counts = line.split_whitespace().map(str::parse);
        let counts = counts.collect::<std::result::Result<Vec<f64>, _>>()?;
        if counts.is_empty() {
            return Err("a child process ended instead of measuring".into());
        }
        let each = |pair: &[f64]| [pair[0] / requests as f64, pair[1] / requests as f64];
        Ok(counts.chunks_exact(2).map(each).collect())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It ends when its input ends.
        self.questions = None;
        let _ = self.process.wait();
    }
}

impl Peer {
    /// Has the scratch project compiled and starts it.
    pub(crate) fn start() -> Result<Self> {
        let target = scratch::build("bench-layer-peer", &FILES)?;
        let program = |name: &str| Child::start(&mut Command::new(target.join(name)));
        Ok(Self { timed: program("timed")?, counted: program("counted")? })
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two layers are compared, not two versions of axum or two ways to compile.
    #[test]
    fn the_scratch_project_is_built_like_ours() {
        let (_, theirs) = FILES[0];
        let ours = include_str!("../../Cargo.toml");
        let (_, theirs) = theirs.split_once("[dependencies]").unwrap();
        let lines = theirs.lines().filter(|line| !line.is_empty());
        let own = lines.filter(|line| !ours.lines().any(|known| known == *line));
        assert_eq!(own.collect::<Vec<_>>(), [own_line()], "these lines are not in our manifest");
    }

    fn own_line() -> &'static str {
        r#"idempotent = { version = "=2.0.0", features = ["axum", "memory", "middleware"] }"#
    }
}
