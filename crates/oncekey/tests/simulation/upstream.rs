//! The upstream: the one judge of how often something was really done.
//!
//! It does what it is asked each time it is asked, unless a derived key tells it that it has done
//! that before. It may answer late, never, with an error that means "not done" or one that means
//! nothing, and it may act long after everybody gave up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use oncekey::core::{Fence, Headers, KeyId, Record, Saved};
use oncekey::engine::{Doubt, Happened, Probe};
use tokio::time::sleep;

use crate::bugs::Bug;
use crate::dice::{Dice, SharedDice};
use crate::log::{Got, Job, Life, Log, What};
use crate::options::Options;
use crate::world::fingerprint_of;

/// The upstream of a history.
#[derive(Debug)]
pub(crate) struct Upstream {
    log: Log,
    dice: SharedDice,
    options: Arc<Options>,
    bug: Option<Bug>,
    books: Mutex<Books>,
}

/// A request as it arrives.
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    pub(crate) job: Job,
    pub(crate) by: Life,
    pub(crate) fence: Option<Fence>,
    /// The derived key, if the route forwards it.
    pub(crate) forwarded: Option<String>,
}

#[derive(Debug, Default)]
struct Books {
    healed: bool,
    /// What was asked and answered under a derived key. `None` while it is being done.
    done: BTreeMap<String, (u8, Option<Saved>)>,
    /// What became of each request, for the operator: the key may be used again for another one.
    by_request: BTreeMap<(KeyId, [u8; 32]), KeyBooks>,
}

#[derive(Debug, Default)]
struct KeyBooks {
    /// Visits of which something may still come.
    open: u32,
    /// The latest answer that came with an act.
    acted: Option<Saved>,
}

/// What the upstream will do about one visit.
#[derive(Clone, Copy, Debug)]
struct Plan {
    acts: Acts,
    answers: Answers,
    /// Until the answer.
    delay: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acts {
    AtOnce,
    /// This long after the answer, or after the caller gave up on one.
    Late(Duration),
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    With(u16),
    TooLarge,
    Never,
    /// The connection was refused: nothing arrived.
    Refused,
}

/// What an operator learns about a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Truth {
    /// Something may still come of it.
    Open,
    /// Nothing was done, and nothing will be.
    Nothing,
    /// It was done, with this answer.
    Done(Saved),
}

impl Upstream {
    pub(crate) fn new(log: Log, dice: Dice, options: Arc<Options>, bug: Option<Bug>) -> Arc<Self> {
        let (dice, books) = (SharedDice::new(dice), Mutex::default());
        Arc::new(Self { log, dice, options, bug, books })
    }

    /// From here on it answers at once and well.
    pub(crate) fn heal(&self) {
        self.books().healed = true;
    }

    /// What was really done for the request of a record.
    pub(crate) fn truth(&self, record: &Record) -> Truth {
        match self.books().by_request.get(&(record.id, *record.fingerprint.digest())) {
            Some(KeyBooks { open: 1.., .. }) => Truth::Open,
            Some(KeyBooks { acted: Some(saved), .. }) => Truth::Done(saved.clone()),
            Some(KeyBooks { acted: None, .. }) | None => Truth::Nothing,
        }
    }

    /// Takes a request and answers it. The first poll is the arrival: whatever the caller checked
    /// right before it still holds.
    pub(crate) async fn visit(self: &Arc<Self>, visit: Visit) -> (u32, Got) {
        let healed = self.books().healed;
        let plan = self.dice.throw(|dice| plan(dice, &self.options, healed));
        let number = self.log.number();
        if plan.answers == Answers::Refused {
            sleep(plan.delay).await;
            return (number, Got::Refused);
        }
        let Visit { job, by, fence, forwarded } = visit.clone();
        let request = job.request;
        self.log.note(What::Arrived { visit: number, request, by, fence, forwarded });
        let answer = match self.known(&visit) {
            Some(earlier) => self.repeat(number, &visit.job, earlier).await,
            None => self.act(number, &visit, plan).await,
        };
        self.log.note(What::Answered { visit: number, answer: answer.clone() });
        (number, answer)
    }

    /// What is known under the derived key of the visit.
    fn known(&self, visit: &Visit) -> Option<(u8, Option<Saved>)> {
        self.books().done.get(visit.forwarded.as_ref()?).cloned()
    }

    /// Answers what was answered before, or that it is still being done.
    async fn repeat(&self, number: u32, job: &Job, earlier: (u8, Option<Saved>)) -> Got {
        self.log.note(What::Settled { visit: number });
        sleep(Duration::from_millis(3)).await;
        let (body, answer) = earlier;
        match answer {
            // It keeps keys for longer than we do, and notices that this is another request.
            _ if body != job.body => Got::Answer(saved(422, &body_of(job, number))),
            Some(saved) => Got::Answer(saved),
            None if self.dice.throw(|dice| dice.chance(500)) => Got::Answer(saved(409, "busy")),
            None => Got::Nothing,
        }
    }

