//! Copying a store: every record, byte for byte; stopped, resumed, under load and over damage.

#![cfg(feature = "sqlite")]

mod common;
#[path = "common/records.rs"]
mod records_of_every_kind;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncekey::core::browse::{Browse, Count, Filter};
use oncekey::core::{
    Claim, Claimed, Completion, Erase, Fence, MemoryStore, Owner, Record, Restore, Restored, State,
    Store, Write,
};
use oncekey::store::copy::{Bookmark, Copied, Copier, CopyError, Pass, Totals, Verify};
use oncekey::store::sqlite::SqliteStore;

use self::common::{LARGE, block_on, completion, file, say, win};
use self::records_of_every_kind::{assert_equal, fill, now, record, records};

/// As many as the test is named for.
const RECORDS: u64 = 10_000;

/// So many keys are claimed and ended under the copy's hands before it counts as load.
const MANY: usize = 2_000;
const AT_LEAST_MANY: Count = Count::AtLeast(MANY);

fn memory() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(Arc::new(oncekey::clock::SystemClock)))
}

fn sqlite(path: &Path) -> Arc<SqliteStore> {
    Arc::new(SqliteStore::open(path).expect("the file opens"))
}

fn quiet(copied: &Copied) -> Totals {
    assert_eq!(copied.failed, [], "nothing fails");
    copied.totals
}

#[test]
fn ten_thousand_records_in_every_state_are_copied_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["a.db", "b.db"].map(|name| folder.path().join(name));
    block_on(async {
        let (first, now) = (memory(), now());
        fill(&first, 0..RECORDS, now).await;
        let expected = records(&*first).await;
        let second = sqlite(&paths[0]);
        let began = now_micros();
        let copier = Copier::new(Arc::clone(&first), Arc::clone(&second)).verify(Verify::All);
        let copier = copier.pass(Pass::Final);
        let (mut reports, mut bookmarks) = (0, 0);
        let copied = copier
            .run(|progress| {
                reports += 1;
                bookmarks += usize::from(progress.bookmark.is_some());
                assert_eq!(progress.expected, 10_000);
            })
            .await
            .expect("a copy");
        let totals = quiet(&copied);
        assert_eq!((totals.seen, totals.written, totals.verified), (RECORDS, RECORDS, RECORDS));
        assert_eq!((reports, bookmarks, copied.target), (10_009, 9, 10_000));
        assert_equal(&expected, &records(&*second).await);
        let took = Duration::from_micros(now_micros() - began);
        say(&format!("memory → SQLite, every record verified and compared: {took:?}"));

        let third = sqlite(&paths[1]);
        let copier = || Copier::new(Arc::clone(&second), Arc::clone(&third)).pass(Pass::Final);
        let began = now_micros();
        let totals = quiet(&copier().run(|_| {}).await.expect("a copy"));
        let took = Duration::from_micros(now_micros() - began);
        say(&format!("SQLite → SQLite: {took:?}"));
        assert_eq!(totals.written, RECORDS);
        assert!((50..400).contains(&totals.verified), "a sample: {totals:?}");
        assert_equal(&expected, &records(&*third).await);
        let totals = quiet(&copier().run(|_| {}).await.expect("a copy again"));
        assert_eq!((totals.written, totals.kept), (0, RECORDS), "nothing has changed");
    });
    for path in &paths {
        file::check(path);
    }
}

fn now_micros() -> u64 {
    now().micros().unsigned_abs()
}

#[test]
fn a_newer_record_in_the_target_stays() {
    block_on(async {
        let (from, to, now) = (memory(), memory(), now());
        fill(&from, 0..12, now).await;
        let mut newer = Vec::new();
        for number in 0..12 {
            let old = record(number, now);
            let fence = Fence::next(Some(old.fence), old.created);
            let state = State::Unknown { since: now };
            newer.push(Record { fence, state, ..old });
        }
        for record in &newer {
            assert_eq!(to.restore(record).await.unwrap(), Restored::Written);
        }
        let copier = Copier::new(from, Arc::clone(&to)).verify(Verify::All).pass(Pass::Final);
        let totals = quiet(&copier.run(|_| {}).await.expect("a copy"));
        assert_eq!((totals.written, totals.kept, totals.verified), (0, 12, 12));
        for record in newer {
            assert!(to.get(&record.id).await.unwrap() == Some(record));
        }
    });
}

