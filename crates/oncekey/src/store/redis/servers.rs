//! Which server has which shard, and how to get a command there.
//!
//! The redirections of a cluster are followed here and not by the driver: it would repeat a command
//! after a broken connection, and a repeated release would be told that it was fenced by itself.
//! Only a command that a server has refused, and so not carried out, is sent again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redis::{Client, Cmd, ConnectionAddr, ConnectionInfo, Value};
use tokio::sync::Mutex;

use super::error::Failure;
use super::life::{Guard, Witness};
use super::link::{Link, Patience};
use super::script::Call;

/// How often a command that was sent to the wrong place is sent again. A slot that is being moved
/// answers with `TRYAGAIN` for a moment; a failover takes longer than anybody should wait.
const TRIES: u32 = 8;

/// How long a slot that is being moved is given before it is asked again.
const MOMENT: Duration = Duration::from_millis(40);

/// The name of a server that is the only one.
const ONLY: &str = "only";

/// Where the servers are.
#[derive(Clone, Debug)]
pub(super) enum Layout {
    /// One server.
    Single,
    /// A cluster, of which these nodes were named.
    Cluster(Vec<(String, u16)>),
}

/// How to reach servers.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) info: ConnectionInfo,
    pub(super) layout: Layout,
    pub(super) patience: Patience,
    /// How much longer an answer may take that waits for replicas or disks.
    pub(super) within: Duration,
    /// Connections per server.
    pub(super) links: usize,
}

/// The servers of a store.
pub(super) struct Servers {
    access: Access,
    guard: Arc<Guard>,
    map: RwLock<Arc<Map>>,
    stale: AtomicBool,
    mapping: Mutex<()>,
}

/// A server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) name: String,
    /// Which one it is, wherever it is: a cluster gives its nodes names for life.
    node: Option<Arc<str>>,
    links: Vec<Link>,
    /// For commands that make the server hold back everything behind them.
    pub(super) waiter: Link,
}

#[derive(Debug, Default)]
struct Map {
    servers: Vec<Arc<Server>>,
    /// First slot, last slot, and who has them.
    slots: Vec<(u16, u16, Arc<Server>)>,
}

impl std::fmt::Debug for Servers {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the access: it has the password.
        out.debug_struct("Servers").field("layout", &self.access.layout).finish_non_exhaustive()
    }
}

impl Servers {
    /// Connects to every server.
    pub(super) async fn connect(access: Access, guard: Arc<Guard>) -> Result<Self, Failure> {
        let servers = Self {
            guard,
            map: RwLock::new(Arc::default()),
            stale: AtomicBool::new(true),
            mapping: Mutex::new(()),
            access,
        };
        servers.refresh().await?;
        for server in servers.all() {
            server.links[0].info().await?;
        }
        Ok(servers)
    }

    /// Runs a script where its slot is, and says who did.
    pub(super) async fn run(&self, slot: u16, call: &Call) -> Result<(Value, Witness), Failure> {
        self.ask(slot, &call.command, Some(call)).await
    }

    /// Sends a command to where its slot is.
    pub(super) async fn send(&self, slot: u16, command: &Cmd) -> Result<Value, Failure> {
        Ok(self.ask(slot, command, None).await?.0)
    }

    /// Runs a script that changes nothing. If the connection breaks, it is asked once more: one that
    /// was idle while its server restarted is found out only when it is used.
    pub(super) async fn read_by(
        &self,
        slot: u16,
        call: &Call,
    ) -> Result<(Value, Witness), Failure> {
        match self.run(slot, call).await {
            Err(Failure::Broken(_)) => self.run(slot, call).await,
            answered => answered,
        }
    }

    /// Sends a command that changes nothing, and asks once more if the connection breaks.
    pub(super) async fn read(&self, slot: u16, command: &Cmd) -> Result<Value, Failure> {
        match self.send(slot, command).await {
            Err(Failure::Broken(_)) => self.send(slot, command).await,
            answered => answered,
        }
    }

    /// All servers that take writes.
    pub(super) fn all(&self) -> Vec<Arc<Server>> {
        self.map().servers.clone()
    }

