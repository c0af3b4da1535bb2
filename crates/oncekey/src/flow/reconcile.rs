//! Comparing our books with those of a foreign system.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use oncekey_core::KeyId;
use serde::Serialize;

use super::checkpoint::{Checkpoint, encode, shape};
use super::claim::micros;
use super::effect::Failed;
use super::halt::Halt;
use super::intent::state as intent;
use super::point::{Step, steps};
use super::registry::Flows;
use super::resolve::Resolved;
use super::store::{TxError, TxStore, Value};
use super::tables::Dialect;

/// The books of a foreign system: what it has done for us.
///
/// It must be able to list the keys that we sent: put them where they can be listed (metadata), not
/// only into a header.
pub trait ForeignLedger: Send + Sync {
    /// One entry.
    type Item: Serialize + Send + Sync;
    /// What the effect returns to its flow.
    type Output: Checkpoint;

    /// Its name, which findings are kept under.
    fn name(&self) -> &str;

    /// The name of the steps whose calls it lists.
    fn step(&self) -> &str;

    /// Entries that are not older than `look_back`, page by page.
    fn list(
        &self,
        look_back: Duration,
        after: Option<String>,
    ) -> impl Future<Output = Result<Page<Self::Item>, Failed>> + Send;

    /// The key that we sent with it, if it has one.
    fn key_of(&self, item: &Self::Item) -> Option<String>;

    /// What the effect would have returned.
    fn output_of(&self, item: &Self::Item) -> Self::Output;
}

/// Some entries, and where the next ones are.
#[derive(Clone, Debug)]
pub struct Page<I> {
    /// The entries.
    pub items: Vec<I>,
    /// What to ask for the next page with. `None` after the last.
    pub next: Option<String>,
}

/// A difference between the two books.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finding {
    /// They did it and we did not know: now we do, and the flow goes on.
    Adopt,
    /// They have an entry that none of our flows has asked for.
    OrphanThere,
    /// We have an outcome that they have no entry of.
    MissingThere,
    /// Both know of it, and not the same.
    Differs,
    /// They did it more than once under one key.
    Twice,
}

/// What one comparison came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// How many entries they have.
    pub seen: usize,
    /// The differences, with the key that was sent. They are rows of the table of findings, too.
    pub findings: Vec<(Finding, String)>,
}

/// Compares the books, and adopts what we did not know.
#[derive(Debug)]
pub struct Reconciler<S: TxStore, L> {
    flows: Flows<S>,
    ledger: L,
    look_back: Duration,
    settle: Duration,
    sent: Arc<str>,
    find: Arc<str>,
}

impl Finding {
    /// The word for it in rows, logs and metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Adopt => "adopt",
            Self::OrphanThere => "orphan_there",
            Self::MissingThere => "missing_there",
            Self::Differs => "differs",
            Self::Twice => "twice",
        }
    }
}

impl<S: TxStore, L: ForeignLedger> Reconciler<S, L> {
    /// Compares these flows with that ledger: three days back, and without the last minute, in which
    /// either side may still be writing.
    #[must_use]
    pub fn new(flows: Flows<S>, ledger: L) -> Self {
        let layout = flows.0.store.layout();
        let sent = layout.statement(
            "SELECT e.foreign_key FROM {effects} AS e JOIN {steps} AS s ON s.flow_id = e.flow_id \
             AND s.name = e.name AND s.item = e.item WHERE e.name = ? AND e.state IN (1, 2) \
             AND s.at >= {now} - ? AND s.at <= {now} - ?",
        );
        let put = "INSERT INTO {findings} (ledger, kind, foreign_key, flow_id, step, detail, at) \
             VALUES (?, ?, ?, ?, ?, ?, {now})";
        let find = layout.statement(&match layout.dialect() {
            Dialect::Mysql => format!("{put} ON DUPLICATE KEY UPDATE ledger = ledger"),
            Dialect::Sqlite | Dialect::Postgres => {
                format!("{put} ON CONFLICT (ledger, kind, foreign_key) DO NOTHING")
            }
        });
        let look_back = Duration::from_secs(3 * 24 * 60 * 60);
        Self { flows, ledger, look_back, settle: Duration::from_secs(60), sent, find }
    }

    /// How far to look back.
    #[must_use]
    pub fn look_back(mut self, span: Duration) -> Self {
        self.look_back = span;
        self
    }

