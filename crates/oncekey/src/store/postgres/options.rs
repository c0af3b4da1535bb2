//! How to open the store.

use std::fmt;
use std::time::Duration;

use oncekey_core::StoreError;

use super::PostgresStore;
use super::connect::check_url;
use super::error::unsuitable;
use super::schema;

/// How to open a store on PostgreSQL.
#[derive(Clone)]
#[must_use]
pub struct PostgresOptions {
    pub(super) url: String,
    pub(super) schema: String,
    pub(super) writers: usize,
    pub(super) readers: usize,
    pub(super) prepared: Prepared,
    pub(super) migrations: Migrations,
    pub(super) listen_url: Option<String>,
    pub(super) lock_timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) call_timeout: Duration,
}

/// Whether statements are prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Prepared {
    /// Yes, until it turns out that a pooler is in between which does not keep them.
    #[default]
    Auto,
    /// Never. For pgbouncer in transaction mode and its relatives.
    Off,
}

/// Who makes the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Migrations {
    /// The store does, when it is opened.
    #[default]
    Apply,
    /// Somebody else does, with [`PostgresOptions::migration_sql`]. The store only checks.
    Check,
}

impl PostgresOptions {
    /// Opens the database that `url` names: `postgres://user:password@host:5432/database`.
    ///
    /// `sslmode` and `sslrootcert` in the URL say how the connection is encrypted. What is
    /// encrypted is also verified. Several hosts may be given; the one that takes writes is used.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            schema: "oncekey".to_owned(),
            // Two suffice to keep one batch under way while another is prepared; four keep claims
            // and completions from waiting for each other, too.
            writers: 4,
            readers: 2,
            prepared: Prepared::default(),
            migrations: Migrations::default(),
            listen_url: None,
            // A row of ours is locked for one commit. Two seconds are a thousand of those.
            lock_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(5),
            // A third of the default lease: what takes longer is of no use to its owner.
            call_timeout: Duration::from_secs(10),
        }
    }

    /// Keeps its tables in this schema instead of `oncekey`. Letters, digits and underscores.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// How many batches may be under way at the same time, each on a connection of its own.
    pub fn writers(mut self, connections: usize) -> Self {
        self.writers = connections;
        self
    }

    /// How many connections serve replays; as many more serve other reads.
    pub fn readers(mut self, connections: usize) -> Self {
        self.readers = connections;
        self
    }

    /// Says whether statements are prepared.
    pub fn prepared(mut self, prepared: Prepared) -> Self {
        self.prepared = prepared;
        self
    }

    /// Says who makes the tables.
    pub fn migrations(mut self, migrations: Migrations) -> Self {
        self.migrations = migrations;
        self
    }

    /// Listens for finished keys by this URL instead: a pooler that lends connections out by the
    /// transaction cannot pass notifications on. Without it, those who wait behind such a pooler
    /// look again every second.
    pub fn listen_url(mut self, url: impl Into<String>) -> Self {
        self.listen_url = Some(url.into());
        self
    }

    /// How long a statement waits for a row lock. Not through a pooler: set it for the user there.
    pub fn lock_timeout(mut self, limit: Duration) -> Self {
        self.lock_timeout = limit;
        self
    }

    /// How long opening a connection may take.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How long a call may take, from the moment it is sent. After that nobody knows whether it
    /// took effect.
    pub fn call_timeout(mut self, limit: Duration) -> Self {
        self.call_timeout = limit;
        self
    }

    /// The statements that make the tables, for people who apply them by hand.
    #[must_use]
    pub fn migration_sql(&self) -> String {
        schema::migration_sql(&self.schema)
    }

    /// Opens the store, and makes its tables or brings them up to date.
    ///
    /// Needs a tokio runtime, on which its connections are served from then on.
    ///
    /// # Errors
    /// [`Unsuitable`](oncekey_core::ErrorKind::Unsuitable) if the server cannot keep the store's
    /// promises, or does not let us in; [`Unavailable`](oncekey_core::ErrorKind::Unavailable) if
    /// it cannot be reached. The message says what to change, and never shows the password.
    pub async fn open(self) -> Result<PostgresStore, StoreError> {
        self.check()?;
        PostgresStore::open_with(self).await
    }

    /// Refuses what can be seen to be wrong without asking the server. A schema that needs no quoting
    /// cannot be misread, by us or by anybody.
    pub(in crate::store) fn check(&self) -> Result<(), StoreError> {
        check_url(&self.url)?;
        if let Some(url) = &self.listen_url {
            check_url(url)?;
        }
        let mut letters = self.schema.bytes();
        let is_plain =
            letters.next().is_some_and(|first| first.is_ascii_lowercase() || first == b'_')
                && letters.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
                && self.schema.len() <= 63;
        if is_plain {
            return Ok(());
        }
        Err(unsuitable(
            "the schema must be of lower-case letters, digits and underscores, at most 63, and \
             not begin with a digit",
        ))
    }
}

/// The URL may hold a password.
impl fmt::Debug for PostgresOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("PostgresOptions")
            .field("schema", &self.schema)
            .field("writers", &self.writers)
            .field("readers", &self.readers)
            .field("prepared", &self.prepared)
            .field("migrations", &self.migrations)
            .finish_non_exhaustive()
    }
}
