//! Looks at how the servers are set up, and says what that means.

use std::sync::Arc;

use oncekey_core::health::{Finding, Skew, StoreHealth, Tier, Verdict};
use oncekey_core::{Clock as _, ErrorKind, StoreError, Timestamp};

use super::error::Failure;
use super::info::{self, Info};
use super::reach::Reach;
use super::servers::Server;
use crate::clock::SystemClock;

/// A clock that is off by more than this ends leases too early or too late by as much. Half a second
/// is what a network and a badly kept clock make together.
const OFF: std::time::Duration = std::time::Duration::from_millis(500);

/// What was found on one server.
struct Look {
    name: String,
    info: Info,
    fsync: Option<String>,
    skew: Option<Skew>,
}

impl Reach {
    /// Looks at every server as it is now.
    pub(super) async fn inspect(&self, accepted: Tier) -> Result<StoreHealth, Failure> {
        let mut looks = Vec::new();
        for server in self.servers.all() {
            looks.push(look_at(&server).await?);
        }
        let tier = looks.iter().map(Look::tier).max().unwrap_or(Tier::Volatile);
        let name = looks.first().map(|look| look.info.program()).unwrap_or_default();
        let name =
            if looks.len() > 1 { format!("{name}, {} primaries", looks.len()) } else { name };
        let mut findings = Vec::new();
        for check in [Look::version, Look::eviction, Look::persistence, Look::replicas, Look::clock]
        {
            // The worst server speaks for all.
            let found = looks.iter().map(|look| (check(look), &look.name));
            let Some((mut finding, server)) = found.max_by_key(|(found, _)| found.verdict) else {
                continue;
            };
            if looks.len() > 1 && finding.verdict != Verdict::Good {
                finding.text = format!("{}: {}", server, finding.text);
            }
            findings.push(finding);
        }
        findings.push(promise(tier, accepted));
        findings.push(match self.guard.loss() {
            None => Finding::good("lineage", "no loss of data and no failover was noticed"),
            Some(loss) => Finding::refused(
                "lineage",
                format!("the store lost its data or failed over: {loss}"),
            ),
        });
        let skew = looks.iter().filter_map(|look| look.skew).max_by_key(|skew| size(*skew));
        Ok(StoreHealth { name, tier, findings, skew })
    }

