//! How to open a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncekey_core::health::Tier;
use oncekey_core::{ErrorKind, StoreError};
use redis::{ConnectionInfo, IntoConnectionInfo as _};

use super::RedisStore;
use super::confirm::{Confirmer, Rule};
use super::epoch::Found;
use super::health::announce;
use super::life::Guard;
use super::link::Patience;
use super::place::Names;
use super::reach::Reach;
use super::servers::{Access, Layout, Servers};
use super::slots::parse_address;
use super::watch::Watcher;
use crate::store::parts::of_opening;

/// How long a connection may take: a server that needs longer is as good as down.
const CONNECT: Duration = Duration::from_secs(5);

/// How long an answer may take. Longer than a slow disk sync, shorter than a lease.
const ANSWER: Duration = Duration::from_secs(5);

/// Connections per server. A server works for one connection at a time; two keep it busy while a
/// client decodes, and a large answer on one leaves the other free.
const CONNECTIONS: usize = 2;

/// How to open a store.
#[must_use]
pub struct RedisOptions {
    url: String,
    nodes: Vec<String>,
    prefix: String,
    connections: usize,
    patience: Patience,
    confirm: Option<(Rule, Duration)>,
    accepted: Tier,
    missing: Missing,
}

/// What to do if there is no store under the prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// Make one.
    #[default]
    Make,
    /// Say so, and write nothing: for whoever expects records in it.
    Refuse,
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the URL: it may have a password.
        out.debug_struct("RedisOptions").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl RedisOptions {
    /// Opens the server at `url`: `redis://user:password@host:6379/0`, or `rediss://` for TLS. A
    /// cluster is `redis+cluster://user:password@host:6379,host:6379`, or `rediss+cluster://`; some of
    /// its nodes are enough.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            nodes: Vec::new(),
            prefix: "oncekey".to_owned(),
            connections: CONNECTIONS,
            patience: Patience { connect: CONNECT, answer: ANSWER },
            confirm: None,
            accepted: Tier::Process,
            missing: Missing::default(),
        }
    }

    /// Puts `prefix` before all names, instead of `oncekey`. Stores with different prefixes know
    /// nothing of each other.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// More nodes of the cluster, as `host:port`. With any, the URL is taken for a cluster's.
    pub fn cluster_nodes<N: Into<String>>(mut self, nodes: impl IntoIterator<Item = N>) -> Self {
        self.nodes.extend(nodes.into_iter().map(Into::into));
        self
    }

    /// Keeps so many connections to each server, instead of two, besides one for renewals.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// How long connecting and answering may take, instead of five seconds each.
    pub fn timeouts(self, connect: Duration, answer: Duration) -> Self {
        self.connect_timeout(connect).answer_timeout(answer)
    }

    /// How long connecting may take.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.patience.connect = limit;
        self
    }

    /// How long an answer may take. After that nobody knows whether a call took effect.
    pub fn answer_timeout(mut self, limit: Duration) -> Self {
        self.patience.answer = limit;
        self
    }

    /// What to do if there is no store under the prefix.
    pub fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// Waits after every grant, send mark, end, erasure and restored record until so many replicas have
    /// it in memory (`WAIT`). If they have not `within` this time, the call is ambiguous, and the write stands.
    ///
    /// It makes it likely that a failover loses nothing, and no more than that: nothing keeps a
    /// replica that is behind from being promoted.
    pub fn wait_for_replicas(mut self, replicas: u32, within: Duration) -> Self {
        self.confirm = Some((Rule::Replicas(replicas), within));
        self
    }

    /// Waits after every grant, send mark, end, erasure and restored record until the primary and so many
    /// replicas have it in their append-only files (`WAITAOF`). For Redis 7.2 and newer with `appendfsync everysec`.
    pub fn wait_for_disks(mut self, replicas: u32, within: Duration) -> Self {
        self.confirm = Some((Rule::Disks(replicas), within));
        self
    }

    /// Accepts a store that promises no more than `tier`. By default the death of the server's
    /// process must lose nothing ([`Tier::Process`]).
    pub fn accept(mut self, tier: Tier) -> Self {
        self.accepted = tier;
        self
    }

    /// Connects, looks at how every server is set up, and finds the store or makes it.
    ///
    /// # Errors
    /// [`Unsuitable`](ErrorKind::Unsuitable) if the servers cannot keep the store's promises; the
    /// message says what to change. [`Unavailable`](ErrorKind::Unavailable) if they cannot be reached.
    pub async fn open(self) -> Result<RedisStore, StoreError> {
        self.open_once().await.map_err(of_opening)
    }

    async fn open_once(self) -> Result<RedisStore, StoreError> {
        let names = Names::new(&self.prefix)?;
        let (info, layout) = self.target()?;
        let within = self.confirm.map_or(Duration::ZERO, |(_, within)| within);
        let (patience, links) = (self.patience, self.connections);
        let access = Access { info, layout, patience, within, links };
        let guard = Arc::new(Guard::default());
        let servers = Servers::connect(access, Arc::clone(&guard)).await?;
        let reach = Arc::new(Reach::new(servers, names, guard));
        // Before anything is written: the server may be one that must not be used.
        announce(&reach.inspect(self.accepted).await?)?;
        if let Some((Rule::Disks(_), _)) = self.confirm
            && !reach.all_can_wait_for_disks().await?
        {
            return Err(StoreError::new(
                ErrorKind::Unsuitable,
                "waiting for disks needs WAITAOF, which Redis has since 7.2: upgrade the server, or \
                 set `appendfsync always` and do not wait",
            ));
        }
        if reach.awake(self.missing).await? == Found::Nothing {
            return Err(no_store());
        }
        Ok(RedisStore {
            reach,
            confirmer: self.confirm.map(|(rule, within)| Confirmer::new(rule, within)),
            watcher: Watcher::new(self.patience),
            accepted: self.accepted,
        })
    }

    /// Where to connect to.
    fn target(&self) -> Result<(ConnectionInfo, Layout), StoreError> {
        let (scheme, rest) = self.url.split_once("://").ok_or_else(bad_url)?;
        let (scheme, is_cluster) = match scheme {
            "redis" | "rediss" | "redis+unix" | "unix" => (scheme, !self.nodes.is_empty()),
            "redis+cluster" => ("redis", true),
            "rediss+cluster" => ("rediss", true),
            _ => return Err(bad_url()),
        };
        if !is_cluster {
            let info = self.url.as_str().into_connection_info().map_err(|_| bad_url())?;
            return Ok((info, Layout::Single));
        }
        let (authority, path) = match rest.find(['/', '?']) {
            Some(end) => rest.split_at(end),
            None => (rest, ""),
        };
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), authority),
        };
        let listed = hosts.split(',').filter(|host| !host.is_empty()).map(str::to_owned);
        let mut nodes = Vec::new();
        for node in listed.chain(self.nodes.iter().cloned()) {
            let with_port = if node.contains(':') { node } else { format!("{node}:6379") };
            nodes.push(parse_address(&with_port).ok_or_else(bad_url)?);
        }
        let (host, port) = nodes.first().ok_or_else(bad_url)?;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let first = format!("{scheme}://{user}{host}:{port}{path}");
        let info = first.as_str().into_connection_info().map_err(|_| bad_url())?;
        Ok((info, Layout::Cluster(nodes)))
    }
}

