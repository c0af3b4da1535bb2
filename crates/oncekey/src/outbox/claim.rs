//! Taking messages under a lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncekey_core::KeyId;

use super::message::{Form, Message, MessageId, Taken};
use super::relay::{AfterDead, Inner};
use super::sql::state;
use super::stage::micros;
use crate::flow::{Row, TxError, TxStore, Value};

/// What is asked for.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    /// Drawn anew for each taking, so that a relay cannot mistake its own later lease for this one.
    pub(super) owner: [u8; 16],
    pub(super) batch: usize,
    pub(super) relay: &'a Inner,
}

/// What was taken, in the order of its keys.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) messages: Vec<Message>,
    /// Messages that are due and stand behind another one of their key.
    pub(super) put_off: usize,
    /// Messages that are due and that no sink of this relay takes.
    pub(super) unrouted: usize,
}

impl Batch {
    /// How many messages were looked at.
    pub(super) fn looked_at(&self) -> usize {
        self.messages.len() + self.put_off + self.unrouted
    }
}

/// Takes what is due. After an error nobody knows whether it was taken; then the lease lapses.
///
/// What no sink takes is put off at once and counts no attempt: another relay may have a sink for it. It
/// is not left out of the question, because then every question would read past all of it.
pub(super) async fn take<S: TxStore>(store: &S, ask: &Ask<'_>) -> Result<Batch, TxError> {
    let sql = &store.layout().outbox().sql;
    // Nothing is locked while nothing is due, which is most of the time.
    let now = clock(store).await?;
    let mut tx = store.begin().await?;
    let conn = S::conn(&mut tx);
    let batch = i64::try_from(ask.batch).unwrap_or(i64::MAX);
    let rows = S::query(conn, &sql.due, &[Value::Int(now), Value::Int(batch)]).await?;
    if rows.is_empty() {
        S::rollback(tx).await?;
        return Ok(Batch::default());
    }
    let found: Vec<Taken> =
        rows.iter().map(|row| read(row).or_else(|_| unreadable(row))).collect::<Result<_, _>>()?;
    let seqs: Vec<_> = found.iter().map(|message| (message.seq,)).collect();
    let (owner, lease) = (Value::Bytes(&ask.owner), Value::Int(micros(ask.relay.lease)));
    S::execute(conn, &sql.take, &[Value::Text(&list(&seqs)), owner, lease]).await?;
    // All are taken first, so that those of this taking can be told from others by their owner.
    let blockers = blockers::<S>(store, conn, &found, ask).await?;
    let (unrouted, found) = split(found, ask.relay);
    let nobodys = behind(&unrouted, now);
    let (mut taken, mut put_off) = (Vec::new(), Vec::new());
    for message in found {
        let pauses = [
            blockers
                .get(&message.order_key)
                .map(|other| (other.seq, other.pause(now, ask.relay.lease))),
            nobodys.get(&message.order_key).copied(),
        ];
        let before = pauses.into_iter().flatten().filter(|(seq, _)| *seq < message.seq);
        match before.map(|(_, pause)| pause).max() {
            Some(pause) => put_off.push((message.seq, pause)),
            None => taken.push(message),
        }
    }
    let count = (put_off.len(), unrouted.len());
    put_off.extend(unrouted.iter().map(|message| (message.seq, unrouted_pause(message, now))));
    if !put_off.is_empty() {
        S::execute(conn, &sql.put_off, &[Value::Text(&list(&put_off))]).await?;
    }
    S::commit(tx).await?;
    for message in &unrouted {
        metrics::counter!("oncekey_outbox_unrouted_total").increment(1);
        ask.relay.name_unrouted(&message.topic);
    }
    // Due times differ from the order of keys once something was put off.
    taken.sort_unstable_by_key(|message| message.seq);
    let messages = taken.into_iter().map(|message| Message(Arc::new(message))).collect();
    Ok(Batch { messages, put_off: count.0, unrouted: count.1 })
}

