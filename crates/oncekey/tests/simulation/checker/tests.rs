//! Small logs that are right, or wrong in one place. The planted bugs show the rest.

use std::sync::Arc;
use std::time::Duration;

use oncekey::core::decide::Grant;
use oncekey::core::{
    Answer, Claim, Claimed, Class, Completion, Fence, Lease, Origin, Owner, Places, Saved, Sent,
    Timestamp, Write,
};
use oncekey::engine::Recorded;

use super::check;
use crate::load::request_name;
use crate::log::{Ask, End, Event, Got, Job, Life, Note, Told, What, Who};
use crate::options::Options;
use crate::run::History;
use crate::time::BASE;
use crate::upstream::{body_of, saved};
use crate::world::fingerprint_of;

const LIFE: Life = Life { node: 0, life: 1 };
const LEASE: Duration = Duration::from_secs(4);
const RETENTION: Duration = Duration::from_secs(60);

/// A log in the making. Every event comes a millisecond after the one before.
struct Script {
    options: Arc<Options>,
    events: Vec<Event>,
    calls: u32,
}

impl Script {
    fn new() -> Self {
        Self { options: Arc::new(Options::of(1)), events: Vec::new(), calls: 100 }
    }

    fn note(&mut self, what: What) {
        let at = self.now();
        self.events.push(Event { at, what });
    }

    fn now(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.events.len()).unwrap())
    }

    fn store_now(&self) -> Timestamp {
        BASE.after(self.now())
    }

    /// Asks, commits and hears.
    fn ask(&mut self, ask: Ask, told: impl FnOnce(Timestamp) -> Told) {
        self.calls += 1;
        let call = self.calls;
        let ask = Arc::new(ask);
        self.note(What::Asked { call, by: Who::Node(LIFE), ask });
        let now = self.store_now();
        let told = Arc::new(told(now));
        self.note(What::Committed { call, told: Arc::clone(&told), now, after: Vec::new() });
        self.note(What::Heard { call, told: Ok(told) });
    }

    fn job(&self, request: u32) -> Job {
        let id = self.options.keys[0].id(None);
        let wait = None;
        Job { request, id, key: 0, body: 0, class: Class::Once, wait, passes: false }
    }

    fn call(&mut self, request: u32) {
        let job = self.job(request);
        self.note(What::Called { job, by: LIFE });
    }

    /// Claims for a request and begins its work.
    fn win(&mut self, request: u32) -> Lease {
        let claim = Claim {
            id: self.job(request).id,
            owner: Owner::from_bytes([u8::try_from(request).unwrap(); 16]),
            fingerprint: fingerprint_of(0, 0, None),
            class: Class::Once,
            lease: LEASE,
            grace: Duration::ZERO,
            sent: Sent::No,
            origin: Origin { request: request_name(request).into(), ..Origin::default() },
            places: Places::default(),
        };
        // Two events from now: at the commit.
        let now = BASE.after(self.now() + Duration::from_millis(1));
        let lease = Lease {
            id: claim.id,
            fence: Fence::next(None, now),
            owner: claim.owner,
            until: now.after(LEASE),
        };
        let won = Claimed::Won { lease, grant: Grant::Fresh, earlier: Sent::No };
        self.ask(Ask::Claim(claim), |_| Told::Claimed(won));
        self.note(What::Began { request, by: LIFE, fence: Some(lease.fence), retry: false });
        lease
    }

    fn mark(&mut self, lease: Lease) {
        self.ask(Ask::Send(lease), |_| Told::Wrote(Write::Applied));
    }

    fn arrive(&mut self, visit: u32, request: u32, lease: Lease) {
        let (by, fence) = (LIFE, Some(lease.fence));
        self.note(What::Arrived { visit, request, by, fence, forwarded: None });
        self.note(What::Acted { visit });
        self.note(What::Settled { visit });
    }

    fn answer(&mut self, visit: u32, request: u32, lease: Lease) -> Saved {
        let given = saved(200, &body_of(&self.job(request), visit));
        let got = Got::Answer(given.clone());
        self.note(What::Answered { visit, answer: got.clone() });
        let end = End::Finished(got);
        self.note(What::Ended { request, fence: Some(lease.fence), end });
        given
    }

    fn complete(&mut self, lease: Lease, given: &Saved) {
        let answer = Answer::Kept(given.clone());
        let completion = Completion { answer, retention: RETENTION, linger: Duration::ZERO };
        self.ask(Ask::Complete(lease, completion), |_| Told::Wrote(Write::Applied));
    }

    fn reply(&mut self, request: u32, lease: Lease, given: Saved) {
        let value = Some(Got::Answer(given));
        let note = Note::Ran { fence: Some(lease.fence), recorded: Recorded::Kept, value };
        self.note(What::Replied { request, note });
    }

    /// The rules that are broken.
    fn broken(self) -> Vec<&'static str> {
        let Self { options, events, .. } = self;
        let length = Duration::from_secs(1);
        let history = History { options, bug: None, events, length };
        check(&history).iter().map(|violation| violation.rule).collect()
    }
}