    /// The server that has a slot.
    pub(super) async fn server(&self, slot: u16) -> Result<Arc<Server>, Failure> {
        if self.stale.load(Ordering::Acquire) {
            self.refresh().await?;
        }
        let map = self.map();
        let has = |(first, last, _): &&(u16, u16, _)| (*first..=*last).contains(&slot);
        match map.slots.iter().find(has) {
            Some((_, _, server)) => Ok(Arc::clone(server)),
            None => {
                self.stale.store(true, Ordering::Release);
                Err(Failure::Unreachable(nobody()))
            }
        }
    }

    /// Where wake-ups can be heard: any server, for a cluster passes them on.
    pub(super) fn clients(&self) -> Vec<Client> {
        self.map().servers.iter().map(|server| server.links[0].client().clone()).collect()
    }

    async fn ask(
        &self,
        slot: u16,
        command: &Cmd,
        call: Option<&Call>,
    ) -> Result<(Value, Witness), Failure> {
        let mut tries = 0;
        loop {
            let server = self.server(slot).await?;
            let link = server.link(slot);
            let answered = match call {
                Some(call) if call.is_grant() => link.send_grant(command).await,
                Some(_) | None => link.send(command).await,
            };
            let failure = match answered {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            tries += 1;
            let is_cluster = matches!(self.access.layout, Layout::Cluster(_));
            match (failure.code(), call) {
                _ if tries > TRIES => return Err(failure),
                (Some("NOSCRIPT"), Some(call)) => drop(link.send(&call.load()).await?),
                (Some("ASK"), _) if is_cluster => {
                    match self.follow(&failure, command, call).await {
                        Ok(answer) => return Ok(answer),
                        Err(again) if again.code().is_some() => tokio::time::sleep(MOMENT).await,
                        Err(failure) => return Err(failure),
                    }
                }
                (Some("MOVED" | "READONLY"), _) if is_cluster => self.refresh().await?,
                (Some("TRYAGAIN"), _) if is_cluster => tokio::time::sleep(MOMENT).await,
                (Some(_), _) => return Err(failure),
                (None, _) => {
                    // The next caller looks where the slot is now. This one may have been heard.
                    self.stale.store(is_cluster, Ordering::Release);
                    return Err(failure);
                }
            }
        }
    }

    /// Asks where a slot is being moved to.
    async fn follow(
        &self,
        failure: &Failure,
        command: &Cmd,
        call: Option<&Call>,
    ) -> Result<(Value, Witness), Failure> {
        let Failure::Refused(error) = failure else { return Err(failure.clone()) };
        let target = error.redirect_node().and_then(|(address, _)| parse_address(address));
        let (host, port) = target.ok_or(Failure::Odd("ASK"))?;
        let server = self.known_or_new(&host, port)?;
        if let Some(call) = call {
            server.links[0].send(&call.load()).await?;
            if let (true, Some(loss)) = (call.is_grant(), self.guard.loss()) {
                return Err(Failure::Lost(loss));
            }
        }
        let mut both = redis::pipe();
        both.cmd("ASKING").ignore().add_command(command.clone());
        let (mut answers, witness) = server.links[0].send_all(&both).await?;
        Ok((answers.pop().ok_or(Failure::Odd("ASKING"))?, witness))
    }

    /// Learns where the slots are. Those who come meanwhile wait for it instead of asking, too.
    async fn refresh(&self) -> Result<(), Failure> {
        let before = self.map();
        let _turn = self.mapping.lock().await;
        if !Arc::ptr_eq(&before, &self.map()) {
            return Ok(());
        }
        let map = match &self.access.layout {
            Layout::Single => {
                let server =
                    Arc::new(self.new_server(self.access.info.clone(), Some(ONLY.into()))?);
                let slots = vec![(0, u16::MAX, Arc::clone(&server))];
                Map { servers: vec![server], slots }
            }
            Layout::Cluster(named) => self.learn(named).await?,
        };
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
        self.stale.store(false, Ordering::Release);
        Ok(())
    }

    async fn learn(&self, named: &[(String, u16)]) -> Result<Map, Failure> {
        let mut failure = Failure::Unreachable(nobody());
        let mut candidates = self.all();
        for (host, port) in named {
            candidates.push(self.known_or_new(host, *port)?);
        }
        for server in candidates {
            match server.links[0].send(redis::cmd("CLUSTER").arg("SLOTS")).await {
                Ok((slots, _)) => return self.read_slots(&slots, &server.name),
                // A replica knows where its primary is, but is asked by nobody here.
                Err(reason) => failure = reason,
            }
        }
        Err(failure)
    }

    fn read_slots(&self, value: &Value, asked: &str) -> Result<Map, Failure> {
        let Value::Array(ranges) = value else { return Err(Failure::Odd("CLUSTER SLOTS")) };
        let mut servers: HashMap<String, Arc<Server>> = HashMap::new();
        let mut slots = Vec::with_capacity(ranges.len());
        for range in ranges {
            let Range { first, last, host, port, node } =
                read_range(range, asked).ok_or(Failure::Odd("CLUSTER SLOTS"))?;
            let name = format!("{host}:{port}");
            let server = match servers.get(&name) {
                Some(server) => Arc::clone(server),
                None => self.node(&host, port, Some(node.into()))?,
            };
            servers.insert(name, Arc::clone(&server));
            slots.push((first, last, server));
        }
        let mut servers: Vec<_> = servers.into_values().collect();
        servers.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Map { servers, slots })
    }