    async fn act(self: &Arc<Self>, number: u32, visit: &Visit, plan: Plan) -> Got {
        let status = match plan.answers {
            Answers::With(status) => status,
            Answers::TooLarge | Answers::Never | Answers::Refused => 200,
        };
        let body = body_of(&visit.job, number);
        let answer = saved(status, &body);
        // A proxy's 502 is not what the upstream remembers.
        let remembered =
            if matches!(status, 502 | 504) { saved(200, &body) } else { answer.clone() };
        self.open(visit);
        match plan.acts {
            Acts::AtOnce => {
                self.acted(number, visit, &remembered);
                self.settled(number, visit);
            }
            Acts::Never => self.settled(number, visit),
            Acts::Late(delay) => {
                if let Some(key) = &visit.forwarded {
                    self.books().done.insert(key.clone(), (visit.job.body, None));
                }
                self.later(number, visit, remembered, plan.delay + delay);
            }
        }
        sleep(plan.delay).await;
        match plan.answers {
            Answers::With(_) => Got::Answer(answer),
            Answers::TooLarge => Got::TooLarge(status),
            Answers::Never | Answers::Refused => Got::Nothing,
        }
    }

    /// Acts by itself, whatever becomes of the caller.
    fn later(self: &Arc<Self>, number: u32, visit: &Visit, answer: Saved, delay: Duration) {
        let (this, visit) = (Arc::clone(self), visit.clone());
        tokio::spawn(async move {
            sleep(delay).await;
            this.acted(number, &visit, &answer);
            this.settled(number, &visit);
        });
    }

    fn open(&self, visit: &Visit) {
        self.books().by_request.entry(self.place(visit)).or_default().open += 1;
    }

    fn acted(&self, number: u32, visit: &Visit, answer: &Saved) {
        self.log.note(What::Acted { visit: number });
        let place = self.place(visit);
        let mut books = self.books();
        if let Some(key) = &visit.forwarded {
            books.done.insert(key.clone(), (visit.job.body, Some(answer.clone())));
        }
        books.by_request.entry(place).or_default().acted = Some(answer.clone());
    }

    fn settled(&self, number: u32, visit: &Visit) {
        self.log.note(What::Settled { visit: number });
        self.books().by_request.entry(self.place(visit)).or_default().open -= 1;
    }

    fn place(&self, visit: &Visit) -> (KeyId, [u8; 32]) {
        let Job { id, key, body, .. } = visit.job;
        (id, *fingerprint_of(key, body, self.bug).digest())
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Probe for Upstream {
    async fn did_it_happen(&self, doubt: &Doubt<'_>) -> Happened {
        sleep(self.dice.throw(|dice| dice.millis(0, 50))).await;
        let Record { id, fence, .. } = *doubt.record;
        let happened = match self.truth(doubt.record) {
            Truth::Open => Happened::CannotTell,
            Truth::Nothing => Happened::No,
            Truth::Done(answer) => Happened::Yes(answer),
        };
        self.log.note(What::Probed { id, fence, happened: happened.clone() });
        happened
    }
}

/// What an answer says: whom it is for, so that nobody gets somebody else's.
pub(crate) fn body_of(job: &Job, number: u32) -> String {
    format!("key {} body {} visit {number}", job.key, job.body)
}

/// An answer with repeated header lines.
pub(crate) fn saved(status: u16, body: &str) -> Saved {
    let mut headers = Headers::new();
    for (name, value) in [("link", "</a>, </b>"), ("x-n", "1"), ("link", "</c>"), ("x-n", "1")] {
        headers.push(name.as_bytes(), value.as_bytes()).expect("plain header lines");
    }
    Saved { status, headers, body: Bytes::from(body.to_owned()) }
}

fn plan(dice: &mut Dice, options: &Options, healed: bool) -> Plan {
    let delay = dice.millis(1, 200);
    let well = Plan { acts: Acts::AtOnce, answers: Answers::With(200), delay };
    if healed {
        return well;
    }
    let lease = u64::try_from(options.lease.as_millis()).expect("leases are short");
    let faults = &options.upstream;
    let delay = if dice.chance(faults.late) { dice.millis(1, 6 * lease) } else { delay };
    let well = Plan { delay, ..well };
    // Whether it acts when it does not say so.
    let perhaps = match dice.below(3) {
        0 => Acts::Never,
        1 => Acts::AtOnce,
        _ => Acts::Late(dice.millis(1, 3 * lease)),
    };
    if dice.chance(faults.refuses) {
        Plan { answers: Answers::Refused, acts: Acts::Never, ..well }
    } else if dice.chance(faults.never) {
        Plan { answers: Answers::Never, acts: perhaps, ..well }
    } else if dice.chance(faults.declines) {
        Plan { answers: Answers::With(402), ..well }
    } else if dice.chance(faults.busy) {
        let status = dice.pick(&[429, 503, 401, 423]);
        Plan { answers: Answers::With(status), acts: Acts::Never, ..well }
    } else if dice.chance(faults.fails) {
        Plan { answers: Answers::With(500), ..well }
    } else if dice.chance(faults.gateway_timeout) {
        Plan { answers: Answers::With(dice.pick(&[502, 504])), acts: perhaps, ..well }
    } else if dice.chance(faults.oversized) {
        Plan { answers: Answers::TooLarge, ..well }
    } else {
        well
    }
}
