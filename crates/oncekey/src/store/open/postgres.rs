//! `postgres://user:password@host:5432/database`

use oncekey_core::StoreError;

use super::Intent;
use crate::store::opened::Opened;
use crate::store::postgres::{Migrations, PostgresOptions, Prepared};
use crate::store::url::{Address, Scheme};

const OURS: [&str; 8] = [
    "schema",
    "writers",
    "readers",
    "prepared",
    "migrations",
    "listen_url",
    "lock_timeout",
    "call_timeout",
];

/// What the driver reads in a URL, and `sslrootcert`, which our connections read beside it.
const THEIRS: [&str; 20] = [
    "application_name",
    "channel_binding",
    "connect_timeout",
    "dbname",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "load_balance_hosts",
    "options",
    "password",
    "port",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "target_session_attrs",
    "tcp_user_timeout",
    "user",
];

pub(super) async fn open(address: Address<'_>, intent: Intent) -> Result<Opened, StoreError> {
    let options = match intent {
        Intent::Use => options(address)?,
        Intent::Find => options(address)?.migrations(Migrations::Check),
    };
    Ok(Opened::waking(Scheme::Postgres.label(), options.open().await?))
}

pub(super) fn migration_sql(address: Address<'_>) -> Result<String, StoreError> {
    let options = options(address)?;
    options.check()?;
    Ok(options.migration_sql())
}

fn options(mut address: Address<'_>) -> Result<PostgresOptions, StoreError> {
    let settings = &mut address.settings;
    let schema = settings.take("schema")?;
    let (writers, readers) = (settings.take_number("writers")?, settings.take_number("readers")?);
    let prepared =
        settings.take_word("prepared", &[("auto", Prepared::Auto), ("off", Prepared::Off)])?;
    let migrations = settings
        .take_word("migrations", &[("apply", Migrations::Apply), ("check", Migrations::Check)])?;
    let listen_url = settings.take("listen_url")?;
    let lock_timeout = settings.take_span("lock_timeout")?;
    let call_timeout = settings.take_span("call_timeout")?;
    let mut options = PostgresOptions::new(address.for_driver("postgres", &OURS, &THEIRS)?);
    if let Some(schema) = schema {
        options = options.schema(schema);
    }
    if let Some(writers) = writers {
        options = options.writers(writers);
    }
    if let Some(readers) = readers {
        options = options.readers(readers);
    }
    if let Some(prepared) = prepared {
        options = options.prepared(prepared);
    }
    if let Some(migrations) = migrations {
        options = options.migrations(migrations);
    }
    if let Some(url) = listen_url {
        options = options.listen_url(url);
    }
    if let Some(limit) = lock_timeout {
        options = options.lock_timeout(limit);
    }
    if let Some(limit) = call_timeout {
        options = options.call_timeout(limit);
    }
    Ok(options)
}
