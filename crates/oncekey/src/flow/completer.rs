//! Drives abandoned flows to their end, from their stored input.

use std::sync::Arc;
use std::time::Duration;

use oncekey_core::KeyId;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::claim::{Patience, Start};
use super::outcome::{FlowError, Outcome};
use super::registry::{Definition, Flows};
use super::store::{Row, TxError, TxStore, TxTrouble, Value};

/// Finds flows whose owner is gone or whose next attempt is due, and drives them to their end.
///
/// Every node may run one: the claim decides who drives a flow. Nothing else is needed, no leader and
/// no service.
#[derive(Debug)]
pub struct Completer<S: TxStore> {
    flows: Flows<S>,
    at_once: usize,
    every: Duration,
    due: Arc<str>,
}

/// What one look came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// Flows that were found.
    pub found: usize,
    /// Flows that have ended.
    pub ended: usize,
    /// Flows that were parked.
    pub parked: usize,
    /// Flows that are to be tried again, or that somebody else took.
    pub left: usize,
    /// Flows that could not be asked about. They do not stop the others.
    pub failed: usize,
}

/// How often finished flows are removed, and how many then: two hundred transactions take less than a
/// second, and more than three flows a second end rarely. Who ends more calls `Flows::purge` as well.
const PURGE_EVERY: Duration = Duration::from_secs(60);
const PURGED_AT_ONCE: usize = 200;

/// Only flows that this program knows, in versions that it goes on with: what it may not drive does
/// not fill the batch.
fn due_statement<S: TxStore>(flows: &Flows<S>) -> String {
    let mut known: Vec<_> = flows.0.definitions.values().collect();
    known.sort_by(|one, other| one.name.cmp(&other.name));
    let known: Vec<_> =
        known.iter().map(|_| "(f.name = ? AND f.version BETWEEN ? AND ?)").collect();
    format!(
        "SELECT f.flow_id, f.name, f.version, f.input, f.fingerprint FROM {{flows}} AS f \
         WHERE f.state IN (1, 2, 5) AND f.due <= (SELECT {{now}}) AND ({}) ORDER BY f.due LIMIT ?",
        known.join(" OR ")
    )
}

impl<S: TxStore> Completer<S> {
    /// For these flows. Looks every second and drives sixteen at once, unless told otherwise.
    #[must_use]
    pub fn new(flows: Flows<S>) -> Self {
        let due = flows.0.store.layout().statement(&due_statement(&flows));
        Self { flows, at_once: 16, every: Duration::from_secs(1), due }
    }

    /// How many flows are driven at the same time.
    #[must_use]
    pub fn at_once(mut self, flows: usize) -> Self {
        self.at_once = flows.max(1);
        self
    }

    /// How long to wait when nothing is due.
    #[must_use]
    pub fn every(mut self, pause: Duration) -> Self {
        self.every = pause;
        self
    }