    /// How much of the newest is left for the next time.
    #[must_use]
    pub fn settle(mut self, span: Duration) -> Self {
        self.settle = span;
        self
    }

    /// Compares once.
    ///
    /// # Errors
    /// [`Halt::Retry`] if the other side or the database cannot be asked. What was adopted by then
    /// stays.
    pub async fn run_once(&self) -> Result<Reconciled, Halt> {
        let theirs = self.theirs().await?;
        let mut done = Reconciled::default();
        let mut listed = HashSet::new();
        for (key, items) in &theirs {
            done.seen += items.len();
            listed.insert(key.as_str());
            let found = match (key.is_empty(), items.as_slice()) {
                (true, _) => Some(Finding::OrphanThere),
                (false, [item]) => self.compare(key, item).await?,
                (false, _) => Some(Finding::Twice),
            };
            if let (Some(finding), Some(item)) = (found, items.first()) {
                let detail = encode("finding", item)?;
                self.note(finding, key, &detail).await?;
                done.findings.push((finding, key.clone()));
            }
        }
        for key in self.ours().await? {
            if !listed.contains(key.as_str()) {
                self.note(Finding::MissingThere, &key, b"null").await?;
                done.findings.push((Finding::MissingThere, key));
            }
        }
        Ok(done)
    }

    async fn theirs(&self) -> Result<BTreeMap<String, Vec<L::Item>>, Halt> {
        let mut theirs: BTreeMap<String, Vec<L::Item>> = BTreeMap::new();
        let mut after = None;
        loop {
            let page = self.ledger.list(self.look_back, after).await;
            let page = page.map_err(|_| Halt::retry("the other side cannot list its entries"))?;
            for item in page.items {
                let key = self.ledger.key_of(&item).unwrap_or_default();
                theirs.entry(key).or_default().push(item);
            }
            after = page.next;
            if after.is_none() {
                return Ok(theirs);
            }
        }
    }

    async fn ours(&self) -> Result<Vec<String>, TxError> {
        let values = [
            Value::Text(self.ledger.step()),
            Value::Int(micros(self.look_back)),
            Value::Int(micros(self.settle)),
        ];
        let rows = self.flows.0.store.query_once(&self.sent, &values).await?;
        rows.iter().map(|row| Ok(row.text(0)?.to_owned())).collect()
    }

    /// What one entry is to us.
    async fn compare(&self, key: &str, item: &L::Item) -> Result<Option<Finding>, Halt> {
        let store = &self.flows.0.store;
        let sql = store.layout().sql();
        let rows = store.query_once(&sql.by_foreign_key, &[Value::Text(key)]).await?;
        let Some(row) = rows.first() else { return Ok(Some(Finding::OrphanThere)) };
        let id = KeyId::from_bytes(row.array(0)?);
        let step = Step { name: row.text(1)?.to_owned(), item: row.text(2)?.to_owned() };
        let output = encode(&step.name, &self.ledger.output_of(item))?;
        match row.int(3)? {
            intent::INTENDED => {
                // Whoever drives it now will find out by itself.
                if row.int(5)? > row.int(6)? {
                    return Ok(None);
                }
                let shape = shape::<L::Output>();
                let note = format!("found by the reconciler of {}", self.ledger.name());
                let adopted =
                    self.flows.adopt(&id, &step, (&shape, &output), "adopted", &note).await?;
                Ok((adopted == Resolved::Yes).then_some(Finding::Adopt))
            }
            intent::DONE => {
                let taken = steps(store, &id).await?;
                let same = taken.get(&step).is_some_and(|taken| taken.output == output);
                Ok((!same).then_some(Finding::Differs))
            }
            // It was taken back, or refused and done all the same.
            intent::REFUSED => Ok(Some(Finding::OrphanThere)),
            _ => Ok(None),
        }
    }

    async fn note(&self, finding: Finding, key: &str, detail: &[u8]) -> Result<(), TxError> {
        let values = [
            Value::Text(self.ledger.name()),
            Value::Text(finding.label()),
            Value::Text(key),
            Value::NoBytes,
            Value::Text(self.ledger.step()),
            Value::Bytes(detail),
        ];
        self.flows.0.store.execute_once(&self.find, &values).await?;
        Ok(())
    }
}
