//! Puts back what a regressed store has lost, as far as this node knows it.
//!
//! Every node does this for its own keys, and nothing has to be agreed upon: a restored record never
//! takes anything back, so the order does not matter, and a crash half-way is repaired by the next
//! start. Grants go on a lease after the loss was noticed, when nobody is at it any more (`sign.rs`). By
//! then the other nodes have noticed too and put back theirs, and an owner that is cut off from the store
//! has stopped sending by its own clock.
//!
//! Everything is put back twice, the second time at the end. Before anybody noticed the loss, a lost key may
//! have been granted anew: what was noted of it is older than that grant and is not taken. The grant is
//! void and is given back, and then the key would be free.

use std::sync::Arc;
use std::time::Duration;

use oncekey_core::{
    Answer, ErrorKind, Lineage, Record, Restored, Sent, State, StateKind, StoreError,
};

use super::super::Shared;
use super::super::attempt::Held;
use super::super::claim::origin_of;
use super::super::ring::{Note, What, may_have_acted};
use super::super::together::together;
use super::examine::Evidence;
use super::sign::Sign;
use super::{Phase, Sentry};

/// A regression that is being put right.
#[derive(Clone, Debug)]
pub(super) struct Healing {
    /// When it was noticed, by uptime.
    since: Duration,
    /// For how long grants stay stopped.
    lease: Duration,
    evidence: Evidence,
    /// The life of the store that the notes were put back into.
    seeded: Option<Lineage>,
    /// Notes up to this number are put back.
    up_to: u64,
    stage: Stage,
    /// When the sign was last put up, by uptime.
    signed: Option<Duration>,
    healed: Healed,
}

/// How often everything was put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// For the first time, until a lease is over.
    First,
    /// Once more, for what was granted before anybody noticed.
    Last,
    /// All of it twice: only what others put back is waited for.
    Over,
}

/// What was put back.
#[derive(Clone, Copy, Debug, Default)]
struct Healed {
    /// Attempts that were under way, or of which nobody knows.
    open: u64,
    /// Finished work, with its answer.
    answers: u64,
    /// Finished work without its answer, which is lost.
    tombstones: u64,
    /// What the store does not take.
    failed: u64,
}

/// Writes at the same time. A ring of 64 Ki notes is put back within some seconds.
const AT_ONCE: usize = 32;

impl Healing {
    pub(super) fn time_left(&self, now: Duration) -> Duration {
        self.since.saturating_add(self.lease).saturating_sub(now)
    }
}

impl Sentry {
    /// Stops grants and raises the alarm.
    pub(super) fn stop(&self, shared: &Shared, evidence: Evidence) {
        let (since, lease) = (shared.uptime.elapsed(), shared.suspicion.longest_lease());
        let text = evidence.text();
        tracing::error!(
            missing = evidence.missing,
            older = evidence.older,
            looked_at = evidence.of,
            before = evidence.before.as_ref().map(Lineage::as_str),
            now = evidence.now.as_str(),
            pause_seconds = lease.as_secs_f64(),
            "store regressed: it has lost records that it had acknowledged, as after a failover to \
             a stale replica or the restore of a backup; grants are stopped while what this node \
             knows is put back"
        );
        metrics::counter!("oncekey_store_regressions_total").increment(1);
        metrics::gauge!("oncekey_store_regressed").set(1.0);
        *self.last() = Some(text);
        *self.moved() = None;
        let (stage, healed) = (Stage::First, Healed::default());
        let (seeded, signed) = (None, None);
        *self.healing() =
            Some(Healing { since, lease, evidence, seeded, up_to: 0, stage, signed, healed });
        self.state.send_modify(|state| {
            state.phase = Phase::Regressed;
            state.regressions += 1;
        });
    }

    /// Puts back what is not put back yet; and ends it if the time is over. Repeating it is harmless.
    pub(super) async fn heal(&self, shared: &Shared) -> Result<(), StoreError> {
        let Some(mut healing) = self.healing().clone() else { return Ok(()) };
        let lineage = self.call(self.store.lineage()).await?;
        if healing.seeded.as_ref() != Some(&lineage) {
            // It moved once more, and may have lost what was put back.
            if healing.seeded.is_some() {
                healing.since = shared.uptime.elapsed();
            }
            (healing.seeded, healing.up_to) = (Some(lineage), 0);
            // A sign that stood in the life before may be gone, too.
            (healing.stage, healing.signed) = (Stage::First, None);
        }
        self.seed(shared, &mut healing).await?;
        let is_early = !healing.time_left(shared.uptime.elapsed()).is_zero();
        let stage = match healing.stage {
            Stage::First if is_early => Stage::First,
            Stage::First => {
                healing.up_to = 0;
                Stage::Last
            }
            Stage::Last | Stage::Over => Stage::Over,
        };
        healing.stage = stage;
        *self.healing() = Some(healing.clone());
        if stage != Stage::Over || self.look_for_sign(shared).await? == Sign::Up {
            return Ok(());
        }
        self.adopt().await?;
        self.resume(&healing);
        Ok(())
    }

    fn resume(&self, healing: &Healing) {
        let Healing { evidence, healed, .. } = healing;
        tracing::warn!(
            open = healed.open,
            answers = healed.answers,
            tombstones = healed.tombstones,
            failed = healed.failed,
            "store healed: this node has put back what it knew, and grants go on"
        );
        metrics::gauge!("oncekey_store_regressed").set(0.0);
        *self.last() = Some(format!("{}; {}", evidence.text(), healed.text()));
        *self.healing() = None;
        self.state.send_modify(|state| {
            state.phase = Phase::Watching;
            // One more look before the first grant: the store may have moved in the last moment.
            state.doubts += 1;
        });
        self.bell.notify_one();
    }

