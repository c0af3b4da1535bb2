//! `mysql://user:password@host:3306/database`

use oncekey_core::StoreError;

use super::Intent;
use crate::store::mysql::{Galera, Migrate, MysqlOptions};
use crate::store::opened::Opened;
use crate::store::url::{Address, Scheme};

const OURS: [&str; 7] =
    ["prefix", "writers", "readers", "migrations", "galera", "timeout", "root_certificate"];

/// What the driver reads in a URL and the store leaves as it is. Its pool is not used, and matched rows,
/// statements and sockets are the store's to decide.
const THEIRS: [&str; 11] = [
    "built_in_roots",
    "compression",
    "enable_cleartext_plugin",
    "max_allowed_packet",
    "require_ssl",
    "secure_auth",
    "socket",
    "tcp_keepalive",
    "tcp_nodelay",
    "verify_ca",
    "verify_identity",
];

pub(super) async fn open(address: Address<'_>, intent: Intent) -> Result<Opened, StoreError> {
    let options = match intent {
        Intent::Use => options(address)?,
        Intent::Find => options(address)?.migrate(Migrate::ByHand),
    };
    Ok(Opened::silent(Scheme::Mysql.label(), options.open().await?))
}

pub(super) fn migration_sql(address: Address<'_>) -> Result<String, StoreError> {
    options(address)?.migration_sql()
}

fn options(mut address: Address<'_>) -> Result<MysqlOptions, StoreError> {
    let settings = &mut address.settings;
    let prefix = settings.take("prefix")?;
    let (writers, readers) = (settings.take_number("writers")?, settings.take_number("readers")?);
    let migrate = settings
        .take_word("migrations", &[("apply", Migrate::OnOpen), ("check", Migrate::ByHand)])?;
    let galera = settings.take_word(
        "galera",
        &[("refused", Galera::Refused), ("single-writer", Galera::SingleWriter)],
    )?;
    let timeout = settings.take_span("timeout")?;
    let root_certificate = settings.take("root_certificate")?;
    let mut options = MysqlOptions::new(address.for_driver("mysql", &OURS, &THEIRS)?);
    if let Some(prefix) = prefix {
        options = options.prefix(prefix);
    }
    if let Some(writers) = writers {
        options = options.writers(writers);
    }
    if let Some(readers) = readers {
        options = options.readers(readers);
    }
    if let Some(migrate) = migrate {
        options = options.migrate(migrate);
    }
    if let Some(galera) = galera {
        options = options.galera(galera);
    }
    if let Some(timeout) = timeout {
        options = options.timeout(timeout);
    }
    if let Some(path) = root_certificate {
        options = options.root_certificate(path);
    }
    Ok(options)
}
