//! True concurrency: many tasks on several threads, released at the same moment.

use std::collections::{HashMap, HashSet};

use super::rig::Rig;
use super::scene::{Bits, CROWD, GRACE, LEASE, LINGER, MOMENT, Probe, RETENTION, race};
use crate::decide::{Grant, Refusal};
use crate::key_id::KeyId;
use crate::policy::Class;
use crate::record::{Fence, Lease, State};
use crate::store::{Claim, Claimed, Completion, Renewal, Store, Write};

/// Of many concurrent claims of a fresh key exactly one wins, and all see the winner: I1.
pub async fn one_of_many_concurrent_claims_wins(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for _ in 0..8 {
        let claim = bits.claim();
        let claims = bits.rivals(&claim, CROWD);
        let lease = one_winner(&race_of_claims(&store, claims).await, Grant::Fresh);
        let record = store.record(&claim.id, "the winner is on record").await;
        assert!(record.is_held_by(&lease), "the record belongs to the winner");
    }
}

/// Many tasks that claim many keys in different orders give each key one owner: I1.
pub async fn many_tasks_on_many_keys_give_each_key_one_owner(rig: &impl Rig) {
    const KEYS: usize = 24;
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claims: Vec<Claim> = (0..KEYS).map(|_| bits.claim()).collect();
    let tasks = (0..16_usize).map(|task| {
        let mut mine: Vec<Claim> = claims.iter().map(|claim| bits.rival(claim)).collect();
        // Each begins elsewhere and every second one goes backwards: that is how batches of rows
        // deadlock in stores that lock them in the order of arrival.
        mine.rotate_left(task * KEYS / 16);
        if task % 2 == 1 {
            mine.reverse();
        }
        let store = store.clone();
        async move {
            let mut won = Vec::new();
            for claim in &mine {
                if let Claimed::Won { lease, .. } = store.claim(claim).await {
                    won.push(lease);
                }
            }
            won
        }
    });
    let won: Vec<Lease> = race(tasks.collect::<Vec<_>>()).await.into_iter().flatten().collect();
    let keys: HashSet<KeyId> = won.iter().map(|lease| lease.id).collect();
    assert_eq!(keys.len(), KEYS, "every key has an owner");
    assert_eq!(won.len(), KEYS, "no key has two owners");
}

/// Of different requests that race for one fresh key one wins, and every other request is a
/// mismatch: the fingerprint is compared inside the atomic claim: I23.
pub async fn of_two_requests_one_wins_and_the_other_is_a_mismatch(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for _ in 0..8 {
        let claim = bits.claim();
        let other = bits.fingerprint();
        let mut claims = bits.rivals(&claim, CROWD / 2);
        for rival in bits.rivals(&claim, CROWD / 2) {
            claims.push(Claim { fingerprint: other, ..rival });
        }
        let outcomes = race_of_claims(&store, claims.clone()).await;
        let winner = one_winner(&outcomes, Grant::Fresh).owner;
        let winning = claims.iter().find(|claim| claim.owner == winner).map(|won| won.fingerprint);
        for (claim, outcome) in claims.iter().zip(&outcomes) {
            if let Claimed::Lost { refusal, .. } = outcome {
                let same = Some(claim.fingerprint) == winning;
                let mismatch = *refusal == Refusal::Mismatch;
                assert_eq!(same, !mismatch, "a loser is told whether its request is the same");
            }
        }
    }
}

/// Of a stampede for a lapsed lease exactly one takes over, with a higher fence: I6.
pub async fn one_of_many_takes_over_a_lapsed_lease(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for _ in 0..8 {
        let claim = bits.claim();
        let old = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        rig.advance(LEASE + GRACE).await;
        let rivals = bits.rivals(&claim, CROWD);
        let lease = one_winner(&race_of_claims(&store, rivals).await, Grant::TakenOver);
        assert!(lease.fence > old.fence, "a takeover has a higher fence");
        let record = store.record(&claim.id, "the winner is on record").await;
        assert!(record.is_held_by(&lease), "the record belongs to the winner");
    }
}

/// An owner whose retries overlap is one owner with one fence: I5.
pub async fn an_owner_that_races_itself_gets_one_fence(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for _ in 0..8 {
        let claim = bits.claim();
        let outcomes = race_of_claims(&store, vec![claim.clone(); CROWD]).await;
        let mut fences = HashSet::new();
        let mut fresh = 0;
        for outcome in outcomes {
            let Claimed::Won { lease, grant, .. } = outcome else {
                panic!("an owner is never refused its own key: {outcome:?}")
            };
            fences.insert(lease.fence);
            fresh += usize::from(grant == Grant::Fresh);
        }
        assert_eq!(fences.len(), 1, "retries of one claim have one fence");
        assert_eq!(fresh, 1, "the key was granted once");
    }
}

