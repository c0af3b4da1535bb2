//! What a flow has done, and whether new code would do the same.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use oncekey_core::{KeyId, Owner};
use serde::{Deserialize, Serialize};

use super::claim::{Before, Held, Way, look};
use super::grip::Grip;
use super::halt::{Drift, Halt};
use super::intent::{intents, state as intent};
use super::outcome::FlowError;
use super::point::{Step, Taken, steps};
use super::registry::Flows;
use super::run::{Flow, Run};
use super::store::{TxError, TxStore, Value};

/// Everything that is known about a flow: for people, and for rehearsals. It holds what the flow
/// stored, so it may be personal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct History {
    /// The flow's id, in hexadecimal.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The version that drove it last.
    pub version: i64,
    /// `running`, `waiting`, `done`, `parked`, `undoing`, `undone` or `dead`.
    pub state: String,
    /// How often it was begun.
    pub attempts: i64,
    /// Its last recovery point.
    pub point: String,
    /// Why it is where it is.
    pub reason: String,
    /// What it was begun with.
    pub input: String,
    /// When it was begun, in microseconds since the Unix epoch.
    pub created: i64,
    /// The steps that it has taken, in the order of time.
    pub steps: Vec<PastStep>,
    /// The calls that it has made or meant to make, in their order.
    pub effects: Vec<PastEffect>,
    /// What happened to it besides.
    pub events: Vec<PastEvent>,
}

/// A step that was taken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PastStep {
    /// Its name.
    pub name: String,
    /// Its item, if it has one.
    pub item: String,
    kind: i64,
    /// The type of its output.
    pub shape: String,
    bound: String,
    /// Its output.
    pub output: String,
    /// When.
    pub at: i64,
}

/// A call that was made or meant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PastEffect {
    /// The step.
    pub name: String,
    /// Its item, if it has one.
    pub item: String,
    /// `intended`, `done`, `undone`, `undo failed` or `refused`.
    pub state: String,
    /// How often it was called.
    pub calls: i64,
    /// The key that was sent.
    pub foreign_key: String,
    /// What went wrong with its compensation.
    pub reason: String,
}

/// Something that happened to a flow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PastEvent {
    /// When.
    pub at: i64,
    /// What.
    pub what: String,
    /// More about it.
    pub detail: String,
}

/// What new code would do with an old history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rehearsed {
    /// It goes through all of it and would go on with this step; `finish` is the end.
    Fits {
        /// The next step.
        next: String,
    },
    /// It does not fit.
    Drifts(Drift),
    /// It stopped for another reason before the history was at its end.
    Halts(String),
}

impl<S: TxStore> Flows<S> {
    /// Everything that is known about a flow.
    ///
    /// # Errors
    /// If the database cannot be asked.
    pub async fn history(&self, id: &KeyId) -> Result<Option<History>, TxError> {
        let store = &self.0.store;
        let Some(stored) = look(store, id).await? else { return Ok(None) };
        let mut past: Vec<_> = steps(store, id).await?.into_iter().collect();
        past.sort_by(|(one, a), (other, b)| (a.at, one).cmp(&(b.at, other)));
        let mut effects: Vec<_> = intents(store, id).await?.into_iter().collect();
        effects.sort_by_key(|(_, intent)| intent.seq);
        let sql = store.layout().sql();
        let events = store.query_once(&sql.events, &[Value::Bytes(id.as_bytes())]).await?;
        let events = events.iter().map(|row| {
            let (what, detail) = (row.text(2)?.to_owned(), row.text(3)?.to_owned());
            Ok::<_, TxError>(PastEvent { at: row.int(0)?, what, detail })
        });
        Ok(Some(History {
            id: id.to_string(),
            name: stored.name,
            version: stored.version,
            state: state_label(stored.state).to_owned(),
            attempts: stored.attempts,
            point: stored.point,
            reason: stored.reason,
            input: lossy(&stored.input),
            created: stored.created,
            steps: past.into_iter().map(PastStep::of).collect(),
            effects: effects
                .into_iter()
                .map(|(step, intent)| PastEffect {
                    name: step.name,
                    item: step.item,
                    state: intent_label(intent.state).to_owned(),
                    calls: intent.calls,
                    foreign_key: intent.foreign_key,
                    reason: intent.reason,
                })
                .collect(),
            events: events.collect::<Result<_, _>>()?,
        }))
    }

    /// Goes through an old history with the code of today, without writing or calling anything: for
    /// tests before a deploy.
    ///
    /// # Errors
    /// If no flow has the history's name.
    pub async fn rehearse(&self, history: &History) -> Result<Rehearsed, FlowError> {
        let definition = self.definition(&history.name)?;
        let taken: HashMap<Step, Taken> = history.steps.iter().map(PastStep::taken).collect();
        let held = Held {
            id: KeyId::from_bytes([0; 32]),
            fence: 0,
            owner: Owner::from_bytes([0; 16]),
            attempts: history.attempts,
            lease: Duration::MAX / 4,
            grace: Duration::ZERO,
            before: Before::Something,
            way: Way::Forward,
            data: None,
            point: String::new(),
        };
        let names = (Arc::from(history.name.as_str()), Arc::clone(&self.0.namespace));
        let now = self.0.uptime.elapsed();
        let grip = Arc::new(Grip::new(Arc::clone(&self.0.uptime), held.lease, now));
        let store = self.0.store.clone();
        let run = Run::rehearsal(store, held, names, &definition.rules, (taken, grip));
        let ended = match (definition.body)(Flow { run: Arc::new(run) }, history.input.as_bytes()) {
            Ok(body) => body.await.map(drop),
            Err(drift) => Err(Halt::Drift(drift)),
        };
        Ok(match ended {
            Err(Halt::Drift(Drift::Ends { step })) => Rehearsed::Fits { next: step },
            Err(Halt::Drift(drift)) => Rehearsed::Drifts(drift),
            Err(halt) => Rehearsed::Halts(halt.to_string()),
            Ok(()) => Rehearsed::Fits { next: "finish".to_owned() },
        })
    }
}

impl PastStep {
    fn of((step, taken): (Step, Taken)) -> Self {
        let bound = taken.bound.iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            name: step.name,
            item: step.item,
            kind: taken.kind,
            shape: taken.shape,
            bound,
            output: lossy(&taken.output),
            at: taken.at,
        }
    }

    fn taken(&self) -> (Step, Taken) {
        let step = Step { name: self.name.clone(), item: self.item.clone() };
        let digits: Vec<_> = self.bound.chars().filter_map(|digit| digit.to_digit(16)).collect();
        let byte = |pair: &[u32]| u8::try_from(pair[0] * 16 + pair[1]).unwrap_or(0);
        let bound = digits.chunks_exact(2).map(byte).collect();
        let output = self.output.clone().into_bytes();
        (
            step,
            Taken {
                kind: self.kind,
                shape: self.shape.clone(),
                bound,
                output,
                fence: 0,
                at: self.at,
            },
        )
    }
}

/// JSON is text.
fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const fn state_label(state: i64) -> &'static str {
    use super::claim::state;
    match state {
        state::RUNNING => "running",
        state::WAITING => "waiting",
        state::DONE => "done",
        state::PARKED => "parked",
        state::UNDOING => "undoing",
        state::UNDONE => "undone",
        state::DEAD => "dead",
        _ => "damaged",
    }
}

const fn intent_label(state: i64) -> &'static str {
    match state {
        intent::INTENDED => "intended",
        intent::DONE => "done",
        intent::UNDONE => "undone",
        intent::UNDO_FAILED => "undo failed",
        intent::REFUSED => "refused",
        _ => "damaged",
    }
}
