//! What systemd is told: that the gateway serves, reloads, stops, and is alive.
//!
//! Datagrams on the socket that it names in `NOTIFY_SOCKET` (sd_notify(3)). Nobody answers, and a
//! datagram that cannot be sent is no reason to serve worse, so errors are passed over.

use std::env;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Whoever started us, if it wants to know.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notify(Option<Arc<Manager>>);

#[derive(Debug)]
struct Manager {
    socket: UnixDatagram,
    address: SocketAddr,
}

/// A status is a line for people; more than this is not shown anywhere.
const LONGEST: usize = 200;

impl Notify {
    /// Nobody wants to know, unless the environment says otherwise.
    pub(crate) fn from_env() -> Self {
        let name = env::var_os("NOTIFY_SOCKET").and_then(|name| name.into_string().ok());
        Self(name.and_then(|name| Manager::at(&name)).map(Arc::new))
    }

    /// Clients are served.
    pub(crate) fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={}", line(status)));
    }

    /// A new configuration is being read. The time tells this reload from one before.
    pub(crate) fn reloading(&self) {
        if self.0.is_some() {
            self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic().as_micros()));
        }
    }

    /// It ends.
    pub(crate) fn stopping(&self, status: &str) {
        self.tell(&format!("STOPPING=1\nSTATUS={}", line(status)));
    }

    /// It is not stuck.
    pub(crate) fn alive(&self) {
        self.tell("WATCHDOG=1");
    }

    /// How often somebody waits for a sign of life: half of the time after which it gives us up.
    /// Nothing if nobody does.
    pub(crate) fn heartbeat(&self) -> Option<Duration> {
        self.0.as_ref()?;
        let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
        // The variables are inherited; another process may be meant.
        let meant = env::var_os("WATCHDOG_PID").is_none()
            || number("WATCHDOG_PID") == Some(u64::from(std::process::id()));
        let within = number("WATCHDOG_USEC").filter(|micros| meant && *micros > 1)?;
        Some(Duration::from_micros(within / 2))
    }

    fn tell(&self, text: &str) {
        if let Some(manager) = &self.0 {
            drop(manager.socket.send_to_addr(text.as_bytes(), &manager.address));
        }
    }
}

impl Manager {
    /// A path, or a name without a place in the file system, which is written with `@`.
    fn at(name: &str) -> Option<Self> {
        let address = match name.strip_prefix('@') {
            Some(name) => nameless(name)?,
            None => SocketAddr::from_pathname(name).ok()?,
        };
        let socket = UnixDatagram::unbound().ok()?;
        // A manager that does not read must not hold us up.
        socket.set_nonblocking(true).ok()?;
        Some(Self { socket, address })
    }
}

#[cfg(target_os = "linux")]
fn nameless(name: &str) -> Option<SocketAddr> {
    use std::os::linux::net::SocketAddrExt as _;
    SocketAddr::from_abstract_name(name).ok()
}

#[cfg(not(target_os = "linux"))]
fn nameless(_: &str) -> Option<SocketAddr> {
    None
}

/// The clock that systemd compares by, which stands still while the machine sleeps. Ours counts
/// that, and is right for everything else.
fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), nanos)
}

/// The first line of a text: each line of a datagram is a field of its own.
fn line(text: &str) -> &str {
    let line = text.lines().next().unwrap_or_default();
    let end = line.char_indices().map(|(at, _)| at).nth(LONGEST);
    &line[..end.unwrap_or(line.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_one_line_and_cannot_hold_other_fields() {
        assert_eq!(line("a\nREADY=1"), "a");
        assert_eq!(line(&"ä".repeat(300)).chars().count(), LONGEST);
        assert_eq!(line(""), "");
    }
}