    fn known_or_new(&self, host: &str, port: u16) -> Result<Arc<Server>, Failure> {
        let name = format!("{host}:{port}");
        match self.all().into_iter().find(|server| server.name == name) {
            Some(server) => Ok(server),
            None => self.node(host, port, None),
        }
    }

    /// A node of the cluster. Another one at the same address is another one.
    fn node(&self, host: &str, port: u16, node: Option<Arc<str>>) -> Result<Arc<Server>, Failure> {
        let name = format!("{host}:{port}");
        let is_it = |server: &Arc<Server>| server.name == name && server.node == node;
        if let Some(server) = self.all().into_iter().find(is_it) {
            return Ok(server);
        }
        let (host, given) = (host.to_owned(), self.access.info.addr().clone());
        let address = if let ConnectionAddr::TcpTls { insecure, tls_params, .. } = given {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        Ok(Arc::new(self.new_server(self.access.info.clone().set_addr(address), node)?))
    }

    fn new_server(&self, info: ConnectionInfo, node: Option<Arc<str>>) -> Result<Server, Failure> {
        let name = info.addr().to_string();
        let client = Client::open(info).map_err(Failure::Unreachable)?;
        let patience = self.access.patience;
        let link =
            |patience| Link::new(client.clone(), patience, Arc::clone(&self.guard), node.clone());
        let links = (0..self.access.links.max(1)).map(|_| link(patience)).collect();
        let slow = Patience { answer: patience.answer + self.access.within, ..patience };
        let waiter = link(slow);
        Ok(Server { name, node, links, waiter })
    }

    fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Server {
    /// The connection for a slot: always the same, so that the calls for a key keep their order.
    fn link(&self, slot: u16) -> &Link {
        &self.links[usize::from(slot) % self.links.len()]
    }

    /// A connection for questions about the server itself.
    pub(super) fn any(&self) -> &Link {
        &self.links[0]
    }
}

/// A range of slots, and who has it.
struct Range {
    first: u16,
    last: u16,
    host: String,
    port: u16,
    node: String,
}

fn read_range(range: &Value, asked: &str) -> Option<Range> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = parts.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), Value::BulkString(node), ..] = primary.as_slice() else {
        return None;
    };
    let told = if let Value::BulkString(bytes) = host {
        String::from_utf8(bytes.clone()).ok()?
    } else if let Value::SimpleString(host) = host {
        host.clone()
    } else {
        String::new()
    };
    // A node that does not know its own address is where it was asked.
    let host = if told.is_empty() { parse_address(asked)?.0 } else { told };
    Some(Range {
        first: u16::try_from(*first).ok()?,
        last: u16::try_from(*last).ok()?,
        host,
        port: u16::try_from(*port).ok()?,
        node: String::from_utf8(node.clone()).ok()?,
    })
}

/// Splits `host:port`; the host may be an IPv6 address, in brackets or not.
pub(super) fn parse_address(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty()).then_some(())?;
    Some((host.to_owned(), port.parse().ok()?))
}

fn nobody() -> redis::RedisError {
    std::io::Error::new(std::io::ErrorKind::NotFound, "no server has this part of the keys").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_split_at_the_last_colon() {
        assert_eq!(parse_address("a.example:6379"), Some(("a.example".into(), 6379)));
        assert_eq!(parse_address("[::1]:7000"), Some(("::1".into(), 7000)));
        for bad in ["", ":1", "host", "host:", "host:99999"] {
            assert_eq!(parse_address(bad), None, "{bad}");
        }
    }
}