/// Stopped at every page, and resumed from what the last bookmark said.
#[test]
fn a_copy_that_was_stopped_goes_on_where_it_was() {
    block_on(async {
        let (from, to, now) = (memory(), memory(), now());
        fill(&from, 0..3_500, now).await;
        let mut place = Bookmark::default();
        let mut runs = 0;
        loop {
            runs += 1;
            let mut reached = None;
            let copier = Copier::new(Arc::clone(&from), Arc::clone(&to)).pass(Pass::Final);
            let copier = copier.resume(place.clone());
            let (stop, stopped) = tokio::sync::oneshot::channel();
            let mut stop = Some(stop);
            let ended = tokio::select! {
                biased;
                _ = stopped => None,
                ended = copier.run(|progress| if let Some(bookmark) = progress.bookmark {
                    reached.get_or_insert_with(|| bookmark.clone());
                    if let Some(stop) = stop.take() { let _ = stop.send(()); }
                }) => Some(ended.expect("a copy")),
            };
            match (ended, reached) {
                (Some(copied), _) => {
                    assert_eq!(quiet(&copied).seen, 3_500, "every record counts once");
                    break;
                }
                (None, Some(bookmark)) => {
                    let text = bookmark.to_json("a", "b");
                    place =
                        Bookmark::from_json(&text, "a", "b", Pass::Final).expect("its own text");
                }
                (None, None) => panic!("it was stopped by a bookmark"),
            }
        }
        assert_eq!(runs, 4, "three pages, and the rest");
        assert_equal(&records(&*from).await, &records(&*to).await);
    });
}

/// A final pass that was stopped, and then somebody used the store in the part that was copied
/// already: the place is worth nothing any more.
#[test]
fn a_final_copy_begins_anew_if_the_source_was_used_meanwhile() {
    block_on(async {
        for change in 0..3 {
            let (from, to, now) = (memory(), memory(), now());
            fill(&from, 0..2_500, now).await;
            let last = || Copier::new(Arc::clone(&from), Arc::clone(&to)).pass(Pass::Final);
            let mut places = Vec::new();
            last().run(|progress| places.extend(progress.bookmark.cloned())).await.unwrap();
            let [.., place] = &places[..] else { panic!("there are two pages before the last") };
            assert_eq!(last().resume(place.clone()).run(|_| {}).await.unwrap().totals.seen, 2_500);
            let lost = record(3, now).lease();
            match change {
                0 => assert_eq!(from.unknown(&lost).await.unwrap(), Write::Applied),
                1 => {
                    let late = completion(common::answer(3, 10));
                    assert_eq!(from.complete(&lost, &late).await.unwrap(), Write::Applied);
                }
                _ => assert_eq!(from.restore(&record(9_999, now)).await.unwrap(), WRITTEN),
            }
            let copied = last().resume(place.clone()).run(|_| {}).await.unwrap();
            assert_eq!(quiet(&copied).written, 1, "change {change} is carried over");
            assert_equal(&records(&*from).await, &records(&*to).await);
        }
    });
}

const WRITTEN: Restored = Restored::Written;

/// What changed between two passes is carried over: a send mark, a doubt, an end, an erasure, a new
/// key. What was given back meanwhile is named: the target cannot know it.
#[test]
fn a_second_pass_carries_over_what_has_changed() {
    block_on(async {
        let (from, to) = (memory(), memory());
        let copier = || Copier::new(Arc::clone(&from), Arc::clone(&to)).verify(Verify::All);
        let brief = |key| Claim { lease: Duration::ZERO, ..common::claim(key, key) };
        let mut leases = Vec::new();
        for key in 0..5 {
            leases.push(win(&*from, &brief(key)).await.0);
        }
        let answered = completion(common::answer(3, 100));
        assert_eq!(from.complete(&leases[3], &answered).await.unwrap(), Write::Applied);
        let live = copier().run(|_| {}).await.unwrap();
        assert_eq!((quiet(&live).written, live.left), (1, 4), "what has not ended is left");
        let copied = copier().pass(Pass::Final).run(|_| {}).await.unwrap();
        assert_eq!((quiet(&copied).written, copied.lapsed, copied.left), (4, 4, 0));
        assert_eq!(from.send(&leases[0]).await.unwrap(), Write::Applied);
        assert_eq!(from.unknown(&leases[1]).await.unwrap(), Write::Applied);
        let answered = completion(common::answer(2, 100));
        assert_eq!(from.complete(&leases[2], &answered).await.unwrap(), Write::Applied);
        let _ = from.erase(&leases[3].id).await.unwrap();
        win(&*from, &brief(9)).await;
        let copied = copier().pass(Pass::Final).run(|_| {}).await.unwrap();
        let totals = quiet(&copied);
        assert_eq!((totals.written, totals.kept, totals.verified), (4, 2, 6));
        assert_equal(&records(&*from).await, &records(&*to).await);
        assert_eq!(copied.strangers, 0);
        assert_eq!(from.release(&leases[4]).await.unwrap(), Write::Applied);
        let copied = copier().pass(Pass::Final).run(|_| {}).await.unwrap();
        assert_eq!(copied.strangers, 1, "it was given back where it came from");
    });
}