    /// Puts back what was noted after `healing.up_to`, and what runs here.
    async fn seed(&self, shared: &Shared, healing: &mut Healing) -> Result<(), StoreError> {
        if healing.stage != Stage::Over {
            // Before anything else: others must not go on before they can see it.
            self.put_sign_up(shared, &mut healing.signed).await?;
        }
        self.ring.settle().await;
        let held = shared.heart.everything();
        let held: Vec<Record> = held.iter().filter_map(|held| shared.record_of(held)).collect();
        let (notes, newest) = self.ring.since(healing.up_to);
        let is_held = |note: &Note| {
            held.iter().any(|held| held.id == note.lease.id && held.fence == note.lease.fence)
        };
        let known: Vec<Record> = notes
            .iter()
            .filter(|note| note.what != What::Running || !is_held(note))
            .filter_map(|note| shared.restorable(note))
            .collect();
        // What runs first: its owner waits for it.
        for records in [held, known] {
            for some in records.chunks(AT_ONCE) {
                if healing.stage != Stage::Over {
                    self.put_sign_up(shared, &mut healing.signed).await?;
                }
                let writes = some.iter().map(|record| self.call(self.store.restore(record)));
                for (record, restored) in some.iter().zip(together(writes).await) {
                    healing.healed.count(record, restored)?;
                }
            }
        }
        healing.up_to = newest;
        Ok(())
    }
}

impl Shared {
    /// A key that is held here, as the store should have it; `None` if it was lost to somebody.
    pub(super) fn record_of(&self, held: &Held) -> Option<Record> {
        let grip = held.grip.as_ref().filter(|grip| !grip.is_lost())?;
        let call = &held.call;
        let now = self.suspicion.store_time(self.uptime.elapsed());
        // As if it had been renewed just now.
        let until = now.map_or(grip.lease.until, |now| now.after(grip.span));
        let sent = match grip.is_marked() {
            true => may_have_acted(call.policy.class),
            false => Sent::No,
        };
        let origin = self.vault.seal_origin(&held.id, &grip.lease.owner, origin_of(call));
        let sent = sent.or(grip.earlier);
        Some(Record {
            id: held.id,
            fence: grip.lease.fence,
            owner: grip.lease.owner,
            fingerprint: call.fingerprint,
            class: call.policy.class,
            created: grip.lease.until.before(grip.span),
            origin,
            places: call.places.clone(),
            state: State::Running { until, sent },
        })
    }

    /// Whether `held` is the attempt of `record`, and still runs under its lease.
    pub(super) fn is_holding(&self, held: &Arc<Held>, record: &Record) -> bool {
        let Some(grip) = held.grip.as_ref().filter(|grip| !grip.is_lost()) else { return false };
        let deadline = grip.since().saturating_add(grip.span);
        (held.id, grip.lease.fence) == (record.id, record.fence) && self.uptime.elapsed() < deadline
    }

    /// A note as a record, with its answer if that is still in memory.
    fn restorable(&self, note: &Note) -> Option<Record> {
        let mut record = note.record()?;
        let now = self.uptime.elapsed();
        let entry = self.finished.find(&record.id, now, self.suspicion.steps());
        if let (State::Done { outcome, answer, .. }, Some(entry)) = (&mut record.state, entry)
            && entry.fence == note.lease.fence
        {
            let saved = self.vault.seal_answer(&note.lease, &entry.saved);
            *answer = Answer::Kept(saved);
            *outcome = answer.outcome();
            record.places = entry.places.clone();
        }
        Some(record)
    }
}

impl Evidence {
    fn text(&self) -> String {
        let Self { missing, older, of, .. } = self;
        format!("of {of} records that were looked at, {missing} were gone and {older} were older")
    }
}

impl Healed {
    fn count(
        &mut self,
        record: &Record,
        restored: Result<Restored, StoreError>,
    ) -> Result<(), StoreError> {
        match restored {
            Ok(Restored::Kept) => return Ok(()),
            Ok(Restored::Written) => {}
            Err(error) => match error.kind() {
                // All of it is tried again.
                ErrorKind::Unavailable | ErrorKind::Ambiguous | ErrorKind::Unsuitable => {
                    return Err(error);
                }
                ErrorKind::Corrupt | ErrorKind::Rejected | _ => {
                    tracing::error!(%error, fence = %record.fence, "a record cannot be put back");
                    self.failed += 1;
                    return Ok(());
                }
            },
        }
        metrics::counter!("oncekey_store_restored_total", "state" => record.state.kind().label())
            .increment(1);
        match (&record.state, record.state.kind()) {
            (State::Done { answer: Answer::Kept(_), .. }, _) => self.answers += 1,
            (_, StateKind::Done) => self.tombstones += 1,
            (_, StateKind::Running | StateKind::Unknown | StateKind::Parked) => self.open += 1,
        }
        Ok(())
    }

    fn text(&self) -> String {
        let Self { open, answers, tombstones, failed } = self;
        format!(
            "put back {open} under way or unknown, {answers} finished with their answers, \
             {tombstones} finished without; {failed} failed"
        )
    }
}
