//! `oncekey dev` as a developer meets it: what it prints, what its lines do, what it leaves behind.
#![cfg(feature = "sqlite")]

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Long enough for a slow machine, and short enough to find out why.
const SOON: Duration = Duration::from_secs(20);

/// The program, its lines, and the folder in which it may put what it likes until it ends.
struct Dev {
    child: Child,
    lines: Receiver<String>,
    folder: TempDir,
    gateway: String,
    admin: String,
    /// Lines for a shell, in the order of the banner.
    commands: Vec<String>,
}

impl Dev {
    fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
        command.args(["dev", "--port", "0"]).args(arguments).env("TMPDIR", folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().expect("the program runs");
        let out = child.stdout.take().expect("its output");
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            lines.take_while(|line| send.send(line.clone()).is_ok()).for_each(drop);
        });
        let (gateway, admin, commands) = (String::new(), String::new(), Vec::new());
        let mut dev = Self { child, lines, folder, gateway, admin, commands };
        dev.read_banner();
        dev
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(SOON).expect("a line of the program")
    }

    fn read_banner(&mut self) {
        loop {
            let line = self.line();
            let text = line.trim_start();
            if let Some(rest) = text.strip_prefix("gateway") {
                self.gateway = rest.split_whitespace().next().expect("its URL").to_owned();
            }
            if let Some(rest) = text.strip_prefix("admin") {
                self.admin = rest.trim().to_owned();
            }
            if text.starts_with("curl ") || text.starts_with("for ") {
                self.commands.push(text.to_owned());
            }
            if text.starts_with("Ctrl-C") {
                assert_eq!(self.line(), "", "an empty line ends the banner");
                return;
            }
        }
    }

    /// What a shell prints for a line of the banner.
    fn run(&self, command: usize) -> String {
        let line = &self.commands[command];
        let output = Command::new("sh").args(["-c", line]).output().expect("a shell");
        assert!(output.status.success(), "{line}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// The last column of the next lines of the tail, in any order.
    fn tail<const N: usize>(&self) -> [String; N] {
        let mut said = std::array::from_fn(|_| {
            let line = self.line();
            line.rsplit("  ").next().unwrap_or_default().to_owned()
        });
        said.sort();
        said
    }

    /// Presses Ctrl-C, and gives back what was said at the end.
    fn interrupt(mut self) -> String {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("an id");
        kill_process(id, Signal::INT).expect("it runs");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}");
        let left: Vec<_> = std::fs::read_dir(self.folder.path()).expect("a folder").collect();
        assert!(left.is_empty(), "{left:?}");
        let address = self.gateway.trim_start_matches("http://");
        assert!(TcpStream::connect(address).is_err(), "somebody still listens");
        self.lines.iter().collect()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
#[ignore = "needs curl: run cargo xtask test"]
fn the_lines_of_the_demonstration_show_what_they_say() {
    let dev = Dev::start(&["--demo"]);
    let first = dev.run(0);
    assert!(first.starts_with("HTTP/1.1 201"), "{first}");
    assert!(first.contains("\"id\":\"ch_1\"") && !first.contains("idempotent-replayed"), "{first}");
    assert_eq!(dev.tail(), ["first time"]);
    let again = dev.run(1);
    assert!(again.contains("idempotent-replayed: true"), "{again}");
    let body = |text: &str| text.rsplit("\r\n").next().map(str::to_owned);
    assert_eq!(body(&again), body(&first));
    assert_eq!(dev.tail(), ["replayed, second charge avoided"]);
    let other = dev.run(2);
    assert!(other.starts_with("HTTP/1.1 422"), "{other}");
    assert!(other.contains("\"differs\":[\"body:/amount\"]"), "{other}");
    assert_eq!(dev.tail(), ["key used for another body"]);
    let both = dev.run(3);
    let answers: Vec<&str> = both.lines().collect();
    let [one, two] = answers[..] else { panic!("two answers: {both}") };
    assert!(one == two && one.contains("ch_2"), "{both}");
    let expected = ["first time", "waited for the first, second charge avoided"];
    assert_eq!(dev.tail(), expected);
    let list = dev.run(4);
    assert!(
        list.contains("\"made\":2") && list.contains("ch_1") && list.contains("ch_2"),
        "{list}"
    );
    assert_eq!(dev.tail(), ["no key"]);
    let sum = dev.interrupt();
    assert!(sum.contains("6 requests, 2 second charges avoided"), "{sum}");
}

#[test]
#[ignore = "needs curl: run cargo xtask test"]
fn observe_mode_points_out_what_ran_twice() {
    let dev = Dev::start(&["--demo", "--mode", "observe"]);
    for (command, expected) in [
        (0, "first time"),
        (1, "DUPLICATE, ran twice"),
        (2, "key used for another body, would be refused"),
    ] {
        let answer = dev.run(command);
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
        assert!(!answer.contains("idempotency-status"), "observing changes nothing: {answer}");
        assert_eq!(dev.tail(), [expected]);
    }
    dev.run(3);
    assert_eq!(dev.tail(), ["DUPLICATE, ran twice", "first time"]);
    assert!(dev.run(4).contains("\"made\":5"));
    let sum = dev.interrupt();
    assert!(sum.contains("2 ran twice"), "{sum}");
}

#[test]
fn ctrl_c_leaves_nothing_behind() {
    for arguments in [&["--demo"][..], &["--to", ":1"], &["--demo", "--mode", "required"]] {
        let dev = Dev::start(arguments);
        let made = std::fs::read_dir(dev.folder.path()).expect("a folder").count();
        assert_eq!(made, 1, "one folder for everything");
        assert!(dev.interrupt().contains("0 requests"));
    }
}

/// A reload reads the defaults of servers again, which wait for load balancers.
#[test]
#[expect(clippy::disallowed_methods, reason = "how long a person waits is what is tested")]
fn ctrl_c_is_as_quick_after_a_reload() {
    let dev = Dev::start(&["--demo"]);
    let mut reload = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    let reloaded = reload.args(["reload", "--admin", &dev.admin]).output().expect("it runs");
    assert!(reloaded.status.success(), "{reloaded:?}");
    let began = std::time::Instant::now();
    dev.interrupt();
    // The delay of servers alone is five seconds.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

/// A program whose reader is gone has nobody to work for.
#[test]
fn a_closed_pipe_ends_it_and_removes_its_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    command.args(["dev", "--demo", "--port", "0"]).env("TMPDIR", folder.path());
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    assert!(command.stdout(writer).status().expect("the program runs").success());
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

#[test]
fn a_wrong_mode_or_port_is_said_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its number").port().to_string();
    for (arguments, code) in [
        (&["--demo", "--mode", "maybe"][..], 64),
        (&["--demo", "--port", &port], 1),
        (&["--to", "ftp://x"], 64),
        (&[], 64),
        (&["--demo", "--to", ":1"], 64),
    ] {
        assert_eq!(ended(arguments, folder.path()), Some(code), "{arguments:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

/// Both of its ports come from one option.
#[test]
fn a_port_that_is_taken_is_said_with_the_option_that_changes_it() {
    let (lower, _upper) = neighbours();
    let port = lower.local_addr().expect("its number").port();
    drop(lower);
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    let output = command.args(["dev", "--demo", "--port", &port.to_string()]).output();
    let said = String::from_utf8(output.expect("the program runs").stderr).expect("UTF-8");
    for words in ["the admin listener", "--port", &(port + 1).to_string()] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("--listen"), "{said}");
}

/// Two ports side by side.
fn neighbours() -> (std::net::TcpListener, std::net::TcpListener) {
    let bind = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).ok();
    let found = std::iter::repeat_with(|| {
        let lower = bind(0)?;
        let upper = bind(lower.local_addr().ok()?.port().checked_add(1)?)?;
        Some((lower, upper))
    });
    found.take(100).flatten().next().expect("two ports side by side")
}

fn ended(arguments: &[&str], folder: &Path) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    let output = command.arg("dev").args(arguments).env("TMPDIR", folder).output();
    let output = output.expect("the program runs");
    assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{output:?}");
    output.status.code()
}
