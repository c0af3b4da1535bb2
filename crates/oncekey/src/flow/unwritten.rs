//! Flows that are written down with their first step.
//!
//! The start of a flow is a commit of its own, so that whoever comes next finds it. A flow that begins with
//! a step that commits needs no other: until then nothing has happened. It is looked for first, because most
//! of what is asked for again is there; if it is not, its first step writes it, and whoever was quicker wins
//! at that moment. Whatever cannot carry the start has it written first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::claim::{Before, Begin, Held, Start, may_pass, micros};
use super::halt::Halt;
use super::run::Run;
use super::store::{TxError, TxStore, Value};

/// The start of a flow, for as long as it is not written.
#[derive(Debug, Default)]
pub(crate) struct Unwritten(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    start: Option<Arc<Start>>,
    /// How many transactions carry it and may still commit.
    said: usize,
}

/// How far the start of a flow has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nobody else can know of the flow.
    Unsaid,
    /// It may be in the database by now, and its lease begun.
    Said,
    /// It is.
    Written,
}

/// Whose flow it is after its start was written, or found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Ours,
    /// Somebody else was quicker, or it is too late to begin.
    Another,
}

impl Unwritten {
    pub(crate) fn of(start: &Start, held: &Held) -> Self {
        let start = match held.before {
            Before::NoRow => Some(Arc::new(start.clone())),
            Before::Nothing | Before::Something => None,
        };
        Self(Mutex::new(Waiting { start, said: 0 }))
    }

    /// What has to be written with the next step. Stays until that is committed: whoever is dropped on the
    /// way takes nothing with it, and two steps at once are told apart by the database.
    pub(crate) fn start(&self) -> Option<Arc<Start>> {
        self.waiting().start.clone()
    }

    /// The same, for whoever says it to the database now. From here on its lease may have begun: whoever
    /// keeps it alive must not count from later.
    pub(super) fn say(&self) -> Option<Arc<Start>> {
        let mut waiting = self.waiting();
        waiting.said += usize::from(waiting.start.is_some());
        waiting.start.clone()
    }

    /// What carried it was taken back before anybody said that it should commit. Whoever is dropped before
    /// it says so leaves it as something that may have been written.
    pub(super) fn unsay(&self) {
        let mut waiting = self.waiting();
        waiting.said = waiting.said.saturating_sub(1);
    }

    pub(super) fn is_written(&self) {
        self.waiting().start = None;
    }

    pub(crate) fn stage(&self) -> Stage {
        let waiting = self.waiting();
        match (&waiting.start, waiting.said) {
            (None, _) => Stage::Written,
            (Some(_), 0) => Stage::Unsaid,
            (Some(_), _) => Stage::Said,
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The columns of a flow that is written under a fence that it was given before, and until when.
pub(super) fn start_row<'s>(start: &'s Start, held: &'s Held) -> [Value<'s>; 12] {
    let within = match start.begin {
        Begin::WithFirstStep(within) => micros(within),
        Begin::AtOnce => 0,
    };
    [
        Value::Bytes(start.id.as_bytes()),
        Value::Text(&start.name),
        Value::Int(start.version),
        Value::Int(held.fence),
        Value::Bytes(held.owner.as_bytes()),
        Value::Int(micros(start.lease)),
        Value::Int(micros(start.lease.saturating_add(start.grace))),
        Value::Bytes(&start.fingerprint),
        Value::Bytes(&start.input),
        Value::Bytes(&start.key),
        Value::Bytes(&start.scope),
        // The fence is what the database's clock showed when the flow was not there.
        Value::Int(held.fence.saturating_add(within)),
    ]
}

/// Writes the start by itself, and asks again if others are in the way. A commit that carries it and may still
/// be going on is waited for.
///
/// After an error nobody knows whether it is written; asking again says so.
pub(crate) async fn write<S: TxStore>(
    store: &S,
    start: &Start,
    held: &Held,
) -> Result<Whose, TxError> {
    let mut pause = Duration::from_millis(5);
    for _ in 0..3 {
        match write_once(store, start, held).await {
            Err(error) if may_pass(&error) => {}
            written => return written,
        }
        tokio::time::sleep(pause).await;
        pause *= 4;
    }
    write_once(store, start, held).await
}

async fn write_once<S: TxStore>(store: &S, start: &Start, held: &Held) -> Result<Whose, TxError> {
    let sql = store.layout().sql();
    store.execute_once(&sql.start_as, &start_row(start, held)).await?;
    let rows = store.query_once(&sql.held, &held.proof()).await?;
    let ours = rows.first().map_or(Ok(0), |row| row.int(0))?;
    Ok(if ours == 0 { Whose::Another } else { Whose::Ours })
}

impl<S: TxStore> Run<S> {
    /// Has the flow written before something that cannot carry its start.
    pub(super) async fn be_written(&self) -> Result<(), Halt> {
        let Some(start) = self.unwritten.say() else { return Ok(()) };
        match write(&self.store, &start, &self.held).await? {
            Whose::Ours => {
                self.unwritten.is_written();
                Ok(())
            }
            Whose::Another => {
                self.grip.lose();
                Err(Halt::Fenced)
            }
        }
    }
}
