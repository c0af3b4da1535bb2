//! `kill -9` at any moment, during recovery too, takes nothing back that was acknowledged. F6, I34.
//!
//! The test program runs itself as a child that appends and drains as fast as it can, and tells
//! what it asked and what it was told. `ONCEKEY_KILLS=500` kills more often.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::*;
use crate::clock::SystemClock;
use oncekey_core::Clock as _;

const FOLDER: &str = "ONCEKEY_JOURNAL_CHILD";
const FIRST: &str = "ONCEKEY_JOURNAL_FIRST";

/// How often a usual run kills.
const KILLS: u64 = 50;
/// Numbers that one child may use: more than it can in its life.
const PER_CHILD: u64 = 1_000_000;
const TASKS: u64 = 4;

/// Not a test: what the child process does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let first: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
    tell("");
    let (journal, found) = match Journal::open(Path::new(&folder), entropy()) {
        Ok(opened) => opened,
        Err(error) => return tell(&format!("refused {error}")),
    };
    tell("open");
    let journal = Arc::new(journal);
    // Most of what the last child left, so that the file does not grow from kill to kill.
    for (mark, entry) in found.into_iter().skip(20) {
        tell(&format!("drains {}", number_of(&entry)));
        journal.drained(mark).await.unwrap();
    }
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let journal = Arc::clone(&journal);
            tokio::spawn(async move {
                for number in (first + task..first + PER_CHILD).step_by(4) {
                    tell(&format!("asks {number}"));
                    let mark = journal.append(&entry(number)).await.unwrap();
                    tell(&format!("has {number}"));
                    if number % 3 == 0 {
                        tell(&format!("drains {number}"));
                        journal.drained(mark).await.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "\n@ {line}").is_err() {
        // The parent is gone, and with it everybody who could kill us.
        std::process::exit(1);
    }
}

/// A child that is killed when it is dropped.
struct Process {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Process {
    fn start(folder: &Path, first: u64) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "engine::journal::tests::kill::child", "--nocapture"]);
        command.env(FOLDER, folder).env(FIRST, first.to_string());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// The next line that is ours and whole.
    fn hear(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            self.out.read_line(&mut line).unwrap();
            let whole = line.strip_suffix('\n')?;
            match whole.strip_prefix("@ ") {
                Some("") | None => {}
                Some(told) => return Some(told.to_owned()),
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[derive(Default)]
struct History {
    asked: BTreeSet<u64>,
    acknowledged: BTreeSet<u64>,
    drained: BTreeSet<u64>,
}

impl History {
    fn add(&mut self, line: &str) {
        let (what, number) = line.split_once(' ').unwrap_or((line, ""));
        let into = match what {
            "open" => return,
            "asks" => &mut self.asked,
            "has" => &mut self.acknowledged,
            "drains" => &mut self.drained,
            _ => panic!("the child says: {line}"),
        };
        into.insert(number.parse().unwrap());
    }

    fn check(&self, found: &[Entry]) {
        let numbers: BTreeSet<u64> = found.iter().map(number_of).collect();
        for found in found {
            assert_eq!(*found, entry(number_of(found)));
        }
        let must = self.acknowledged.difference(&self.drained);
        let lost: Vec<_> = must.filter(|number| !numbers.contains(number)).collect();
        assert!(lost.is_empty(), "acknowledged and gone: {lost:?}");
        assert!(numbers.is_subset(&self.asked), "entries that nobody appended");
    }
}

/// SplitMix64.
fn draw(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)) % below
}

/// F6.
#[test]
fn kill_9_at_any_moment_takes_back_nothing_that_was_acknowledged() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let kills = number("ONCEKEY_KILLS").unwrap_or(KILLS);
    let seed = number("ONCEKEY_SEED").unwrap_or(SystemClock.now().micros().unsigned_abs());
    let mut state = seed;
    let folder = folder();
    let mut history = History::default();
    let mut died_early = 0;
    for generation in 0..kills {
        let mut process = Process::start(folder.path(), generation * PER_CHILD);
        // Every fourth dies at some moment of its start: before, while and after it recovers.
        if generation % 4 == 3 {
            let spins = draw(&mut state, 3_000_000);
            (0..spins).for_each(|_| std::hint::spin_loop());
        } else {
            for _ in 0..1 + draw(&mut state, 300) {
                let line = process.hear().expect("a child works until it is killed");
                history.add(&line);
            }
            (0..draw(&mut state, 50_000)).for_each(|_| std::hint::spin_loop());
        }
        process.kill();
        let before = history.asked.len();
        while let Some(line) = process.hear() {
            history.add(&line);
        }
        died_early += u64::from(generation % 4 == 3 && history.asked.len() == before);
        // Not each time, so that one crashed recovery meets the next.
        if generation % 4 != 2 {
            let (journal, found) = open(folder.path());
            assert_eq!(journal.damaged(), 0, "seed {seed}");
            let found: Vec<_> = found.into_iter().map(|(_, entry)| entry).collect();
            history.check(&found);
        }
    }
    assert!(history.acknowledged.len() > 100, "the children did nothing");
    assert!(kills < 40 || died_early > 0, "no child died at its start");
}

/// Two processes never share a folder, and the second is told what to do.
#[test]
fn a_second_process_is_refused() {
    let folder = folder();
    let mut process = Process::start(folder.path(), 0);
    assert_eq!(process.hear().as_deref(), Some("open"));
    let error = Journal::open(folder.path(), entropy()).unwrap_err();
    let JournalError::InUse { process: holder, .. } = error else { panic!("{error}") };
    assert_eq!(holder, Some(process.child.id()));
    process.kill();
    assert!(Journal::open(folder.path(), entropy()).is_ok(), "a dead process holds nothing");

    let (_journal, _) = open(folder.path());
    let mut second = Process::start(folder.path(), 0);
    let said = second.hear().unwrap();
    assert!(said.starts_with("refused the journal folder"), "{said}");
}
