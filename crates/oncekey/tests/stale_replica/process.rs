//! A server process that ends with its owner, or with the test.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server. Dropping it kills it, as a machine that loses its power would.
pub(crate) struct Process(Child);

/// The user that PostgreSQL runs as if we are root, which it refuses.
pub(crate) const USER: &str = "postgres";

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        // An error means that it is gone already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A command that dies with this process, as `user` if we are root.
pub(crate) fn tethered(user: Option<&str>, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    if let Some(user) = user.filter(|_| rustix::process::geteuid().is_root()) {
        command.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
        command.arg("--clear-groups");
    }
    command.args(["--pdeathsig", "KILL", "--", program]);
    command
}

/// Makes a folder that belongs to `user` if we are root.
pub(crate) fn folder_of(user: &str, folder: &Path) {
    let mut command = Command::new("install");
    command.args(["-d", "-m", "700"]);
    if rustix::process::geteuid().is_root() {
        command.args(["-o", user, "-g", user]);
    }
    assert!(command.arg(folder).status().unwrap().success());
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until `is_so`, for a minute: these machines are busy.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..1_200 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("in vain: {what}")
}