/// Repeated completions of one owner that overlap all succeed and leave one answer: I5, I17.
pub async fn overlapping_completions_of_one_owner_all_succeed(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for _ in 0..8 {
        let claim = bits.claim();
        let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        let completion = bits.completion();
        let writes = race((0..CROWD / 2).map(|_| {
            let (store, completion) = (store.clone(), completion.clone());
            async move { store.complete(&lease, &completion).await }
        }));
        let all = writes.await.into_iter().all(|write| write == Write::Applied);
        assert!(all, "a repeated completion is applied");
        let replayed = store.refused(&bits.rival(&claim), Refusal::Replay, "done replays").await;
        let State::Done { answer, .. } = replayed.state else { panic!("done work is done") };
        assert_eq!(answer, completion.answer, "the answer is the one that was given");
    }
}

/// Of different answers that race for one record exactly one is recorded: I11, I17.
pub async fn of_different_answers_exactly_one_is_recorded(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for _ in 0..8 {
        let claim = bits.claim();
        let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        let completions: Vec<Completion> = (0..CROWD / 2).map(|_| bits.completion()).collect();
        let writes = race(completions.clone().into_iter().map(|completion| {
            let store = store.clone();
            async move { store.complete(&lease, &completion).await }
        }))
        .await;
        let applied: Vec<&Completion> = (completions.iter().zip(writes))
            .filter_map(|(completion, write)| (write == Write::Applied).then_some(completion))
            .collect();
        let [recorded] = applied[..] else {
            panic!("exactly one of different answers is recorded, not {}", applied.len())
        };
        let record = store.refused(&bits.rival(&claim), Refusal::Replay, "done replays").await;
        let State::Done { answer, .. } = record.state else { panic!("done work is done") };
        assert_eq!(answer, recorded.answer, "the answer that was applied is the one that stands");
    }
}

/// A late completion and a takeover cannot both win: I1, I4.
pub async fn completion_and_takeover_cannot_both_win(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for _ in 0..24 {
        let claim = bits.claim_as(Class::Retry);
        let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        rig.advance(LEASE + GRACE).await;
        let completion = bits.completion();
        let (late, rival) = (store.clone(), store.clone());
        let challenger = bits.rival(&claim);
        let finish = tokio::spawn(async move { late.complete(&lease, &completion).await });
        let takeover = tokio::spawn(async move { rival.claim(&challenger).await });
        let write = finish.await.expect("the completion does not panic");
        let claimed = takeover.await.expect("the takeover does not panic");
        let record = store.record(&claim.id, "somebody won").await;
        match (write, claimed) {
            (Write::Applied, Claimed::Lost { refusal, .. }) => {
                assert_eq!(refusal, Refusal::Replay, "work that is done replays");
                assert!(record.is_held_by(&lease), "the record is the late owner's");
            }
            (Write::Fenced, Claimed::Won { lease: newer, grant, .. }) => {
                assert_eq!(grant, Grant::TakenOver, "the lease had lapsed");
                assert!(record.is_held_by(&newer), "the record is the new owner's");
            }
            (write, claimed) => panic!("exactly one of both wins: {write:?}, {claimed:?}"),
        }
    }
}

/// A late renewal and a takeover cannot both win: I6, I10.
pub async fn renewal_and_takeover_cannot_both_win(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for _ in 0..24 {
        let claim = bits.claim();
        let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        rig.advance(LEASE + GRACE).await;
        let (late, rival) = (store.clone(), store.clone());
        let challenger = bits.rival(&claim);
        let renewal = tokio::spawn(async move { late.renew(&[lease], LEASE).await });
        let takeover = tokio::spawn(async move { rival.claim(&challenger).await });
        let renewed = renewal.await.expect("the renewal does not panic");
        let claimed = takeover.await.expect("the takeover does not panic");
        // The renewal may come just before the takeover's decision, and then the claim is
        // refused; or after it, and then the renewal is lost. Both at once would be two owners.
        match (&renewed[..], claimed) {
            ([Renewal::Until(_)], Claimed::Lost { refusal: Refusal::InProgress(_), .. })
            | ([Renewal::Lost], Claimed::Won { grant: Grant::TakenOver, .. }) => {}
            (renewed, claimed) => panic!("exactly one of both wins: {renewed:?}, {claimed:?}"),
        }
    }
}