#[test]
fn one_request_from_its_call_to_its_answer_breaks_nothing() {
    let mut script = Script::new();
    script.call(1);
    let lease = script.win(1);
    script.mark(lease);
    script.arrive(9, 1, lease);
    let given = script.answer(9, 1, lease);
    script.complete(lease, &given);
    script.reply(1, lease, given);
    assert_eq!(script.broken(), Vec::<&str>::new());
}

/// I8: what is not marked must not be sent.
#[test]
fn a_send_without_a_mark_is_noticed() {
    let mut script = Script::new();
    script.call(1);
    let lease = script.win(1);
    script.arrive(9, 1, lease);
    let given = script.answer(9, 1, lease);
    script.complete(lease, &given);
    assert_eq!(script.broken(), ["I8"]);
}

/// I8, I9 and I45: one fence, one send.
#[test]
fn a_second_send_is_noticed() {
    let mut script = Script::new();
    script.call(1);
    let lease = script.win(1);
    script.mark(lease);
    script.arrive(9, 1, lease);
    script.arrive(10, 1, lease);
    let given = script.answer(10, 1, lease);
    script.complete(lease, &given);
    assert_eq!(script.broken(), ["I9", "I8", "I45"]);
}

/// I7: the deadline counts from when the claim was asked.
#[test]
fn a_late_send_is_noticed() {
    let mut script = Script::new();
    script.call(1);
    let lease = script.win(1);
    script.mark(lease);
    for _ in 0..LEASE.as_millis() {
        script.note(What::Healed);
    }
    script.arrive(9, 1, lease);
    let given = script.answer(9, 1, lease);
    script.complete(lease, &given);
    assert_eq!(script.broken(), ["I7"]);
}

/// I13: what the first caller is told is what stands in the store.
#[test]
fn an_answer_that_was_not_recorded_is_noticed() {
    let mut script = Script::new();
    script.call(1);
    let lease = script.win(1);
    script.mark(lease);
    script.arrive(9, 1, lease);
    let given = script.answer(9, 1, lease);
    script.reply(1, lease, given);
    assert_eq!(script.broken(), ["I13", "L4"], "and it never will be");
}

/// I1: a second grant while the first owner's lease is good.
#[test]
fn two_owners_are_noticed() {
    let mut script = Script::new();
    script.call(1);
    script.call(2);
    script.win(1);
    script.win(2);
    let broken = script.broken();
    assert_eq!(broken.first(), Some(&"I1"), "{broken:?}");
}

/// I41: work that nobody ended, on a node that did not die.
#[test]
fn work_that_got_lost_is_noticed() {
    let mut script = Script::new();
    script.call(1);
    script.win(1);
    assert_eq!(script.broken(), ["I41"]);
}
