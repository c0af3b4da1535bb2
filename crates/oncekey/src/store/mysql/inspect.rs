//! How the server is set up, and what that means for the store's promises.

use std::collections::HashMap;

use oncekey_core::health::{Finding, Skew, StoreHealth, Tier, Verdict};
use oncekey_core::{Clock as _, ErrorKind, StoreError, Timestamp};

use super::error::{Trouble, unsuitable};
use super::session::Session;
use super::sql::{NOW, Tables};
use super::{row, schema};
use crate::clock::SystemClock;

/// What is known about writers on a Galera cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Galera {
    /// A Galera cluster is refused: with several writers it loses updates, and two attempts could own
    /// a key.
    #[default]
    Refused,
    /// Somebody makes sure that all writes of all programs go to one node, at every moment.
    SingleWriter,
}

const VARIABLES: &str = "SHOW SESSION VARIABLES WHERE `Variable_name` IN (\
    'autocommit', 'binlog_format', 'innodb_flush_log_at_trx_commit', 'innodb_lock_wait_timeout', \
    'innodb_read_only', 'log_bin', 'max_allowed_packet', 'read_only', 'sql_mode', \
    'super_read_only', 'sync_binlog', 'time_zone', 'transaction_isolation', 'tx_isolation', \
    'version', 'wsrep_on')";

/// Two readings of `SYSDATE` with a moment between them. A server that was started with
/// `sysdate-is-now` gives the same twice, and no variable says so.
const SYSDATE: &str = "SELECT SYSDATE(6) AS `a`, SLEEP(0.002), SYSDATE(6) AS `b`";

/// Twice the longest text that the store sends, with room to spare.
const LEAST_PACKET: u64 = 4 * 1024 * 1024;

/// Clocks that differ by more show times to people that are plainly wrong.
const MOST_SKEW_MICROS: i64 = 5_000_000;

/// What a connection says about itself and its server.
struct Facts {
    variables: HashMap<String, String>,
    sysdate: Sysdate,
}

/// What `SYSDATE` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sysdate {
    /// The clock.
    Clock,
    /// The moment at which the statement began.
    StatementStart,
}

/// Looks at everything. What is wrong is a finding.
pub(super) async fn inspect(
    session: &mut Session,
    tables: &Tables,
    galera: Galera,
) -> Result<StoreHealth, StoreError> {
    let facts = Facts::read(session).await.map_err(Trouble::of_read)?;
    let mut findings = facts.findings(galera);
    findings.push(engine(session, tables).await.map_err(Trouble::of_read)?);
    let (skew, finding) = skew(session).await.map_err(Trouble::of_read)?;
    findings.push(finding);
    findings.push(match schema::check(session, tables).await {
        Ok(version) => Finding::good("schema", format!("the tables have version {version}")),
        // That says something about the way to the server, and nothing about its tables.
        Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
        Err(error) => Finding::refused("schema", error.to_string()),
    });
    let tier = if facts.is_durable() { Tier::Durable } else { Tier::Process };
    Ok(StoreHealth { name: facts.name(), tier, findings, skew: Some(skew) })
}

/// Looks at a new connection and its server, and refuses what cannot keep the promises. The server
/// may be another one than before: a failover leads old addresses to new servers.
pub(super) async fn check_session(
    mut session: Session,
    galera: Galera,
) -> Result<Session, StoreError> {
    let facts = Facts::read(&mut session).await.map_err(Trouble::of_read)?;
    // In the middle of a failover the address leads to a replica for a while: that passes.
    let read_only = facts.read_only();
    if read_only.verdict == Verdict::Refused {
        return Err(StoreError::new(ErrorKind::Unavailable, read_only.text));
    }
    match refusal(&facts.findings(galera)) {
        Some(error) => Err(error),
        None => Ok(session),
    }
}

/// The first finding with which the store does not work, as an error.
pub(super) fn refusal(findings: &[Finding]) -> Option<StoreError> {
    let refused = findings.iter().find(|finding| finding.verdict == Verdict::Refused)?;
    Some(unsuitable(refused.text.clone()))
}

