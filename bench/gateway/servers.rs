//! The processes that are measured: the service, nginx and gateways, each on a port of its own.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use oncekey_bench::Result;
use oncekey_bench::clock::Stopwatch;
use rustix::process::{Pid, Signal, kill_process};

use crate::client::Client;

/// A process that serves, until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    /// From its start to its first answer.
    pub(crate) took: Duration,
    log: PathBuf,
}

/// A server that needs longer than that will never come.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is asked whether it is there: a hundredth of what is demanded of a start.
const ASK: Duration = Duration::from_millis(2);

impl Server {
    /// Starts the service.
    pub(crate) fn upstream(folder: &Path) -> Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--upstream", &port.to_string()]);
        Self::start(command, port, folder.join("upstream.log"))
    }

    /// Starts nginx in front of the service. It gets as many workers as the gateway has threads,
    /// one for each core: with one worker it would leave half of the machine to others.
    pub(crate) fn nginx(folder: &Path, upstream: u16, workers: usize) -> Result<Self> {
        let port = free_port()?;
        let program = std::env::var_os("ONCEKEY_BENCH_NGINX").unwrap_or_else(|| "nginx".into());
        let settings = folder.join("nginx.conf");
        fs::write(&settings, nginx_settings(folder, port, upstream, workers))?;
        let mut command = Command::new(program);
        command.arg("-p").arg(folder).arg("-c").arg(settings);
        Self::start(command, port, folder.join("nginx.log"))
    }

    /// Starts the gateway in front of the service, as `oncekey run --to` does.
    pub(crate) fn gateway(
        mut command: Command,
        folder: &Path,
        upstream: u16,
        store: &str,
    ) -> Result<Self> {
        let port = free_port()?;
        command
            .args(["run", "--to", &format!("http://127.0.0.1:{upstream}")])
            .args(["--listen", &format!("127.0.0.1:{port}"), "--admin", "127.0.0.1:0"])
            .env("ONCEKEY_STORE", store)
            // Nobody sends clients here who would have to look away first.
            .env("ONCEKEY__SERVER__DRAIN__DELAY", "\"0s\"");
        Self::start(command, port, folder.join(format!("gateway-{port}.log")))
    }

    fn start(mut command: Command, port: u16, log: PathBuf) -> Result<Self> {
        let output = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let watch = Stopwatch::start();
        let child = command
            .spawn()
            .map_err(|error| format!("cannot run {}: {error}", command.get_program().display()))?;
        let mut server = Self { child, port, took: Duration::ZERO, log };
        while Client::connect(port).and_then(|mut client| client.get("/first")).is_err() {
            if server.child.try_wait()?.is_some() || watch.elapsed() > PATIENCE {
                return Err(format!("a server does not start:\n{}", server.said()).into());
            }
            thread::sleep(ASK);
        }
        server.took = watch.elapsed();
        Ok(server)
    }

    /// The id of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where operators of a gateway come in, as its log says: a moment after it happened.
    pub(crate) fn admin_port(&self) -> Result<u16> {
        let watch = Stopwatch::start();
        loop {
            let said = self.said();
            let mut lines = said.lines().filter_map(|line| serde_json::from_str(line).ok());
            let serving = lines.find(|line: &serde_json::Value| line["admin"].is_string());
            let address = serving.as_ref().and_then(|line| line["admin"].as_str());
            if let Some(port) = address.and_then(|address| address.rsplit(':').next()?.parse().ok())
            {
                return Ok(port);
            }
            if watch.elapsed() > PATIENCE {
                return Err("a gateway does not say where its operators come in".into());
            }
            thread::sleep(ASK);
        }
    }

    /// What it wrote.
    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The process and those that it started.
    fn processes(&self) -> Vec<u32> {
        let id = self.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.unwrap_or_default();
        let children = children.split_whitespace().filter_map(|id| id.parse().ok());
        std::iter::once(id).chain(children).collect()
    }

    /// Processor time that it took so far, in nanoseconds.
    pub(crate) fn spent(&self) -> f64 {
        let tasks = self.processes().into_iter().flat_map(|id| {
            fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten()
        });
        let spent = tasks.filter_map(|task| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<f64>().ok()
        });
        spent.sum()
    }

    /// Memory that it has now, in megabytes.
    pub(crate) fn megabytes(&self) -> f64 {
        let kilobytes = self.processes().into_iter().filter_map(|id| {
            let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        });
        kilobytes.sum::<f64>() * 1_024.0 / 1e6
    }

    /// Asks it to end, and waits.
    pub(crate) fn end(&mut self) {
        // It may be gone already.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let watch = Stopwatch::start();
        while watch.elapsed() < PATIENCE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(ASK);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// A port that nobody has. Somebody else may take it before it is used; then the start fails.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn nginx_settings(folder: &Path, port: u16, upstream: u16, workers: usize) -> String {
    let folder = folder.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("  {name}_temp_path {folder}/nginx-{name};\n"))
        .concat();
    format!(
        "daemon off;\npid {folder}/nginx.pid;\nerror_log stderr error;\nworker_processes {workers};\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off;\n{temporary}\
           keepalive_requests 1000000000;\n\
           upstream service {{\n\
             server 127.0.0.1:{upstream};\n\
             keepalive 128;\n\
             keepalive_requests 1000000000;\n\
           }}\n\
           server {{\n\
             listen 127.0.0.1:{port} reuseport;\n\
             location / {{\n\
               proxy_pass http://service;\n\
               proxy_http_version 1.1;\n\
               proxy_set_header Connection \"\";\n\
               proxy_set_header Host $host;\n\
             }}\n\
           }}\n}}\n"
    )
}
