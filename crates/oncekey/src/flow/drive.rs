//! Driving a flow: claim, run the body in a task of its own, keep the lease, write down how it ended.

use std::sync::Arc;
use std::time::Duration;

use oncekey_core::{KeyId, Owner};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::claim::{Begin, Claimed, Held, Kept, Patience, Start, Way, claim, micros, renew};
use super::grip::Grip;
use super::halt::Halt;
use super::outcome::{FlowError, FlowKey, Outcome, Source, outcome_of};
use super::registry::{Definition, Flows, Options, Starts};
use super::reply::Reply;
use super::run::{Flow, Run};
use super::saga::Stopped;
use super::store::{TxError, TxStore, Value};
use super::unwritten::{self, Stage, Unwritten, Whose};

/// A failed attempt is tried again at once so often, if what was in the way is gone soon: a deadlock
/// needs one more try, rarely two.
const QUICK: u32 = 5;
/// What soon means.
const SOON: Duration = Duration::from_millis(250);

/// How late a lapsed lease may be noticed after the machine has slept.
const LONGEST_NAP: Duration = Duration::from_secs(1);

impl<S: TxStore> Flows<S> {
    /// Runs a flow, or goes on with it, or says what it said.
    ///
    /// # Errors
    /// If no flow has that name or the database cannot be asked. What a flow comes to is no error.
    ///
    /// # Cancellation
    /// Dropping it changes nothing: the flow is driven by a task of its own, and the next request with
    /// the same key is told what came of it.
    pub async fn run<I: Serialize>(
        &self,
        name: &str,
        key: &FlowKey,
        input: &I,
    ) -> Result<Outcome, FlowError> {
        let id = KeyId::derive(&self.0.namespace, &key.scope, &key.key, None);
        let texts = (key.key.as_bytes().to_vec(), key.scope.as_bytes().to_vec());
        self.run_as(name, id, texts, input).await
    }

    /// The same for a key that was claimed elsewhere, as by the layer: the flow has its id.
    ///
    /// # Errors
    /// As of [`run`](Self::run).
    pub async fn run_for<I: Serialize>(
        &self,
        name: &str,
        id: KeyId,
        input: &I,
    ) -> Result<Outcome, FlowError> {
        self.run_as(name, id, (Vec::new(), Vec::new()), input).await
    }

    async fn run_as<I: Serialize>(
        &self,
        name: &str,
        id: KeyId,
        (key, scope): (Vec<u8>, Vec<u8>),
        input: &I,
    ) -> Result<Outcome, FlowError> {
        let definition = self.definition(name)?;
        let input = serde_json::to_vec(input).map_err(|_| FlowError::Input)?;
        let mut start = self.start_of(&definition, id, input, (key, scope));
        if definition.rules.starts == Starts::WithFirstStep {
            // As long as an attempt lasts, and never so long that what another one did may be forgotten.
            let Options { longest_attempt, lease, retention, .. } = &self.0.options;
            let within = longest_attempt.saturating_add(*lease).min(*retention);
            start.begin = Begin::WithFirstStep(within);
        }
        let flows = self.clone();
        let driven =
            tokio::spawn(async move { flows.drive(&definition, start, Patience::None).await });
        driven.await.map_err(|_| FlowError::Stopping)?
    }

    pub(crate) fn definition(&self, name: &str) -> Result<Arc<Definition<S>>, FlowError> {
        let found = self.0.definitions.get(name).cloned();
        found.ok_or_else(|| FlowError::NoSuchFlow(name.to_owned()))
    }

    pub(crate) fn start_of(
        &self,
        definition: &Definition<S>,
        id: KeyId,
        input: Vec<u8>,
        (key, scope): (Vec<u8>, Vec<u8>),
    ) -> Start {
        let mut digest = Sha256::new();
        digest.update(b"oncekey/flow-input/1\0");
        digest.update(&input);
        Start {
            id,
            name: definition.name.clone(),
            version: definition.version,
            accepts: definition.accepts,
            owner: self.owner(),
            lease: self.0.options.lease,
            grace: self.0.options.grace,
            fingerprint: digest.finalize().into(),
            input,
            key,
            scope,
            begin: Begin::AtOnce,
        }
    }