impl Facts {
    async fn read(session: &mut Session) -> Result<Self, Trouble> {
        let sets = session.run(&[VARIABLES, SYSDATE]).await?;
        let mut variables = HashMap::new();
        for row in sets.first().map_or(&[][..], |set| &set.rows) {
            let text = |column| {
                row::blob(row, column).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            };
            variables.insert(text(0)?, text(1)?);
        }
        let moments = sets.get(1).and_then(|set| set.rows.first());
        let moments = moments.ok_or(Trouble::damaged("the server told no time"))?;
        let stands = row::blob(moments, 0)? == row::blob(moments, 2)?;
        let sysdate = if stands { Sysdate::StatementStart } else { Sysdate::Clock };
        Ok(Self { variables, sysdate })
    }

    /// The value of a variable; empty if the server has none.
    fn get(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }

    fn is_on(&self, name: &str) -> bool {
        let value = self.get(name);
        value == "1" || value.eq_ignore_ascii_case("on")
    }

    fn is_mariadb(&self) -> bool {
        self.get("version").contains("MariaDB")
    }

    fn name(&self) -> String {
        let product = if self.is_mariadb() { "MariaDB" } else { "MySQL" };
        format!("{product} {}", self.get("version").split('-').next().unwrap_or_default())
    }

    fn is_durable(&self) -> bool {
        self.get("innodb_flush_log_at_trx_commit") == "1"
            && (!self.is_on("log_bin") || self.get("sync_binlog") == "1")
    }

    /// Everything that can be told without the tables.
    fn findings(&self, galera: Galera) -> Vec<Finding> {
        vec![
            self.version(),
            self.isolation(),
            self.sql_mode(),
            self.session(),
            self.flush_log(),
            self.sync_binlog(),
            self.binlog_format(),
            self.read_only(),
            self.sysdate(),
            self.galera(galera),
            self.packet(),
        ]
    }

    fn version(&self) -> Finding {
        let oldest = if self.is_mariadb() { (10, 6) } else { (8, 0) };
        let mut numbers = self.get("version").split(['.', '-']).map(str::parse::<u32>);
        let mut number = || numbers.next().and_then(Result::ok).unwrap_or(0);
        let name = self.name();
        if (number(), number()) >= oldest {
            Finding::good("version", name)
        } else {
            let text = format!("{name} is too old: oncekey needs MySQL 8.0 or MariaDB 10.6");
            Finding::refused("version", text)
        }
    }

    fn isolation(&self) -> Finding {
        let old = self.get("tx_isolation");
        let level = if old.is_empty() { self.get("transaction_isolation") } else { old };
        if level == "READ-COMMITTED" {
            Finding::good("isolation", "transactions read what is committed")
        } else {
            let text = format!(
                "the isolation level is {level} although READ COMMITTED was asked for: look for \
                 a proxy or an init_connect that changes it"
            );
            Finding::refused("isolation", text)
        }
    }

    fn sql_mode(&self) -> Finding {
        let mode = self.get("sql_mode");
        if mode.contains("STRICT_ALL_TABLES") {
            Finding::good("sql-mode", "values that do not fit are refused")
        } else {
            let text = "the SQL mode is not strict although it was asked for: look for a proxy or \
                 an init_connect that changes it";
            Finding::refused("sql-mode", text)
        }
    }

    fn session(&self) -> Finding {
        let waits = self.get("innodb_lock_wait_timeout") == "2";
        if self.is_on("autocommit") && waits && self.get("time_zone") == "+00:00" {
            Finding::good("session", "connections are set up as asked for")
        } else {
            let text = "autocommit, time_zone or innodb_lock_wait_timeout are not as asked for: \
                 look for a proxy or an init_connect that changes them";
            Finding::refused("session", text)
        }
    }

    fn flush_log(&self) -> Finding {
        let value = self.get("innodb_flush_log_at_trx_commit");
        if value == "1" {
            Finding::good("flush-log", "every commit is synced to the disk")
        } else {
            let text = format!(
                "innodb_flush_log_at_trx_commit is {value}: a crash can lose what was \
                 acknowledged; set it to 1"
            );
            Finding::degraded("flush-log", text)
        }
    }

