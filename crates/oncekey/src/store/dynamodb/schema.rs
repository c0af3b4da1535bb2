//! The table: how it is made, what it must be like, and the item that describes it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::{BoxError, ProvideErrorMetadata};
use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection,
    ProjectionType, ScalarAttributeType, TableDescription, TableStatus, TimeToLiveSpecification,
};
use oncekey_core::{ErrorKind, StoreError, Timestamp};
use serde_json::{Value, json};

use super::call::{Caller, Written};
use super::error::unsuitable;
use super::item::{GARBAGE, KEY, META_KEY, META_PART, PART, Reading, WHEN, WORK, Writing};
use crate::entropy::{Entropy, SystemEntropy};

/// The index over what has to be looked at.
pub(super) const INDEX: &str = "oncekey-work";

/// The version of the layout that this version writes and reads.
const VERSION: i64 = 1;
const META_VERSION: &str = "version";
const META_EPOCH: &str = "epoch";

/// How long a new table may take to become active: it takes seconds, and minutes on a bad day.
const PATIENCE: u32 = 180;
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The attributes that are keys, of the table or of its index.
pub(super) const KEYS: [(&str, ScalarAttributeType); 4] = [
    (KEY, ScalarAttributeType::B),
    (PART, ScalarAttributeType::B),
    (WORK, ScalarAttributeType::S),
    (WHEN, ScalarAttributeType::N),
];

/// The description of a table, for `aws dynamodb create-table --cli-input-json`.
///
/// For those who make their tables by hand or from a template. DynamoDB is told apart from it which
/// attribute says when an item is garbage: `gc`.
#[must_use]
pub fn table_json(table: &str) -> String {
    let attributes: Vec<Value> = KEYS
        .iter()
        .map(|(name, kind)| json!({"AttributeName": name, "AttributeType": kind.as_str()}))
        .collect();
    let schema = |hash: &str, range: &str| {
        json!([
            {"AttributeName": hash, "KeyType": "HASH"},
            {"AttributeName": range, "KeyType": "RANGE"},
        ])
    };
    let description = json!({
        "TableName": table,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": attributes,
        "KeySchema": schema(KEY, PART),
        "GlobalSecondaryIndexes": [{
            "IndexName": INDEX,
            "KeySchema": schema(WORK, WHEN),
            "Projection": {"ProjectionType": "KEYS_ONLY"},
        }],
        "DeletionProtectionEnabled": true,
    });
    format!("{description:#}")
}

/// The table as it is, if there is one, and what the answer says about the time.
pub(super) async fn describe(
    caller: &Caller,
) -> Result<(Option<TableDescription>, Option<Timestamp>), StoreError> {
    let date = Arc::new(Date::default());
    let describe = caller.client.describe_table().table_name(&caller.place.table);
    let answer = caller
        .read(|| {
            let (describe, date) = (describe.clone(), Arc::clone(&date));
            async move {
                match describe.customize().interceptor(Dated(date)).send().await {
                    Err(error) if error.code() == Some("ResourceNotFoundException") => Ok(None),
                    other => other.map(|output| output.table),
                }
            }
        })
        .await?;
    Ok((answer, date.read()))
}

/// Makes the table and waits until it can be used.
pub(super) async fn create(caller: &Caller) -> Result<(), StoreError> {
    let broken = |_| unsuitable("the description of the table is incomplete");
    let schema = |name: &str, kind| {
        KeySchemaElement::builder().attribute_name(name).key_type(kind).build().map_err(broken)
    };
    let mut attributes = Vec::new();
    for (name, kind) in KEYS {
        let builder = AttributeDefinition::builder().attribute_name(name).attribute_type(kind);
        attributes.push(builder.build().map_err(broken)?);
    }
    let index = GlobalSecondaryIndex::builder()
        .index_name(INDEX)
        .key_schema(schema(WORK, KeyType::Hash)?)
        .key_schema(schema(WHEN, KeyType::Range)?)
        .projection(Projection::builder().projection_type(ProjectionType::KeysOnly).build())
        .build()
        .map_err(broken)?;
    let create = caller
        .client
        .create_table()
        .table_name(&caller.place.table)
        .billing_mode(BillingMode::PayPerRequest)
        .set_attribute_definitions(Some(attributes))
        .key_schema(schema(KEY, KeyType::Hash)?)
        .key_schema(schema(PART, KeyType::Range)?)
        .global_secondary_indexes(index);
    let made = caller.change(|| {
        let create = create.clone();
        async move {
            match create.send().await {
                // Somebody else is making it at the same moment.
                Err(error) if error.code() == Some("ResourceInUseException") => Ok(()),
                other => other.map(|_| ()),
            }
        }
    });
    made.await?;
    wait(caller).await?;
    let live = TimeToLiveSpecification::builder().attribute_name(GARBAGE).enabled(true).build();
    let live = caller
        .client
        .update_time_to_live()
        .table_name(&caller.place.table)
        .time_to_live_specification(live.map_err(broken)?);
    if let Err(error) = caller.change(|| live.clone().send()).await {
        // Somebody else may have done it; if not, `inspect` says so. Nothing depends on it but
        // the size of the table.
        tracing::warn!(%error, "DynamoDB was not told when items are garbage");
    }
    Ok(())
}

