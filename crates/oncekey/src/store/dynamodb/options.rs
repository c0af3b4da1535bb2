//! How to open a table.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig, retry::RetryConfig};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{ProvideCredentials, SharedCredentialsProvider};
use aws_sdk_dynamodb::types::TableStatus;
use aws_smithy_http_client::tls;
use oncekey_core::health::Verdict;
use oncekey_core::{Clock, ErrorKind, StoreError};

use super::call::Caller;
use super::error::{Place, unsuitable};
use super::sight::{Lapse, Sight};
use super::{DynamoStore, schema};
use crate::clock::{SystemClock, SystemUptime, Uptime};
use crate::store::parts::of_opening;

/// How long one try of a call may take. A healthy table answers in milliseconds; a try that was
/// lost should leave time for another before a lease of thirty seconds is in danger.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long a connection may take: a way around the world and back, three times.
const CONNECT: Duration = Duration::from_secs(1);
/// What clocks that are kept in step by the usual means never differ by, a hundred times.
const SKEW: Duration = Duration::from_secs(5);

/// How to open a table.
#[must_use]
pub struct DynamoOptions {
    table: String,
    region: Option<String>,
    endpoint: Option<String>,
    credentials: Option<SharedCredentialsProvider>,
    timeout: Duration,
    missing: MissingTable,
    replicas: Replicas,
    lapse: Lapse,
    skew: Duration,
    clock: Arc<dyn Clock>,
    clocks: Clocks,
    uptime: Arc<dyn Uptime>,
}

/// What to do if the table does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingTable {
    /// Say so. More often than not it is a wrong name, region or account, and a new and empty table
    /// would let work run again.
    #[default]
    Refuse,
    /// Make it, with capacity on demand.
    Create,
}

/// What is known about a table that has replicas in other regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replicas {
    /// Nothing: its regions must agree on every write, or the store refuses to work.
    #[default]
    Strong,
    /// One region alone writes at any time, and the operator sees to that. What was acknowledged last
    /// may be lost when another region takes its place.
    OneWriter,
}

/// Whether the clock of the store is compared with DynamoDB's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clocks {
    /// It is, and one that is further off than was declared is refused with
    /// [`Lapse::Clocked`](super::Lapse::Clocked): leases would be taken over early.
    #[default]
    Compared,
    /// Everybody who shares the table goes by one clock that was [given](DynamoOptions::clock), and
    /// the operator sees to that: a simulation, for example, with a time of its own.
    Trusted,
}

impl DynamoOptions {
    /// Opens `table`, with region and credentials as the AWS tools find them: environment, profile,
    /// role of the machine or of the container.
    pub fn new(table: impl Into<String>) -> Self {
        Self {
            table: table.into(),
            region: None,
            endpoint: None,
            credentials: None,
            timeout: TIMEOUT,
            missing: MissingTable::default(),
            replicas: Replicas::default(),
            lapse: Lapse::default(),
            skew: SKEW,
            clock: Arc::new(SystemClock),
            clocks: Clocks::default(),
            uptime: Arc::new(SystemUptime),
        }
    }

