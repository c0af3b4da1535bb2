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
const LARGE: &str = "ONCEKEY_JOURNAL_LARGE";

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
    if std::env::var(LARGE).is_ok() {
        return fill_the_disk(&journal).await;
    }
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

/// Appends until there is no space left.
async fn fill_the_disk(journal: &Journal) {
    for number in 0..1_000 {
        match journal.append(&large_entry(number, 7_000)).await {
            Ok(_) => tell(&format!("has {number}")),
            Err(error) => return tell(&format!("{error}")),
        }
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
        Self::start_as(Command::new(std::env::current_exe().unwrap()), folder, first)
    }

    fn start_as(mut command: Command, folder: &Path, first: u64) -> Self {
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
    for generation in 0..kills {
        let mut process = Process::start(folder.path(), generation * PER_CHILD);
        // Every fourth dies at some moment of its start: before, while and after it recovers.
        if generation % 4 == 3 {
            let spins = 1_u64 << draw(&mut state, 23);
            (0..spins).for_each(|_| std::hint::spin_loop());
        } else {
            for _ in 0..1 + draw(&mut state, 300) {
                let line = process.hear().expect("a child works until it is killed");
                history.add(&line);
            }
            (0..draw(&mut state, 50_000)).for_each(|_| std::hint::spin_loop());
        }
        process.kill();
        while let Some(line) = process.hear() {
            history.add(&line);
        }
        // Not each time, so that one crashed recovery meets the next.
        if generation % 4 != 2 {
            let (journal, found) = open(folder.path());
            assert_eq!(journal.damaged(), 0, "seed {seed}");
            let found: Vec<_> = found.into_iter().map(|(_, entry)| entry).collect();
            history.check(&found);
        }
    }
    assert!(history.acknowledged.len() > 100, "the children did nothing");
}

/// F35: the system itself says no in the middle of a write. A limit on the size of files stands in
/// for the size of a disk.
#[tokio::test]
async fn a_disk_that_is_really_full_keeps_what_was_acknowledged() {
    let folder = folder();
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 200; exec \"$0\" \"$@\""]);
    shell.arg(std::env::current_exe().unwrap()).env(LARGE, "yes");
    let mut process = Process::start_as(shell, folder.path(), 0);
    assert_eq!(process.hear().as_deref(), Some("open"));
    let told: Vec<String> = std::iter::from_fn(|| process.hear()).collect();
    let (last, has) = told.split_last().unwrap();
    assert_eq!(last, "the disk of the journal is full: free some space");
    let expected: Vec<_> = (0..).map(|number| format!("has {number}")).take(has.len()).collect();
    assert_eq!(has, expected);
    assert!(has.len() > 5, "{has:?}");
    drop(process);

    let (journal, found) = open(folder.path());
    assert_eq!(found.len(), has.len());
    assert_eq!(journal.damaged(), 0);
    journal.append(&entry(4)).await.expect("there is space again");
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
