//! Connections: how one is opened, with TLS.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncekey_core::StoreError;
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::{from_postgres, is_about_prepared_statements, refuses_settings, unsuitable};
use super::greeting::{Greeting, Nonce, Way, greet};
use super::life::Guard;
use super::line::Line;
use super::options::{PostgresOptions, Prepared};
use super::sql::Sql;
use crate::entropy::SystemEntropy;

/// Opens connections. One for the whole store.
pub(super) struct Dialler {
    config: Config,
    tls: MakeRustlsConnect,
    pub(super) connect_timeout: Duration,
    lock_timeout: Duration,
    pub(super) guard: Arc<Guard>,
    entropy: SystemEntropy,
    /// Whether statements are prepared. Once it is found that this does not work, never again.
    is_plain: AtomicBool,
}

/// A connection of which nobody knows yet where it leads.
struct Dialled {
    client: Client,
    wire: Wire,
    /// What it was started with; `None` if it was started without settings.
    nonce: Option<Nonce>,
}

/// What the driver makes of a connection.
pub(super) type Wire = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// When a peer is given up that does not take what it is sent. Longer than a network needs to find
/// another way, and shorter than people need to look for a lock.
const GONE: Duration = Duration::from_secs(30);

impl Dialler {
    /// Whether a connection is open, as far as anybody knows, and leads to where others lead. One with
    /// prepared statements is not used any more once it is known that they may be somebody else's.
    pub(super) fn is_good(&self, line: &Line) -> bool {
        let may_mix_up = line.statements.is_some() && self.is_plain();
        !line.client.is_closed() && !may_mix_up && !self.guard.lives.is_outdated(&line.life)
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
            config.keepalives_idle(GONE);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(GONE);
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
            entropy: SystemEntropy::default(),
            is_plain: AtomicBool::new(options.prepared == Prepared::Off),
        })
    }

    /// Opens a connection for statements.
    pub(super) async fn line(&self) -> Result<Line, StoreError> {
        let Dialled { client, wire, nonce } = self.dial().await?;
        let task = tokio::spawn(async move {
            // Whoever waits for an answer hears of it; nobody else needs to.
            let _ = wire.await;
        });
        let mut line =
            Line { client, life: "".into(), statements: None, task: task.abort_handle() };
        let heights = self.guard.heights();
        let greeting = greet(&line.client, nonce.as_ref(), self.guard.question());
        let greeting = timeout(self.connect_timeout, greeting).await;
        let Greeting { way, life } = greeting.map_err(|_| self.too_late())??;
        line.life = self.guard.meet(life.as_ref(), &heights);
        match way {
            Way::Direct => {
                line.statements = Some((0..Sql::COUNT).map(|_| OnceCell::new()).collect());
            }
            Way::Unproven => self.give_up_preparing("our settings do not reach the server"),
        }
        Ok(line)
    }

    /// Opens a connection and leaves it to the caller to drive it.
    pub(super) async fn connect(&self) -> Result<(Client, Wire), StoreError> {
        self.dial().await.map(|Dialled { client, wire, .. }| (client, wire))
    }

    async fn dial(&self) -> Result<Dialled, StoreError> {
        let opened = timeout(self.connect_timeout, self.connect_in_some_way()).await;
        opened.unwrap_or_else(|_| Err(self.too_late()))
    }

    fn too_late(&self) -> StoreError {
        StoreError::new(
            oncekey_core::ErrorKind::Unavailable,
            format!("no connection to PostgreSQL within {:?}", self.connect_timeout),
        )
    }

    async fn connect_in_some_way(&self) -> Result<Dialled, StoreError> {
        if self.is_plain() {
            return self.connect_plainly().await;
        }
        let mut config = self.config.clone();
        let nonce = Nonce::new(&self.entropy);
        config.options(format!("{} {}", self.settings(), nonce.setting()));
        match config.connect(self.tls.clone()).await {
            Ok((client, wire)) => Ok(Dialled { client, wire, nonce: Some(nonce) }),
            Err(error) if refuses_settings(&error) => {
                self.give_up_preparing("the server takes no settings at the start");
                self.connect_plainly().await
            }
            Err(error) => Err(from_postgres(error)),
        }
    }

    async fn connect_plainly(&self) -> Result<Dialled, StoreError> {
        let opened = self.config.connect(self.tls.clone()).await.map_err(from_postgres);
        opened.map(|(client, wire)| Dialled { client, wire, nonce: None })
    }

    /// What every direct connection is started with. Not a `SET`: there is no moment without it.
    ///
    /// The plan of a prepared statement may be made while the table is empty and kept while it
    /// grows, so plans that read whole tables are priced out. Queries that have no other way still
    /// find theirs. A client whose machine is gone without a word is given up by the server, too, so that
    /// no lock outlives it by long.
    fn settings(&self) -> String {
        let given = self.config.get_options().unwrap_or_default();
        format!(
            "{given} -c default_transaction_isolation=read\\ committed -c lock_timeout={}ms \
             -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off \
             -c tcp_user_timeout={} -c idle_in_transaction_session_timeout={}",
            self.lock_timeout.as_millis(),
            GONE.as_millis(),
            GONE.as_millis(),
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
            self.give_up_preparing("a prepared statement is gone, or somebody else's");
        }
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
