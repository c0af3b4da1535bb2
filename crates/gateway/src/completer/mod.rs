//! Finishes requests that nobody finishes, on routes that say `complete = true`.
//!
//! ```text
//!  a client ──► layer ──► forward ──► keeper: the request, as a record of its own ──► upstream
//!
//!  now and then:  completer ──► records whose owner is gone ──► kept request ──► layer ──► forward
//! ```
//!
//! The completer decides nothing about keys. It looks for records that a client's retry could take
//! over, and is that retry: claim, fence, derived key and what is kept of the answer are the
//! layer's and the engine's. Any number of gateways may do so on one store, and one of them wins
//! each claim.

mod due;
mod errand;
mod keeper;
mod kept;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use oncekey::core::browse::{Browse as _, Cursor, Filter, MAX_PAGE, Page, Summary};
use oncekey::core::{Fence, KeyId, StateKind, StoreError};
use oncekey::entropy::Entropy;

pub(crate) use self::keeper::Keeper;
pub(crate) use self::kept::Kept;

use self::due::{Due, Terms, due};
use self::errand::{Ended, Errand};
use crate::keeping::Keeping;
use crate::plan::Plan;
use crate::proxy::Front;
use crate::route::{Completer as Wanted, Route};
use crate::stop::Stop;

/// Sends abandoned requests again until they have an answer.
pub(crate) struct Completer {
    front: Arc<Front>,
    keeping: Keeping,
    entropy: Arc<dyn Entropy>,
    stop: Stop,
    /// Records that cannot be finished, by their newest attempt. Only another attempt changes that,
    /// or another plan. Holds nothing but what the last look has found.
    hopeless: HashMap<KeyId, Fence>,
    /// The plan under which they are hopeless.
    plan: Arc<Plan>,
}

/// A record that waits to be finished.
struct Open {
    route: Arc<Route>,
    summary: Summary,
}

/// How often it looks. A sixth of a usual lease: an owner that is gone is noticed soon after its
/// lease is over, and a look costs two questions for each such route.
const EVERY: Duration = Duration::from_secs(5);
/// How many requests are sent at the same time. An upstream that has just come back is not met by
/// everything that it missed.
const AT_ONCE: usize = 4;
/// How many are sent before it looks again: what was found gets old while an upstream lets everybody
/// wait, and others may have come.
const AT_A_LOOK: usize = 8 * AT_ONCE;
/// How many pages of a list are looked at, the newest records first. What is behind ten thousand
/// of one route is found when they are done.
const PAGES: usize = 10;

impl Completer {
    pub(crate) fn new(
        front: Arc<Front>,
        keeping: Keeping,
        entropy: Arc<dyn Entropy>,
        stop: Stop,
    ) -> Self {
        let plan = front.plan.load_full();
        Self { front, keeping, entropy, stop, hopeless: HashMap::new(), plan }
    }

    /// Runs until it is stopped. What it has begun by then is the engine's, which finishes it.
    ///
    /// # Cancellation
    /// Dropping the future at any time is harmless.
    pub(crate) async fn run(mut self) {
        let stop = self.stop.clone();
        loop {
            let pause = EVERY.mul_f64(0.9 + f64::from(self.chance()) / 1_280.0);
            tokio::select! {
                biased;
                () = stop.raised() => return,
                () = tokio::time::sleep(pause) => {}
            }
            self.run_once().await;
        }
    }

