//! Rows that are missing, doubled or swapped, and what they do to their neighbours.

use std::time::Duration;

use oncekey::core::{Claim, Claimed, Clock as _, ErrorKind, Grant, Renewal, Store, Write};

use crate::common::{self, LONG, file};
use crate::scene::{Scene, is_noticed, is_told};

/// A little longer than the retention, and than the linger after it.
const SPAN: Duration = Duration::from_secs(LONG.as_secs() + 60);

/// F55, I53: an answer, a piece or a record that is not where it was put is noticed.
#[tokio::test]
async fn no_lost_doubled_or_swapped_row_is_replayed_or_run() {
    let scene = Scene::new().await;
    let (small, large) = ("done", "done with a large body");
    let rows: [(&str, &[&str], &str); 12] = [
        ("the answer is gone", &[small, large], "DELETE FROM oncekey_answers"),
        ("a piece is gone", &[large], "DELETE FROM oncekey_pieces WHERE part = 1"),
        ("the last piece is gone", &[large], "DELETE FROM oncekey_pieces WHERE part = 3"),
        ("all pieces are gone", &[large], "DELETE FROM oncekey_pieces"),
        (
            "two pieces are swapped",
            &[large],
            "UPDATE oncekey_pieces SET part = 9 WHERE part = 0;
             UPDATE oncekey_pieces SET part = 0 WHERE part = 1;
             UPDATE oncekey_pieces SET part = 1 WHERE part = 9",
        ),
        ("the pieces are another record's", &[large], "UPDATE oncekey_pieces SET record = {small}"),
        (
            "two answers are swapped",
            &[small, large],
            "UPDATE oncekey_answers SET record = 999 WHERE record = {small};
             UPDATE oncekey_answers SET record = {small} WHERE record = {large};
             UPDATE oncekey_answers SET record = {large} WHERE record = 999",
        ),
        (
            "two records are swapped",
            &[small, large],
            "UPDATE oncekey_records SET id = 999 WHERE id = {small};
             UPDATE oncekey_records SET id = {small} WHERE id = {large};
             UPDATE oncekey_records SET id = {large} WHERE id = 999",
        ),
        (
            "two places in the key map are swapped",
            &[small, large],
            "UPDATE oncekey_fresh SET record = 999 WHERE record = {small};
             UPDATE oncekey_fresh SET record = {small} WHERE record = {large};
             UPDATE oncekey_fresh SET record = {large} WHERE record = 999",
        ),
        ("the record is gone", &[small], "DELETE FROM oncekey_records WHERE id = {small}"),
        ("the state is running", &[small, large], "UPDATE oncekey_records SET state = 15, at = 0"),
        ("the state is unknown", &[small, large], "UPDATE oncekey_records SET state = 85"),
    ];
    let numbers = [("{small}", small), ("{large}", large)];
    for (damage, subjects, sql) in rows {
        for name in subjects {
            let sql = numbers.into_iter().fold(sql.to_owned(), |sql, (mark, name)| {
                sql.replace(mark, &scene.subject(name).row.to_string())
            });
            scene.damage(&sql);
            let noticed = scene.check(scene.subject(name), damage).await;
            assert!(noticed, "{name}, {damage}: not noticed");
            scene.restore();
        }
    }
}

/// F55: one damaged record is one lost key. All other keys, and the purge, go on.
#[tokio::test]
async fn a_damaged_record_disturbs_no_other_key() {
    let scene = Scene::new().await;
    for subject in &scene.subjects {
        scene.damage(&format!(
            "UPDATE oncekey_records SET owner = x'00' WHERE id = {}",
            subject.row
        ));
        for other in scene.subjects.iter().filter(|other| other.row != subject.row) {
            let about = format!("{} while {} is damaged", other.name, subject.name);
            let found = scene.store.get(&other.record.id).await.expect("it can be read");
            is_told(&found.expect("it is there"), &other.record, &about);
        }
        let (lease, _) = common::win(&scene.store, &common::claim(50, 50)).await;
        // In one batch with a write to the damaged record.
        let (mine, damaged) =
            tokio::join!(scene.store.send(&lease), scene.store.send(&subject.lease));
        assert_eq!(mine.expect("a sound record is written"), Write::Applied);
        assert!(is_noticed(&damaged, subject.name), "{}: not noticed", subject.name);
        assert_eq!(scene.store.release(&lease).await.expect("a release"), Write::Applied);
        scene.restore();
    }
}

/// F55, I7: a damaged record is lost, and the leases beside it in the same call are renewed.
#[tokio::test]
async fn a_damaged_record_costs_no_other_its_renewal() {
    let scene = Scene::new().await;
    let subject = scene.subject("running");
    for damage in ["owner = x'00'", "state = 99", "sent = 99", "format = 99"] {
        let mut leases = vec![subject.lease];
        for number in [80, 81] {
            leases.push(common::win(&scene.store, &common::claim(number, number)).await.0);
        }
        leases.swap(0, 1);
        scene.damage(&format!("UPDATE oncekey_records SET {damage} WHERE id = {}", subject.row));
        let renewed = scene.store.renew(&leases, SPAN).await.expect("the others are renewed");
        let held = Renewal::Until(scene.clock.now().after(SPAN));
        assert_eq!(renewed, [held, Renewal::Lost, held], "{damage}");
        scene.restore();
    }
}