    /// Whether `WAITAOF` works everywhere.
    pub(super) async fn all_can_wait_for_disks(&self) -> Result<bool, Failure> {
        for server in self.servers.all() {
            if !server.any().info().await?.can_wait_for_disks() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Says in the log what the store promises, and refuses to work if it is not what it should be. That
/// a store lost its data is no reason not to open it: it must be open to be put right.
pub(super) fn announce(health: &StoreHealth) -> Result<(), StoreError> {
    let refused: Vec<String> = health
        .complaints()
        .filter(|finding| finding.verdict == Verdict::Refused && finding.check != "lineage")
        .map(|finding| finding.text.clone())
        .collect();
    if !refused.is_empty() {
        return Err(StoreError::new(ErrorKind::Unsuitable, refused.join("; ")));
    }
    let (name, tier) = (&health.name, health.tier.label());
    tracing::info!(store = %name, tier, "the Redis store is open: efficient, not for money");
    for finding in health.complaints() {
        tracing::warn!(store = %name, tier, "{finding}");
    }
    Ok(())
}

fn promise(tier: Tier, accepted: Tier) -> Finding {
    let text = match tier {
        Tier::Replicated | Tier::Durable => {
            "what was acknowledged survives the death of the process and a power cut; a failover may \
             lose the last writes, which is noticed"
        }
        Tier::Process => {
            "what was acknowledged survives the death of the process; a power cut loses about the \
             last second, and a failover the last writes"
        }
        Tier::Volatile => {
            "a restart loses what was written since the last snapshot, or everything: set `appendonly \
             yes`, or say with `accept(Tier::Volatile)` that this is wanted"
        }
    };
    if tier > accepted {
        Finding::refused("tier", text)
    } else if tier == Tier::Volatile {
        Finding::degraded("tier", text)
    } else {
        Finding::good("tier", text)
    }
}

async fn look_at(server: &Arc<Server>) -> Result<Look, Failure> {
    let link = server.any();
    let info = link.info().await?;
    let before = SystemClock.now();
    let time = info::time(&link.send(&redis::cmd("TIME")).await?.0);
    let skew = time.map(|time| skew(time, before, SystemClock.now()));
    // Services that run Redis for others often forbid CONFIG. Then nobody knows.
    let fsync = link.send(&info::ask_fsync()).await;
    let fsync = fsync.ok().and_then(|(value, _)| info::fsync(&value));
    Ok(Look { name: server.name.clone(), info, fsync, skew })
}

/// How far `time` is outside of the span in which it was asked for.
fn skew(time: Timestamp, before: Timestamp, after: Timestamp) -> Skew {
    if time > after { Skew::Ahead(time.since(after)) } else { Skew::Behind(before.since(time)) }
}

fn size(skew: Skew) -> std::time::Duration {
    match skew {
        Skew::Ahead(by) | Skew::Behind(by) => by,
    }
}

impl Look {
    fn tier(&self) -> Tier {
        self.info.tier(self.fsync.as_deref())
    }

    fn version(&self) -> Finding {
        let program = self.info.program();
        if self.info.is_new_enough() {
            Finding::good("version", program)
        } else {
            Finding::refused("version", format!("{program} is too old: Redis 7.0 is the oldest"))
        }
    }

    fn eviction(&self) -> Finding {
        match self.info.get("maxmemory_policy") {
            Some("noeviction") => Finding::good("eviction", "noeviction: nothing is thrown away"),
            Some(policy) => Finding::refused(
                "eviction",
                format!(
                    "maxmemory-policy is {policy}, which throws records away without a word, and \
                     their work would run again: set it to noeviction"
                ),
            ),
            None => Finding::refused(
                "eviction",
                "INFO does not show maxmemory_policy, so nobody knows whether records are thrown \
                 away: allow the user the whole of INFO",
            ),
        }
    }

    fn persistence(&self) -> Finding {
        let failed = ["aof_last_write_status", "aof_last_bgrewrite_status"]
            .into_iter()
            .find(|name| self.info.get(name).is_some_and(|status| status != "ok"));
        if let Some(name) = failed {
            return Finding::degraded("persistence", format!("{name} is not ok: see the log"));
        }
        match (self.tier(), self.fsync.as_deref()) {
            (Tier::Replicated | Tier::Durable, _) => {
                Finding::good("persistence", "appendonly yes, appendfsync always")
            }
            (Tier::Process, Some(fsync)) => Finding::degraded(
                "persistence",
                format!("appendonly yes, appendfsync {fsync}: a power cut loses the last writes"),
            ),
            (Tier::Process, None) => Finding::degraded(
                "persistence",
                "appendonly yes; CONFIG GET is forbidden, so appendfsync is taken for everysec",
            ),
            (Tier::Volatile, _) => Finding::degraded("persistence", "appendonly no"),
        }
    }

    fn replicas(&self) -> Finding {
        match self.info.get("connected_slaves") {
            Some("0") | None => Finding::good("replicas", "none"),
            Some(count) => Finding::good(
                "replicas",
                format!("{count}; a failover may lose the last writes, which is noticed"),
            ),
        }
    }

    fn clock(&self) -> Finding {
        match self.skew {
            Some(skew) if size(skew) <= OFF => Finding::good("clock", "as this machine's"),
            Some(Skew::Ahead(by)) => {
                Finding::degraded("clock", format!("{by:?} ahead of this machine's"))
            }
            Some(Skew::Behind(by)) => {
                Finding::degraded("clock", format!("{by:?} behind this machine's"))
            }
            None => Finding::degraded("clock", "TIME cannot be read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis::Value;

    use super::*;

    fn look(info: &str, fsync: Option<&str>) -> Look {
        let info = Info::of(&Value::BulkString(info.as_bytes().to_vec()));
        Look { name: "a:1".into(), info, fsync: fsync.map(str::to_owned), skew: None }
    }

    #[test]
    fn the_tier_follows_the_append_only_file() {
        let on = "aof_enabled:1\r\n";
        assert_eq!(look(on, Some("always")).tier(), Tier::Durable);
        assert_eq!(look(on, Some("everysec")).tier(), Tier::Process);
        assert_eq!(look(on, None).tier(), Tier::Process);
        assert_eq!(look("aof_enabled:0\r\n", Some("always")).tier(), Tier::Volatile);
        assert_eq!(look("", None).tier(), Tier::Volatile);
    }

    #[test]
    fn a_tier_below_the_accepted_one_is_refused() {
        assert_eq!(promise(Tier::Volatile, Tier::Process).verdict, Verdict::Refused);
        assert_eq!(promise(Tier::Volatile, Tier::Volatile).verdict, Verdict::Degraded);
        assert_eq!(promise(Tier::Process, Tier::Durable).verdict, Verdict::Refused);
        assert_eq!(promise(Tier::Durable, Tier::Process).verdict, Verdict::Good);
    }

    #[test]
    fn whatever_may_evict_is_refused() {
        for policy in ["allkeys-lru", "volatile-ttl", "volatile-lfu", "somethingnew"] {
            let finding = look(&format!("maxmemory_policy:{policy}\r\n"), None).eviction();
            assert_eq!(finding.verdict, Verdict::Refused, "{policy}");
            assert!(finding.text.contains("noeviction"), "{finding}");
        }
        assert_eq!(look("", None).eviction().verdict, Verdict::Refused);
        let good = look("maxmemory_policy:noeviction\r\n", None).eviction();
        assert_eq!(good.verdict, Verdict::Good);
    }

    #[test]
    fn a_clock_is_off_by_what_the_question_cannot_explain() {
        let at = Timestamp::from_micros;
        assert_eq!(skew(at(150), at(100), at(200)), Skew::Behind(Duration::ZERO));
        assert_eq!(skew(at(250), at(100), at(200)), Skew::Ahead(Duration::from_micros(50)));
        assert_eq!(skew(at(60), at(100), at(200)), Skew::Behind(Duration::from_micros(40)));
    }
}