    /// Uses this region.
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = Some(region.into());
        self
    }

    /// Uses another endpoint than that of the region: a private one, or a server that speaks like
    /// DynamoDB.
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = Some(url.into());
        self
    }

    /// Uses these credentials instead of those that the AWS tools would find.
    pub fn credentials(mut self, credentials: impl ProvideCredentials + 'static) -> Self {
        self.credentials = Some(SharedCredentialsProvider::new(credentials));
        self
    }

    /// How long one try of a call may take; a call has four.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What to do if the table does not exist.
    pub fn missing_table(mut self, missing: MissingTable) -> Self {
        self.missing = missing;
        self
    }

    /// What is known about replicas in other regions.
    pub fn replicas(mut self, replicas: Replicas) -> Self {
        self.replicas = replicas;
        self
    }

    /// How it is told that a lease has lapsed.
    pub fn lapse(mut self, lapse: Lapse) -> Self {
        self.lapse = lapse;
        self
    }

    /// How far the clocks of the machines that share the table may differ. Retention is judged by a
    /// clock that is slow by so much, so that no record is forgotten early; with
    /// [`Lapse::Clocked`], leases are, too.
    pub fn skew(mut self, skew: Duration) -> Self {
        self.skew = skew;
        self
    }

    /// Judges time by another clock than the machine's.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Whether the clock is compared with DynamoDB's.
    pub fn clocks(mut self, clocks: Clocks) -> Self {
        self.clocks = clocks;
        self
    }

    /// Watches leases by another clock than the machine's uptime.
    pub fn uptime(mut self, uptime: Arc<dyn Uptime>) -> Self {
        self.uptime = uptime;
        self
    }

    /// Opens the table and looks whether it can keep the store's promises.
    ///
    /// # Errors
    /// [`Unsuitable`](ErrorKind::Unsuitable) if it does not exist, is not made as it should be or may
    /// not be used, or if a check of `inspect` refuses it; the message says what to change. [`Unavailable`](ErrorKind::Unavailable) if
    /// it cannot be reached.
    pub async fn open(self) -> Result<DynamoStore, StoreError> {
        self.open_once().await.map_err(of_opening)
    }

    async fn open_once(self) -> Result<DynamoStore, StoreError> {
        let (caller, renewals) = self.connect().await?;
        match (schema::describe(&caller).await?.0, self.missing) {
            // Somebody else is making it at this moment.
            (Some(table), MissingTable::Create)
                if table.table_status() == Some(&TableStatus::Creating) =>
            {
                schema::wait(&caller).await?;
            }
            (Some(_), _) => {}
            (None, MissingTable::Create) => schema::create(&caller).await?,
            (None, MissingTable::Refuse) => return Err(caller.place.no_table()),
        }
        let sight = Arc::new(Sight::new(self.lapse, self.skew, self.uptime));
        let Self { clock, clocks, lapse, skew, replicas, .. } = self;
        let store = DynamoStore { caller, renewals, clock, clocks, sight, lapse, skew, replicas };
        // Before anything is written: the table may be that of another program.
        for finding in store.look_at_it().await?.findings {
            match finding.verdict {
                Verdict::Good => {}
                Verdict::Degraded => tracing::warn!(%finding, "the table could be set up better"),
                Verdict::Refused => return Err(unsuitable(finding.text)),
            }
        }
        schema::found(&store.caller).await?;
        Ok(store)
    }

    /// Two ways to the table: for everything, and for renewals.
    async fn connect(&self) -> Result<(Caller, Caller), StoreError> {
        let config = self.load(self.region.clone()).await;
        let region = config.region().map(AsRef::as_ref);
        if region.is_none() {
            return Err(unsuitable(
                "no AWS region is set: set AWS_REGION, a profile, or the region of the store",
            ));
        }
        let place = Place::new(&self.table, region, self.endpoint.as_deref());
        let provider = config.credentials_provider().ok_or_else(no_credentials)?;
        provider.provide_credentials().await.map_err(|error| {
            // Its text may name profiles and files, never a secret.
            no_credentials().with_source(error)
        })?;
        let second = self.load(region.map(str::to_owned)).await;
        let caller = |config| Caller { client: Client::new(config), place: place.clone() };
        Ok((caller(&config), caller(&second)))
    }

    /// Everything that a client needs, with connections and credentials of its own.
    async fn load(&self, region: Option<String>) -> SdkConfig {
        let http = aws_smithy_http_client::Builder::new()
            .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::AwsLc))
            .build_https();
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT.min(self.timeout))
            .operation_attempt_timeout(self.timeout)
            .build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .http_client(http)
            .timeout_config(timeouts)
            // See `call.rs`: tries that the library makes by itself could not be accounted for.
            .retry_config(RetryConfig::disabled());
        if let Some(region) = region {
            loader = loader.region(Region::new(region));
        }
        if let Some(endpoint) = &self.endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        if let Some(credentials) = &self.credentials {
            loader = loader.credentials_provider(credentials.clone());
        }
        loader.load().await
    }
}

/// Shows where the table is and nothing about who asks.
impl fmt::Debug for DynamoOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoint = self.endpoint.as_deref();
        out.debug_struct("DynamoOptions")
            .field("place", &Place::new(&self.table, self.region.as_deref(), endpoint))
            .field("missing", &self.missing)
            .field("replicas", &self.replicas)
            .field("lapse", &self.lapse)
            .field("skew", &self.skew)
            .finish_non_exhaustive()
    }
}

fn no_credentials() -> StoreError {
    StoreError::new(
        ErrorKind::Unsuitable,
        "there are no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a \
         profile, or a role for this machine",
    )
}
