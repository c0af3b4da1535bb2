//! How much the journal costs beside a bare write and sync of the same disk. Not a test of
//! anything: run it with `--ignored --nocapture`.

use std::io::Write as _;

use super::*;
use crate::clock::Stopwatch;

const ROUNDS: usize = 400;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures, and takes a while"]
async fn an_append_costs_about_one_sync() {
    let folder = folder();
    let (journal, _) = open(&folder.path().join("journal"));
    let journal = Arc::new(journal);
    let mut raw = std::fs::File::create(folder.path().join("raw")).unwrap();
    for size in [0, 2_048, 65_536] {
        let entry = large_entry(4, size);
        let bytes = vec![7; entry::encode(&entry).len() + AROUND];
        let (mut bare, mut ours, mut marks) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let watch = Stopwatch::start();
            raw.write_all(&bytes).unwrap();
            raw.sync_data().unwrap();
            bare.push(watch.elapsed());
            let watch = Stopwatch::start();
            let mark = journal.append(&entry).await.unwrap();
            ours.push(watch.elapsed());
            marks.push(mark);
        }
        for mark in marks {
            journal.drained(mark).await.unwrap();
        }
        let (bare, ours) = (median(bare), median(ours));
        let ratio = ours.as_secs_f64() / bare.as_secs_f64();
        say(&format!("{size} B alone: bare {bare:?}, append {ours:?}, ratio {ratio:.2}"));
    }
    let bare = {
        let watch = Stopwatch::start();
        for _ in 0..ROUNDS {
            raw.write_all(&[7; 400]).unwrap();
            raw.sync_data().unwrap();
        }
        watch.elapsed().as_secs_f64() / 400.0
    };
    let watch = Stopwatch::start();
    let tasks: Vec<_> = (0..64_u64)
        .map(|task| {
            let journal = Arc::clone(&journal);
            tokio::spawn(async move {
                for number in 0..50 {
                    let mark = journal.append(&super::entry(task * 50 + number)).await.unwrap();
                    journal.drained(mark).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let each = watch.elapsed().as_secs_f64() / 3_200.0;
    say(&format!("64 callers: {:.1} µs each, bare {:.1} µs", each * 1e6, bare * 1e6));
}

fn say(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").unwrap();
}
