//! One running server process.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;

use super::Place;
use crate::clock::Stopwatch;
use crate::process;
use crate::programs;
use crate::stop::Stop;
use crate::tools::Tool;

/// A server starts in a second; a busy machine with two cores may need many times that.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// How long a probe waits for an answer.
const PROBE_DEADLINE: Duration = Duration::from_secs(2);
/// Somebody else may take a free port before the server does. More often than this is no accident.
const PORT_ATTEMPTS: usize = 3;
/// How much of a log an error shows.
const TAIL_LINES: usize = 30;

/// A server that runs until this value is dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    log: PathBuf,
    ask: Signal,
}

/// How to run a server once its data folder is there.
pub(crate) struct Launch<'a> {
    /// Names the log file.
    pub(crate) name: &'a str,
    /// The signal that makes the server end in good order.
    pub(crate) ask: Signal,
    /// The command for a port.
    pub(crate) command: &'a dyn Fn(u16) -> Command,
    /// Whether the server on a port answers.
    pub(crate) probe: &'a dyn Fn(u16) -> bool,
}

impl Launch<'_> {
    /// Starts the server on a free port and waits until it answers.
    pub(crate) fn start(&self, place: &Place) -> Result<(Daemon, u16)> {
        let log = place.logs.join(format!("{}.log", self.name));
        for _ in 1..PORT_ATTEMPTS {
            let port = free_port()?;
            match self.attempt(port, &log, &place.stop) {
                Ok(daemon) => return Ok((daemon, port)),
                Err(_) if port_was_taken(&log) => {}
                Err(error) => return Err(error),
            }
        }
        let port = free_port()?;
        Ok((self.attempt(port, &log, &place.stop)?, port))
    }

    fn attempt(&self, port: u16, log: &Path, stop: &Stop) -> Result<Daemon> {
        let mut command = (self.command)(port);
        let output = File::create(log).with_context(|| format!("cannot create {log:?}"))?;
        let errors = output.try_clone().context("cannot share the log file")?;
        // A group of its own keeps Ctrl-C away from the server: we stop it when its users are gone.
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        let line = process::line_of(&command);
        let child = command.spawn().with_context(|| format!("cannot run {line}"))?;
        let mut daemon = Daemon { child, log: log.to_path_buf(), ask: self.ask };
        let since = Stopwatch::start();
        while !(self.probe)(port) {
            stop.check()?;
            daemon.check()?;
            if since.elapsed() > START_DEADLINE {
                bail!("no answer after {START_DEADLINE:?}\n{}", daemon.tail());
            }
            thread::sleep(Duration::from_millis(20));
        }
        // Had somebody else answered on that port, our server would have ended.
        daemon.check()?;
        Ok(daemon)
    }
}

impl Daemon {
    /// Fails if the server has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.child.try_wait().context("cannot watch the server")? {
            Some(status) => bail!("the server ended with {status}\n{}", self.tail()),
            None => Ok(()),
        }
    }

    /// Ends the server, by force if it takes too long.
    pub(crate) fn end(&mut self) -> Result<()> {
        process::end(&mut self.child, self.ask).context("cannot stop the server")?;
        Ok(())
    }

    fn tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        tail(&String::from_utf8_lossy(&text), TAIL_LINES)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The parent-death signal is the second line of defence.
        let _ = self.end();
    }
}

/// A command that dies with the thread that starts it, and runs as `user` if we are root.
///
/// The parent-death signal is lost when a program changes its user later. So a server must not
/// do that itself, although MariaDB offers to.
pub(crate) fn tethered(place: &Place, user: Option<&str>, program: &Path) -> Result<Command> {
    let mut command = Command::new(place.tools.path(Tool::Setpriv)?);
    if let Some(user) = user.filter(|_| programs::is_root()) {
        command.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
        command.arg("--clear-groups");
    }
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    Ok(command)
}

/// Creates the folder of a server, owned by `user` if we are root.
pub(crate) fn create_folder(place: &Place, user: &str) -> Result<()> {
    let mut command = Command::new("install");
    command.args(["-d", "-m", "700"]);
    if programs::is_root() {
        command.args(["-o", user, "-g", user]);
    }
    command.arg(&place.folder);
    process::output(command, &place.stop)?;
    Ok(())
}

/// Sends `question` to a local port and tells whether the answer begins with `answer`.
pub(crate) fn answers(port: u16, question: &str, answer: &str) -> bool {
    let ask = || -> std::io::Result<bool> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, PROBE_DEADLINE)?;
        stream.set_read_timeout(Some(PROBE_DEADLINE))?;
        stream.write_all(question.as_bytes())?;
        let mut bytes = vec![0; answer.len()];
        stream.read_exact(&mut bytes)?;
        Ok(bytes == answer.as_bytes())
    };
    ask().unwrap_or(false)
}

/// Whether somebody accepts connections on a local port.
pub(crate) fn listens(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&address, PROBE_DEADLINE).is_ok()
}

/// A port of the loopback interface that nobody listens on right now.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr().context("no free port")?.port())
}

/// Whether a server ended because of its port; all have these words in what they log then.
fn port_was_taken(log: &Path) -> bool {
    fs::read(log).is_ok_and(|text| String::from_utf8_lossy(&text).contains("already in use"))
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    let start = all.len().saturating_sub(lines);
    all[start..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_can_be_bound() {
        let port = free_port().unwrap();
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    }

    #[test]
    fn a_tail_is_the_end_of_a_text() {
        assert_eq!(tail("one\ntwo\nthree\n", 2), "two\nthree");
        assert_eq!(tail("one", 2), "one");
        assert_eq!(tail("", 2), "");
    }

    #[test]
    fn a_taken_port_is_recognised_in_the_log_of_each_server() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let cases = [
            "LOG:  could not bind IPv4 address \"127.0.0.1\": Address already in use",
            "[ERROR] Can't start server: Bind on TCP/IP port. Got error: 98: Address already in use",
            "# Warning: Could not create server TCP listening socket: bind: Address already in use",
            "error: port 38999 is already in use (detected listener on 127.0.0.1:38999)",
        ];
        for line in cases {
            fs::write(log.path(), line).unwrap();
            assert!(port_was_taken(log.path()), "{line}");
        }
        fs::write(log.path(), "Bad directive or wrong number of arguments").unwrap();
        assert!(!port_was_taken(log.path()));
    }

    #[test]
    fn silence_is_not_an_answer() {
        assert!(!answers(free_port().unwrap(), "PING\r\n", "+PONG"));
    }
}
