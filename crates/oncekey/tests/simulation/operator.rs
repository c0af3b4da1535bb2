//! Who finds out what became of work of which nobody knows: a person, and the engine's sweeper.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use oncekey::core::browse::Browse;
use oncekey::core::{Clock, Fence, KeyId, Record, Sent, State, Store, Timestamp};

use crate::chaos::{Phase, completion, wait};
use crate::dice::Dice;
use crate::log::Who;
use crate::options::Sweeps;
use crate::store::Line;
use crate::upstream::Truth;
use crate::world::World;

/// A person who looks at what is unknown and finds out the truth.
pub(crate) async fn operator(world: Arc<World>, mut dice: Dice) {
    let mut seen = Suspects::default();
    while wait(&world, dice.millis(1_000, 30_000)).await == Phase::Faulty {
        resolve(&world, &mut seen).await;
    }
}

/// Attempts in doubt, and when each was first seen as it is.
#[derive(Debug, Default)]
pub(crate) struct Suspects(BTreeMap<(KeyId, Fence, Timestamp), Duration>);

/// Resolves what is unknown and can be known.
pub(crate) async fn resolve(world: &World, seen: &mut Suspects) {
    let store = world.side.connect(Who::Operator, Line::Good);
    for id in &world.side.keys {
        let Some(record) = world.side.look(id).await else { continue };
        if !is_for_the_operator(world, &record, seen) {
            continue;
        }
        // A write that fails is made again next time.
        let _ = match world.upstream.truth(&record) {
            Truth::Open => continue,
            Truth::Done(answer) => {
                store.complete(&record.lease(), &completion(world, answer)).await
            }
            Truth::Nothing => store.release(&record.lease()).await,
        };
    }
}

/// Unknown outcomes and lapsed attempts that may have sent are, but only if nothing was heard of the
/// owner for so long, by a clock that does not step, that it cannot send any more: when the store's
/// clock has stepped, what looks lapsed may have an owner that is about to send.
fn is_for_the_operator(world: &World, record: &Record, seen: &mut Suspects) -> bool {
    let since = match record.state {
        State::Unknown { since } => since,
        State::Running { until, sent: Sent::Yes } if until < world.side.clock.now() => until,
        State::Running { .. } | State::Done { .. } | State::Parked { .. } => return false,
    };
    let now = world.time.now();
    let first = *seen.0.entry((record.id, record.fence, since)).or_insert(now);
    now.saturating_sub(first) > world.options.lease * 2
}

/// Lets the engines sweep and reap, each on its own node.
pub(crate) async fn sweeper(world: Arc<World>, mut dice: Dice) {
    if world.options.sweeps == Sweeps::Never {
        return;
    }
    let lease = u64::try_from(world.options.lease.as_millis()).expect("leases are short");
    while wait(&world, dice.millis(lease / 2, 4 * lease)).await == Phase::Faulty {
        let node = dice.index(world.options.nodes);
        let Some(running) = world.running(node) else { continue };
        let store = world.side.connect(Who::Node(running.gate.life), Line::Good);
        let browse: Arc<dyn Browse> = Arc::new(store);
        let older_than = world.options.lease.mul_f64(0.5);
        let sweeper =
            running.engine.sweeper(browse).older_than(older_than).grace(world.options.grace);
        let reaper = running.engine.reaper();
        running.gate.serve(async move {
            // They come again whatever happens.
            let _ = sweeper.run_once().await;
            let _ = reaper.run_once().await;
        });
    }
}
