//! Looking at many records at once.

use std::collections::HashSet;
use std::time::Duration;

use super::rig::Rig;
use super::scene::{Bits, LEASE, LINGER, MOMENT, Probe, RETENTION, race};
use crate::browse::{Browse, Count, Filter, Listing, MAX_PAGE, Page, Summary};
use crate::decide::Grant;
use crate::key_id::KeyId;
use crate::record::{Lease, StateKind, Text};
use crate::store::{Claim, Write};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A summary says what the record says, in every state.
pub async fn summaries_say_what_the_records_say(rig: &impl Rig<Store: Browse>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let expected = one_of_each(&store, rig, &mut bits).await;
    let mut shown = all(&store, &Filter::default(), 100).await;
    assert_eq!(shown.len(), expected.len(), "every record is shown");
    shown.sort_by_key(|summary| *summary.id.as_bytes());
    for summary in shown {
        let record = store.record(&summary.id, "a record that is shown can be read").await;
        assert_eq!(summary, Summary::from(&record), "a summary says what the record says");
    }
}

/// A filter selects what it says, alone and together with others, in lists and in counts.
pub async fn filters_select_what_they_say(rig: &impl Rig<Store: Browse>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let expected = one_of_each(&store, rig, &mut bits).await;
    let states = [None, Some(StateKind::Running), Some(StateKind::Done), Some(StateKind::Unknown)];
    let texts = [None, Some(Text::from("a")), Some(Text::from("A")), Some(Text::from("b"))];
    let ages = [None, Some(Duration::ZERO), Some(DAY), Some(DAY * 400)];
    for state in states {
        for route in &texts {
            for scope in &texts {
                for older_than in ages {
                    let (route, scope) = (route.clone(), scope.clone());
                    let filter = Filter { state, route, scope, older_than };
                    let wanted: HashSet<KeyId> =
                        expected.iter().filter(|it| it.is_meant(&filter)).map(|it| it.id).collect();
                    let shown = all(&store, &filter, 100).await;
                    let ids: HashSet<KeyId> = shown.iter().map(|summary| summary.id).collect();
                    assert_eq!(ids, wanted, "a list shows what the filter says: {filter:?}");
                    let count = count(&store, &filter, 1_000).await;
                    assert_eq!(count, Count::Exactly(wanted.len()), "and a count too: {filter:?}");
                }
            }
        }
    }
    let parked = Filter { state: Some(StateKind::Parked), ..Filter::default() };
    assert_eq!(count(&store, &parked, 10).await, Count::Exactly(0), "nothing is parked");
}

/// Paging visits every record exactly once, whatever the size of a page.
pub async fn paging_visits_every_record_once(rig: &impl Rig<Store: Browse>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let mut expected = HashSet::new();
    for number in 0..23_u32 {
        // Some at the same moment and some not, so that ties are broken by more than the time.
        if number.is_multiple_of(5) {
            rig.advance(MOMENT).await;
        }
        let claim = bits.claim();
        store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        expected.insert(claim.id);
    }
    for size in [1, 2, 7, 22, 23, 24] {
        let shown = all(&store, &Filter::default(), size).await;
        assert_eq!(shown.len(), expected.len(), "pages of {size} show every record once");
        let ids: HashSet<KeyId> = shown.iter().map(|summary| summary.id).collect();
        assert_eq!(ids, expected, "pages of {size} show every record");
    }
}

/// Paging visits what is there throughout exactly once, however much else comes and goes.
pub async fn paging_is_not_disturbed_by_others(rig: &impl Rig<Store: Browse>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let mut lasting = HashSet::new();
    let mut passing = Vec::new();
    for _ in 0..12 {
        let claim = bits.claim();
        store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        lasting.insert(claim.id);
        passing.push(store.win(&bits.claim(), Grant::Fresh, "a fresh key is granted").await);
    }
    let mut visits: Vec<KeyId> = Vec::new();
    let mut page = Page { after: None, limit: 3 };
    for _ in 0..200 {
        let listing = list(&store, &Filter::default(), &page).await;
        assert!(listing.summaries.len() <= 3, "a page holds no more than was asked for");
        visits.extend(listing.summaries.iter().map(|summary| summary.id));
        if let Some(gone) = passing.pop() {
            assert_eq!(store.release(&gone).await, Write::Applied, "one goes");
            rig.advance(Duration::from_secs(1)).await;
            store.win(&bits.claim(), Grant::Fresh, "and one comes").await;
        }
        page.after = listing.next;
        if page.after.is_none() {
            break;
        }
    }
    assert!(page.after.is_none(), "paging comes to an end");
    visits.retain(|id| lasting.contains(id));
    assert_eq!(visits.len(), lasting.len(), "what stays is visited once");
    assert_eq!(visits.into_iter().collect::<HashSet<_>>(), lasting, "all that stays is visited");
}

