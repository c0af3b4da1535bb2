//! Calls that a phase announces: their intents commit with the phase.
//!
//! An intent has to be on the disk before its call, and is a transaction of its own. If the call follows a
//! phase, the phase's transaction can carry it: a commit less, and nothing is true earlier or later than
//! before. A crash between the two finds the intent, as a crash between an intent and its call always does.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::claim::{Held, Way};
use super::effect::Safety;
use super::halt::{Drift, Halt};
use super::point::{PhaseTx, Step};
use super::run::{Run, bound_of};
use super::store::{TxStore, Value};

/// A call that is to be made after a phase.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    step: Step,
    safety: Safety,
    bound: Vec<u8>,
}

/// What a transaction may announce.
#[derive(Debug)]
pub(crate) enum Calls {
    /// Those of a flow.
    Of(Vec<Call>),
    /// No calls follow.
    None,
}

/// A call with the key that it will be made with.
#[derive(Debug)]
pub(crate) struct Planned {
    call: Call,
    key: String,
}

/// Calls whose intents this attempt has committed with a phase.
#[derive(Debug, Default)]
pub(crate) struct Announced(Mutex<HashMap<Step, Call>>);

impl<S: TxStore> PhaseTx<S> {
    /// Announces a call that follows this phase: its intent commits with the phase, and
    /// [`effect`](super::Flow::effect) has nothing more to write before it calls. The effect must be of
    /// the same safety, be [bound](super::Effect::bind) to the same arguments, and have nothing to undo.
    ///
    /// A call that is announced must follow: after a crash in between it counts as one that may have been
    /// made. One that must not be made twice (`Once`) then waits for a person, so announce it only if the
    /// call comes at once.
    ///
    /// # Errors
    /// If the arguments have no form in JSON; outside of a phase of a flow.
    pub fn intend<A: Serialize + ?Sized>(
        &mut self,
        step: impl Into<Step>,
        safety: Safety,
        arguments: &A,
    ) -> Result<(), Halt> {
        let (step, bound) = (step.into(), bound_of(arguments)?);
        if !step.is_sound() {
            return Err(Drift::Name.into());
        }
        match &mut self.calls {
            Calls::Of(calls) => calls.push(Call { step, safety, bound }),
            Calls::None => {
                return Err(Halt::park(
                    "calls are announced in phases of a flow, and nowhere else",
                ));
            }
        }
        Ok(())
    }

    /// What was announced.
    pub(super) fn calls(&mut self) -> Vec<Call> {
        match &mut self.calls {
            Calls::Of(calls) => std::mem::take(calls),
            Calls::None => Vec::new(),
        }
    }
}

impl Planned {
    /// The columns of the intent.
    pub(super) fn row(&self) -> [Value<'_>; 6] {
        let Self { call: Call { step, safety, bound }, key } = self;
        [
            Value::Text(&step.name),
            Value::Text(&step.item),
            Value::Int(safety.code()),
            Value::Int(safety.span()),
            Value::Bytes(bound),
            Value::Text(key),
        ]
    }

    /// The same for the statement of a single intent: with nothing to undo, and the proof.
    pub(super) fn whole_row<'p>(&'p self, held: &'p Held) -> Vec<Value<'p>> {
        let nothing = [Value::Text(""), Value::Bytes(&[])];
        [&self.row()[..], &nothing, &held.proof()].concat()
    }
}

impl<S: TxStore> Run<S> {
    /// The intents that a phase has to write. What an earlier attempt called or meant to call has one already.
    pub(super) fn plan(&self, calls: Vec<Call>) -> Result<Vec<Planned>, Halt> {
        let announced = self.announced.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut planned: Vec<Planned> = Vec::with_capacity(calls.len());
        for call in calls {
            let twice = planned.iter().any(|other| other.call.step == call.step);
            if twice || announced.contains_key(&call.step) {
                return Err(Drift::Reused { step: call.step.label() }.into());
            }
            if !self.intents.contains_key(&call.step) && !self.taken.contains_key(&call.step) {
                let key = self.foreign_key(Way::Forward, &call.step);
                planned.push(Planned { call, key });
            }
        }
        Ok(planned)
    }

    /// They are committed.
    pub(super) fn are_announced(&self, planned: Vec<Planned>) {
        let mut announced = self.announced.0.lock().unwrap_or_else(PoisonError::into_inner);
        announced
            .extend(planned.into_iter().map(|planned| (planned.call.step.clone(), planned.call)));
    }

    /// Whether the intent of a call is committed with a phase of this attempt.
    pub(super) fn is_announced(
        &self,
        step: &Step,
        safety: Safety,
        bound: &[u8],
        (undo, _): &(String, Vec<u8>),
    ) -> Result<bool, Halt> {
        let announced = self.announced.0.lock().unwrap_or_else(PoisonError::into_inner);
        match announced.get(step) {
            None => Ok(false),
            Some(call) if call.safety == safety && call.bound == bound && undo.is_empty() => {
                Ok(true)
            }
            Some(_) => Err(Drift::Arguments { step: step.label() }.into()),
        }
    }

    /// Steps that were announced.
    pub(super) fn announced_steps(&self) -> Vec<Step> {
        let announced = self.announced.0.lock().unwrap_or_else(PoisonError::into_inner);
        announced.keys().cloned().collect()
    }
}