    /// Looks for abandoned requests once, sends those whose time has come, and says how each ended.
    /// What goes wrong with one does not keep the others from being sent.
    pub(crate) async fn run_once(&mut self) -> Vec<Ended> {
        let plan = self.front.plan.load_full();
        if !Arc::ptr_eq(&plan, &self.plan) {
            self.hopeless.clear();
            self.plan = Arc::clone(&plan);
        }
        let (now, waiting) = self.look(&plan).await;
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        metrics::gauge!("oncekey_completer_waiting").set(f64::from(waiting));
        let keeper = Keeper::new(self.keeping.engine.clone(), self.keeping.store.clone());
        let errands = now.into_iter().map(|Open { route, summary }| Errand {
            plan: Arc::clone(&plan),
            route,
            id: summary.id,
            fence: summary.fence,
            engine: self.keeping.engine.clone(),
            keeper: keeper.clone(),
        });
        let ended: Vec<(KeyId, Fence, Ended)> = futures_util::stream::iter(errands)
            .take_until(self.stop.raised())
            // After a reload it is looked anew, by other routes.
            .take_while(|_| std::future::ready(Arc::ptr_eq(&self.front.plan.load_full(), &plan)))
            .map(Errand::run)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let hopeless = ended.iter().filter(|(.., ended)| ended.is_hopeless());
        self.hopeless.extend(hopeless.map(|(id, fence, _)| (*id, *fence)));
        ended.into_iter().map(|(.., ended)| ended).collect()
    }

    /// The records whose time has come, the oldest first, and how many there are altogether.
    async fn look(&mut self, plan: &Plan) -> (Vec<Open>, usize) {
        let routes = plan.routes.routes().iter();
        let routes = routes.filter_map(|route| Some((route, terms(route)?)));
        let mut found = Vec::new();
        for (route, terms) in routes {
            for state in [StateKind::Running, StateKind::Unknown] {
                // A store that fails for one list is asked for the others nevertheless.
                match self.list(route, terms, state).await {
                    Ok(open) => found.extend(open),
                    Err(error) => {
                        tracing::warn!(%error, "abandoned requests could not be looked for");
                    }
                }
            }
        }
        let fences: HashMap<KeyId, Fence> =
            found.iter().map(|(_, open)| (open.summary.id, open.summary.fence)).collect();
        self.hopeless.retain(|id, fence| fences.get(id) == Some(fence));
        found.retain(|(_, open)| !self.hopeless.contains_key(&open.summary.id));
        let waiting = found.len();
        let mut now: Vec<Open> =
            found.into_iter().filter(|(due, _)| *due == Due::Now).map(|(_, open)| open).collect();
        now.sort_by_key(|open| open.summary.at);
        now.truncate(AT_A_LOOK);
        (now, waiting)
    }

    /// The open records of a route in a state. A list for each, because what other routes leave open
    /// may stay so for days, and would stand before it.
    async fn list(
        &self,
        route: &Arc<Route>,
        terms: Terms,
        state: StateKind,
    ) -> Result<Vec<(Due, Open)>, StoreError> {
        let mut found = Vec::new();
        let filter = Filter {
            state: Some(state),
            route: Some(route.name().as_bytes().into()),
            // What is younger than a lease has an owner: hardly anything that runs is looked at.
            older_than: (state == StateKind::Running).then_some(terms.lease),
            ..Filter::default()
        };
        let mut after: Option<Cursor> = None;
        for _ in 0..PAGES {
            let page = Page { after, limit: MAX_PAGE };
            let listing = self.keeping.store.list(&filter, &page).await?;
            for summary in listing.summaries {
                // A lease that is alive is nobody's business but its owner's.
                let lives = state == StateKind::Running && summary.at > listing.now;
                let due = due(&summary, listing.now, terms, self.chance());
                if !lives && due != Due::Over {
                    found.push((due, Open { route: Arc::clone(route), summary }));
                }
            }
            after = listing.next;
            if after.is_none() {
                break;
            }
        }
        Ok(found)
    }

    fn chance(&self) -> u8 {
        let mut chance = [0; 1];
        self.entropy.fill(&mut chance);
        chance[0]
    }
}

/// What a route says about its abandoned requests; `None` if it leaves them alone.
fn terms(route: &Route) -> Option<Terms> {
    let policy = &route.spec.policy;
    match route.spec.completer {
        Wanted::For(horizon) if route.rule_again.is_some() => {
            Some(Terms { lease: policy.lease, grace: policy.grace, horizon })
        }
        Wanted::For(_) | Wanted::Off => None,
    }
}
