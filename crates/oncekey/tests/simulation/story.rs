//! A log that a person can read: one short line for each event, and only what has to do with a key.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use oncekey::core::{Claimed, KeyId, Record, State, Timestamp};

use crate::checker::Violation;
use crate::log::{Ask, Event, Job, Told, What, Who};
use crate::run::History;
use crate::time::BASE;

/// Events that are shown before the one at which a rule was broken.
const TAIL: usize = 120;

/// Who and what the numbers in a log stand for.
#[derive(Default)]
struct Names {
    calls: BTreeMap<u32, (Who, Arc<Ask>)>,
    requests: BTreeMap<u32, KeyId>,
    visits: BTreeMap<u32, u32>,
}

/// The seed, its options, what is wrong, and the events of the same key that led to it.
pub(crate) fn tell(history: &History, violations: &[Violation]) -> String {
    let mut story = String::new();
    let seed = history.options.seed;
    let bug = history.bug;
    let _ = writeln!(story, "seed {seed}, planted {bug:?}, breaks a promise");
    let _ = writeln!(story, "run it again with ONCEKEY_SIM_SEED={seed}\n{:?}", history.options);
    if let Some(first) = violations.first() {
        let lines = lines(&history.events, first.event);
        for line in &lines[lines.len().saturating_sub(TAIL)..] {
            let _ = writeln!(story, "{line}");
        }
    }
    for violation in violations.iter().take(9) {
        let Violation { rule, event, text } = violation;
        let _ = writeln!(story, "{rule} at event {event}: {text}");
    }
    story
}

/// What happened to the key of the event `last`, and to everybody, until then.
fn lines(events: &[Event], last: usize) -> Vec<String> {
    let mut names = Names::default();
    let keyed: Vec<_> =
        events.iter().take(last + 1).map(|event| (event, names.ids(&event.what))).collect();
    let wanted = keyed.last().map(|(_, ids)| ids.clone()).unwrap_or_default();
    let all = wanted.is_empty();
    let matters =
        |ids: &Vec<KeyId>| all || ids.is_empty() || ids.iter().any(|id| wanted.contains(id));
    keyed
        .iter()
        .enumerate()
        .filter(|(_, (_, ids))| matters(ids))
        .map(|(number, (event, _))| {
            format!("{number:>6} {:>11.3}s {}", event.at.as_secs_f64(), names.line(&event.what))
        })
        .collect()
}

impl Names {
    /// The keys that an event is about; none if it is about everybody.
    fn ids(&mut self, what: &What) -> Vec<KeyId> {
        match what {
            What::Asked { call, by, ask } => {
                self.calls.insert(*call, (*by, Arc::clone(ask)));
                self.ids_of(*call)
            }
            What::Committed { call, .. } | What::Heard { call, .. } => self.ids_of(*call),
            What::Called { job, .. } => {
                self.requests.insert(job.request, job.id);
                vec![job.id]
            }
            What::Arrived { visit, request, .. } => {
                self.visits.insert(*visit, *request);
                self.requests.get(request).copied().into_iter().collect()
            }
            What::Replied { request, .. }
            | What::WentAway { request, .. }
            | What::Began { request, .. }
            | What::Denied { request, .. }
            | What::Ended { request, .. } => {
                self.requests.get(request).copied().into_iter().collect()
            }
            What::Acted { visit } | What::Settled { visit } | What::Answered { visit, .. } => {
                let request = self.visits.get(visit);
                request
                    .and_then(|request| self.requests.get(request))
                    .copied()
                    .into_iter()
                    .collect()
            }
            What::Probed { id, .. } => vec![*id],
            What::Node(..)
            | What::Stepped(_)
            | What::Outage(_)
            | What::Healed
            | What::Escaped(_)
            | What::Stuck(_) => Vec::new(),
        }
    }

