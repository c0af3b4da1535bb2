//! Damaged files: what is returned is true, and what is missing was counted. F6, F55.

use super::*;
use crate::engine::journal::frame::{AROUND, HEADER, read};

/// A file with entries 0 to 5, of which 3 is drained, and where its frames end.
async fn file(folder: &Path) -> (Vec<u8>, Vec<usize>) {
    let (journal, _) = open_with(folder, LIMIT, NEVER);
    let path = folder.join("journal");
    let length = || usize::try_from(std::fs::metadata(&path).unwrap().len()).unwrap();
    let mut ends = vec![length()];
    for number in 0..6 {
        let mark = journal.append(&entry(number)).await.unwrap();
        ends.push(length());
        if number == 3 {
            journal.drained(mark).await.unwrap();
            ends.push(length());
        }
    }
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(ends.last(), Some(&bytes.len()));
    drop(journal);
    (bytes, ends)
}

fn numbers(bytes: Vec<u8>) -> Option<(Vec<u64>, u64, u64)> {
    let contents = read(&Bytes::from(bytes)).ok()?;
    let found = contents.waiting.iter().map(|(_, _, found)| {
        let number = number_of(found);
        assert_eq!(*found, entry(number), "an entry that nobody wrote");
        number
    });
    Some((found.collect(), contents.damaged, contents.torn))
}

/// F6: an append that was cut off anywhere takes nothing with it.
#[tokio::test]
async fn a_torn_tail_is_discarded_wherever_it_is_cut() {
    let folder = folder();
    let (bytes, ends) = file(folder.path()).await;
    let last = ends[ends.len() - 2];
    for cut in last..bytes.len() {
        let torn = u64::try_from(cut - last).unwrap();
        assert_eq!(numbers(bytes[..cut].to_vec()), Some((vec![0, 1, 2, 4], 0, torn)), "at {cut}");
        // The size may reach the disk before the content.
        let mut blank = bytes[..cut].to_vec();
        blank.resize(bytes.len() + 4_096, 0);
        let (found, damaged, torn) = numbers(blank).unwrap();
        assert_eq!((found, damaged), (vec![0, 1, 2, 4], 0), "at {cut}");
        assert!(torn > 0);
    }
    // The same through the front door, where the tail is cut off for good.
    for cut in [last + 1, last + 40, bytes.len() - 1] {
        std::fs::write(folder.path().join("journal"), &bytes[..cut]).unwrap();
        let (journal, found) = open(folder.path());
        assert_eq!(found.len(), 4);
        assert_eq!(journal.damaged(), 0);
        journal.append(&entry(9)).await.unwrap();
        drop(journal);
        assert_eq!(waiting(folder.path()), entries([0, 1, 2, 4, 9]));
    }
}

/// F55: no flipped bit gives an entry that nobody wrote, and each costs at most its own frame.
#[tokio::test]
async fn flipped_bits_never_give_a_wrong_entry() {
    let folder = folder();
    let (bytes, ends) = file(folder.path()).await;
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            let Some((found, damaged, torn)) = numbers(flipped) else {
                assert!(at < HEADER, "byte {at}: only the header is refused");
                continue;
            };
            // Which frame was hit, and what is then left: 3 comes back if its end is damaged.
            let expected: &[u64] = match ends.iter().rposition(|end| *end <= at).unwrap() {
                0 => &[1, 2, 4, 5],
                1 => &[0, 2, 4, 5],
                2 => &[0, 1, 4, 5],
                3 => &[0, 1, 2, 4, 5],
                4 => &[0, 1, 2, 3, 4, 5],
                5 => &[0, 1, 2, 5],
                _ => &[0, 1, 2, 4],
            };
            assert_eq!(found, expected, "byte {at}, bit {bit}");
            assert!(damaged + torn > 0, "byte {at}, bit {bit} went unnoticed");
        }
    }
}