    pub(crate) fn owner(&self) -> Owner {
        let mut bytes = [0; 16];
        self.0.entropy.fill(&mut bytes);
        Owner::from_bytes(bytes)
    }

    /// Claims and drives, in a task that nobody drops.
    pub(crate) async fn drive(
        &self,
        definition: &Arc<Definition<S>>,
        mut start: Start,
        patience: Patience,
    ) -> Result<Outcome, FlowError> {
        let mut quick = 0;
        loop {
            let asked = self.0.uptime.elapsed();
            let held = match self.claimed(&start, patience).await? {
                Claimed::Won(held) => *held,
                refused @ (Claimed::Replay(_)
                | Claimed::Busy(_)
                | Claimed::Mismatch
                | Claimed::Parked(_)
                | Claimed::Dead(_)
                | Claimed::Skew(_)) => return Ok(outcome_of(refused)),
            };
            let grip = Arc::new(Grip::new(Arc::clone(&self.0.uptime), held.lease, asked));
            // On the way back each compensation has a count of its own.
            if held.way == Way::Forward && held.attempts > self.0.options.most_attempts {
                let why = format!("it was begun {} times and never ended", held.attempts - 1);
                return self.park(&held, &why).await;
            }
            let unwritten = Arc::new(Unwritten::of(&start, &held));
            let attempt = self.attempt(definition, &start, &held, (&grip, &unwritten)).await;
            let halt = match attempt {
                Ok(reply) => return Ok(Outcome::Replied { reply, source: Source::Fresh }),
                Err(halt) => halt,
            };
            if unwritten.start().is_some() {
                // How an attempt failed is written to the flow's row. If that is somebody else's, or was
                // about to be, what became of it is the answer.
                let is_lost = matches!(halt, Halt::Fenced);
                if is_lost
                    || unwritten::write(&self.0.store, &start, &held).await? == Whose::Another
                {
                    start = Start { owner: self.owner(), begin: Begin::AtOnce, ..start };
                    continue;
                }
            }
            match halt {
                Halt::Fenced => {
                    return Ok(Outcome::InProgress { retry_after: self.0.options.lease });
                }
                Halt::Park(why) => return self.park(&held, &why).await,
                Halt::Drift(drift) => return self.park(&held, &drift.to_string()).await,
                Halt::Retry { after: Some(after), why } if after <= SOON && quick < QUICK => {
                    quick += 1;
                    self.wait(&held, Duration::ZERO, &why).await?;
                    tokio::time::sleep(after * quick).await;
                    start.owner = self.owner();
                }
                Halt::Retry { after, why } => return self.later(&held, &grip, after, &why).await,
                // Without its causes: what a database says may quote the rows.
                Halt::Store(error) => {
                    return self.later(&held, &grip, None, &error.to_string()).await;
                }
                Halt::Asleep { after } => {
                    let why = "it sleeps".to_owned();
                    return Ok(Outcome::Later { retry_after: after, why });
                }
                Halt::Stop(_) => unreachable!("a stop was turned into a reply"),
            }
        }
    }

    /// Claims, and asks again with the same owner if the answer was lost.
    async fn claimed(&self, start: &Start, patience: Patience) -> Result<Claimed, TxError> {
        let mut pause = Duration::from_millis(5);
        for _ in 0..3 {
            match claim(&self.0.gather, start, patience).await {
                Err(error) if super::claim::may_pass(&error) => {}
                claimed => return claimed,
            }
            tokio::time::sleep(pause).await;
            pause *= 4;
        }
        claim(&self.0.gather, start, patience).await
    }

