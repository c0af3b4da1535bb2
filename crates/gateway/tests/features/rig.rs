//! An upstream, the program in front of it, and somebody who sends requests.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

/// A request or a response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    /// Its first line.
    pub(crate) first: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

/// The program in front of an upstream that answers everything with a number that grows.
pub(crate) struct Rig {
    program: Child,
    pub(crate) listen: String,
    pub(crate) admin: String,
    seen: Arc<Mutex<Vec<Message>>>,
    pub(crate) folder: TempDir,
}

impl Message {
    fn read(stream: &mut impl Read) -> Option<Self> {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
        let mut message = Self { first: line.trim_end().to_owned(), ..Self::default() };
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            message.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let length = message.header("content-length").and_then(|length| length.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        stream.read_exact(&mut body).ok()?;
        message.body = String::from_utf8(body).ok()?;
        Some(message)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// All lines of a header, joined.
    pub(crate) fn lines(&self, name: &str) -> String {
        let lines = self.headers.iter().filter(|(known, _)| known == name);
        lines.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn status(&self) -> u16 {
        self.first.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("JSON: {}", self.body))
    }
}

impl Rig {
    /// Starts both. `more` goes into the file behind the upstream, and may begin other tables.
    pub(crate) fn new(more: &str) -> Self {
        Self::with(|_| more.to_owned())
    }

    /// As [`new`](Self::new), for files in the folder of the configuration.
    pub(crate) fn with(more: impl FnOnce(&Path) -> String) -> Self {
        let upstream = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = upstream.local_addr().expect("an address");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        thread::spawn(move || serve(&upstream, &noted));
        Self::before(&format!("http://{address}"), seen, more)
    }

    /// A program in front of a port that nobody listens to.
    pub(crate) fn alone(more: &str) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address");
        drop(free);
        Self::before(&format!("http://{address}"), Arc::default(), |_| more.to_owned())
    }

    fn before(
        upstream: &str,
        seen: Arc<Mutex<Vec<Message>>>,
        more: impl FnOnce(&Path) -> String,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let more = more(folder.path()).replace("{upstream}", upstream);
        let listen = if more.contains("listen = 'unix:") { "" } else { "listen = '127.0.0.1:0'\n" };
        let text = format!(
            "version = 1\nstore.url = 'sqlite://{}'\n\
             telemetry.log.format = 'json'\n\
             [server]\nupstream = '{upstream}'\ndrain = {{ delay = '0s' }}\n{listen}{more}",
            folder.path().join("keys.db").display()
        );
        let file = folder.path().join("oncekey.toml");
        std::fs::write(&file, text).expect("the file");
        let mut program = run(&file);
        let said = BufReader::new(program.stderr.take().expect("standard error"));
        let mut lines = said.lines().map_while(Result::ok);
        let mut before = Vec::new();
        let serving = lines.by_ref().find_map(|line| {
            let value: Value = serde_json::from_str(&line).unwrap_or_default();
            before.push(line);
            (value["msg"] == "serving").then_some(value)
        });
        let serving = serving.unwrap_or_else(|| panic!("it does not start: {before:?}"));
        // Somebody has to read, or the program stops at a full pipe.
        thread::spawn(move || lines.for_each(drop));
        let text = |name: &str| serving[name].as_str().expect("an address").to_owned();
        Self { program, listen: text("listen"), admin: text("admin"), seen, folder }
    }

    /// Sends a request with `Host` and the length of its body.
    pub(crate) fn send(&self, first: &str, headers: &[&str], body: &str) -> Message {
        let stream = TcpStream::connect(&self.listen).expect("the gateway");
        exchange(stream, first, headers, body)
    }

    /// What the upstream got.
    pub(crate) fn seen(&self) -> Vec<Message> {
        self.seen.lock().expect("nobody panicked").clone()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.program.kill());
        drop(self.program.wait());
    }
}

/// Starts the program with a file.
pub(crate) fn run(file: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    command.env("ONCEKEY__ADMIN__LISTEN", "'127.0.0.1:0'");
    command.args(["run", "-c"]).arg(file).stderr(Stdio::piped()).stdout(Stdio::null());
    command.spawn().expect("the program runs")
}

/// Sends a request over a connection of its own.
pub(crate) fn exchange(
    mut stream: impl Read + Write,
    first: &str,
    headers: &[&str],
    body: &str,
) -> Message {
    let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let request = format!(
        "{first} HTTP/1.1\r\nHost: api\r\nConnection: close\r\n{lines}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("written");
    Message::read(&mut stream).expect("an answer")
}

/// Answers every request with how many there were, and allows another origin.
fn serve(upstream: &TcpListener, seen: &Mutex<Vec<Message>>) {
    for stream in upstream.incoming() {
        let Ok(mut stream) = stream else { return };
        drop(stream.set_read_timeout(Some(Duration::from_secs(10))));
        let Some(request) = Message::read(&mut stream) else { continue };
        let answer = match request.first.as_str() {
            first if first.starts_with("POST /lost") => Some(String::new()),
            first if first.starts_with("GET /outcomes/") => Some(outcome(&request)),
            first if first.starts_with("GET /wrong") => Some(NOT_FOUND.to_owned()),
            _ => None,
        };
        let mut seen = seen.lock().expect("nobody panicked");
        seen.push(request);
        if let Some(answer) = answer {
            drop(stream.write_all(answer.as_bytes()));
            continue;
        }
        let body = format!("{{\"number\":{}}}", seen.len());
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Access-Control-Allow-Origin: https://shop\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        drop(stream.write_all(answer.as_bytes()));
    }
}

const NOT_FOUND: &str = "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// Says what became of a request, to whoever has its derived key.
fn outcome(request: &Message) -> String {
    let key = request.header("idempotency-key").unwrap_or_default();
    match request.first.contains("happened") {
        true => format!(
            "HTTP/1.1 200 OK\r\nIdempotency-Key: {key}\r\nOriginal-Status: 201\r\n\
             Connection: close\r\nContent-Length: 4\r\n\r\npaid"
        ),
        false => NOT_FOUND.replace("Connection", &format!("Idempotency-Key: {key}\r\nConnection")),
    }
}