/// Claims that race a release get one new owner at most, with a higher fence: I1, I2.
pub async fn claims_that_race_a_release_get_one_owner(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    for _ in 0..8 {
        let claim = bits.claim();
        let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        let releasing = store.clone();
        let release = tokio::spawn(async move { releasing.release(&lease).await });
        let outcomes = race_of_claims(&store, bits.rivals(&claim, CROWD / 2)).await;
        let write = release.await.expect("the release does not panic");
        assert_eq!(write, Write::Applied, "the owner gives its key back");
        let won: Vec<Lease> = outcomes.iter().filter_map(lease_of).collect();
        assert!(won.len() <= 1, "a released key has one new owner at most, not {}", won.len());
        assert!(won.iter().all(|new| new.fence > lease.fence), "the new owner's fence is higher");
    }
}

/// Purges that race claims and completions lead to fresh runs, never to an error, two owners of a
/// key, or a lost attempt: I1, I2, I29.
pub async fn purges_that_race_claims_never_give_two_owners(rig: &impl Rig) {
    const KEYS: usize = 8;
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claims: Vec<Claim> = (0..KEYS).map(|_| bits.claim()).collect();
    let mut last: HashMap<KeyId, Fence> = HashMap::new();
    for claim in &claims {
        last.insert(claim.id, store.finish(claim, &bits.completion()).await.fence);
    }
    for _ in 0..6 {
        rig.advance(RETENTION + LINGER + MOMENT).await;
        let mut entrants: Vec<BoxFuture<Vec<Claimed>>> = Vec::new();
        for _ in 0..4 {
            entrants.push(Box::pin(purge_often(store.clone())));
        }
        for claim in &claims {
            for rival in bits.rivals(claim, 4) {
                let store = store.clone();
                entrants.push(Box::pin(async move { vec![store.claim(&rival).await] }));
            }
        }
        let outcomes: Vec<Claimed> = race(entrants).await.into_iter().flatten().collect();
        let won: Vec<Lease> = outcomes.iter().filter_map(lease_of).collect();
        let keys: HashSet<KeyId> = won.iter().map(|lease| lease.id).collect();
        assert_eq!(keys.len(), KEYS, "every key whose time was over runs again");
        assert_eq!(won.len(), KEYS, "no key has two owners");
        // What was completed while a purge went on must be there, too.
        let completion = bits.completion();
        let mut entrants: Vec<BoxFuture<Write>> = Vec::new();
        for lease in won.clone() {
            let (store, completion) = (store.clone(), completion.clone());
            entrants.push(Box::pin(async move { store.complete(&lease, &completion).await }));
        }
        let purging = store.clone();
        entrants.push(Box::pin(async move {
            purge_often(purging).await;
            Write::Applied
        }));
        let all = race(entrants).await.into_iter().all(|write| write == Write::Applied);
        assert!(all, "a purge takes no attempt from its owner");
        for lease in won {
            let before = last.insert(lease.id, lease.fence);
            assert!(before < Some(lease.fence), "fences rise across a purge");
            let record = store.record(&lease.id, "a purge takes nothing that is not due").await;
            assert!(record.is_held_by(&lease), "the record belongs to the winner");
        }
    }
}

type BoxFuture<T> = std::pin::Pin<Box<dyn Future<Output = T> + Send>>;

async fn purge_often<S: Store>(store: Probe<S>) -> Vec<Claimed> {
    for _ in 0..4 {
        store.purge(5).await;
        tokio::task::yield_now().await;
    }
    Vec::new()
}

async fn race_of_claims<S: Store>(store: &Probe<S>, claims: Vec<Claim>) -> Vec<Claimed> {
    race(claims.into_iter().map(|claim| {
        let store = store.clone();
        async move { store.claim(&claim).await }
    }))
    .await
}

/// The only winner of a race, which must have won for this reason.
fn one_winner(outcomes: &[Claimed], expected: Grant) -> Lease {
    let winners: Vec<Lease> = outcomes.iter().filter_map(lease_of).collect();
    let [lease] = winners[..] else {
        panic!("exactly one of many claims wins, not {}", winners.len());
    };
    for outcome in outcomes {
        match outcome {
            Claimed::Won { grant, .. } => assert_eq!(*grant, expected, "why the winner won"),
            Claimed::Lost { record, .. } => {
                assert!(record.is_held_by(&lease), "every loser sees the winner's record");
            }
        }
    }
    lease
}

fn lease_of(claimed: &Claimed) -> Option<Lease> {
    match claimed {
        Claimed::Won { lease, .. } => Some(*lease),
        Claimed::Lost { .. } => None,
    }
}