/// F55: records that cannot be trusted stay for people to look at, and the purge passes by.
#[tokio::test]
async fn a_purge_passes_by_what_is_damaged_and_removes_the_rest() {
    let damages = [
        "UPDATE oncekey_records SET owner = x'00' WHERE id = {row}",
        "UPDATE oncekey_records SET fence = fence + 1 WHERE id = {row}",
        "UPDATE oncekey_records SET key_id = zeroblob(32) WHERE id = {row}",
        "UPDATE oncekey_records SET state = 15 WHERE id = {row}",
        "UPDATE oncekey_answers SET outcome = zeroblob(16) WHERE record = {row}",
        "UPDATE oncekey_answers SET seal = zeroblob(16) WHERE record = {row}",
        "UPDATE oncekey_answers SET not_kept = 200 WHERE record = {row}",
    ];
    let scene = Scene::new().await;
    // The damaged one is the first that is due.
    let subject = scene.subject("done");
    for damage in damages {
        scene.damage(&damage.replace("{row}", &subject.row.to_string()));
        for _ in 0..2 {
            scene.clock.advance(SPAN);
            for _ in 0..2 {
                let purged = scene.store.purge(1).await.expect("a purge");
                assert_eq!(purged.total(), 1, "{damage}: a sound record is due");
            }
            let purged = scene.store.purge(10).await.expect("a purge");
            assert_eq!(purged.total(), 0, "{damage}: nothing sound is due");
        }
        assert!(is_noticed(&scene.store.get(&subject.record.id).await, damage), "{damage}");
        scene.restore();
        scene.clock.step_back(SPAN * 2);
    }
}

/// F55: a wrong due time makes a purge do nothing wrong.
#[tokio::test]
async fn a_purge_removes_nothing_before_its_time() {
    let scene = Scene::new().await;
    let running = scene.subject("running").row;
    let damages = [
        "UPDATE oncekey_answers SET due = 0".to_owned(),
        "UPDATE oncekey_answers SET due = 0, forget = 0".to_owned(),
        // An answer that says of a running record that its time is over.
        format!(
            "UPDATE oncekey_answers SET due = 0, expires = 0, forget = 0, record = {running}
             WHERE record = {}",
            scene.subject("done").row
        ),
    ];
    for damage in damages {
        scene.damage(&damage);
        assert_eq!(scene.store.purge(10).await.expect("a purge").total(), 0, "{damage}");
        for subject in &scene.subjects {
            scene.check(subject, &damage).await;
        }
        scene.restore();
    }
}

/// I2: the highest fence is one of the numbers that must not be wrong: if it is, nobody gets a key.
#[tokio::test]
async fn a_damaged_fence_is_never_granted_again() {
    let scene = Scene::new().await;
    let subject = scene.subject("running");
    // The highest fence of all: the next one would be the same again, or negative.
    for damage in [
        "UPDATE oncekey_clock SET fence = 9223372036854775807",
        "UPDATE oncekey_clock SET fence = -5",
        "DELETE FROM oncekey_clock",
    ] {
        scene.damage(damage);
        for number in 60..63 {
            let claimed = scene.store.claim(&common::claim(number, number)).await;
            assert!(is_noticed(&claimed, damage), "{damage}: {claimed:?}");
        }
        scene.restore();
        let (lease, _) = common::win(&scene.store, &common::claim(60, 60)).await;
        assert_eq!(scene.store.release(&lease).await.expect("a release"), Write::Applied);
    }
    // The same number in a record: a takeover does not count from it.
    scene.damage(&format!(
        "UPDATE oncekey_records SET fence = 9223372036854775807, at = 0 WHERE id = {}",
        subject.row
    ));
    let mut fences = vec![subject.lease.fence];
    for rival in 70..73 {
        let rival =
            Claim { lease: Duration::ZERO, owner: common::owner(rival), ..subject.claim.clone() };
        match scene.store.claim(&rival).await {
            Ok(Claimed::Won { lease, grant: Grant::TakenOver, .. }) => fences.push(lease.fence),
            Ok(other) => panic!("a lapsed lease is taken over: {other:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
        }
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    let late =
        scene.store.complete(&subject.lease, &common::completion(common::answer(1, 1))).await;
    assert_eq!(late.expect("a write"), Write::Fenced, "the first owner was replaced");
}

/// A file that was damaged and put right again is as good as before.
#[tokio::test]
async fn what_was_put_right_works_again() {
    let scene = Scene::new().await;
    scene.damage("UPDATE oncekey_records SET seal = zeroblob(16)");
    for subject in &scene.subjects {
        assert!(scene.check(subject, "its seal is gone").await, "{}: not noticed", subject.name);
    }
    scene.restore();
    for subject in &scene.subjects {
        assert!(!scene.check(subject, "nothing is damaged").await);
    }
    file::check(&scene.path);
}
