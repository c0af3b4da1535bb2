//! The work that a request is about: ask, send, listen.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncekey::core::policy::Fit;
use oncekey::core::{Class, Fence, Saved};
use oncekey::engine::{Attempt, Finish};
use tokio::time::sleep;

use crate::bugs::Bug;
use crate::log::{End, Got, Job, Life, What};
use crate::upstream::{Visit, body_of, saved};
use crate::world::World;

/// The largest body that the policies of a simulation keep.
pub(crate) const SAVED_BODY: usize = 1_024;

/// Where in the work something breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Breaks {
    Nowhere,
    BeforeTheSend,
    AfterTheAnswer,
}

/// What the work does by chance.
struct Mood {
    breaks: Breaks,
    /// How long it takes before it sends.
    prelude: Duration,
    oversize: Oversize,
}

/// What the work does with an answer that is too large to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Oversize {
    /// Says so.
    Reported,
    /// Hands it over and leaves it to the engine to notice.
    HandedOver,
}

/// Does the work.
pub(crate) async fn work(world: Arc<World>, job: Job, by: Life, attempt: Attempt) -> Finish<Got> {
    let fence = attempt.fence();
    let request = job.request;
    world.log.note(What::Began { request, by, fence, retry: attempt.is_retry() });
    let mut ends = Ends { world: Arc::clone(&world), request, fence, end: Some(End::Stopped) };
    let mood = mood(&world, world.healed.is_raised());
    sleep(mood.prelude).await;
    if mood.breaks == Breaks::BeforeTheSend {
        ends.with(End::Panicked);
        break_down();
    }
    let got = match job.class {
        // Under `tx` nothing is sent: the work and its end are one commit.
        Class::Tx => Got::Answer(saved(200, &body_of(&job, world.log.number()))),
        Class::Once | Class::Keyed | Class::Retry => send(&world, &job, by, &attempt).await,
    };
    if mood.breaks == Breaks::AfterTheAnswer {
        ends.with(End::Panicked);
        break_down();
    }
    ends.with(End::Finished(got.clone()));
    finish(got, mood.oversize)
}

async fn send(world: &Arc<World>, job: &Job, by: Life, attempt: &Attempt) -> Got {
    let fence = attempt.fence();
    if world.bug != Some(Bug::WorkDoesNotAsk)
        && let Err(why) = attempt.send().await
    {
        world.log.note(What::Denied { request: job.request, fence, why });
        return Got::Denied(why);
    }
    let forwarded = (job.class == Class::Keyed).then(|| match (world.bug, fence) {
        (Some(Bug::DerivedKeyHasTheFence), Some(fence)) => {
            format!("{} {fence}", attempt.derived_key("charge"))
        }
        (_, _) => attempt.derived_key("charge"),
    });
    let visit = Visit { job: job.clone(), by, fence, forwarded };
    let (_, got) = world.upstream.visit(visit.clone()).await;
    match (world.bug, got) {
        (Some(Bug::WorkSendsTwice), Got::Nothing) => world.upstream.visit(visit).await.1,
        (Some(Bug::WorkDeniesItsSend), Got::Nothing) => Got::Refused,
        (Some(Bug::OwnErrorsAreKept), Got::Nothing) => Got::Answer(saved(500, "ours")),
        (Some(Bug::HalfAnswersAreKept), Got::Answer(whole)) if whole.status == 500 => {
            let half = whole.body.slice(..whole.body.len() / 2);
            Got::Answer(Saved { body: half, ..whole })
        }
        (_, got) => got,
    }
}

fn finish(got: Got, oversize: Oversize) -> Finish<Got> {
    match got.clone() {
        Got::Answer(saved) => Finish::answered(saved, got),
        Got::TooLarge(status) if oversize == Oversize::HandedOver => {
            let body = Bytes::from(vec![b'x'; SAVED_BODY + 1]);
            Finish::answered(Saved { body, ..saved(status, "") }, got)
        }
        Got::TooLarge(status) => Finish::not_kept(status, Fit::TooLarge, got),
        Got::Nothing => Finish::no_answer(got),
        Got::Refused | Got::Denied(_) => Finish::never_sent(got),
    }
}

fn mood(world: &World, healed: bool) -> Mood {
    let options = &world.options;
    let lease = u64::try_from(options.lease.as_millis()).expect("leases are short");
    world.work_dice.throw(|dice| {
        let breaks = match dice.chance(options.upstream.panics) && !healed {
            true => dice.pick(&[Breaks::BeforeTheSend, Breaks::AfterTheAnswer]),
            false => Breaks::Nowhere,
        };
        // Most work sends at once; some thinks for so long that its lease matters.
        let slow = dice.chance(options.preludes) && !healed;
        let prelude = if slow { dice.millis(0, 2 * lease) } else { Duration::ZERO };
        Mood { breaks, prelude, oversize: dice.pick(&[Oversize::Reported, Oversize::HandedOver]) }
    })
}

/// Unwinds without a message: the hook that prints one is for panics that nobody planned.
fn break_down() -> ! {
    std::panic::resume_unwind(Box::new("planned"))
}

/// Writes down how the work ended, even if it is dropped half-way.
struct Ends {
    world: Arc<World>,
    request: u32,
    fence: Option<Fence>,
    end: Option<End>,
}

impl Ends {
    fn with(&mut self, end: End) {
        self.end = None;
        let (request, fence) = (self.request, self.fence);
        self.world.log.note(What::Ended { request, fence, end });
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            self.with(end);
        }
    }
}
