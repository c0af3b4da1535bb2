//! A store travels through every server and comes back to the byte.

#![cfg(all(
    feature = "dynamodb",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]

mod common;
#[path = "common/dynamodb.rs"]
mod dynamodb;
#[path = "common/servers.rs"]
mod places;
#[path = "common/records.rs"]
mod records_of_every_kind;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncekey::core::saved::{Headers, Saved};
use oncekey::core::{Answer, Claim, Claimed, Owner, Record, Refusal, Restore, State, Store, Write};
use oncekey::store::copy::{Copied, Copier, CopyError, Pass, Verify};
use oncekey::store::{Opened, open, open_existing};

use self::common::{Bits, LONG, claim, completion, say, win};
use self::places::Place;
use self::records_of_every_kind::{assert_equal, fill, now, record, records};

/// Every state some twenty times, on each server: enough for pages and groups.
const RECORDS: u64 = 240;

/// More than any store keeps in one row, item or piece.
const HUGE: usize = 5 * 1024 * 1024 + 17;

fn huge(bytes: usize) -> Record {
    large(1_000_000, bytes)
}

fn large(number: u64, bytes: usize) -> Record {
    let mut body = vec![0; bytes];
    Bits::seeded(number).fill(&mut body);
    let saved = Saved { status: 200, headers: Headers::new(), body: Bytes::from(body) };
    let (answer, now) = (Answer::Kept(saved), now());
    let (expires, forget) = (now.after(LONG), now.after(LONG * 2));
    let outcome = answer.outcome();
    Record {
        state: State::Done { at: now.before(LONG), expires, forget, outcome, answer },
        ..record(number, now)
    }
}

async fn copy(from: &Arc<Opened>, to: &Arc<Opened>) -> Copied {
    let copier = Copier::new(Arc::clone(from), Arc::clone(to));
    let copied = copier.verify(Verify::All).pass(Pass::Final).at_once(16).run(|_| {}).await;
    let copied = copied.expect("the store is at rest");
    assert_eq!(copied.failed, [], "nothing fails");
    copied
}

/// Behind pgbouncer nothing of one caller's statement ends up in another's. A pooler that is sent a
/// statement ahead of an answer mixes them up rarely, on a busy machine: that none is sent is shown in
/// `store_faults`, this shows what it is for.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs all servers: run cargo xtask test"]
async fn what_many_restore_through_a_pooler_is_there_to_the_byte() {
    /// Several packets each, so that an answer can come in the middle of one.
    const BYTES: usize = 40_000;
    let place = Place::pgbouncer();
    let store = Arc::new(open(&place.url).await.unwrap());
    let records: Vec<Record> = (0..300).map(|number| large(number, BYTES)).collect();
    let tasks = records.iter().cloned().map(|record| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            store.restore(&record).await.expect("a restoration is written");
            store.get(&record.id).await.expect("it can be read")
        })
    });
    for (task, record) in tasks.collect::<Vec<_>>().into_iter().zip(&records) {
        assert!(task.await.unwrap().as_ref() == Some(record), "it is there to the byte");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs all servers: run cargo xtask test"]
async fn a_store_travels_through_every_server_and_comes_back_to_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| format!("sqlite://{}", folder.path().join(name).display());
    let first = Arc::new(open(&file("first.db")).await.unwrap());
    fill(&first, 0..RECORDS, now()).await;
    first.restore(&huge(HUGE)).await.unwrap();
    let expected = records(&*first).await;
    let count = RECORDS + 1;
    assert_eq!(expected.len(), usize::try_from(count).unwrap());
    let places = [
        Place::postgres(),
        Place::mariadb(),
        Place::redis(),
        Place::dynamodb().await,
        Place::pgbouncer(),
        Place::cluster(),
    ];
    let last = file("last.db");
    let stations = places.iter().map(|place| place.url.as_str()).chain([last.as_str()]);
    let mut from = first;
    for url in stations {
        let to = Arc::new(open(url).await.expect("the next store opens"));
        let began = now();
        let copied = copy(&from, &to).await;
        assert_eq!((copied.totals.written, copied.totals.verified), (count, count), "{copied:?}");
        let way = format!("{} → {}", from.label(), to.label());
        say(&format!("{way}: {count} records compared in {:?}", now().since(began)));
        assert_equal(&expected, &records(&*to).await);
        let again = copy(&from, &to).await;
        assert_eq!((again.totals.written, again.totals.kept), (0, count), "{way}: nothing changed");
        drop(to);
        from = Arc::new(open_existing(url).await.expect("it is there"));
    }
    assert_equal(&expected, &records(&*from).await);
}

/// The procedure of the how-to, with a server on each side: what was left by the first pass comes with
/// the last one, and a store in use is not copied for good.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs all servers: run cargo xtask test"]
async fn a_store_in_use_is_copied_twice_and_nothing_runs_again() {
    let (sources, mut targets) = (Place::all().await, Place::all().await);
    // Each to the next one, the last to the first.
    targets.rotate_left(1);
    for (from, to) in sources.iter().zip(&targets) {
        let from = Arc::new(open(&from.url).await.unwrap());
        let to = Arc::new(open(&to.url).await.unwrap());
        let way = format!("{} → {}", from.label(), to.label());
        let brief = |key| Claim { lease: Duration::from_secs(1), ..claim(key, key) };
        let mut leases = Vec::new();
        for key in 0..4 {
            leases.push(win(&*from, &brief(key)).await.0);
        }
        assert_eq!(from.send(&leases[1]).await.unwrap(), Write::Applied);
        assert_eq!(from.unknown(&leases[2]).await.unwrap(), Write::Applied);
        let answered = completion(common::answer(3, 100_000));
        assert_eq!(from.complete(&leases[3], &answered).await.unwrap(), Write::Applied);
        let live = Copier::new(Arc::clone(&from), Arc::clone(&to)).run(|_| {}).await.unwrap();
        assert_eq!((live.totals.written, live.left), (1, 3), "{way}: what has not ended is left");
        let last = || Copier::new(Arc::clone(&from), Arc::clone(&to)).pass(Pass::Final);
        match last().run(|_| {}).await {
            Err(CopyError::InUse { live }) => assert!(live <= 2, "{way}: {live}"),
            // A machine that took a second until here.
            Ok(_) => say(&format!("{way}: the leases had lapsed already")),
            Err(other) => panic!("{way}: {other}"),
        }
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        copy(&from, &to).await;
        assert_equal(&records(&*from).await, &records(&*to).await);
        for key in 1..4_u64 {
            let rival = Claim { owner: Owner::from_bytes([7; 16]), ..claim(key, key) };
            let claimed = to.claim(&rival).await.unwrap();
            let Claimed::Lost { refusal, .. } = claimed else { panic!("{way}: {key} runs again") };
            if key == 3 {
                assert_eq!(refusal, Refusal::Replay, "{way}");
            }
        }
    }
}
