//! The clients: impatient, forgetful, and several of them after the same key.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use oncekey::core::policy::{InFlight, Limits, StoreDown};
use oncekey::core::{Class, Places, Policy};
use oncekey::engine::{Call, Engine, Ran, Refused, Replayed, Reply, RequestId};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::bugs::Bug;
use crate::dice::Dice;
use crate::log::{Away, Got, Job, Note, What};
use crate::work::{SAVED_BODY, work};
use crate::world::{Running, World, fingerprint_of};

/// How patient a client is with one call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    Endless,
    /// Hangs up when the call has been polled this often.
    Polls(u32),
    /// Hangs up after this long.
    Span(Duration),
}

/// What a client makes of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It has what it wanted, or will never get it.
    Content,
    /// It asks again after a while.
    Again(Duration),
}

/// A client: does a number of operations, each with its retries.
pub(crate) async fn client(world: Arc<World>, mut dice: Dice) {
    let ops = world.options.ops_per_client;
    for op in 0..ops {
        let think = u64::try_from(world.options.think.as_millis()).expect("short");
        sleep(dice.millis(0, think)).await;
        if world.healed.is_raised() {
            return;
        }
        let key = near(&mut dice, op, ops, world.options.keys.len());
        let body = u8::from(dice.chance(world.options.mismatches));
        if dice.chance(120) {
            stampede(&world, &mut dice, key).await;
            continue;
        }
        for _ in 0..dice.between(1, 5) {
            let job = draw_job(&world, &mut dice, key, body);
            let patience = draw_patience(&world, &mut dice);
            let node = dice.index(world.options.nodes);
            let note = call(&world, node, job, patience).await;
            match next(note.as_ref(), &mut dice) {
                Next::Content => break,
                Next::Again(_) if world.healed.is_raised() => return,
                Next::Again(pause) => sleep(pause).await,
            }
        }
    }
}

/// Several calls for one key at the same moment, on all nodes, some of them for something else.
async fn stampede(world: &Arc<World>, dice: &mut Dice, key: usize) {
    let mut calls = JoinSet::new();
    for number in 0..dice.between(2, 6) {
        let body = u8::from(dice.chance(world.options.mismatches * 2));
        let job = draw_job(world, dice, key, body);
        let patience = draw_patience(world, dice);
        let node = usize::try_from(number).expect("small") % world.options.nodes;
        let world = Arc::clone(world);
        calls.spawn(async move { call(&world, node, job, patience).await });
    }
    while calls.join_next().await.is_some() {}
}

/// Calls a node. `None` if the client hung up, or if the node is dead or dies under the call.
pub(crate) async fn call(
    world: &Arc<World>,
    node: usize,
    job: Job,
    patience: Patience,
) -> Option<Note> {
    let running = world.running(node)?;
    let request = job.request;
    world.log.note(What::Called { job: job.clone(), by: running.gate.life });
    let (reply, replied) = oneshot::channel();
    let serving = serve(Arc::clone(world), running.clone(), job, patience);
    running.gate.serve(async move {
        // The client may be gone, which the log says.
        let _ = reply.send(serving.await);
    });
    tokio::select! {
        biased;
        note = replied => note.ok().flatten(),
        () = running.died() => {
            world.log.note(What::WentAway { request, why: Away::NodeDied });
            None
        }
    }
}

/// What the node does about a call: this part runs behind its gate.
async fn serve(world: Arc<World>, running: Running, job: Job, patience: Patience) -> Option<Note> {
    let request = job.request;
    let by = running.gate.life;
    let call = engine_call(&world, &running.engine, &job);
    let doing = Arc::clone(&world);
    let answering = running.engine.answer(call, move |attempt| work(doing, job, by, attempt));
    let reply = match patience {
        Patience::Endless => Some(answering.await),
        Patience::Polls(left) => HangsUp { inner: Box::pin(answering), left }.await,
        Patience::Span(span) => tokio::time::timeout(span, answering).await.ok(),
    };
    match reply {
        Some(reply) => {
            let note = note(reply);
            world.log.note(What::Replied { request, note: note.clone() });
            Some(note)
        }
        None => {
            world.log.note(What::WentAway { request, why: Away::HungUp });
            None
        }
    }
}

