//! `redis://user:password@host:6379/0` and `redis+cluster://host:6379,host:6379`

use std::time::Duration;

use oncekey_core::StoreError;
use oncekey_core::health::Tier;

use super::Intent;
use crate::store::opened::Opened;
use crate::store::redis::{Missing, RedisOptions};
use crate::store::url::{Address, Scheme, rejected};

const OURS: [&str; 8] = [
    "prefix",
    "connections",
    "connect_timeout",
    "timeout",
    "replicas",
    "disks",
    "within",
    "accept",
];

/// What the driver reads in a URL.
const THEIRS: [&str; 1] = ["protocol"];

/// How long copies are waited for: a second is long for a replica that keeps up, and short for a
/// caller.
const WITHIN: Duration = Duration::from_secs(1);

pub(super) async fn open(address: Address<'_>, intent: Intent) -> Result<Opened, StoreError> {
    let options = options(address)?.missing(match intent {
        Intent::Use => Missing::Make,
        Intent::Find => Missing::Refuse,
    });
    Ok(Opened::waking(Scheme::Redis.label(), options.open().await?))
}

/// There are no tables.
pub(super) fn migration_sql(address: Address<'_>) -> Result<String, StoreError> {
    options(address).map(|_| String::new())
}

fn options(mut address: Address<'_>) -> Result<RedisOptions, StoreError> {
    let scheme = match address.name {
        "valkey" => "redis",
        "valkeys" => "rediss",
        "valkey+cluster" => "redis+cluster",
        "valkeys+cluster" => "rediss+cluster",
        other => other,
    };
    let settings = &mut address.settings;
    let prefix = settings.take("prefix")?;
    let connections = settings.take_number("connections")?;
    let connect = settings.take_span("connect_timeout")?;
    let answer = settings.take_span("timeout")?;
    let (replicas, disks) = (settings.take_number("replicas")?, settings.take_number("disks")?);
    let within = settings.take_span("within")?;
    let accept = settings.take_word(
        "accept",
        &[("volatile", Tier::Volatile), ("process", Tier::Process), ("durable", Tier::Durable)],
    )?;
    let mut options = RedisOptions::new(address.for_driver(scheme, &OURS, &THEIRS)?);
    if let Some(prefix) = prefix {
        options = options.prefix(prefix);
    }
    if let Some(connections) = connections {
        options = options.connections(connections);
    }
    if let Some(limit) = connect {
        options = options.connect_timeout(limit);
    }
    if let Some(limit) = answer {
        options = options.answer_timeout(limit);
    }
    if let Some(tier) = accept {
        options = options.accept(tier);
    }
    let span = within.unwrap_or(WITHIN);
    match (replicas, disks, within) {
        (Some(replicas), None, _) => Ok(options.wait_for_replicas(copies(replicas)?, span)),
        (None, Some(disks), _) => Ok(options.wait_for_disks(copies(disks)?, span)),
        (None, None, None) => Ok(options),
        (Some(_), Some(_), _) => Err(rejected(
            "the settings `replicas` and `disks` exclude each other: `disks` waits for replicas, too"
                .to_owned(),
        )),
        (None, None, Some(_)) => Err(rejected(
            "the setting `within` says how long `replicas` or `disks` are waited for: give one of \
             them"
                .to_owned(),
        )),
    }
}

fn copies(number: usize) -> Result<u32, StoreError> {
    u32::try_from(number)
        .map_err(|_| rejected("no server has so many replicas: give a smaller number".to_owned()))
}
