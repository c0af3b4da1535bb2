//! How the table is set up, and what that means for the store's promises.

use std::time::Duration;

use aws_sdk_dynamodb::types::{
    KeySchemaElement, KeyType, MultiRegionConsistency, PointInTimeRecoveryStatus, ProjectionType,
    TableDescription, TableStatus, TimeToLiveStatus,
};
use oncekey_core::health::{Finding, Skew, Tier};
use oncekey_core::{StoreError, StoreHealth, Timestamp};

use super::DynamoStore;
use super::call::Caller;
use super::item::{GARBAGE, KEY, PART, WHEN, WORK};
use super::options::{Clocks, Replicas};
use super::schema::{INDEX, KEYS, describe};
use super::sight::Lapse;

/// The header has whole seconds, and an answer takes a while: less than this says nothing.
const UNCERTAIN: Duration = Duration::from_secs(2);

impl DynamoStore {
    pub(super) async fn look_at_it(&self) -> Result<StoreHealth, StoreError> {
        let (table, date) = describe(&self.caller).await?;
        let table = table.ok_or_else(|| self.caller.place.no_table())?;
        let skew = date.map(|date| skew_of(date, self.clock.now()));
        let mut findings = shape(&table, self.replicas);
        findings.push(garbage(&self.caller).await);
        findings.push(recovery(&self.caller).await);
        findings.push(protection(&table));
        findings.push(clock(skew, (self.lapse, self.clocks), self.skew));
        let name = "DynamoDB".to_owned();
        Ok(StoreHealth { name, tier: Tier::Replicated, findings, skew })
    }
}

/// What decides whether the store works with a table at all.
fn shape(table: &TableDescription, replicas: Replicas) -> Vec<Finding> {
    vec![status(table), keys(table), index(table), regions(table, replicas)]
}

fn status(table: &TableDescription) -> Finding {
    match table.table_status() {
        Some(TableStatus::Active) => Finding::good("table-status", "the table is active"),
        Some(TableStatus::Updating) => {
            Finding::good("table-status", "the table is being changed, and works meanwhile")
        }
        other => {
            let status = other.map_or("unknown", TableStatus::as_str);
            Finding::refused("table-status", format!("the table is {status}: wait, or restore it"))
        }
    }
}

fn keys(table: &TableDescription) -> Finding {
    let is_typed = KEYS.iter().all(|(name, kind)| {
        let mut defined = table.attribute_definitions().iter();
        defined.any(|it| it.attribute_name() == *name && it.attribute_type() == kind)
    });
    if is_typed && is_schema(table.key_schema(), KEY, PART) {
        Finding::good("key-schema", "the keys of the table are those of this store")
    } else {
        Finding::refused(
            "key-schema",
            "the keys of the table are not those of this store: make one from `table_json`",
        )
    }
}

fn index(table: &TableDescription) -> Finding {
    let found = table.global_secondary_indexes().iter();
    let found = found.clone().find(|index| index.index_name() == Some(INDEX));
    let Some(found) = found else {
        return Finding::refused(
            "index",
            format!("the table has no index {INDEX:?}: add it as `table_json` says"),
        );
    };
    let projection = found.projection().and_then(|projection| projection.projection_type());
    if !is_schema(found.key_schema(), WORK, WHEN) {
        Finding::refused("index", format!("the index {INDEX:?} has other keys: make it anew"))
    } else if projection == Some(&ProjectionType::KeysOnly) || projection.is_none() {
        Finding::good("index", "the index is as it should be")
    } else {
        Finding::degraded(
            "index",
            format!("the index {INDEX:?} copies more than keys: writes cost more than they must"),
        )
    }
}

/// In eventual mode the last writer wins, in whatever region it is: two nodes in two regions both
/// get what they wrote, and both own the key.
fn regions(table: &TableDescription, replicas: Replicas) -> Finding {
    let count = table.replicas().len();
    let is_strong = table.multi_region_consistency() == Some(&MultiRegionConsistency::Strong);
    match (count, is_strong, replicas) {
        (0, _, _) => Finding::good("regions", "the table is in one region"),
        (_, true, _) => Finding::good("regions", "the regions of the table agree on every write"),
        (_, false, Replicas::OneWriter) => Finding::degraded(
            "regions",
            format!(
                "{count} other regions get copies later: you said that only one region writes, \
                 and a failover to another may lose what was acknowledged last"
            ),
        ),
        (_, false, Replicas::Strong) => Finding::refused(
            "regions",
            "the table is global and its regions agree only later, so that two owners are \
             possible: use strong consistency, or say that one region alone writes \
             (`Replicas::OneWriter`)",
        ),
    }
}

