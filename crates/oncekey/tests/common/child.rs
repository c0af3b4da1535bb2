//! The test program as its own child: it runs itself with one test, `child`, and a role.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const ROLE: &str = "ONCEKEY_CHILD";
const FILE: &str = "ONCEKEY_CHILD_FILE";
const NUMBER: &str = "ONCEKEY_CHILD_NUMBER";

/// Marks the lines of the child's standard output that are ours and not the test harness's.
const MARK: &str = "@ ";

/// What a child was told.
#[derive(Debug)]
pub(crate) struct Orders {
    pub(crate) role: String,
    pub(crate) file: PathBuf,
    pub(crate) number: u64,
}

/// A child process. It is killed when this is dropped, so that a failed test leaves none behind.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    out: BufReader<ChildStdout>,
    into: Option<ChildStdin>,
}

/// What this process was told to do, if it is a child.
pub(crate) fn orders() -> Option<Orders> {
    let role = std::env::var(ROLE).ok()?;
    let file = std::env::var_os(FILE).expect("a child is told its file").into();
    let number = std::env::var(NUMBER).expect("a child is told its number");
    // The harness may have left its own line unfinished.
    std::io::stdout().write_all(b"\n").expect("the parent listens");
    Some(Orders { role, file, number: number.parse().expect("a number") })
}

/// Tells the parent a line. Returns false once nobody listens any more.
pub(crate) fn tell(line: &str) -> bool {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{line}").is_ok()
}

/// Waits for a line of the parent. Returns false once there will be none.
pub(crate) fn wait_for_parent() -> bool {
    std::io::stdin().lock().read_line(&mut String::new()).is_ok_and(|read| read > 0)
}

/// The command that runs this program as a child.
pub(crate) fn command(role: &str, file: &Path, number: u64) -> Command {
    let program = std::env::current_exe().expect("a program knows its path");
    command_of(&program, role, file, number)
}

/// The same for a copy of this program.
pub(crate) fn command_of(program: &Path, role: &str, file: &Path, number: u64) -> Command {
    with_orders(Command::new(program), role, file, number)
}

/// The same through a shell that runs `before` first, such as `ulimit -f 100`.
pub(crate) fn command_after(before: &str, role: &str, file: &Path, number: u64) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{before}; exec \"$0\" \"$@\""));
    command.arg(std::env::current_exe().expect("a program knows its path"));
    with_orders(command, role, file, number)
}

fn with_orders(mut command: Command, role: &str, file: &Path, number: u64) -> Command {
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"].map(OsStr::new));
    command.env(ROLE, role).env(FILE, file).env(NUMBER, number.to_string());
    command
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().expect("a child starts");
        let out = BufReader::new(child.stdout.take().expect("its output is piped"));
        let into = child.stdin.take();
        Self { child, out, into }
    }

    /// The next line that the child tells, or `None` once it has ended. A line that was cut off
    /// by its death does not count.
    pub(crate) fn hear(&mut self) -> Option<String> {
        hear(&mut self.out)
    }

    /// Hears everything until the child is killed, which is when `moment` returns.
    pub(crate) fn hear_and_kill(&mut self, moment: impl FnOnce()) -> Vec<String> {
        let Self { child, out, .. } = self;
        std::thread::scope(|scope| {
            let told = scope.spawn(|| std::iter::from_fn(|| hear(out)).collect());
            moment();
            child.kill().expect("a child can be killed");
            child.wait().expect("a dead child is reaped");
            told.join().expect("the pipe can be read")
        })
    }

    /// Waits for exactly this line.
    pub(crate) fn expect(&mut self, line: &str) {
        assert_eq!(self.hear().as_deref(), Some(line), "what the child says");
    }

    /// Lets the child go on.
    pub(crate) fn go_on(&mut self) {
        let into = self.into.as_mut().expect("its input is open");
        into.write_all(b"go\n").expect("the child listens");
    }

    /// The child's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9`, and waits until it is dead. What it told before can still be heard.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a dead child is reaped");
    }

    /// Hears the rest and waits for a good end.
    pub(crate) fn finish(mut self) -> Vec<String> {
        self.into = None;
        let mut told = Vec::new();
        while let Some(line) = self.hear() {
            told.push(line);
        }
        let status = self.child.wait().expect("a child ends");
        assert!(status.success(), "the child failed ({status}) after saying {told:?}");
        told
    }
}

fn hear(out: &mut impl BufRead) -> Option<String> {
    loop {
        let mut line = String::new();
        out.read_line(&mut line).expect("the pipe can be read");
        let whole = line.strip_suffix('\n')?;
        if let Some(told) = whole.strip_prefix(MARK) {
            return Some(told.to_owned());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, and then there is nothing to kill.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