/// However many are asked for, a page is bounded, and the next one goes on from there: I43.
pub async fn pages_are_bounded(rig: &impl Rig<Store: Browse>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claims: Vec<Claim> = (0..=MAX_PAGE).map(|_| bits.claim()).collect();
    race(claims.chunks(64).map(|chunk| {
        let (store, chunk) = (store.clone(), chunk.to_vec());
        async move {
            for claim in &chunk {
                store.win(claim, Grant::Fresh, "a fresh key is granted").await;
            }
        }
    }))
    .await;
    let everything = Page { after: None, limit: usize::MAX };
    let first = list(&store, &Filter::default(), &everything).await;
    assert_eq!(first.summaries.len(), MAX_PAGE, "a page is bounded");
    assert!(first.next.is_some(), "a page that is full says where to go on");
    let rest = Page { after: first.next, limit: usize::MAX };
    let second = list(&store, &Filter::default(), &rest).await;
    assert_eq!(second.summaries.len(), 1, "the next page goes on from there");
    assert_eq!(second.next, None, "and it is the last");
}

/// Counting stops at its cap and says so: I43.
pub async fn counting_stops_at_its_cap(rig: &impl Rig<Store: Browse>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    assert_eq!(count(&store, &Filter::default(), 5).await, Count::Exactly(0), "nothing yet");
    for _ in 0..5 {
        store.win(&bits.claim(), Grant::Fresh, "a fresh key is granted").await;
    }
    let counts = [
        (0, Count::AtLeast(0)),
        (4, Count::AtLeast(4)),
        (5, Count::Exactly(5)),
        (6, Count::Exactly(5)),
        (usize::MAX, Count::Exactly(5)),
    ];
    for (cap, expected) in counts {
        assert_eq!(count(&store, &Filter::default(), cap).await, expected, "cap {cap}");
    }
}

/// A key is found in every scope, byte for byte, and no more records than asked for: I26.
pub async fn a_key_is_found_in_every_scope(rig: &impl Rig<Store: Browse>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let mut wanted = HashSet::new();
    for scope in ["tenant-1", "tenant-2", ""] {
        let mut claim = bits.claim();
        claim.origin.key = "order-17".into();
        claim.origin.scope = scope.into();
        store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        wanted.insert(claim.id);
    }
    for similar in ["order-1", "order-177", "ORDER-17", "order-17 ", "", "order%", "order_17"] {
        let mut claim = bits.claim();
        claim.origin.key = similar.into();
        store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    }
    let found = find(&store, "order-17", 100).await;
    let ids: HashSet<KeyId> = found.iter().map(|summary| summary.id).collect();
    assert_eq!(ids, wanted, "a key is found in every scope, and nothing else is");
    assert_eq!(found.len(), wanted.len(), "each record is found once");
    assert_eq!(find(&store, "order-17", 2).await.len(), 2, "no more than was asked for");
    assert_eq!(find(&store, "order-18", 100).await, [], "what is not there is not found");
    assert_eq!(find(&store, "order%", 100).await.len(), 1, "a key is not a pattern");
}

/// A forgotten record is shown nowhere, even if it was not removed yet: I27.
pub async fn forgotten_records_are_not_shown(rig: &impl Rig<Store: Browse>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let mut claim = bits.claim();
    claim.origin.key = "a-key".into();
    store.finish(&claim, &bits.completion()).await;
    rig.advance(RETENTION + MOMENT).await;
    assert_eq!(all(&store, &Filter::default(), 10).await.len(), 1, "a lingering record is shown");
    assert_eq!(find(&store, "a-key", 10).await.len(), 1, "a lingering record is found");
    rig.advance(LINGER).await;
    assert_eq!(all(&store, &Filter::default(), 10).await, [], "a forgotten record is not listed");
    let counted = count(&store, &Filter::default(), 10).await;
    assert_eq!(counted, Count::Exactly(0), "a forgotten record is not counted");
    assert_eq!(find(&store, "a-key", 10).await, [], "a forgotten record is not found");
}