    fn sync_binlog(&self) -> Finding {
        let value = self.get("sync_binlog");
        if !self.is_on("log_bin") {
            Finding::good("sync-binlog", "the binary log is off")
        } else if value == "1" {
            Finding::good("sync-binlog", "the binary log is synced with every commit")
        } else {
            let text = format!(
                "the binary log is on and sync_binlog is {value}: a loss of power can lose what \
                 was acknowledged; set it to 1"
            );
            Finding::degraded("sync-binlog", text)
        }
    }

    fn binlog_format(&self) -> Finding {
        let format = self.get("binlog_format");
        if !self.is_on("log_bin") {
            Finding::good("binlog-format", "the binary log is off")
        } else if format == "STATEMENT" {
            let text = "binlog_format is STATEMENT: replicas would run statements by their own \
                 clock; set it to ROW";
            Finding::refused("binlog-format", text)
        } else {
            // Under READ COMMITTED, MIXED logs rows.
            Finding::good("binlog-format", "replicas get rows")
        }
    }

    fn read_only(&self) -> Finding {
        let on = ["read_only", "super_read_only", "innodb_read_only"];
        match on.into_iter().find(|name| self.is_on(name)) {
            Some(name) => {
                let text =
                    format!("the server is read-only ({name}): point the URL at the primary");
                Finding::refused("read-only", text)
            }
            None => Finding::good("read-only", "the server takes writes"),
        }
    }

    fn sysdate(&self) -> Finding {
        match self.sysdate {
            Sysdate::Clock => Finding::good("sysdate", "SYSDATE is the clock"),
            Sysdate::StatementStart => Finding::refused(
                "sysdate",
                "the server runs with sysdate-is-now, so that leases would begin before a lock \
                 wait: start it without",
            ),
        }
    }

    fn galera(&self, galera: Galera) -> Finding {
        match (self.is_on("wsrep_on"), galera) {
            (false, _) => Finding::good("galera", "no Galera cluster"),
            (true, Galera::SingleWriter) => Finding::degraded(
                "galera",
                "a Galera cluster: the promises hold only while all writes go to one node",
            ),
            (true, Galera::Refused) => Finding::refused(
                "galera",
                "a Galera cluster can lose updates if several nodes are written to: send all \
                 writes to one node and say so (Galera::SingleWriter)",
            ),
        }
    }

    fn packet(&self) -> Finding {
        let bytes = self.get("max_allowed_packet").parse().unwrap_or(0_u64);
        if bytes >= LEAST_PACKET {
            Finding::good("packet", "statements of every size fit")
        } else {
            let text = format!("max_allowed_packet is {bytes}: raise it to {LEAST_PACKET} or more");
            Finding::refused("packet", text)
        }
    }
}

async fn engine(session: &mut Session, tables: &Tables) -> Result<Finding, Trouble> {
    let text = format!(
        "SELECT COUNT(*), COALESCE(SUM(`ENGINE` = 'InnoDB'), 0) FROM `information_schema`.`TABLES` \
         WHERE `TABLE_SCHEMA` = DATABASE() AND `TABLE_NAME` IN \
         ('{0}records', '{0}answers', '{0}pieces', '{0}clock')",
        tables.prefix
    );
    let sets = session.run(&[text]).await?;
    let row = sets.first().and_then(|set| set.rows.first());
    let row = row.ok_or(Trouble::damaged("a count"))?;
    let (all, innodb): (u32, u32) = (row::number(row, 0)?, row::number(row, 1)?);
    Ok(match (all, innodb) {
        (4, 4) => Finding::good("engine", "all tables are InnoDB"),
        (4, _) => Finding::refused(
            "engine",
            "a table of oncekey is not InnoDB and knows no transactions: convert it with ALTER \
             TABLE … ENGINE=InnoDB",
        ),
        (_, _) => Finding::refused(
            "engine",
            "a table of oncekey is missing: let the store migrate, or apply `migration_sql()` by \
             hand",
        ),
    })
}

