//! Drives abandoned flows to their end, from their stored input.

use std::sync::Arc;
use std::time::Duration;

use oncekey_core::KeyId;

use super::claim::{Patience, Start};
use super::drive::{FlowError, Outcome};
use super::registry::Flows;
use super::store::{TxError, TxStore, Value};

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

/// Only flows that this program knows, in versions that it goes on with: what it may not drive does
/// not fill the batch.
fn due_statement<S: TxStore>(flows: &Flows<S>) -> String {
    let mut known: Vec<_> = flows.0.definitions.values().collect();
    known.sort_by(|one, other| one.name.cmp(&other.name));
    let known: Vec<_> =
        known.iter().map(|_| "(f.name = ? AND f.version BETWEEN ? AND ?)").collect();
    format!(
        "SELECT f.flow_id, f.name, f.version, f.input, f.fingerprint FROM {{flows}} AS f \
         WHERE f.state IN (1, 2, 5) AND f.due <= {{now}} AND ({}) ORDER BY f.due LIMIT ?",
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
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        loop {
            let looked = tokio::select! {
                () = &mut stop => return,
                looked = self.run_once() => looked,
            };
            match looked {
                // There may be more.
                Ok(done) if done.ended + done.parked >= self.at_once => continue,
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "abandoned flows could not be looked for"),
            }
            tokio::select! {
                () = &mut stop => return,
                () = tokio::time::sleep(self.every) => {}
            }
        }
    }

    /// Looks once and drives what is due, to its end or to its next failure.
    ///
    /// # Errors
    /// If the database cannot be asked what is due.
    pub async fn run_once(&self) -> Result<Completed, TxError> {
        let mut tasks = Vec::new();
        for (name, start) in self.due().await? {
            let Ok(definition) = self.flows.definition(&name) else { continue };
            let flows = self.flows.clone();
            tasks.push(tokio::spawn(async move {
                flows.drive(&definition, start, Patience::Due).await
            }));
        }
        let mut done = Completed { found: tasks.len(), ..Completed::default() };
        for task in tasks {
            match task.await {
                Ok(Ok(outcome)) => done.count(&outcome),
                Ok(Err(FlowError::Store(error))) => {
                    tracing::warn!(%error, "an abandoned flow could not be taken over");
                    done.failed += 1;
                }
                Ok(Err(_)) | Err(_) => done.failed += 1,
            }
        }
        Ok(done)
    }

    async fn due(&self) -> Result<Vec<(String, Start)>, TxError> {
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
        values.push(Value::Int(i64::try_from(self.at_once).unwrap_or(i64::MAX)));
        let rows = self.flows.0.store.query_once(&self.due, &values).await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in rows {
            let name = row.text(1)?.to_owned();
            let Ok(definition) = self.flows.definition(&name) else { continue };
            let id = KeyId::from_bytes(row.array(0)?);
            let input = row.bytes(3)?.to_vec();
            let start = self.flows.start_of(&definition, id, input, (Vec::new(), Vec::new()));
            // What the client sent is what is stored: there is nobody here who could differ.
            found.push((name, Start { fingerprint: row.array(4)?, ..start }));
        }
        Ok(found)
    }
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