    /// Looks and drives until `stop` ends. What it has begun by then goes on by itself.
    ///
    /// A flow that takes long keeps one place of [`at_once`](Self::at_once) and nobody waiting.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let mut driven = JoinSet::new();
        let mut purged = None;
        loop {
            let free = self.at_once.saturating_sub(driven.len());
            let looked = tokio::select! {
                () = &mut stop => break,
                looked = self.begin(free, &mut driven) => looked,
            };
            let found = looked.unwrap_or_else(|error| {
                tracing::warn!(%error, "abandoned flows could not be looked for");
                0
            });
            if purged.is_none_or(|when: Instant| when.elapsed() >= PURGE_EVERY) {
                purged = Some(Instant::now());
                tokio::select! {
                    () = &mut stop => break,
                    () = self.purge() => {}
                }
            }
            // There may be more than there were places for.
            let more = found >= free;
            tokio::select! {
                () = &mut stop => break,
                () = one_ends(&mut driven), if more => {}
                () = tokio::time::sleep(self.every) => {}
            }
            while driven.try_join_next().is_some() {}
        }
    }

    /// Looks once and drives what is due, to its end or to its next failure.
    ///
    /// # Errors
    /// If the database cannot be asked what is due.
    pub async fn run_once(&self) -> Result<Completed, TxError> {
        let mut driven = JoinSet::new();
        let found = self.begin(self.at_once, &mut driven).await?;
        let mut done = Completed { found, ..Completed::default() };
        while let Some(ended) = driven.join_next().await {
            match ended {
                Ok(Ok(outcome)) => done.count(&outcome),
                Ok(Err(_)) | Err(_) => done.failed += 1,
            }
        }
        // Those that could not be read were parked, and nobody drove them.
        done.failed += found.saturating_sub(done.ended + done.parked + done.left + done.failed);
        Ok(done)
    }

    /// Begins to drive what is due, at most so many, and says how many were found.
    async fn begin(
        &self,
        most: usize,
        driven: &mut JoinSet<Result<Outcome, FlowError>>,
    ) -> Result<usize, TxError> {
        if most == 0 {
            return Ok(0);
        }
        let rows = self.due(most).await?;
        let found = rows.len();
        for row in rows {
            let id: [u8; 32] = row.array(0)?;
            let (definition, start) = match self.start(&row) {
                Ok(start) => start,
                // One row that cannot be read must not end every look.
                Err(_) => {
                    park_damaged(&self.flows, &id).await?;
                    continue;
                }
            };
            let flows = self.flows.clone();
            // A task that nobody aborts: whoever drops a look leaves what it has begun to itself.
            let driving = tokio::spawn(async move {
                let ended = flows.drive(&definition, start, Patience::Due).await;
                if let Err(FlowError::Store(error)) = &ended {
                    tracing::warn!(%error, "an abandoned flow could not be taken over");
                    if error.kind() == TxTrouble::Damaged {
                        let _ = park_damaged(&flows, &id).await;
                    }
                }
                ended
            });
            driven.spawn(async move { driving.await.unwrap_or(Err(FlowError::Stopping)) });
        }
        Ok(found)
    }

    async fn purge(&self) {
        let retention = self.flows.0.options.retention;
        match self.flows.purge(retention, PURGED_AT_ONCE).await {
            Ok(0) => {}
            Ok(flows) => tracing::debug!(flows, "finished flows were removed"),
            Err(error) => tracing::warn!(%error, "finished flows could not be removed"),
        }
    }

    async fn due(&self, most: usize) -> Result<Vec<Row>, TxError> {
        let mut known: Vec<_> = self.flows.0.definitions.values().collect();
        if known.is_empty() {
            return Ok(Vec::new());
        }
        known.sort_by(|one, other| one.name.cmp(&other.name));
        let mut values = Vec::with_capacity(3 * known.len() + 1);
        for definition in &known {
            let (from, to) = definition.accepts;
            values.extend([Value::Text(&definition.name), Value::Int(from), Value::Int(to)]);
        }
        values.push(Value::Int(i64::try_from(most).unwrap_or(i64::MAX)));
        self.flows.0.store.query_once(&self.due, &values).await
    }

    fn start(&self, row: &Row) -> Result<(Arc<Definition<S>>, Start), TxError> {
        let damaged = |_| TxError::damaged();
        let definition = self.flows.definition(row.text(1)?).map_err(damaged)?;
        let (id, input) = (KeyId::from_bytes(row.array(0)?), row.bytes(3)?.to_vec());
        let start = self.flows.start_of(&definition, id, input, (Vec::new(), Vec::new()));
        // What the client sent is what is stored: there is nobody here who could differ.
        Ok((definition, Start { fingerprint: row.array(4)?, ..start }))
    }
}

/// Waits until a flow has been driven. One that could not be asked about is no reason to look again at
/// once: the database may be refusing everything.
async fn one_ends(driven: &mut JoinSet<Result<Outcome, FlowError>>) {
    while let Some(ended) = driven.join_next().await {
        if matches!(ended, Ok(Ok(_))) {
            return;
        }
    }
    std::future::pending().await
}

/// Parks a flow that cannot be read, so that it does not come up at every look.
async fn park_damaged<S: TxStore>(flows: &Flows<S>, id: &[u8; 32]) -> Result<(), TxError> {
    let owner = flows.owner();
    let values = [
        Value::Bytes(owner.as_bytes()),
        Value::Text("what is stored of it is not what was written: restore its rows"),
        Value::Bytes(id),
    ];
    flows.0.store.execute_once(&flows.0.store.layout().sql().park_lost, &values).await?;
    tracing::error!("a flow cannot be read and was parked: its rows are not what was written");
    Ok(())
}

impl Completed {
    fn count(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Replied { .. } => self.ended += 1,
            Outcome::Parked { .. } => self.parked += 1,
            Outcome::InProgress { .. }
            | Outcome::Later { .. }
            | Outcome::Mismatch
            | Outcome::NotRetained
            | Outcome::Dead { .. }
            | Outcome::Skew { .. } => self.left += 1,
        }
    }
}