async fn skew(session: &mut Session) -> Result<(Skew, Finding), Trouble> {
    let text = format!("SELECT {NOW}");
    let before = SystemClock.now().micros();
    let theirs: Timestamp = row::moment(session.run(&[text]).await?.first())?;
    let after = SystemClock.now().micros();
    // Somewhere between the two, so the middle is wrong by half a round trip at most.
    let ours = Timestamp::from_micros(before + (after - before) / 2);
    let skew = if theirs >= ours {
        Skew::Ahead(theirs.since(ours))
    } else {
        Skew::Behind(ours.since(theirs))
    };
    let (Skew::Ahead(by) | Skew::Behind(by)) = skew;
    let finding = if by.as_micros() <= MOST_SKEW_MICROS.unsigned_abs().into() {
        Finding::good("clock-skew", "the clocks of server and program agree")
    } else {
        let text = format!(
            "the clocks of server and program differ by {by:?}: leases are judged by the server's, \
             people read the other; set both by NTP"
        );
        Finding::degraded("clock-skew", text)
    };
    Ok((skew, finding))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server as it should be, but for these variables.
    fn facts(but: &[(&str, &str)]) -> Facts {
        let good = [
            ("autocommit", "ON"),
            ("innodb_flush_log_at_trx_commit", "1"),
            ("innodb_lock_wait_timeout", "2"),
            ("log_bin", "OFF"),
            ("max_allowed_packet", "16777216"),
            ("read_only", "OFF"),
            ("sql_mode", "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"),
            ("time_zone", "+00:00"),
            ("tx_isolation", "READ-COMMITTED"),
            ("version", "10.11.19-MariaDB-log"),
            ("wsrep_on", "OFF"),
        ];
        let all = good.iter().chain(but).map(|(name, value)| (name.to_string(), value.to_string()));
        Facts { variables: all.collect(), sysdate: Sysdate::Clock }
    }

    fn worst(facts: &Facts, galera: Galera) -> Vec<(&'static str, Verdict)> {
        let bad = |finding: &Finding| finding.verdict != Verdict::Good;
        let findings = facts.findings(galera);
        findings.iter().filter(|f| bad(f)).map(|f| (f.check, f.verdict)).collect()
    }

    #[test]
    fn a_good_server_is_good() {
        assert_eq!(worst(&facts(&[]), Galera::Refused), []);
        let mysql = facts(&[
            ("version", "8.0.36"),
            ("tx_isolation", ""),
            ("transaction_isolation", "READ-COMMITTED"),
        ]);
        assert_eq!(worst(&mysql, Galera::Refused), []);
        assert_eq!(mysql.name(), "MySQL 8.0.36");
    }

    #[test]
    fn every_bad_setting_is_found() {
        use Verdict::{Degraded, Refused};
        let table = [
            (&[("version", "10.5.9-MariaDB")][..], ("version", Refused)),
            (&[("version", "5.7.44")], ("version", Refused)),
            (&[("tx_isolation", "REPEATABLE-READ")], ("isolation", Refused)),
            (&[("sql_mode", "")], ("sql-mode", Refused)),
            (&[("autocommit", "OFF")], ("session", Refused)),
            (&[("time_zone", "SYSTEM")], ("session", Refused)),
            (&[("innodb_flush_log_at_trx_commit", "2")], ("flush-log", Degraded)),
            (&[("log_bin", "ON"), ("sync_binlog", "0")], ("sync-binlog", Degraded)),
            (
                &[("log_bin", "ON"), ("sync_binlog", "1"), ("binlog_format", "STATEMENT")],
                ("binlog-format", Refused),
            ),
            (&[("read_only", "ON")], ("read-only", Refused)),
            (&[("super_read_only", "1")], ("read-only", Refused)),
            (&[("wsrep_on", "ON")], ("galera", Refused)),
            (&[("max_allowed_packet", "1048576")], ("packet", Refused)),
        ];
        for (but, expected) in table {
            assert_eq!(worst(&facts(but), Galera::Refused), [expected], "{but:?}");
        }
        let mut frozen = facts(&[]);
        frozen.sysdate = Sysdate::StatementStart;
        assert_eq!(worst(&frozen, Galera::Refused), [("sysdate", Refused)]);
        let galera = facts(&[("wsrep_on", "ON")]);
        assert_eq!(worst(&galera, Galera::SingleWriter), [("galera", Degraded)]);
    }
}
