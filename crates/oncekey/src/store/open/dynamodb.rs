//! `dynamodb://table`

use oncekey_core::StoreError;

use super::Intent;
use crate::store::dynamodb::{DynamoOptions, Lapse, MissingTable, Replicas, table_json};
use crate::store::opened::Opened;
use crate::store::url::{Address, Scheme, decode, rejected};

const OURS: [&str; 7] = ["region", "endpoint", "timeout", "missing", "replicas", "lapse", "skew"];

pub(super) async fn open(address: Address<'_>, intent: Intent) -> Result<Opened, StoreError> {
    let (_, options) = options(address)?;
    let options = match intent {
        Intent::Use => options,
        Intent::Find => options.missing_table(MissingTable::Refuse),
    };
    Ok(Opened::silent(Scheme::Dynamodb.label(), options.open().await?))
}

/// The description of the table.
pub(super) fn migration_sql(address: Address<'_>) -> Result<String, StoreError> {
    let (table, _) = options(address)?;
    Ok(format!("{}\n", table_json(&table)))
}

fn options(mut address: Address<'_>) -> Result<(String, DynamoOptions), StoreError> {
    let table = decode(address.place)?;
    if table.contains('@') {
        return Err(rejected(
            "credentials for DynamoDB do not stand in the URL: set AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY, a profile, or a role, and write dynamodb://table"
                .to_owned(),
        ));
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
    if table.is_empty() || !table.bytes().all(is_name) {
        return Err(rejected(
            "the URL names no table: write dynamodb://table?region=eu-central-1".to_owned(),
        ));
    }
    let mut options = DynamoOptions::new(&table);
    let settings = &mut address.settings;
    if let Some(region) = settings.take("region")? {
        options = options.region(region);
    }
    if let Some(url) = settings.take("endpoint")? {
        options = options.endpoint(url);
    }
    if let Some(timeout) = settings.take_span("timeout")? {
        options = options.timeout(timeout);
    }
    let words = [("refuse", MissingTable::Refuse), ("create", MissingTable::Create)];
    if let Some(missing) = settings.take_word("missing", &words)? {
        options = options.missing_table(missing);
    }
    let words = [("strong", Replicas::Strong), ("one-writer", Replicas::OneWriter)];
    if let Some(replicas) = settings.take_word("replicas", &words)? {
        options = options.replicas(replicas);
    }
    let words = [("observed", Lapse::Observed), ("clocked", Lapse::Clocked)];
    if let Some(lapse) = settings.take_word("lapse", &words)? {
        options = options.lapse(lapse);
    }
    if let Some(skew) = settings.take_span("skew")? {
        options = options.skew(skew);
    }
    address.settings.finish(&OURS)?;
    Ok((table, options))
}