/// The call that a job stands for.
fn engine_call(world: &World, engine: &Engine, job: &Job) -> Call {
    let options = &world.options;
    let spec = &options.keys[job.key];
    let (scope, key) = spec.named(world.bug);
    let class = match (world.bug, job.class) {
        (Some(Bug::OnceIsDeclaredRetry), Class::Once) => Class::Retry,
        (_, class) => class,
    };
    let in_flight = match job.wait {
        Some(wait) => InFlight::Wait(wait),
        None if job.request.is_multiple_of(2) => InFlight::Conflict,
        None => InFlight::Accepted,
    };
    let policy = Policy {
        class,
        retention: options.retention,
        linger: options.linger,
        lease: options.lease,
        grace: options.grace,
        in_flight,
        limits: Limits {
            saved_body: SAVED_BODY,
            waiters_per_key: options.seats,
            ..Limits::default()
        },
        store_down: if job.passes { StoreDown::PassUnprotected } else { StoreDown::Refuse },
        mark: spec.mark,
        retain: spec.retain.clone(),
        panic: spec.panic,
        ..Policy::default()
    };
    assert_eq!(policy.check(), Ok(()), "the simulation makes sound policies");
    Call {
        exact: None,
        id: engine.key_id(&scope, &key),
        key,
        scope,
        fingerprint: fingerprint_of(job.key, job.body, world.bug),
        places: Places::default(),
        route: "POST /charges".into(),
        request: RequestId::from_outside(request_name(job.request).as_bytes())
            .expect("a plain request id"),
        policy: Arc::new(policy),
    }
}

/// What a request is called in records and replies.
pub(crate) fn request_name(request: u32) -> String {
    format!("request-{request}")
}

fn note(reply: Reply<Got>) -> Note {
    match reply {
        Reply::Ran(Ran { value, recorded, fence }) => Note::Ran { fence, recorded, value },
        Reply::Replayed(Replayed { saved, source, original, fence, .. }) => {
            Note::Replayed { saved, source, fence, original: original.to_string() }
        }
        Reply::Refused(refused) => Note::Refused(refused),
    }
}

/// A call of a key with a body, as an honest client makes it.
pub(crate) fn plain_job(world: &World, key: usize, body: u8) -> Job {
    let spec = &world.options.keys[key];
    Job {
        request: world.log.number(),
        id: world.side.keys[key],
        key,
        body,
        class: spec.class,
        wait: Some(Duration::from_secs(1)),
        passes: false,
    }
}

fn draw_job(world: &World, dice: &mut Dice, key: usize, body: u8) -> Job {
    let mut job = plain_job(world, key, body);
    if dice.chance(world.options.class_changes) {
        job.class = dice.pick(&Class::ALL);
    }
    job.wait = match dice.below(4) {
        0 => None,
        1 => Some(dice.millis(1, 500)),
        _ => Some(dice.millis(500, 10_000)),
    };
    // Only what may be done twice may run unprotected.
    job.passes = job.class == Class::Retry && dice.chance(200);
    job
}

fn draw_patience(world: &World, dice: &mut Dice) -> Patience {
    if !dice.chance(world.options.hang_ups) {
        return Patience::Endless;
    }
    match dice.below(2) {
        0 => Patience::Polls(u32::try_from(dice.below(8)).expect("small")),
        _ => Patience::Span(dice.millis(0, 2_000)),
    }
}

/// A key near to where the history is, so that clients meet, and sometimes any other.
fn near(dice: &mut Dice, op: usize, ops: usize, keys: usize) -> usize {
    if dice.chance(100) {
        return dice.index(keys);
    }
    (op * keys / ops + dice.index(3)) % keys
}

/// What a client does after this reply.
pub(crate) fn next(note: Option<&Note>, dice: &mut Dice) -> Next {
    const LONGEST: Duration = Duration::from_secs(5);
    match note {
        // It heard nothing, or that there is nothing to hear yet.
        None => Next::Again(dice.millis(0, 1_500)),
        Some(Note::Refused(
            Refused::InProgress { retry_after, .. }
            | Refused::Accepted { retry_after, .. }
            | Refused::Unavailable { retry_after, .. },
        )) => Next::Again((*retry_after).min(LONGEST)),
        // It asks again for the same thing, as people do.
        Some(Note::Ran { .. } | Note::Replayed { .. }) if dice.chance(250) => {
            Next::Again(dice.millis(0, 1_000))
        }
        Some(
            Note::Ran { .. }
            | Note::Replayed { .. }
            | Note::Refused(
                Refused::Mismatch { .. }
                | Refused::Unknown { .. }
                | Refused::NotRetained { .. }
                | Refused::Expired { .. }
                | Refused::Parked { .. }
                | Refused::Damaged,
            ),
        ) => Next::Content,
    }
}

/// Drops a future when it has been polled often enough.
struct HangsUp<F> {
    inner: Pin<Box<F>>,
    left: u32,
}

impl<F: Future> Future for HangsUp<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(left) = self.left.checked_sub(1) else { return Poll::Ready(None) };
        self.left = left;
        self.inner.as_mut().poll(context).map(Some)
    }
}