    fn ids_of(&self, call: u32) -> Vec<KeyId> {
        match self.calls.get(&call).map(|(_, ask)| &**ask) {
            Some(Ask::Renew(leases, _)) => leases.iter().map(|lease| lease.id).collect(),
            Some(ask) => ask.id().into_iter().collect(),
            None => Vec::new(),
        }
    }

    fn line(&self, what: &What) -> String {
        if let What::Asked { call, by, ask } = what {
            return format!("#{call} {by:?} asks {}", asked(ask));
        }
        if let What::Committed { call, told, now, after } = what {
            let after = after.iter().map(|(_, record)| stands(record.as_ref()));
            let after = after.collect::<Vec<_>>().join(", ");
            let asked = self.calls.get(call).map(|(by, ask)| format!("{by:?} {}", asked(ask)));
            let asked = asked.unwrap_or_default();
            return format!("#{call} DONE at {}: {asked} -> {} | {after}", time(*now), heard(told));
        }
        if let What::Heard { call, told } = what {
            let told = told.as_ref().map_or_else(|kind| kind.label().to_owned(), |it| heard(it));
            return format!("#{call} hears {told}");
        }
        if let What::Called { job, by } = what {
            let Job { request, key, body, class, wait, .. } = job;
            return format!(
                "r{request} calls {by:?}: key {key} body {body} {class:?} waits {wait:?}"
            );
        }
        format!("{what:?}")
    }
}

fn asked(ask: &Ask) -> String {
    match ask {
        Ask::Claim(claim) => {
            let request = String::from_utf8_lossy(claim.origin.request.as_bytes()).into_owned();
            let (owner, class, sent) = (&claim.owner, claim.class, claim.sent);
            format!("claim for {request} {owner:?} {class:?} sent {sent:?}")
        }
        Ask::Renew(leases, span) => {
            let fences: Vec<_> = leases.iter().map(|lease| short(lease.fence.number())).collect();
            format!("renew {} for {span:?}", fences.join(" "))
        }
        Ask::Send(lease) => format!("send {}", short(lease.fence.number())),
        Ask::Complete(lease, completion) => {
            format!("complete {} {:?}", short(lease.fence.number()), completion.answer.outcome())
        }
        Ask::Release(lease) => format!("release {}", short(lease.fence.number())),
        Ask::Unknown(lease) => format!("unknown {}", short(lease.fence.number())),
        Ask::Get(_) => "get".to_owned(),
        Ask::Purge(limit) => format!("purge {limit}"),
    }
}

fn heard(told: &Told) -> String {
    match told {
        Told::Claimed(Claimed::Won { lease, grant, earlier }) => {
            let (fence, until) = (short(lease.fence.number()), time(lease.until));
            format!("WON {fence} until {until} {grant:?} earlier {earlier:?}")
        }
        Told::Claimed(Claimed::Lost { refusal, record, .. }) => {
            format!("LOST {refusal:?} to {}", stands(Some(record)))
        }
        Told::Found(record) => format!("found {}", stands(record.as_deref())),
        Told::Renewed(_) | Told::Wrote(_) | Told::Purged(_) | Told::Failed(_) => {
            format!("{told:?}")
        }
    }
}

fn stands(record: Option<&Record>) -> String {
    let Some(record) = record else { return "nothing".to_owned() };
    let fence = short(record.fence.number());
    match &record.state {
        State::Running { until, sent } => {
            format!("{fence} running until {} sent {sent:?}", time(*until))
        }
        State::Done { expires, forget, outcome, .. } => {
            format!("{fence} done {outcome:?} expires {} forget {}", time(*expires), time(*forget))
        }
        State::Unknown { since } => format!("{fence} unknown since {}", time(*since)),
        State::Parked { since } => format!("{fence} parked since {}", time(*since)),
    }
}

/// Fences and times as seconds since the beginning.
fn short(micros: i64) -> String {
    let since = micros - BASE.micros();
    format!("f{}.{:06}", since.div_euclid(1_000_000), since.rem_euclid(1_000_000))
}

fn time(time: Timestamp) -> String {
    short(time.micros()).replacen('f', "", 1)
}
