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
use super::link::{Link, Patience, Users};
use super::script::Call;
use super::slots::{Range, parse_address, read_range};

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
    /// Held by whoever learns where the slots are, in each lane.
    mapping: [Mutex<()>; 2],
}

/// Whose connections a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Calls,
    /// A connection is driven by the runtime that it was made in. Renewals come from a thread of their
    /// own, and have connections of their own: a program that blocks all of its threads loses no lease.
    Renewals,
}

/// A server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) name: String,
    /// Which one it is, wherever it is: a cluster gives its nodes names for life.
    node: Option<Arc<str>>,
    links: Vec<Link>,
    /// For renewals alone.
    renewer: Link,
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
            mapping: Default::default(),
            access,
        };
        servers.refresh(Lane::Calls).await?;
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
        self.server_by(slot, Lane::Calls).await
    }

    async fn server_by(&self, slot: u16, lane: Lane) -> Result<Arc<Server>, Failure> {
        if self.stale.load(Ordering::Acquire) {
            self.refresh(lane).await?;
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
        let lane = match call {
            Some(call) if call.is_renewal() => Lane::Renewals,
            Some(_) | None => Lane::Calls,
        };
        let mut tries = 0;
        loop {
            let server = self.server_by(slot, lane).await?;
            let mut link = server.link(slot, lane);
            let mut answered = match call {
                Some(call) if call.is_grant() => link.send_grant(command).await,
                Some(_) | None => link.send(command).await,
            };
            if let (Err(Failure::Unreachable(_)), Some(other)) =
                (&answered, server.instead(slot, lane))
            {
                link = other;
                answered = link.send(command).await;
            }
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
                    match self.follow(&failure, command, call, lane).await {
                        Ok(answer) => return Ok(answer),
                        Err(again) if again.code().is_some() => tokio::time::sleep(MOMENT).await,
                        Err(failure) => return Err(failure),
                    }
                }
                (Some("MOVED" | "READONLY"), _) if is_cluster => self.refresh(lane).await?,
                // A primary no more: once more over a new connection, which may lead to the next one.
                (Some("READONLY"), _) if tries == 1 => {}
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
        lane: Lane,
    ) -> Result<(Value, Witness), Failure> {
        let Failure::Refused(error) = failure else { return Err(failure.clone()) };
        let target = error.redirect_node().and_then(|(address, _)| parse_address(address));
        let (host, port) = target.ok_or(Failure::Odd("ASK"))?;
        let server = self.known_or_new(&host, port)?;
        let link = server.link(0, lane);
        if let Some(call) = call {
            link.send(&call.load()).await?;
            if let (true, Some(loss)) = (call.is_grant(), self.guard.loss()) {
                return Err(Failure::Lost(loss));
            }
        }
        let mut both = redis::pipe();
        both.cmd("ASKING").ignore().add_command(command.clone());
        let (mut answers, witness) = link.send_all(&both).await?;
        Ok((answers.pop().ok_or(Failure::Odd("ASKING"))?, witness))
    }

    /// Learns where the slots are. Those who come meanwhile wait for it instead of asking, too.
    async fn refresh(&self, lane: Lane) -> Result<(), Failure> {
        let before = self.map();
        let _turn = self.mapping[lane as usize].lock().await;
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
            Layout::Cluster(named) => self.learn(named, lane).await?,
        };
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
        self.stale.store(false, Ordering::Release);
        Ok(())
    }

    async fn learn(&self, named: &[(String, u16)], lane: Lane) -> Result<Map, Failure> {
        let mut failure = Failure::Unreachable(nobody());
        let mut candidates = self.all();
        for (host, port) in named {
            candidates.push(self.known_or_new(host, *port)?);
        }
        for server in candidates {
            match server.link(0, lane).send(redis::cmd("CLUSTER").arg("SLOTS")).await {
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
        let link = |users, patience| {
            Link::new((client.clone(), users), patience, Arc::clone(&self.guard), node.clone())
        };
        let links = (0..self.access.links.max(1)).map(|_| link(Users::Many, patience)).collect();
        let slow = Patience { answer: patience.answer + self.access.within, ..patience };
        let (renewer, waiter) = (link(Users::Heart, patience), link(Users::Many, slow));
        Ok(Server { name, node, links, renewer, waiter })
    }

    fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Server {
    /// The connection for a slot: always the same, so that the calls for a key keep their order.
    fn link(&self, slot: u16, lane: Lane) -> &Link {
        match lane {
            Lane::Calls => &self.links[usize::from(slot) % self.links.len()],
            Lane::Renewals => &self.renewer,
        }
    }

    /// The connection that a renewal goes over when there is none of its own to be had, because the server
    /// takes no more of them. What the program does with its threads can hold it up there, but a lease that
    /// is renewed so is better than one that lapses.
    fn instead(&self, slot: u16, lane: Lane) -> Option<&Link> {
        match lane {
            Lane::Calls => None,
            Lane::Renewals => Some(self.link(slot, Lane::Calls)).filter(|link| link.is_open()),
        }
    }

    /// A connection for questions about the server itself.
    pub(super) fn any(&self) -> &Link {
        &self.links[0]
    }
}

fn nobody() -> redis::RedisError {
    std::io::Error::new(std::io::ErrorKind::NotFound, "no server has this part of the keys").into()
}