/// Waits until the table can be used.
pub(super) async fn wait(caller: &Caller) -> Result<(), StoreError> {
    for _ in 0..PATIENCE {
        if let (Some(table), _) = describe(caller).await?
            && table.table_status() == Some(&TableStatus::Active)
        {
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Err(StoreError::new(
        ErrorKind::Unavailable,
        format!("table {:?} has been in the making for minutes: try again", caller.place.table),
    ))
}

/// Writes the item that describes the table, unless it is there, and checks its version.
pub(super) async fn found(caller: &Caller) -> Result<(), StoreError> {
    let mut epoch = [0; 16];
    SystemEntropy::default().fill(&mut epoch);
    let mut item = Writing::default();
    item.bytes(KEY, META_KEY);
    item.bytes(PART, &META_PART);
    item.number(META_VERSION, VERSION);
    item.bytes(META_EPOCH, &epoch);
    let put = caller
        .client
        .put_item()
        .set_item(Some(item.0))
        .condition_expression("attribute_not_exists(k)");
    let Written::Failed { old: Some(old), .. } = caller.put(put).await? else { return Ok(()) };
    match Reading(&old).number(META_VERSION)? {
        VERSION => Ok(()),
        other => Err(unsuitable(format!(
            "table {:?} has version {other} of the layout, this version of oncekey knows \
             {VERSION}: upgrade oncekey, or give another table",
            caller.place.table
        ))),
    }
}

/// Which life of the table this is.
pub(super) async fn epoch(caller: &Caller) -> Result<String, StoreError> {
    let mut key = Writing::default();
    key.bytes(KEY, META_KEY);
    key.bytes(PART, &META_PART);
    let get = caller
        .client
        .get_item()
        .table_name(&caller.place.table)
        .set_key(Some(key.0))
        .consistent_read(true);
    let found = caller.read(|| get.clone().send()).await?.item;
    let Some(found) = found else {
        return Err(unsuitable(format!(
            "table {:?} was emptied while it was in use: open the store again",
            caller.place.table
        )));
    };
    let epoch = Reading(&found).bytes(META_EPOCH)?;
    Ok(epoch.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What the `Date` header of an answer said.
#[derive(Debug, Default)]
struct Date(Mutex<Option<Timestamp>>);

#[derive(Debug)]
struct Dated(Arc<Date>);

impl Date {
    fn read(&self) -> Option<Timestamp> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Intercept for Dated {
    fn name(&self) -> &'static str {
        "oncekey-date"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date");
        let date = date.and_then(|text| DateTime::from_str(text, DateTimeFormat::HttpDate).ok());
        let micros = date.and_then(|date| date.secs().checked_mul(1_000_000));
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) =
            micros.map(Timestamp::from_micros);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_table_is_what_is_made() {
        let printed: Value = serde_json::from_str(&table_json("t")).unwrap();
        assert_eq!(printed["TableName"], "t");
        assert_eq!(printed["AttributeDefinitions"].as_array().unwrap().len(), KEYS.len());
        assert_eq!(printed["GlobalSecondaryIndexes"][0]["IndexName"], INDEX);
        assert_eq!(printed["KeySchema"][1]["AttributeName"], PART);
    }
}