/// Damage of any shape: stretches overwritten, removed, doubled or swapped.
#[tokio::test]
async fn no_kind_of_damage_gives_a_wrong_entry() {
    let folder = folder();
    let (bytes, ends) = file(folder.path()).await;
    let frames: Vec<&[u8]> = ends.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
    for (one, first) in frames.iter().enumerate() {
        for (two, second) in frames.iter().enumerate() {
            let mut damaged = bytes[..ends[0]].to_vec();
            for (at, frame) in frames.iter().enumerate() {
                damaged.extend_from_slice(match at {
                    at if at == one => second,
                    at if at == two => first,
                    _ => frame,
                });
            }
            // A frame counts only where it was written.
            let (found, lost, torn) = numbers(damaged).unwrap();
            assert_eq!(lost + torn > 0, one != two, "{one} and {two}");
            assert!(one == two || found.len() < 6, "{found:?}");
        }
    }
    for start in (HEADER..bytes.len()).step_by(7) {
        for length in [1, 13, 64, 512] {
            let end = (start + length).min(bytes.len());
            let removed = [&bytes[..start], &bytes[end..]].concat();
            assert!(numbers(removed).is_some());
            let mut wiped = bytes.clone();
            wiped[start..end].iter_mut().for_each(|byte| *byte = !*byte);
            let (_, lost, torn) = numbers(wiped).unwrap();
            assert!(lost + torn > 0);
        }
    }
}

/// A body may hold whatever its author likes, even the frames of the very file that it is in.
#[tokio::test]
async fn a_body_that_looks_like_a_frame_does_not_become_one() {
    let folder = folder();
    let (journal, _) = open(folder.path());
    journal.append(&entry(1)).await.unwrap();
    let path = folder.path().join("journal");
    let frames = std::fs::read(&path).unwrap()[HEADER..].to_vec();
    let start = usize::try_from(std::fs::metadata(&path).unwrap().len()).unwrap();
    let trojan = Entry { end: complete(kept(frames.repeat(5))), ..entry(2) };
    journal.append(&trojan).await.unwrap();
    journal.append(&entry(3)).await.unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    drop(journal);
    // The head of the trojan is damaged, so that its end has to be searched for.
    bytes[start] ^= 1;
    let (found, damaged, torn) = numbers(bytes).unwrap();
    assert_eq!((found, damaged, torn), (vec![1, 3], 1, 0));
}

/// The damaged file is kept for a person, once, and the journal goes on.
#[tokio::test]
async fn damage_is_counted_and_kept_as_evidence() {
    let folder = folder();
    let (mut bytes, ends) = file(folder.path()).await;
    let path = folder.path().join("journal");
    bytes[ends[0] + AROUND] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let (journal, found) = open(folder.path());
    assert_eq!(found.iter().map(|(_, entry)| number_of(entry)).collect::<Vec<_>>(), [1, 2, 4, 5]);
    assert_eq!(journal.damaged(), 1);
    journal.drained(found[0].0).await.unwrap();
    drop(journal);
    let (journal, found) = open(folder.path());
    assert_eq!((journal.damaged(), found.len()), (0, 3));
    drop(journal);
    let names = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
    let is_evidence = |path: &PathBuf| path.to_string_lossy().contains("damaged-");
    let kept: Vec<PathBuf> = names.filter(is_evidence).collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(std::fs::read(&kept[0]).unwrap(), bytes);
}

/// An entry that rots while the journal is open is left out of the next file, and counted.
#[tokio::test]
async fn an_entry_that_rots_while_it_waits_is_noticed_when_it_is_moved() {
    use std::os::unix::fs::FileExt as _;
    let folder = folder();
    let (journal, _) = open_with(folder.path(), LIMIT, Duration::ZERO);
    journal.append(&entry(0)).await.unwrap();
    let mark = journal.append(&entry(1)).await.unwrap();
    journal.append(&entry(2)).await.unwrap();
    let path = folder.path().join("journal");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"rot", offset(HEADER + AROUND)).unwrap();
    journal.drained(mark).await.unwrap();
    journal.append(&entry(3)).await.unwrap();
    assert_eq!(journal.damaged(), 1);
    drop(journal);
    assert_eq!(waiting(folder.path()), entries([2, 3]));
}