/// Those that no sink of this relay takes, and the others. A row that cannot be read has no topic.
fn split(found: Vec<Taken>, relay: &Inner) -> (Vec<Taken>, Vec<Taken>) {
    let nobodys =
        |message: &Taken| message.form == Form::Sound && relay.route_of(&message.topic).is_none();
    found.into_iter().partition(nobodys)
}

/// For each key the first message that no sink takes: those behind it wait for it, whoever delivers it.
fn behind(unrouted: &[Taken], now: i64) -> HashMap<String, (i64, i64)> {
    let mut first: HashMap<String, (i64, i64)> = HashMap::new();
    for message in unrouted.iter().filter(|message| !message.order_key.is_empty()) {
        let this = (message.seq, unrouted_pause(message, now));
        let known = first.entry(message.order_key.clone()).or_insert(this);
        *known = this.min(*known);
    }
    first
}

/// How long a message is put off that no sink of this relay takes, in microseconds. Short while it is
/// young, so that a relay that has a sink for it gets its chance; half as long again as it has waited
/// already, so that what nobody takes costs ever less.
fn unrouted_pause(message: &Taken, now: i64) -> i64 {
    // Not shorter than the look of another relay; not longer than a person waits for a deployment
    // that brings the sink.
    const SHORTEST: i64 = 100_000;
    const LONGEST: i64 = 60_000_000;
    (now.saturating_sub(message.created) / 2).clamp(SHORTEST, LONGEST)
}

async fn clock<S: TxStore>(store: &S) -> Result<i64, TxError> {
    let rows = store.query_once(&store.layout().outbox().sql.now, &[]).await?;
    rows.first().ok_or_else(TxError::damaged)?.int(0)
}

/// Rows of numbers and texts as a list of a statement.
pub(super) fn list(rows: &impl serde::Serialize) -> String {
    serde_json::to_string(rows).expect("numbers and texts have a form in JSON")
}

fn read(row: &Row) -> Result<Taken, TxError> {
    let flow = match row.maybe_bytes(8)? {
        Some(bytes) => Some(KeyId::from_bytes(bytes.try_into().map_err(|_| TxError::damaged())?)),
        None => None,
    };
    Ok(Taken {
        seq: row.int(0)?,
        id: MessageId(row.array(1)?),
        topic: row.text(2)?.to_owned(),
        order_key: row.text(3)?.to_owned(),
        headers: serde_json::from_slice(row.bytes(4)?).map_err(|_| TxError::damaged())?,
        body: Bytes::copy_from_slice(row.bytes(5)?),
        // Counted when it is taken, so that a crash counts.
        attempt: row.int(6)? + 1,
        created: row.int(7)?,
        flow,
        form: Form::Sound,
    })
}

/// What is left of a row that somebody has damaged: enough to make it a dead letter.
fn unreadable(row: &Row) -> Result<Taken, TxError> {
    Ok(Taken {
        seq: row.int(0)?,
        id: MessageId([0; 16]),
        topic: String::new(),
        // Those behind it wait for it, as for any other dead letter.
        order_key: row.text(3).map(str::to_owned).unwrap_or_default(),
        headers: Vec::new(),
        body: Bytes::new(),
        attempt: row.int(6)? + 1,
        created: row.int(7)?,
        flow: None,
        form: Form::Damaged,
    })
}

/// A message that others of its key stand behind.
#[derive(Clone, Copy, Debug)]
struct Blocker {
    seq: i64,
    state: i64,
    due: i64,
}

/// The shortest time that a message is put off: another relay is about to settle the one before it.
const SHORTEST: i64 = 20_000;
/// The longest. A dead letter that is replayed, or a lease that is given back early, is noticed after so
/// much time; meanwhile each of those behind it costs one update.
const LONGEST: i64 = 10_000_000;