/// The procedure of the how-to: copy under load, stop, copy again. Nothing that was acknowledged is
/// lost, and nobody runs twice at the new store.
#[test]
fn a_copy_under_load_and_a_final_one_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let (from, to) = (sqlite(&folder.path().join("a.db")), sqlite(&folder.path().join("b.db")));
        let is_over = Arc::new(AtomicBool::new(false));
        let mut workers = tokio::task::JoinSet::new();
        for worker in 0..8_u64 {
            let (from, is_over) = (Arc::clone(&from), Arc::clone(&is_over));
            workers.spawn(async move { work(&from, worker, &is_over).await });
        }
        let mut passes = 0;
        while passes < 4 || from.count(&Filter::default(), MANY).await.unwrap() != AT_LEAST_MANY {
            let copier = Copier::new(Arc::clone(&from), Arc::clone(&to)).verify(Verify::All);
            quiet(&copier.run(|_| {}).await.expect("a copy under load"));
            passes += 1;
        }
        let last = || Copier::new(Arc::clone(&from), Arc::clone(&to)).pass(Pass::Final);
        let refused = last().run(|_| {}).await.expect_err("the store is in use");
        assert!(matches!(refused, CopyError::InUse { .. } | CopyError::Changed), "{refused}");
        is_over.store(true, Ordering::SeqCst);
        let acknowledged: Vec<(Claim, Option<Completion>)> =
            workers.join_all().await.into_iter().flatten().collect();
        let copied = last().verify(Verify::All).run(|_| {}).await.expect("the store is at rest");
        let totals = quiet(&copied);
        assert_eq!(totals.verified, totals.seen - totals.gone);
        say(&format!("{passes} passes under load, {} keys, then {totals:?}", acknowledged.len()));
        assert_equal(&records(&*from).await, &records(&*to).await);
        for (claim, answered) in acknowledged {
            let again = Claim { owner: Owner::from_bytes([7; 16]), ..claim };
            match (to.claim(&again).await.unwrap(), answered) {
                (Claimed::Lost { record, .. }, Some(completion)) => {
                    let State::Done { answer, .. } = record.state else { panic!("it was done") };
                    assert_eq!(answer, completion.answer, "the answer that was given");
                }
                // Released: free at the new store, too.
                (Claimed::Won { .. }, None) => {}
                (other, _) => panic!("{other:?}"),
            }
        }
    });
}

/// Claims and ends keys until it is over. Every key that was claimed is ended, in one way or another.
async fn work(
    store: &SqliteStore,
    worker: u64,
    is_over: &AtomicBool,
) -> Vec<(Claim, Option<Completion>)> {
    let mut ended = Vec::new();
    for number in 0.. {
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        let key = worker * 1_000_000 + number;
        let claim = common::claim(key, key);
        let (lease, _) = win(store, &claim).await;
        assert_eq!(store.send(&lease).await.expect("a send mark"), Write::Applied);
        if key.is_multiple_of(10) {
            assert_eq!(store.release(&lease).await.expect("a release"), Write::Applied);
            ended.push((claim, None));
        } else {
            let size = if key.is_multiple_of(97) { LARGE } else { 200 };
            let answered = completion(common::answer(key, size));
            let write = store.complete(&lease, &answered).await.expect("a completion");
            assert_eq!(write, Write::Applied);
            ended.push((claim, Some(answered)));
        }
    }
    ended
}

/// F55: one damaged record is named, and all others are copied.
#[test]
fn a_damaged_record_is_named_and_does_not_stop_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    block_on(async {
        let from = sqlite(&path);
        fill(&from, 0..48, now()).await;
    });
    let damaged = file::open(&path);
    let sql = "UPDATE oncekey_records SET route = x'00' WHERE id IN (3, 30)";
    assert_eq!(damaged.execute(sql, []).unwrap(), 2);
    drop(damaged);
    block_on(async {
        let to = memory();
        let copier =
            Copier::new(sqlite(&path), Arc::clone(&to)).verify(Verify::All).pass(Pass::Final);
        let copied = copier.run(|_| {}).await.expect("the rest is copied");
        assert_eq!((copied.totals.written, copied.totals.failed), (46, 2));
        assert_eq!(copied.failed.len(), 2);
        for failed in &copied.failed {
            assert!(failed.why.contains("damaged"), "{failed:?}");
            assert_eq!(to.get(&failed.id).await.unwrap(), None);
        }
    });
}

/// Nobody is asked in vain for long, and what was copied before stays.
#[test]
fn a_final_copy_refuses_while_somebody_holds_a_lease_and_names_lost_owners() {
    block_on(async {
        let (from, to, now) = (memory(), memory(), now());
        let last = || Copier::new(Arc::clone(&from), Arc::clone(&to)).pass(Pass::Final);
        let copied = last().run(|_| {}).await.expect("an empty store is at rest");
        assert_eq!(copied, Copied::default());
        // Number 3 was running, and its lease has lapsed.
        from.restore(&record(3, now)).await.unwrap();
        from.restore(&record(9, now)).await.unwrap();
        let copied = last().run(|_| {}).await.expect("nobody holds a lease");
        assert_eq!((copied.totals.written, copied.lapsed, copied.target), (2, 1, 2));
        let lease = win(&*from, &common::claim(1, 1)).await.0;
        let error = last().run(|_| {}).await.expect_err("somebody is at it");
        assert!(matches!(error, CopyError::InUse { live: 1 }), "{error}");
        assert_eq!(to.get(&lease.id).await.unwrap(), None, "nothing was begun");
    });
}
