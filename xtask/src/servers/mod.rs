//! Throwaway servers: started on free ports of the loopback interface, gone with this program.
//!
//! Each server has a thread of its own that starts it, watches it and stops it. The thread lives
//! as long as its server: the kernel sends the parent-death signal, which ends our servers even
//! if this program is killed, when the *thread* that started a process ends.

mod daemon;
mod dynamodb;
mod mariadb;
mod nats;
mod pgbouncer;
mod postgres;
mod rabbitmq;
mod redis;
mod redis_cluster;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};

use self::daemon::Daemon;
use crate::folder::{Folder, Logs};
use crate::screen::{Detail, Screen};
use crate::stop::Stop;
use crate::tools::{Tool, Tools};

/// How often a thread looks after its server.
const WATCH: Duration = Duration::from_millis(50);

/// Settings that every AWS client wants, although no server here looks at them. The first keeps
/// the client from asking for credentials on the network, which takes seconds to fail.
const AWS: [(&str, &str); 4] = [
    ("AWS_EC2_METADATA_DISABLED", "true"),
    ("AWS_ACCESS_KEY_ID", "test"),
    ("AWS_SECRET_ACCESS_KEY", "test"),
    ("AWS_REGION", "us-east-1"),
];

/// A kind of server that the tests need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Postgres,
    /// With a PostgreSQL of its own behind it.
    PgBouncer,
    MariaDb,
    Redis,
    /// Three masters.
    RedisCluster,
    DynamoDb,
    Nats,
    RabbitMq,
}

/// A server that answers: its processes in the order in which they are stopped, and its URL.
#[derive(Debug)]
struct Started {
    daemons: Vec<Daemon>,
    url: String,
}

/// What a server needs to start.
#[derive(Clone, Debug)]
struct Place {
    tools: Tools,
    /// For data; exists only if the server creates it.
    folder: PathBuf,
    logs: PathBuf,
    stop: Stop,
}

/// Environment variables for the tests.
pub(crate) type Settings = Vec<(&'static str, String)>;

/// The servers of a run. Dropping this value stops them.
#[derive(Debug)]
pub(crate) struct Servers {
    stop: Stop,
    waiting: usize,
    news: Receiver<(Server, Result<String>)>,
    threads: Vec<(Server, JoinHandle<Result<()>>)>,
    settings: Settings,
}

impl Server {
    /// The slowest first: they start side by side, and a machine with two cores takes them as they come.
    pub(crate) const ALL: [Self; 8] = [
        Self::RabbitMq,
        Self::Postgres,
        Self::PgBouncer,
        Self::MariaDb,
        Self::Redis,
        Self::RedisCluster,
        Self::DynamoDb,
        Self::Nats,
    ];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::PgBouncer => "pgbouncer",
            Self::MariaDb => "mariadb",
            Self::Redis => "redis",
            Self::RedisCluster => "redis-cluster",
            Self::DynamoDb => "dynamodb",
            Self::Nats => "nats",
            Self::RabbitMq => "rabbitmq",
        }
    }

    /// The variable that tells the tests where this server is.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::Postgres => "ONCEKEY_TEST_POSTGRES",
            Self::PgBouncer => "ONCEKEY_TEST_PGBOUNCER",
            Self::MariaDb => "ONCEKEY_TEST_MYSQL",
            Self::Redis => "ONCEKEY_TEST_REDIS",
            Self::RedisCluster => "ONCEKEY_TEST_REDIS_CLUSTER",
            Self::DynamoDb => "ONCEKEY_TEST_DYNAMODB",
            Self::Nats => "ONCEKEY_TEST_NATS",
            Self::RabbitMq => "ONCEKEY_TEST_RABBITMQ",
        }
    }

    fn tools(self) -> &'static [Tool] {
        match self {
            Self::Postgres => &[Tool::Postgres],
            Self::PgBouncer => &[Tool::Postgres, Tool::PgBouncer],
            Self::MariaDb => &[Tool::MariaDb],
            Self::Redis | Self::RedisCluster => &[Tool::Redis],
            Self::DynamoDb => &[Tool::Dynoxide],
            Self::Nats => &[Tool::Nats],
            Self::RabbitMq => &[Tool::RabbitMq],
        }
    }

    /// The server that the caller provides, if any.
    fn provided(self) -> Option<String> {
        env::var(self.variable()).ok().filter(|url| !url.is_empty())
    }

    /// Starts the server and returns it with its URL once it answers.
    fn start(self, place: &Place) -> Result<Started> {
        let alone = |(daemon, url)| Started { daemons: vec![daemon], url };
        match self {
            Self::Postgres => postgres::start(place, self.label()).map(alone),
            Self::PgBouncer => pgbouncer::start(place),
            Self::MariaDb => mariadb::start(place).map(alone),
            Self::Redis => redis::start(place).map(alone),
            Self::RedisCluster => redis_cluster::start(place),
            Self::DynamoDb => dynamodb::start(place).map(alone),
            Self::Nats => nats::start(place).map(alone),
            Self::RabbitMq => rabbitmq::start(place),
        }
    }
}