async fn garbage(caller: &Caller) -> Finding {
    let ask = caller.client.describe_time_to_live().table_name(&caller.place.table);
    let Ok(answer) = caller.read(|| ask.clone().send()).await else {
        return Finding::degraded("garbage", "it could not be asked whether garbage is removed");
    };
    let found = answer.time_to_live_description();
    let is_on = matches!(
        found.and_then(|found| found.time_to_live_status()),
        Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)
    );
    match (is_on, found.and_then(|found| found.attribute_name())) {
        (true, Some(GARBAGE)) => Finding::good("garbage", "DynamoDB removes garbage by itself"),
        (true, Some(other)) => Finding::refused(
            "garbage",
            format!(
                "DynamoDB removes items by {other:?}, which is not this store's to fill: set the \
                 time to live to {GARBAGE:?}"
            ),
        ),
        (_, _) => Finding::degraded(
            "garbage",
            format!(
                "remainders of keys stay for ever: set the table's time to live to {GARBAGE:?}"
            ),
        ),
    }
}

async fn recovery(caller: &Caller) -> Finding {
    let ask = caller.client.describe_continuous_backups().table_name(&caller.place.table);
    let Ok(answer) = caller.read(|| ask.clone().send()).await else {
        return Finding::good("backups", "it could not be asked whether there are backups");
    };
    let found = answer.continuous_backups_description();
    let found = found.and_then(|found| found.point_in_time_recovery_description());
    match found.and_then(|found| found.point_in_time_recovery_status()) {
        Some(PointInTimeRecoveryStatus::Enabled) => {
            Finding::good("backups", "the table can be restored to any moment of the last weeks")
        }
        _ => Finding::degraded(
            "backups",
            "nothing brings back what somebody deletes: switch point-in-time recovery on",
        ),
    }
}

fn protection(table: &TableDescription) -> Finding {
    if table.deletion_protection_enabled() == Some(true) {
        Finding::good("deletion", "the table is protected from deletion")
    } else {
        Finding::degraded(
            "deletion",
            "one wrong command deletes the table: switch deletion protection on",
        )
    }
}

fn clock(skew: Option<Skew>, (lapse, clocks): (Lapse, Clocks), declared: Duration) -> Finding {
    let Some(skew) = skew else {
        return Finding::good("clock", "the answer had no date to compare the clock with");
    };
    let (Skew::Ahead(apart) | Skew::Behind(apart)) = skew;
    let seconds = apart.as_secs();
    if apart <= declared.max(UNCERTAIN) {
        return Finding::good("clock", "this machine's clock is right");
    }
    let text = format!(
        "this machine's clock is {seconds} seconds off DynamoDB's, and {} were declared: put it \
         right",
        declared.as_secs()
    );
    match (lapse, clocks) {
        // Records are forgotten early or late, leases are not concerned.
        (Lapse::Observed, _) => Finding::degraded("clock", text),
        (Lapse::Clocked, Clocks::Trusted) => Finding::degraded(
            "clock",
            format!("{text}, unless everybody goes by it, as you said (`Clocks::Trusted`)"),
        ),
        (Lapse::Clocked, Clocks::Compared) => Finding::refused("clock", text),
    }
}

fn skew_of(store: Timestamp, here: Timestamp) -> Skew {
    if store >= here { Skew::Ahead(store.since(here)) } else { Skew::Behind(here.since(store)) }
}

fn is_schema(schema: &[KeySchemaElement], hash: &str, range: &str) -> bool {
    let has = |name: &str, kind: &KeyType| {
        schema.iter().any(|it| it.attribute_name() == name && it.key_type() == kind)
    };
    schema.len() == 2 && has(hash, &KeyType::Hash) && has(range, &KeyType::Range)
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::types::ReplicaDescription;
    use oncekey_core::health::Verdict;

    use super::*;

    #[test]
    fn a_global_table_that_agrees_later_is_refused() {
        let table = |consistency| {
            TableDescription::builder()
                .replicas(ReplicaDescription::builder().region_name("eu-west-1").build())
                .set_multi_region_consistency(consistency)
                .build()
        };
        let later = table(Some(MultiRegionConsistency::Eventual));
        assert_eq!(regions(&later, Replicas::Strong).verdict, Verdict::Refused);
        assert_eq!(regions(&table(None), Replicas::Strong).verdict, Verdict::Refused);
        assert_eq!(regions(&later, Replicas::OneWriter).verdict, Verdict::Degraded);
        let strong = table(Some(MultiRegionConsistency::Strong));
        assert_eq!(regions(&strong, Replicas::Strong).verdict, Verdict::Good);
    }

    #[test]
    fn a_clock_that_is_off_matters_where_leases_go_by_it() {
        let declared = Duration::from_secs(5);
        let off = Some(Skew::Behind(Duration::from_secs(60)));
        let (watched, clocked) =
            ((Lapse::Observed, Clocks::Compared), (Lapse::Clocked, Clocks::Compared));
        assert_eq!(clock(off, watched, declared).verdict, Verdict::Degraded);
        assert_eq!(clock(off, clocked, declared).verdict, Verdict::Refused);
        let trusted = (Lapse::Clocked, Clocks::Trusted);
        assert_eq!(clock(off, trusted, declared).verdict, Verdict::Degraded);
        let near = Some(Skew::Ahead(Duration::from_secs(4)));
        assert_eq!(clock(near, clocked, declared).verdict, Verdict::Good);
    }
}
