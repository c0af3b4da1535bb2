//! Connections: how one is opened, with TLS, and how statements travel on it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join5;
use oncekey_core::StoreError;
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::OnceCell;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Connection, Error, Row, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::{from_postgres, is_about_prepared_statements, unsuitable};
use super::life::{Guard, Life};
use super::options::{PostgresOptions, Prepared};
use super::sql::{Sql, Statement};

/// Opens connections. One for the whole store.
pub(super) struct Dialler {
    config: Config,
    tls: MakeRustlsConnect,
    pub(super) connect_timeout: Duration,
    lock_timeout: Duration,
    pub(super) guard: Arc<Guard>,
    /// Whether statements are prepared. Once it is found that this does not work, never again.
    is_plain: AtomicBool,
}

/// A connection on which many statements may be under way at the same time.
///
/// Dropping it closes the socket at once. No cancel request is ever sent: with synchronous
/// replication one would make the server report a commit that no standby has.
pub(super) struct Line {
    pub(super) client: Client,
    /// The server that it leads to.
    pub(super) life: Life,
    statements: Option<Vec<OnceCell<tokio_postgres::Statement>>>,
    task: AbortHandle,
}

/// What the driver makes of a connection.
pub(super) type Wire = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// The values of a statement.
pub(super) type Values<'v> = [&'v (dyn ToSql + Sync)];

impl Dialler {
    /// Whether a connection is open, as far as anybody knows, and leads to where others lead.
    pub(super) fn is_good(&self, line: &Line) -> bool {
        !line.client.is_closed() && !self.guard.is_outdated(&line.life)
    }

    pub(super) fn new(options: &PostgresOptions) -> Result<Self, StoreError> {
        let Url { mut config, mode, roots } = Url::parse(&options.url)?;
        let tls = connector(mode, roots.as_deref())?;
        // Claims must be decided by the server that others write to, never by a standby.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        // What the URL says holds.
        let connect_timeout =
            config.get_connect_timeout().copied().unwrap_or(options.connect_timeout);
        config.connect_timeout(connect_timeout);
        // A peer that is gone without a word is noticed even if nobody asks for a while.
        if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
            config.keepalives_idle(Duration::from_secs(30));
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(30));
        }
        if config.get_application_name().is_none() {
            config.application_name("oncekey");
        }
        Ok(Self {
            config,
            tls,
            connect_timeout,
            lock_timeout: options.lock_timeout,
            guard: Arc::default(),
            is_plain: AtomicBool::new(options.prepared == Prepared::Off),
        })
    }

    /// Opens a connection for statements.
    pub(super) async fn line(&self) -> Result<Line, StoreError> {
        let (client, wire) = self.connect().await?;
        let task = tokio::spawn(async move {
            // Whoever waits for an answer hears of it; nobody else needs to.
            let _ = wire.await;
        });
        let prepares = !self.is_plain();
        let statements = prepares.then(|| (0..Sql::COUNT).map(|_| OnceCell::new()).collect());
        let mut line = Line { client, life: "".into(), statements, task: task.abort_handle() };
        let meeting = timeout(self.connect_timeout, self.guard.meet(&line.client)).await;
        line.life = meeting.map_err(|_| self.too_late())?.map_err(from_postgres)?;
        Ok(line)
    }

    /// Opens a connection and leaves it to the caller to drive it.
    pub(super) async fn connect(&self) -> Result<(Client, Wire), StoreError> {
        let opened = timeout(self.connect_timeout, self.connect_in_some_way()).await;
        opened.unwrap_or_else(|_| Err(self.too_late()))
    }

    fn too_late(&self) -> StoreError {
        StoreError::new(
            oncekey_core::ErrorKind::Unavailable,
            format!("no connection to PostgreSQL within {:?}", self.connect_timeout),
        )
    }

    async fn connect_in_some_way(&self) -> Result<(Client, Wire), StoreError> {
        if self.is_plain() {
            return self.config.connect(self.tls.clone()).await.map_err(from_postgres);
        }
        let mut config = self.config.clone();
        config.options(self.settings());
        match config.connect(self.tls.clone()).await {
            // What a pooler says about settings that it does not know how to keep apart.
            Err(error) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => {
                self.give_up_preparing("the server takes no settings at the start");
                self.config.connect(self.tls.clone()).await.map_err(from_postgres)
            }
            opened => opened.map_err(from_postgres),
        }
    }

    /// What every direct connection is started with. Not a `SET`: there is no moment without it.
    ///
    /// The plan of a prepared statement may be made while the table is empty and kept while it
    /// grows, so plans that read whole tables are priced out. Queries that have no other way still
    /// find theirs.
    fn settings(&self) -> String {
        let given = self.config.get_options().unwrap_or_default();
        format!(
            "{given} -c default_transaction_isolation=read\\ committed -c lock_timeout={}ms \
             -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off",
            self.lock_timeout.as_millis()
        )
    }

    /// From here on no connection prepares statements.
    fn give_up_preparing(&self, why: &str) {
        if !self.is_plain.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                why,
                "a pooler seems to stand before PostgreSQL: statements are not prepared any more; \
                 say `prepared = off` to be spared the attempt"
            );
        }
    }

    /// Whether statements are not prepared, because somebody said so or a pooler was found.
    pub(super) fn is_plain(&self) -> bool {
        self.is_plain.load(Ordering::Relaxed)
    }

    /// Notes what an error says about the way to the server.
    pub(super) fn learn_from(&self, error: &Error) {
        if is_about_prepared_statements(error) {
            self.give_up_preparing("a prepared statement is gone");
        }
    }
}