/// Every page tells the store's clock, by which a sweeper judges leases: I6, L1.
pub async fn a_page_tells_the_stores_clock(rig: &impl Rig<Store: Browse>) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
    let left = async |promise: &str| {
        let Listing { summaries, now, .. } =
            list(&store, &Filter::default(), &Page::default()).await;
        if let Some(clock) = rig.clock() {
            assert_eq!(now, clock.now(), "{promise}: a page tells the store's clock");
        }
        let [Summary { at, .. }] = summaries[..] else { panic!("{promise}: one record") };
        (at.since(now), now.since(at))
    };
    let (ahead, _) = left("a fresh lease").await;
    assert!(ahead.abs_diff(LEASE) < MOMENT, "a fresh lease lasts for as long as it was asked for");
    rig.advance(LEASE / 2).await;
    let (ahead, _) = left("half a lease").await;
    assert!(ahead.abs_diff(LEASE / 2) < MOMENT, "half of the lease is left");
    rig.advance(LEASE).await;
    let (_, lapsed) = left("a lapsed lease").await;
    assert!(lapsed.abs_diff(LEASE / 2) < MOMENT, "the lease lapsed half a lease ago");
    let nothing = Filter { state: Some(StateKind::Parked), ..Filter::default() };
    let empty = list(&store, &nothing, &Page::default()).await;
    let lost = store.lose(&bits.impostor(&claim), "the key is in use").await;
    assert!(lost.now.since(empty.now) < MOMENT, "an empty page tells the clock, too");
    assert!(empty.now.since(lost.now) < MOMENT, "an empty page tells the clock, too");
}

/// What a record was made from, to tell by ourselves whether a filter means it.
struct Made {
    id: KeyId,
    state: StateKind,
    route: Text,
    scope: Text,
    age: Duration,
}

impl Made {
    fn is_meant(&self, filter: &Filter) -> bool {
        filter.state.is_none_or(|state| state == self.state)
            && filter.route.as_ref().is_none_or(|route| *route == self.route)
            && filter.scope.as_ref().is_none_or(|scope| *scope == self.scope)
            && filter.older_than.is_none_or(|age| age <= self.age)
    }
}

/// One record for each state, two routes, two scopes and two ages.
async fn one_of_each<S: Browse>(
    store: &Probe<S>,
    rig: &impl Rig<Store = S>,
    bits: &mut Bits,
) -> Vec<Made> {
    let mut made = Vec::new();
    for age in [DAY + MOMENT, Duration::ZERO] {
        for (route, scope) in [("a", "a"), ("a", "b"), ("b", "a")] {
            for state in [StateKind::Running, StateKind::Done, StateKind::Unknown] {
                let mut claim = bits.claim();
                claim.origin.route = route.into();
                claim.origin.scope = scope.into();
                let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
                end(store, &lease, state, bits).await;
                let (route, scope) = (claim.origin.route, claim.origin.scope);
                made.push(Made { id: claim.id, state, route, scope, age });
            }
        }
        // The old ones have expired meanwhile, but they linger and are still shown.
        rig.advance(age).await;
    }
    made
}

async fn end<S: Browse>(store: &Probe<S>, lease: &Lease, state: StateKind, bits: &mut Bits) {
    let write = match state {
        StateKind::Running | StateKind::Parked => Write::Applied,
        StateKind::Done => store.complete(lease, &bits.completion()).await,
        StateKind::Unknown => store.unknown(lease).await,
    };
    assert_eq!(write, Write::Applied, "the owner ends its attempt");
}

/// Everything that the filter means, page by page.
async fn all<S: Browse>(store: &Probe<S>, filter: &Filter, size: usize) -> Vec<Summary> {
    let mut shown = Vec::new();
    let mut page = Page { after: None, limit: size };
    for _ in 0..1_000 {
        let listing = list(store, filter, &page).await;
        assert!(listing.summaries.len() <= size, "a page holds no more than was asked for");
        shown.extend(listing.summaries);
        if listing.next.is_none() {
            return shown;
        }
        page.after = listing.next;
    }
    panic!("paging comes to an end");
}

async fn list<S: Browse>(store: &Probe<S>, filter: &Filter, page: &Page) -> Listing {
    store.store().list(filter, page).await.expect("records can be listed")
}

async fn count<S: Browse>(store: &Probe<S>, filter: &Filter, cap: usize) -> Count {
    store.store().count(filter, cap).await.expect("records can be counted")
}

async fn find<S: Browse>(store: &Probe<S>, key: &str, limit: usize) -> Vec<Summary> {
    store.store().find(&key.into(), limit).await.expect("records can be found")
}