/// The servers that this program has to start, because nobody provides them.
pub(crate) fn unprovided() -> Vec<Server> {
    Server::ALL.into_iter().filter(|server| server.provided().is_none()).collect()
}

/// The tools that it takes to start them.
pub(crate) fn tools_for(servers: &[Server]) -> Vec<Tool> {
    let mut tools: Vec<Tool> = servers.iter().flat_map(|server| server.tools()).copied().collect();
    if !tools.is_empty() {
        tools.push(Tool::Setpriv);
    }
    tools.sort_unstable();
    tools.dedup();
    tools
}

impl Servers {
    /// Starts `servers` in the background; those that are left out must be provided.
    pub(crate) fn start(servers: &[Server], tools: &Tools, folder: &Folder) -> Self {
        let (sender, news) = mpsc::channel();
        let stop = Stop::default();
        let mut settings: Settings = AWS.map(|(name, value)| (name, value.to_owned())).to_vec();
        let mut threads = Vec::new();
        for server in Server::ALL {
            if !servers.contains(&server) {
                settings.extend(server.provided().map(|url| (server.variable(), url)));
                continue;
            }
            let place = Place {
                tools: tools.clone(),
                folder: folder.path().join(server.label()),
                logs: folder.logs(),
                stop: stop.clone(),
            };
            let sender = sender.clone();
            threads.push((server, thread::spawn(move || keep(server, &place, &sender))));
        }
        Self { stop, waiting: threads.len(), news, threads, settings }
    }

    /// Waits until every server has either come up or failed.
    ///
    /// Returns the settings for the tests, which lack the servers that failed, and the failures.
    pub(crate) fn ready(&mut self, stop: &Stop) -> Result<(Settings, Vec<anyhow::Error>)> {
        let mut failures = Vec::new();
        while self.waiting > 0 {
            stop.check()?;
            match self.news.recv_timeout(WATCH) {
                Ok((server, Ok(url))) => self.settings.push((server.variable(), url)),
                Ok((server, Err(error))) => failures.push(error.context(server.label())),
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => {
                    // A thread panicked; `stop` reports which.
                    break;
                }
            }
            self.waiting -= 1;
        }
        Ok((self.settings.clone(), failures))
    }

    /// Stops all servers. The errors are about servers that had ended before they were asked to.
    pub(crate) fn stop(&mut self) -> Vec<anyhow::Error> {
        self.stop.raise();
        let mut errors = Vec::new();
        for (server, thread) in self.threads.drain(..) {
            let ended = thread.join().unwrap_or_else(|_| Err(anyhow!("its thread panicked")));
            errors.extend(ended.err().map(|error| error.context(server.label())));
        }
        errors
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The life of one server; see the top of this file for why this is one thread.
fn keep(server: Server, place: &Place, news: &Sender<(Server, Result<String>)>) -> Result<()> {
    let mut daemons = match server.start(place) {
        Ok(Started { daemons, url }) => {
            // Nobody listens if the run has ended already, and then the flag is raised as well.
            let _ = news.send((server, Ok(url)));
            daemons
        }
        Err(error) => {
            let _ = news.send((server, Err(error)));
            return Ok(());
        }
    };
    while !place.stop.is_raised() {
        daemons.iter_mut().try_for_each(Daemon::check)?;
        thread::sleep(WATCH);
    }
    daemons.iter_mut().try_for_each(Daemon::end)
}

/// `cargo xtask servers`: the servers without the tests.
pub(crate) fn serve() -> Result<ExitCode> {
    let stop = Stop::on_signals()?;
    let screen = Screen::new(Detail::Short);
    let tools = Tools::prepare(&tools_for(&Server::ALL), screen, &stop)?;
    let folder = Folder::create(Logs::Remove)?;
    let mut servers = Servers::start(&Server::ALL, &tools, &folder);
    let (settings, failures) = servers.ready(&stop)?;
    if let Some(error) = failures.into_iter().next() {
        return Err(error);
    }
    for (name, value) in settings {
        println!("export {name}={value}");
    }
    screen.say(&format!("logs are in {}; press Ctrl-C to stop", folder.logs().display()));
    while !stop.is_raised() {
        if servers.threads.iter().any(|(_, thread)| thread.is_finished()) {
            break;
        }
        thread::sleep(WATCH);
    }
    let errors = servers.stop();
    screen.say("the servers are stopped");
    errors.into_iter().next().map_or(Ok(ExitCode::SUCCESS), Err)
}
