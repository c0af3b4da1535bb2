//! How the server is set up, and what that means for the store's promises.

use oncekey_core::health::{Finding, Skew, StoreHealth, Tier, Verdict};
use oncekey_core::{Clock, StoreError, Timestamp};
use tokio_postgres::Row;

use super::PostgresStore;
use super::error::unsuitable;
use super::pool::Effect;
use super::row;
use super::schema::OLDEST_SERVER;
use super::sql::{NOW, Statement};
use crate::clock::SystemClock;

/// Everything that is looked at, in one statement. Rights that `current_user` lacks are counted.
const LOOK: &str = "
    SELECT current_setting('server_version'), current_setting('server_version_num')::int,
        current_setting('transaction_isolation'), current_setting('synchronous_commit'),
        current_setting('fsync'), current_setting('full_page_writes'),
        pg_is_in_recovery(), current_setting('transaction_read_only'),
        (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
        current_setting('synchronous_standby_names'),
        (SELECT string_agg(r || ' on ' || t, ', ') FROM
            unnest(ARRAY['oncekey_records', 'oncekey_meta']) AS t,
            unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS r
            WHERE NOT has_table_privilege('{schema}.' || t, r)
                AND NOT (t = 'oncekey_meta' AND r IN ('INSERT', 'DELETE'))),
        (SELECT max(version) FROM {schema}.oncekey_migrations),
        {now}";

/// More than this and people reading two logs side by side are misled. The store itself judges by
/// the server's clock alone.
const SKEW: std::time::Duration = std::time::Duration::from_secs(5);

impl PostgresStore {
    pub(super) async fn look_at_server(&self) -> Result<StoreHealth, StoreError> {
        let text = LOOK.replace("{schema}", &self.schema).replace("{now}", NOW);
        let before = SystemClock.now();
        let rows = self.readers.ask(Effect::Harmless, &Statement::plain(&text, &[]), &[]).await?;
        let after = SystemClock.now();
        let Some(row) = rows.first() else {
            return Err(unsuitable("PostgreSQL does not say how it is set up"));
        };
        let mut health = judge(row, before.after(after.since(before) / 2))?;
        health.findings.push(self.guard.lives.finding());
        Ok(health)
    }

    /// Refuses to work, or says loudly what is missing.
    pub(super) async fn check_server(&self) -> Result<(), StoreError> {
        let health = self.look_at_server().await?;
        let refused: Vec<String> = health
            .complaints()
            .filter(|finding| finding.verdict == Verdict::Refused)
            .map(|finding| finding.text.clone())
            .collect();
        if !refused.is_empty() {
            return Err(unsuitable(refused.join("; ")));
        }
        for finding in health.complaints() {
            tracing::warn!(check = finding.check, "{}", finding.text);
        }
        Ok(())
    }
}

fn judge(row: &Row, here: Timestamp) -> Result<StoreHealth, crate::store::parts::Damage> {
    let version: &str = row::get(row, 0)?;
    let (isolation, commit): (&str, &str) = (row::get(row, 2)?, row::get(row, 3)?);
    let missing: Option<&str> = row::get(row, 10)?;
    let tables: Option<i32> = row::get(row, 11)?;
    let standbys: i64 = row::get(row, 8)?;
    let (skew, skew_finding) = skew(Timestamp::from_micros(row::get(row, 12)?), here);
    let findings = vec![
        check_version(version, row::get(row, 1)?),
        check_isolation(isolation),
        check_commit(commit),
        check_switch("fsync", row::get(row, 4)?, "a power cut can destroy the whole database"),
        check_switch(
            "full-page-writes",
            row::get(row, 5)?,
            "a power cut can leave torn pages, unless the file system prevents it",
        ),
        check_primary(row::get(row, 6)?, row::get(row, 7)?),
        check_standbys(commit, standbys, row::get(row, 9)?),
        check_rights(missing),
        Finding::good("schema-version", format!("the tables have version {}", tables.unwrap_or(0))),
        skew_finding,
    ];
    let tier = tier(commit, row::get(row, 4)?, standbys);
    Ok(StoreHealth { name: format!("PostgreSQL {version}"), tier, findings, skew: Some(skew) })
}

/// A standby has the settings of its primary, more often than not: without fsync a power cut may take
/// both.
fn tier(commit: &str, fsync: &str, standbys: i64) -> Tier {
    match (commit, standbys) {
        _ if commit == "off" || fsync == "off" => Tier::Process,
        ("on" | "remote_apply" | "remote_write", 1..) => Tier::Replicated,
        _ => Tier::Durable,
    }
}

fn check_version(text: &str, number: i32) -> Finding {
    if number >= OLDEST_SERVER {
        return Finding::good("server-version", format!("PostgreSQL {text}"));
    }
    let told = format!("PostgreSQL {text} is too old: oncekey needs 14 or newer");
    Finding::refused("server-version", told)
}

pub(super) fn check_isolation(isolation: &str) -> Finding {
    match isolation {
        "read committed" => Finding::good("isolation", "statements run at READ COMMITTED"),
        other => Finding::refused(
            "isolation",
            format!(
                "statements run at {other}, where most claims of a busy key would fail: set \
                 default_transaction_isolation to `read committed` for this user"
            ),
        ),
    }
}

pub(super) fn check_commit(commit: &str) -> Finding {
    match commit {
        "off" => Finding::refused(
            "synchronous-commit",
            "synchronous_commit is off, so a crash of the server takes back what was acknowledged: \
             set it to on for this user (ALTER ROLE … SET synchronous_commit = on)",
        ),
        other => Finding::good("synchronous-commit", format!("synchronous_commit is {other}")),
    }
}

fn check_switch(name: &'static str, value: &str, danger: &str) -> Finding {
    match value {
        "on" => Finding::good(name, format!("{name} is on")),
        _ => Finding::degraded(name, format!("{name} is {value}: {danger}; turn it on")),
    }
}

fn check_primary(is_standby: bool, read_only: &str) -> Finding {
    if is_standby {
        return Finding::refused("primary", "the server is a standby: name the primary in the URL");
    }
    if read_only == "on" {
        return Finding::refused(
            "primary",
            "transactions are read-only: set default_transaction_read_only to off for this user",
        );
    }
    Finding::good("primary", "the server takes writes")
}

fn check_standbys(commit: &str, standbys: i64, names: &str) -> Finding {
    const NAME: &str = "standbys";
    match (commit, standbys) {
        ("local", _) if !names.is_empty() => Finding::degraded(
            NAME,
            "synchronous_commit is local, so no standby has what was acknowledged: set it to on",
        ),
        (_, 1..) => Finding::good(NAME, format!("{standbys} synchronous")),
        _ if names.is_empty() => Finding::good(
            NAME,
            "no synchronous standby: what was acknowledged is lost with the disk of this server",
        ),
        _ => Finding::degraded(
            NAME,
            "synchronous standbys are named, but none can be seen: either none is connected and \
             commits wait, or this user may not see them (GRANT pg_monitor)",
        ),
    }
}

fn check_rights(missing: Option<&str>) -> Finding {
    match missing {
        None => Finding::good("rights", "all that are needed"),
        Some(missing) => {
            Finding::refused("rights", format!("the user lacks rights: grant {missing}"))
        }
    }
}

fn skew(there: Timestamp, here: Timestamp) -> (Skew, Finding) {
    let skew = if there >= here {
        Skew::Ahead(there.since(here))
    } else {
        Skew::Behind(here.since(there))
    };
    let (Skew::Ahead(by) | Skew::Behind(by)) = skew;
    let text = format!("the server's clock and this machine's are {by:?} apart");
    let finding = if by > SKEW {
        Finding::degraded("clock-skew", format!("{text}: set both by the same time server"))
    } else {
        Finding::good("clock-skew", text)
    };
    (skew, finding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standby_does_not_make_up_for_a_server_that_syncs_nothing() {
        for (commit, fsync, standbys, is) in [
            ("on", "on", 0, Tier::Durable),
            ("on", "on", 1, Tier::Replicated),
            ("local", "on", 1, Tier::Durable),
            ("on", "off", 1, Tier::Process),
            ("remote_apply", "off", 2, Tier::Process),
            ("off", "on", 1, Tier::Process),
        ] {
            assert_eq!(tier(commit, fsync, standbys), is, "{commit} {fsync} {standbys}");
        }
    }
}