    /// One attempt, with its lease kept alive beside it.
    async fn attempt(
        &self,
        definition: &Arc<Definition<S>>,
        start: &Start,
        held: &Held,
        (grip, unwritten): (&Arc<Grip>, &Arc<Unwritten>),
    ) -> Result<Reply, Halt> {
        let names = (Arc::from(definition.name.as_str()), Arc::clone(&self.0.namespace));
        let limits = (&definition.rules, &self.0.options);
        let known = (Arc::clone(grip), Arc::clone(unwritten));
        let run = Run::load(Arc::clone(&self.0.gather), held.clone(), names, limits, known).await?;
        let run = Arc::new(run);
        let body = {
            let (flows, definition) = (self.clone(), Arc::clone(definition));
            let (run, input) = (Arc::clone(&run), start.input.clone());
            async move { flows.go(&definition, run, &input).await }
        };
        // A task of its own again, so that a panic ends it and nothing else.
        let mut task = tokio::spawn(body);
        tokio::select! {
            biased;
            ended = &mut task => {
                let ended = match ended {
                    Ok(ended) => ended,
                    Err(error) if error.is_panic() => Err(Halt::retry("the flow panicked")),
                    Err(_) => Err(Halt::retry("the program is shutting down")),
                };
                if ended.is_err() {
                    run.leave_behind().await;
                }
                ended
            }
            () = self.keep(held, grip, unwritten) => {
                task.abort();
                Err(Halt::Fenced)
            }
            // On the way back each call has its limit, and there are only so many.
            () = tokio::time::sleep(self.0.options.longest_attempt), if held.way == Way::Forward => {
                task.abort();
                // Until it has really stopped: the flow is given to others next.
                let _ = task.await;
                run.leave_behind().await;
                Err(Halt::retry(format!("it took longer than {:?}", self.0.options.longest_attempt)))
            }
        }
    }

    async fn go(
        &self,
        definition: &Definition<S>,
        run: Arc<Run<S>>,
        input: &[u8],
    ) -> Result<Reply, Halt> {
        if run.held.way == Way::Forward {
            let flow = Flow { run: Arc::clone(&run) };
            let reply = match (definition.body)(flow, input)?.await {
                Ok(finished) => return Ok(Reply(finished.0)),
                Err(Halt::Stop(reply)) => reply,
                Err(halt) => return Err(halt),
            };
            run.be_written().await?;
            run.catch_up().await?;
            match run.stop(&reply).await? {
                Stopped::Ended => return Ok(reply),
                Stopped::Back => {}
            }
        }
        run.go_back(&self.0.compensations, self.0.options.most_undo_attempts).await?;
        match super::claim::look(&self.0.store, &run.held.id).await? {
            Some(stored) => stored.reply.map(Reply).ok_or(Halt::Fenced),
            None => Err(Halt::Fenced),
        }
    }

