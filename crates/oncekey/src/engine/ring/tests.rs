use std::os::unix::fs::FileExt as _;
use std::path::Path;

use oncekey_core::saved::{NotKept, Tombstone};
use oncekey_core::{Answer, Completion};

use super::note::tests::{done, note};
use super::*;

const SLOTS_AT: u64 = 8_192;
const SLOT: u64 = 256;

fn open(folder: &Path) -> (Ring, Option<Lineage>) {
    Ring::open_with(folder, 8).unwrap()
}

fn keys(ring: &Ring) -> Vec<u8> {
    ring.since(0).0.iter().map(|note| note.lease.id.as_bytes()[0]).collect()
}

#[tokio::test]
async fn what_was_noted_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (ring, lineage) = open(folder.path());
    assert_eq!(lineage, None);
    ring.stands(note(1, 5, What::Running));
    ring.stands(note(2, 6, done()));
    ring.remember(&Lineage::new("first")).await.unwrap();
    ring.remember(&Lineage::new("second")).await.unwrap();
    drop(ring);
    for _ in 0..2 {
        let (ring, lineage) = open(folder.path());
        assert_eq!(lineage, Some(Lineage::new("second")));
        assert_eq!(ring.since(0).0, [note(2, 6, done()), note(1, 5, What::Running)]);
        assert_eq!(ring.find(&note(2, 1, done()).lease.id), Some(note(2, 6, done())));
    }
}

/// The slots are used again, and a restart finds the newest notes and goes on after them.
#[tokio::test]
async fn a_ring_that_went_round_has_the_newest_notes() {
    let folder = tempfile::tempdir().unwrap();
    let (ring, _) = open(folder.path());
    for key in 1..=21 {
        ring.stands(note(key, 5, done()));
    }
    ring.settle().await;
    let newest: Vec<u8> = (14..=21).rev().collect();
    assert_eq!(keys(&ring), newest);
    drop(ring);
    let size = std::fs::metadata(folder.path().join("ring")).unwrap().len();
    assert_eq!(size, SLOTS_AT + 8 * SLOT, "the file does not grow");
    let (ring, _) = open(folder.path());
    assert_eq!(keys(&ring), newest);
    ring.stands(note(22, 5, done()));
    ring.settle().await;
    assert_eq!(keys(&ring), (15..=22).rev().collect::<Vec<u8>>());
}

/// F55: what is damaged is left out, and the rest is taken.
#[tokio::test]
async fn damage_costs_the_slots_that_it_hits() {
    let folder = tempfile::tempdir().unwrap();
    let (ring, _) = open(folder.path());
    for key in 1..=5 {
        ring.stands(note(key, 5, done()));
    }
    ring.remember(&Lineage::new("life")).await.unwrap();
    drop(ring);
    let path = folder.path().join("ring");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // Note 3 is in slot 3; and the end of the file is cut off in the middle of slot 5.
    file.write_all_at(b"x", SLOTS_AT + 3 * SLOT + 40).unwrap();
    file.set_len(SLOTS_AT + 5 * SLOT + 100).unwrap();
    let (ring, lineage) = open(folder.path());
    assert_eq!((keys(&ring), lineage), (vec![4, 2, 1], Some(Lineage::new("life"))));
}

/// One header is written at a time: a crash in the middle leaves the other one.
#[tokio::test]
async fn a_damaged_header_leaves_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let (ring, _) = open(folder.path());
    for life in ["one", "two", "three"] {
        ring.remember(&Lineage::new(life)).await.unwrap();
    }
    drop(ring);
    let path = folder.path().join("ring");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"x", 4_096 + 100).unwrap();
    let (ring, lineage) = open(folder.path());
    assert_eq!(lineage, Some(Lineage::new("two")));
    drop(ring);
    file.write_all_at(b"x", 100).unwrap();
    assert_eq!(open(folder.path()).1, None);
}

#[tokio::test]
async fn an_end_is_noted_with_what_was_known_of_its_grant() {
    let folder = tempfile::tempdir().unwrap();
    let (ring, _) = open(folder.path());
    let granted = note(1, 5, What::Running);
    let answer = Answer::Tombstone(Tombstone { status: Some(201), reason: NotKept::TooLarge });
    let (retention, linger) = (Duration::from_secs(10), Duration::from_secs(1));
    let end = End::Complete(Completion { answer: answer.clone(), retention, linger });
    ring.stands(granted.clone());
    ring.ended(&granted.lease, &end, Timestamp::from_micros(1_000_000), None);
    // Of this one nothing is known, so there is nothing to note.
    ring.ended(&note(2, 5, What::Running).lease, &end, Timestamp::from_micros(1), None);
    ring.settle().await;
    let [at, expires, forget] = [1_000_000, 11_000_000, 12_000_000].map(Timestamp::from_micros);
    let what = What::Done { at, expires, forget, end: Ended::of(&answer) };
    assert_eq!(ring.since(0).0, [Note { what, ..granted.clone() }]);
    ring.gone(&granted.lease);
    ring.settle().await;
    assert_eq!(ring.since(0).0, [Note { what: What::Gone, ..granted }]);
}

#[test]
fn a_folder_has_one_ring() {
    let folder = tempfile::tempdir().unwrap();
    let (ring, _) = open(folder.path());
    assert!(matches!(Ring::open(folder.path()), Err(RingError::InUse { .. })));
    drop(ring);
    drop(open(folder.path()));
}