impl Blocker {
    /// How long those behind it are put off, in microseconds.
    fn pause(self, now: i64, lease: Duration) -> i64 {
        let pause = match self.state {
            state::DEAD => LONGEST,
            // The longer it is taken already, the less likely it is settled in a moment.
            state::TAKEN => (now - (self.due - micros(lease))) / 2,
            _ => self.due - now,
        };
        pause.clamp(SHORTEST, LONGEST)
    }
}

async fn blockers<S: TxStore>(
    store: &S,
    conn: &mut S::Conn,
    found: &[Taken],
    ask: &Ask<'_>,
) -> Result<HashMap<String, Blocker>, TxError> {
    // The last of each key: whatever stands before any stands before it.
    let mut last: HashMap<&str, i64> = HashMap::new();
    for message in found.iter().filter(|message| !message.order_key.is_empty()) {
        let seq = last.entry(&message.order_key).or_default();
        *seq = message.seq.max(*seq);
    }
    if last.is_empty() {
        return Ok(HashMap::new());
    }
    let sql = &store.layout().outbox().sql;
    let statement = match ask.relay.after_dead {
        AfterDead::Hold => &sql.blockers,
        AfterDead::GoOn => &sql.live_blockers,
    };
    let seqs = list(&last.values().map(|seq| (*seq,)).collect::<Vec<_>>());
    let values = [Value::Bytes(&ask.owner), Value::Text(&seqs)];
    let mut keys: HashMap<i64, String> = HashMap::new();
    for row in S::query(conn, statement, &values).await? {
        if let Some(seq) = row.maybe_int(1)? {
            keys.insert(seq, row.text(0)?.to_owned());
        }
    }
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let seqs = list(&keys.keys().map(|seq| (*seq,)).collect::<Vec<_>>());
    let mut blockers = HashMap::new();
    for row in S::query(conn, &sql.look, &[Value::Text(&seqs)]).await? {
        let blocker = Blocker { seq: row.int(0)?, state: row.int(1)?, due: row.int(2)? };
        if let Some(key) = keys.remove(&blocker.seq) {
            blockers.insert(key, blocker);
        }
    }
    // What is gone since was settled: those behind it are put off for a moment all the same, because
    // what comes after it was not looked for.
    for (seq, key) in keys {
        blockers.insert(key, Blocker { seq, state: state::WAITING, due: 0 });
    }
    Ok(blockers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ever more rarely, and never later than a person would wait.
    #[test]
    fn what_no_sink_takes_is_looked_at_again_after_half_of_its_age() {
        let row = |created| Taken {
            seq: 1,
            id: MessageId([0; 16]),
            topic: "t".to_owned(),
            order_key: String::new(),
            headers: Vec::new(),
            body: Bytes::new(),
            attempt: 1,
            created,
            flow: None,
            form: Form::Sound,
        };
        let of = |created| unrouted_pause(&row(created), 1_000_000_000);
        assert_eq!(of(1_000_000_000), 100_000);
        assert_eq!(of(2_000_000_000), 100_000, "staged by a clock that was ahead");
        assert_eq!(of(996_000_000), 2_000_000);
        assert_eq!(of(0), 60_000_000);
        assert_eq!(of(i64::MIN), 60_000_000);
    }

    #[test]
    fn whoever_stands_behind_waits_as_long_as_it_makes_sense() {
        let lease = Duration::from_secs(60);
        let of = |state, due| Blocker { seq: 1, state, due }.pause(1_000_000_000, lease);
        assert_eq!(of(state::WAITING, 1_003_000_000), 3_000_000);
        assert_eq!(of(state::WAITING, 0), SHORTEST);
        assert_eq!(of(state::WAITING, i64::MAX), LONGEST);
        assert_eq!(of(state::DEAD, i64::MAX), LONGEST);
        // Just taken; taken four seconds ago.
        assert_eq!(of(state::TAKEN, 1_060_000_000), SHORTEST);
        assert_eq!(of(state::TAKEN, 1_056_000_000), 2_000_000);
    }
}