/// What went wrong with statements that belong together.
#[derive(Debug)]
pub(super) enum Together {
    /// One of them was not carried out, and so none was.
    Statement(Error),
    /// Their beginning or their end: nobody knows.
    Frame(Error),
}

impl Line {
    /// Runs one statement: one round trip.
    pub(super) async fn query(
        &self,
        statement: &Statement,
        values: &Values<'_>,
    ) -> Result<Vec<Row>, Error> {
        let Some(place) = self.place_of(statement) else {
            return self.query_plain(statement, values).await;
        };
        let prepared = self.prepared(statement, place).await?;
        self.client.query(prepared, values).await
    }

    /// Runs three statements, one after the other, in one transaction and one round trip. Each sees
    /// whatever those before it had to wait for.
    ///
    /// An error of a statement has taken all of them back; an error of the commit leaves it open.
    pub(super) async fn query_together(
        &self,
        [(first, values), (second, others), (third, rest)]: [(&Statement, &Values<'_>); 3],
    ) -> Result<[Vec<Row>; 3], Together> {
        // The first use costs a round trip more. After that nothing stands between them.
        for statement in [first, second, third] {
            if let Some(place) = self.place_of(statement) {
                self.prepared(statement, place).await.map_err(Together::Statement)?;
            }
        }
        // Polled in this order, and a statement is sent when it is first polled.
        let (begun, one, two, three, committed) = join5(
            self.client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED"),
            self.query(first, values),
            self.query(second, others),
            self.query(third, rest),
            self.client.batch_execute("COMMIT"),
        )
        .await;
        // Without a transaction around them, those after an error may have been carried out.
        begun.map_err(Together::Frame)?;
        let rows = [one, two, three].map(|ended| ended.map_err(Together::Statement));
        let [one, two, three] = rows;
        let rows = [one?, two?, three?];
        committed.map_err(Together::Frame)?;
        Ok(rows)
    }

    /// Runs one statement without preparing it.
    pub(super) async fn query_plain(
        &self,
        statement: &Statement,
        values: &Values<'_>,
    ) -> Result<Vec<Row>, Error> {
        let types = statement.types.iter().cloned();
        let typed: Vec<_> = values.iter().copied().zip(types).collect();
        self.client.query_typed(&statement.text, &typed).await
    }

    fn place_of(&self, statement: &Statement) -> Option<&OnceCell<tokio_postgres::Statement>> {
        self.statements.as_ref()?.get(statement.place)
    }

    async fn prepared<'l>(
        &self,
        statement: &Statement,
        place: &'l OnceCell<tokio_postgres::Statement>,
    ) -> Result<&'l tokio_postgres::Statement, Error> {
        place.get_or_try_init(|| self.client.prepare_typed(&statement.text, &statement.types)).await
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Refuses a URL that makes no sense. Opens nothing, also none of the files that it names.
pub(super) fn check_url(url: &str) -> Result<(), StoreError> {
    Url::parse(url).map(drop)
}

/// The parts of a URL.
struct Url {
    config: Config,
    mode: SslMode,
    roots: Option<PathBuf>,
}

impl Url {
    /// The driver knows three values of `sslmode` and no `sslrootcert`, so both are read here. No
    /// error shows any part of the URL but the name of a setting.
    fn parse(url: &str) -> Result<Self, StoreError> {
        const HOW: &str = "give it as postgres://user:password@host:5432/database";
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(unsuitable(format!("the URL of PostgreSQL is none: {HOW}")));
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut mode, mut roots) = (None, None);
        let mut others = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", value)) => mode = Some(value.to_owned()),
                Some(("sslrootcert", value)) => roots = Some(PathBuf::from(value)),
                _ => others.push(pair),
            }
        }
        let mut config = Config::from_str(&format!("{base}?{}", others.join("&")))
            .map_err(|_| unsuitable(format!("the URL of PostgreSQL cannot be read: {HOW}")))?;
        if config.get_hosts().is_empty() {
            return Err(unsuitable(format!("the URL of PostgreSQL names no host: {HOW}")));
        }
        let mode = match mode.as_deref() {
            Some("disable") => SslMode::Disable,
            None | Some("prefer" | "allow") => SslMode::Prefer,
            Some("require" | "verify-ca" | "verify-full") => SslMode::Require,
            Some(_) => {
                return Err(unsuitable(
                    "sslmode must be disable, prefer, require, verify-ca or verify-full",
                ));
            }
        };
        config.ssl_mode(mode);
        Ok(Self { config, mode, roots })
    }
}

/// Whatever is encrypted is also verified, name and all, in every mode: encryption to somebody
/// unknown protects from nobody who can answer in the server's place.
fn connector(mode: SslMode, roots: Option<&Path>) -> Result<MakeRustlsConnect, StoreError> {
    let mut store = RootCertStore::empty();
    if mode != SslMode::Disable {
        let found = match roots {
            Some(path) => rustls_native_certs::load_certs_from_paths(Some(path), None),
            None => rustls_native_certs::load_native_certs(),
        };
        if roots.is_some() && found.certs.is_empty() {
            return Err(unsuitable("sslrootcert names no file with certificates in PEM form"));
        }
        store.add_parsable_certificates(found.certs);
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unsuitable("no TLS on this machine").with_source(error))?
        .with_root_certificates(store)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// The configuration holds the password.
impl fmt::Debug for Dialler {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Dialler").field("is_plain", &self.is_plain).finish_non_exhaustive()
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Line")
            .field("is_closed", &self.client.is_closed())
            .finish_non_exhaustive()
    }
}