    /// Renews the lease until it is lost, or may be: whoever cannot renew stops at the local deadline,
    /// which is never later than the moment from which others may take the flow over.
    async fn keep(&self, held: &Held, grip: &Grip, unwritten: &Unwritten) {
        // A third: two renewals may fail before the lease lapses.
        let every = held.lease / 3;
        let mut next = grip.now() + every;
        loop {
            // In short steps: a timer does not count the time in which the machine sleeps.
            tokio::time::sleep(every.min(grip.left()).min(LONGEST_NAP)).await;
            let left = grip.left();
            if left.is_zero() {
                tracing::warn!(flow = %held.id, "the lease of a flow lapsed: its attempt is stopped");
                return grip.lose();
            }
            let asked = self.0.uptime.elapsed();
            if asked < next {
                continue;
            }
            next = asked + every;
            if unwritten.stage() == Stage::Unsaid {
                // Nobody can take over what is not there: the first step finds out who was quicker.
                grip.renewed(asked);
                continue;
            }
            match tokio::time::timeout(left, renew(&self.0.store, held)).await {
                Ok(Ok(Kept::Yes)) => grip.renewed(asked),
                // It is not there yet, or not any more. Nobody has said that it is lost, and its lease may
                // have begun: so what is left of it here runs out.
                Ok(Ok(Kept::Fenced)) if unwritten.stage() == Stage::Said => {}
                Ok(Ok(Kept::Fenced)) => {
                    grip.lose();
                    // The last commit of the flow ends its lease too: let it say so itself.
                    if let Ok(Some(stored)) = super::claim::look(&self.0.store, &held.id).await
                        && stored.fence == held.fence
                    {
                        tokio::time::sleep(held.lease).await;
                    }
                    return;
                }
                // A failed renewal is not a lost lease.
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the lease of a flow could not be renewed");
                }
                Err(_) => {}
            }
        }
    }

    async fn later(
        &self,
        held: &Held,
        grip: &Grip,
        after: Option<Duration>,
        why: &str,
    ) -> Result<Outcome, FlowError> {
        let is_forward = held.way == Way::Forward && !grip.has_turned();
        if is_forward && held.attempts >= self.0.options.most_attempts {
            let why = format!("it failed {} times: {why}", held.attempts);
            return self.park(held, &why).await;
        }
        let after = after.unwrap_or_else(|| self.pause(held.attempts));
        self.wait(held, after, why).await?;
        Ok(Outcome::Later { retry_after: after, why: why.to_owned() })
    }

    /// The pause after so many attempts: doubled each time, and three quarters to five quarters of
    /// that, so that flows that failed together do not come back together.
    fn pause(&self, attempts: i64) -> Duration {
        let doublings = u32::try_from(attempts - 1).unwrap_or(0).min(30);
        let pause = self.0.options.pause.saturating_mul(1 << doublings);
        let mut byte = [0];
        self.0.entropy.fill(&mut byte);
        let pause = pause.min(self.0.options.longest_pause);
        pause * 3 / 4 + pause / 2 * u32::from(byte[0]) / 255
    }

    async fn wait(&self, held: &Held, after: Duration, why: &str) -> Result<(), TxError> {
        let why = short(why);
        // If nobody can be told, the lease lapses, and the completer comes a little later.
        if let Err(error) = wait(&self.0.store, held, after, &why).await {
            tracing::warn!(%error, "the end of an attempt could not be written down");
        }
        self.note(held, "attempt failed", &why).await
    }

    async fn park(&self, held: &Held, why: &str) -> Result<Outcome, FlowError> {
        let sql = self.0.store.layout().sql();
        let why = short(why);
        let values = [
            Value::Bytes(&NOBODY),
            Value::Text(&why),
            Value::Bytes(held.id.as_bytes()),
            Value::Int(held.fence),
            Value::Bytes(held.owner.as_bytes()),
        ];
        self.0.store.execute_once(&sql.park, &values).await?;
        self.note(held, "parked", &why).await?;
        tracing::warn!(flow = %held.id, reason = why, "a flow is parked");
        Ok(Outcome::Parked { reason: why })
    }

    async fn note(&self, held: &Held, what: &str, detail: &str) -> Result<(), TxError> {
        let sql = self.0.store.layout().sql();
        let values = [
            Value::Bytes(held.id.as_bytes()),
            Value::Int(held.fence),
            Value::Text(what),
            Value::Text(detail),
        ];
        // History for people: the flow does not depend on it.
        let _ = self.0.store.execute_once(&sql.event, &values).await;
        Ok(())
    }
}

/// The owner of a flow that nobody drives.
const NOBODY: [u8; 16] = [0; 16];

/// Ends an attempt: the flow waits for the next one.
pub(crate) async fn wait<S: TxStore>(
    store: &S,
    held: &Held,
    after: Duration,
    why: &str,
) -> Result<Kept, TxError> {
    let values = [
        Value::Bytes(&NOBODY),
        Value::Int(micros(after)),
        Value::Text(why),
        Value::Bytes(held.id.as_bytes()),
        Value::Int(held.fence),
        Value::Bytes(held.owner.as_bytes()),
    ];
    Ok(Kept::of(store.execute_once(&store.layout().sql().wait, &values).await?))
}

/// What fits into a reason.
pub(crate) fn short(text: &str) -> String {
    const MOST: usize = 1_000;
    // PostgreSQL has no zeros in texts.
    text[..text.floor_char_boundary(MOST)].replace('\0', "")
}
