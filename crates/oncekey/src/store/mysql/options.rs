//! How to open a store.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::{Opts, OptsBuilder};
use oncekey_core::StoreError;
use oncekey_core::health::Verdict;
use quick_cache::sync::Cache;

use super::claims::Wariness;
use super::error::unsuitable;
use super::inspect::{self, Galera};
use super::life::Guard;
use super::op::Batches;
use super::schema::{self, Migrate, PREFIX};
use super::session::{Pool, Server};
use super::sql::Tables;
use super::{MysqlStore, SEEN, rights};
use crate::store::group::{Company, Group, Limits, Mixing};
use crate::store::parts::of_opening;

/// How to open a store.
#[must_use]
pub struct MysqlOptions {
    url: String,
    prefix: String,
    migrate: Migrate,
    galera: Galera,
    writers: usize,
    readers: usize,
    timeout: Duration,
    root_certificate: Option<PathBuf>,
}

/// Connections that write batches.
const WRITERS: usize = 4;
/// Connections for renewals. One does them all; with another, a renewal that waits for the lock of its
/// record does not keep the next ones waiting.
const RENEWERS: usize = 2;
/// Connections for reads, purges and large bodies.
const READERS: usize = 8;
/// How long the server may take to answer, or to open a connection. Twice the time for which it waits
/// for a lock, with a second for the work.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The most operations in a batch. Above that a batch takes longer than what it saves: its callers wait
/// for one another.
const BATCH: usize = 256;
/// The most bytes of bodies and texts in a batch: twice as much as text, which is half of the smallest
/// packet that the store works with.
const BYTES: usize = 1024 * 1024;
/// The most claims, or other operations, that wait. More callers than that are a flood.
const QUEUE: usize = 8_192;

impl MysqlOptions {
    /// Opens the database of `url`: `mysql://user:password@host:3306/database`. Options of the driver
    /// can follow, such as `?require_ssl=true`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            prefix: PREFIX.to_owned(),
            migrate: Migrate::default(),
            galera: Galera::default(),
            writers: WRITERS,
            readers: READERS,
            timeout: TIMEOUT,
            root_certificate: None,
        }
    }

    /// Has the names of all tables begin with this instead of `oncekey_`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Says whether the store may change the tables.
    pub fn migrate(mut self, migrate: Migrate) -> Self {
        self.migrate = migrate;
        self
    }

    /// Says what is known about a Galera cluster.
    pub fn galera(mut self, galera: Galera) -> Self {
        self.galera = galera;
        self
    }

    /// How many connections write batches, instead of four. More help only if the server is far away.
    pub fn writers(mut self, writers: usize) -> Self {
        self.writers = writers;
        self
    }

    /// How many connections read, purge and write large bodies, instead of eight. Two more are kept for
    /// renewals.
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = readers;
        self
    }

    /// How long the server may take to answer, instead of five seconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Asks for TLS and trusts the root certificates in this PEM file, beside those that everybody
    /// trusts.
    pub fn root_certificate(mut self, path: impl Into<PathBuf>) -> Self {
        self.root_certificate = Some(path.into());
        self
    }

    /// The statements that make the tables, for people who apply them by hand.
    ///
    /// # Errors
    /// If the prefix is none.
    pub fn migration_sql(&self) -> Result<String, StoreError> {
        Tables::new(&self.prefix)?;
        Ok(schema::migration_sql_of(&self.prefix))
    }

    /// Opens the store, looks at the server and brings the tables up to date.
    ///
    /// # Errors
    /// [`Unsuitable`](oncekey_core::ErrorKind::Unsuitable) if the URL, the rights, the server or its
    /// settings cannot keep the store's promises; the message says what to change.
    /// [`Unavailable`](oncekey_core::ErrorKind::Unavailable) if the server cannot be reached.
    pub async fn open(self) -> Result<MysqlStore, StoreError> {
        self.open_once().await.map_err(of_opening)
    }

    async fn open_once(self) -> Result<MysqlStore, StoreError> {
        let tables = Tables::new(&self.prefix)?;
        let mut server = Server {
            options: self.parse()?,
            galera: self.galera,
            connect: self.timeout,
            patience: self.timeout,
            guard: None,
        };
        let mut session = server.connect().await?;
        match self.migrate {
            Migrate::OnOpen => schema::migrate(&mut session, &tables).await?,
            Migrate::ByHand => schema::check(&mut session, &tables).await.map(drop)?,
        }
        let health = inspect::inspect(&mut session, &tables, self.galera).await?;
        if let Some(error) = inspect::refusal(&health.findings) {
            return Err(error);
        }
        for finding in health.findings.iter().filter(|f| f.verdict == Verdict::Degraded) {
            tracing::warn!(check = finding.check, "{}", finding.text);
        }
        rights::check(&mut session, &tables).await?;
        let guard = Arc::new(Guard::new(&tables));
        server.guard = Some(Arc::clone(&guard));
        let wariness = Wariness::default();
        let batches = Batches { server: server.clone(), tables: tables.clone(), wariness };
        let group = Group::start(&Arc::new(batches), self.limits());
        let renewals = Pool::new(server.clone(), RENEWERS);
        let pool = Pool::new(server, self.readers);
        Ok(MysqlStore { group, pool, renewals, tables, guard, seen: Cache::new(SEEN) })
    }

    fn parse(&self) -> Result<Opts, StoreError> {
        // The parser's own words may quote the URL, and with it the password.
        let options = Opts::from_url(&self.url).map_err(|_| {
            unsuitable(
                "the URL is not one of MySQL: write mysql://user:password@host:3306/database, and \
                 percent-encode what is special in the password",
            )
        })?;
        if options.db_name().is_none_or(str::is_empty) {
            return Err(unsuitable("the URL names no database: write mysql://…/database"));
        }
        // The socket would lead past a proxy that the URL names. Matched rows, not changed ones: a
        // renewal within the same microsecond is one.
        let ssl = match &self.root_certificate {
            Some(path) => {
                let ssl = options.ssl_opts().cloned().unwrap_or_default();
                Some(ssl.with_root_certs(vec![path.clone().into()]))
            }
            None => options.ssl_opts().cloned(),
        };
        let builder = OptsBuilder::from_opts(options)
            .prefer_socket(false)
            .client_found_rows(true)
            .stmt_cache_size(0)
            .ssl_opts(ssl);
        Ok(builder.into())
    }

    fn limits(&self) -> Limits {
        Limits {
            writers: self.writers,
            batch: BATCH,
            bytes: BYTES,
            queue: QUEUE,
            // A statement and its commit cost as much as a dozen rows: half of the callers at a time.
            company: Company::OneIn(2),
            mixing: Mixing::Apart,
            patience: self.timeout,
            connect: self.timeout,
            // A batch is a few texts, each with the timeout of its own.
            run: self.timeout * 3,
        }
    }
}

/// Without user and password.
impl fmt::Debug for MysqlOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("MysqlOptions").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