fn no_store() -> StoreError {
    StoreError::new(
        ErrorKind::Unavailable,
        "there is no store under this prefix: check the server, the database and the prefix, or \
         make one with `oncekey store migrate`",
    )
}

/// Says what is expected and not what was given, which may hold a password.
fn bad_url() -> StoreError {
    StoreError::new(
        ErrorKind::Unsuitable,
        "the URL of a Redis store is redis://host:6379/0, rediss://… for TLS, or \
         redis+cluster://host:6379,host:6379 for a cluster",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(url: &str) -> Option<Vec<(String, u16)>> {
        match RedisOptions::new(url).target() {
            Ok((_, Layout::Cluster(nodes))) => Some(nodes),
            Ok((_, Layout::Single)) => Some(Vec::new()),
            Err(_) => None,
        }
    }

    #[test]
    fn one_url_names_a_server_or_a_cluster() {
        assert_eq!(nodes("redis://127.0.0.1:7000/3"), Some(Vec::new()));
        assert_eq!(nodes("rediss://u:p@example.org"), Some(Vec::new()));
        let expected = vec![("a".to_owned(), 1), ("b".to_owned(), 6379), ("::1".to_owned(), 2)];
        assert_eq!(nodes("redis+cluster://u:p@a:1,b,[::1]:2"), Some(expected.clone()));
        assert_eq!(nodes("rediss+cluster://a:1,b,[::1]:2/"), Some(expected));
        for bad in ["", "a:1", "http://a", "redis+cluster://", "redis+cluster://a:x", "redis://["] {
            assert_eq!(nodes(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_url_and_its_password_are_never_shown() {
        let options = RedisOptions::new("redis://u:geheim@a:1");
        assert!(!format!("{options:?}").contains("geheim"));
        let error = RedisOptions::new("redis://u:geheim@[").target().map(|_| ()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("geheim"));
    }
}
