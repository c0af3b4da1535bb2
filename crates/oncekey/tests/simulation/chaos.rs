//! What happens to nodes, clocks and records while the clients are at it.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use oncekey::core::{Answer, Completion, Fence, Lease, Owner, Store};
use tokio::time::sleep;

use crate::dice::Dice;
use crate::log::{Change, What, Who};
use crate::store::{Line, Weather};
use crate::upstream::saved;
use crate::world::World;

/// How far a history is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Faulty,
    Healed,
}

/// What may happen next.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    Pause,
    Crash,
    Drain,
    ClockStep,
    Outage,
    Forgery,
    Nothing,
}

/// Lets things go wrong until the history heals.
pub(crate) async fn chaos(world: Arc<World>, mut dice: Dice) {
    let Some(every) = world.options.chaos.every else { return };
    let every = u64::try_from(every.as_millis()).expect("short");
    while wait(&world, dice.millis(0, 2 * every)).await == Phase::Faulty {
        let node = dice.index(world.options.nodes);
        match draw(&world, &mut dice) {
            Mishap::Pause => pause(&world, node, &mut dice),
            Mishap::Crash => crash(&world, node, &mut dice),
            Mishap::Drain => drain(&world, node, &mut dice),
            Mishap::ClockStep => step(&world, &mut dice),
            Mishap::Outage => outage(&world, &mut dice),
            Mishap::Forgery => forge(&world, &mut dice).await,
            Mishap::Nothing => {}
        }
    }
}

/// Strikes nodes at the moment at which they wait for the store.
pub(crate) async fn ambush(world: Arc<World>, mut dice: Dice) {
    loop {
        tokio::select! {
            biased;
            () = world.healed.raised() => return,
            () = world.side.ambush.notified() => {}
        }
        let nodes = std::mem::take(
            &mut *world.side.ambushed.lock().unwrap_or_else(PoisonError::into_inner),
        );
        for node in nodes {
            match dice.below(4) {
                0 => crash(&world, node, &mut dice),
                _ => pause(&world, node, &mut dice),
            }
        }
    }
}

/// Waits, and says whether the history has healed meanwhile.
pub(crate) async fn wait(world: &World, span: Duration) -> Phase {
    tokio::select! {
        biased;
        () = world.healed.raised() => Phase::Healed,
        () = sleep(span) => Phase::Faulty,
    }
}

fn draw(world: &World, dice: &mut Dice) -> Mishap {
    let chaos = &world.options.chaos;
    let weights = [
        (chaos.pauses, Mishap::Pause),
        (chaos.crashes, Mishap::Crash),
        (chaos.drains, Mishap::Drain),
        (chaos.clock_steps, Mishap::ClockStep),
        (chaos.outages, Mishap::Outage),
        (chaos.forgeries, Mishap::Forgery),
    ];
    let total: u32 = weights.iter().map(|(weight, _)| weight).sum();
    let mut left = dice.below(u64::from(total) + 1);
    for (weight, mishap) in weights {
        match left.checked_sub(u64::from(weight)) {
            Some(rest) => left = rest,
            None => return mishap,
        }
    }
    Mishap::Nothing
}

/// Half a lease, a lease, three leases, and now and then a hundred.
fn pause(world: &Arc<World>, node: usize, dice: &mut Dice) {
    let lease = world.options.lease;
    let spans = [lease / 2, lease, lease * 3, lease * 3, lease + world.options.grace];
    let span = if dice.chance(50) { lease * 100 } else { dice.pick(&spans) };
    let world = Arc::clone(world);
    tokio::spawn(async move { world.pause(node, span).await });
}

fn crash(world: &Arc<World>, node: usize, dice: &mut Dice) {
    if world.running(node).is_none() {
        return;
    }
    world.crash(node);
    let span = world.options.lease * u32::try_from(dice.below(4)).expect("small") / 2;
    let world = Arc::clone(world);
    tokio::spawn(async move {
        wait(&world, span).await;
        world.start(node);
    });
}

/// A deployment: the node finishes what it has begun and comes back as a new one.
fn drain(world: &Arc<World>, node: usize, dice: &mut Dice) {
    let Some(running) = world.running(node).filter(|running| running.gate.is_open()) else {
        return;
    };
    world.log.note(What::Node(running.gate.life, Change::Draining));
    let within = dice.millis(0, 10_000);
    let world = Arc::clone(world);
    let gate = Arc::clone(&running.gate);
    gate.serve(async move {
        running.engine.shutdown(within).await;
        // The process ends here, with whatever is still running in it. Unless it has been killed
        // meanwhile: then somebody else brings it back.
        let life = running.gate.life;
        if world.running(life.node).is_some_and(|now| now.gate.life == life) {
            world.crash(life.node);
            world.start(life.node);
        }
    });
}

fn step(world: &World, dice: &mut Dice) {
    const DAY: u64 = 24 * 60 * 60 * 1_000_000;
    let lease = u64::try_from(world.options.lease.as_micros()).expect("leases are short");
    let most = dice.pick(&[lease, 3 * lease, 3 * lease, 600_000_000, DAY]);
    let micros = i64::try_from(dice.between(1, most)).expect("a day fits");
    let micros = if dice.chance(500) { micros } else { -micros };
    world.log.note(What::Stepped(micros));
    world.side.clock.step(micros);
}

fn outage(world: &World, dice: &mut Dice) {
    let lease = u64::try_from(world.options.lease.as_millis()).expect("leases are short");
    let span = dice.millis(100, 3 * lease);
    world.log.note(What::Outage(span));
    world.side.set_weather(Weather::Outage(world.time.now() + span));
}

/// Somebody with half a proof tries to write: the right fence with another owner, or the right owner
/// with another fence.
async fn forge(world: &World, dice: &mut Dice) {
    let id = dice.pick(&world.side.keys);
    let Some(record) = world.side.look(&id).await else { return };
    let older = Fence::from_number(record.fence.number() - 1).expect("fences are large");
    let forged = match dice.below(2) {
        0 => Lease { owner: Owner::from_bytes([0xee; 16]), ..record.lease() },
        _ => Lease { fence: older, ..record.lease() },
    };
    let store = world.side.connect(Who::Forger, Line::Good);
    // Whatever comes of it is in the log.
    let _ = match dice.below(4) {
        0 => store.complete(&forged, &completion(world, saved(200, "forged"))).await,
        1 => store.release(&forged).await,
        2 => store.unknown(&forged).await,
        _ => store.send(&forged).await,
    };
}

/// Purges now and then.
pub(crate) async fn reaper(world: Arc<World>, mut dice: Dice) {
    let store = world.side.connect(Who::Reaper, Line::Good);
    while wait(&world, dice.millis(100, 20_000)).await == Phase::Faulty {
        // All that is due: of a part nobody could tell which part it was. It comes again whatever
        // happens.
        let _ = store.purge(1_000).await;
    }
}

/// The end that somebody else than an engine writes.
pub(crate) fn completion(world: &World, answer: oncekey::core::Saved) -> Completion {
    let (retention, linger) = (world.options.retention, world.options.linger);
    Completion { answer: Answer::Kept(answer), retention, linger }
}
