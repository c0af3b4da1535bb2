//! The documents say what the code does.
//!
//! Tables are read from the Markdown and compared with the functions that they describe, so that
//! neither can change without the other.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oncekey_core::decide::{Act, Judgement, Phase, Standing, judge};
use oncekey_core::saved::{NotKept, Outcome};
use oncekey_core::{
    Answer, Claim, Class, ErrorKind, Fence, Fingerprint, Headers, KeyId, Lease, Origin, Owner,
    Places, Record, Saved, Sent, State, Timestamp, Tombstone, decide,
};

const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);
const SECOND: Duration = Duration::from_secs(1);
const ME: Owner = Owner::from_bytes([1; 16]);
const OTHER: Owner = Owner::from_bytes([2; 16]);

#[test]
fn the_table_of_decisions_is_the_code() {
    let table = table(&read("docs/state-machine.md"), "## decide");
    let mut used = vec![false; table.len()];
    for Scene { record, claim, facts } in scenes() {
        let fits = |row: &Vec<String>| {
            let state = row[1] == "anything" || facts.contains(&row[1].as_str());
            state && (row[2].is_empty() || facts.contains(&row[2].as_str()))
        };
        let place = table.iter().position(fits).unwrap_or_else(|| panic!("no row for {facts:?}"));
        used[place] = true;
        let decision = decide(record.as_ref(), &claim, NOW);
        let row = table[place].join(" | ");
        assert_eq!(table[place][3].trim_matches('`'), decision.label(), "{facts:?} in row {row}");
    }
    assert_eq!(used, vec![true; table.len()], "every row fits something");
}

#[test]
fn the_table_of_judgements_is_the_code() {
    let table = table(&read("docs/state-machine.md"), "## judge");
    let same = Outcome::from_bytes([1; 16]);
    let acts = [
        Act::Renew,
        Act::Send,
        Act::Complete(same),
        Act::Complete(Outcome::from_bytes([2; 16])),
        Act::Release,
        Act::Unknown,
    ];
    let fence = Fence::next(None, NOW);
    let lease = Lease { id: KeyId::from_bytes([7; 32]), fence, owner: ME, until: NOW };
    let held = |phase| Standing { fence, owner: ME, phase };
    let phases = [
        ("running, not sent", Phase::Running(Sent::No)),
        ("running, sent", Phase::Running(Sent::Yes)),
        ("done", Phase::Done(same)),
        ("unknown", Phase::Unknown),
        ("parked", Phase::Parked),
    ];
    assert_eq!(table.len(), phases.len() + 3, "three rows for those who hold nothing");
    for row in &table {
        let standings: Vec<Option<Standing>> = match row[0].as_str() {
            "nothing" => vec![None],
            "another owner" => {
                phases.map(|(_, phase)| Some(Standing { owner: OTHER, ..held(phase) })).to_vec()
            }
            "another fence" => {
                let newer = Fence::next(Some(fence), NOW);
                phases.map(|(_, phase)| Some(Standing { fence: newer, ..held(phase) })).to_vec()
            }
            name => {
                let phase = phases.into_iter().find(|(known, _)| *known == name);
                vec![Some(held(phase.unwrap_or_else(|| panic!("what is {name}?")).1))]
            }
        };
        for standing in standings {
            let judged = acts.map(|act| word(judge(standing, &lease, act)).to_owned());
            assert_eq!(row[1..], judged, "{standing:?}");
        }
    }
}

#[test]
fn every_kind_of_error_is_in_the_reference() {
    let table = table(&read("docs/reference/store-errors.md"), "## Kinds");
    let kinds = [
        ErrorKind::Unavailable,
        ErrorKind::Ambiguous,
        ErrorKind::Corrupt,
        ErrorKind::Rejected,
        ErrorKind::Unsuitable,
    ];
    let listed: Vec<&str> = table.iter().map(|row| row[0].trim_matches('`')).collect();
    assert_eq!(listed, kinds.map(ErrorKind::label));
}

/// The page is put together from pieces of a store that passes the suite.
#[test]
fn the_how_to_shows_a_certified_store() {
    let page = read("docs/how-to/write-a-store.md");
    let store = read("crates/core/tests/small_store.rs");
    let pieces: Vec<&str> = page.split("```rust\n").skip(1).collect();
    assert!(!pieces.is_empty());
    for piece in pieces {
        let code = piece.split("```").next().unwrap_or_default();
        assert!(store.contains(code.trim_end()), "small_store.rs does not have:\n{code}");
    }
}

#[test]
fn every_test_that_the_architecture_names_exists() {
    let sources: String = files("rs").iter().map(|path| read(path)).collect();
    let page = read("ARCHITECTURE.md");
    // Names of tests are sentences: nothing else in the page has so many underscores.
    let tests = page.split('`').skip(1).step_by(2).filter(|code| code.matches('_').count() >= 3);
    let mut missing: Vec<&str> = tests
        .filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        .filter(|name| !["(", "<"].iter().any(|next| sources.contains(&format!("fn {name}{next}"))))
        .collect();
    missing.dedup();
    assert!(missing.is_empty(), "ARCHITECTURE.md names tests that do not exist: {missing:?}");
}

/// The map has every file, except those that only hold tests or are named by their folder.
#[test]
fn every_source_file_is_on_the_map() {
    let page = read("ARCHITECTURE.md");
    let named: Vec<&str> = page.split('`').skip(1).step_by(2).collect();
    let is_source = |path: &String| {
        let is_ours =
            path.starts_with("crates/core/src/") || path.starts_with("crates/oncekey/src/");
        let holds_tests =
            ["tests", "conformance/", "properties.rs"].iter().any(|part| path.contains(part));
        is_ours && !holds_tests && !path.ends_with("/mod.rs")
    };
    for path in files("rs").into_iter().filter(is_source) {
        let (_, name) = path.rsplit_once('/').expect("a file in a folder");
        let is_named = named.iter().any(|code| code.rsplit('/').next() == Some(name));
        assert!(is_named, "the code map of ARCHITECTURE.md does not have {path}");
    }
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    for page in files("md") {
        let text = read(&page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let folder = Path::new(&page).parent().unwrap_or(Path::new(""));
            assert!(root().join(folder).join(target).exists(), "{page} links to {target}");
        }
    }
}

/// A record, a claim that meets it, and what the words of the table say about the two.
struct Scene {
    record: Option<Record>,
    claim: Claim,
    facts: Vec<&'static str>,
}

/// Every state that can matter, met by every claimant that can matter.
fn scenes() -> Vec<Scene> {
    let mut scenes = vec![Scene { record: None, claim: claim(ME), facts: vec!["nothing"] }];
    for (state, about) in states() {
        for (owner, same_owner) in [(ME, Some("same owner")), (OTHER, None)] {
            for (digest, another) in [([1; 32], None), ([2; 32], Some("another request"))] {
                for (then, now) in pairs_of_classes() {
                    let re_send = |class| matches!(class, Class::Keyed | Class::Retry);
                    let both = (re_send(then) && re_send(now)).then_some("both classes re-send");
                    let mut facts = about.clone();
                    facts.extend([same_owner, another, both].into_iter().flatten());
                    scenes.push(Scene {
                        record: Some(Record {
                            id: KeyId::from_bytes([7; 32]),
                            fence: Fence::next(None, NOW),
                            owner,
                            fingerprint: Fingerprint::from_parts(1, digest),
                            class: then,
                            created: NOW,
                            origin: Origin::default(),
                            places: Places::default(),
                            state: state.clone(),
                        }),
                        claim: Claim { class: now, ..claim(ME) },
                        facts,
                    });
                }
            }
        }
    }
    scenes
}

fn states() -> Vec<(State, Vec<&'static str>)> {
    let kept = Answer::Kept(Saved { status: 201, headers: Headers::new(), body: "ok".into() });
    let tombstone = Answer::Tombstone(Tombstone { status: None, reason: NotKept::Streamed });
    let mut states = vec![
        (State::Unknown { since: NOW }, vec!["unknown"]),
        (State::Parked { since: NOW }, vec!["parked"]),
    ];
    for (answer, kind) in [(kept, "answer kept"), (tombstone, "tombstone")] {
        for (expires, forget, times) in [
            (NOW.after(SECOND), NOW.after(SECOND), &[][..]),
            (NOW, NOW.after(SECOND), &["expired"]),
            (NOW, NOW, &["expired", "forgotten"]),
        ] {
            let outcome = answer.outcome();
            let answer = answer.clone();
            let state = State::Done { at: NOW, expires, forget, outcome, answer };
            states.push((state, [&["done", kind], times].concat()));
        }
    }
    for (sent, mark) in [(Sent::No, Some("not sent")), (Sent::Yes, None)] {
        for (until, lasts) in [
            (NOW.after(SECOND), Some("lease or grace lasts")),
            (NOW, Some("lease or grace lasts")),
            (NOW.before(SECOND), None),
        ] {
            let facts = [Some("running"), mark, lasts].into_iter().flatten().collect();
            states.push((State::Running { until, sent }, facts));
        }
    }
    states
}

fn pairs_of_classes() -> impl Iterator<Item = (Class, Class)> {
    Class::ALL.into_iter().flat_map(|then| Class::ALL.map(|now| (then, now)))
}

fn claim(owner: Owner) -> Claim {
    Claim {
        id: KeyId::from_bytes([7; 32]),
        owner,
        fingerprint: Fingerprint::from_parts(1, [1; 32]),
        class: Class::Once,
        lease: SECOND,
        grace: SECOND,
        sent: Sent::No,
        origin: Origin::default(),
        places: Places::default(),
    }
}

fn word(judgement: Judgement) -> &'static str {
    match judgement {
        Judgement::Apply => "apply",
        Judgement::Already => "already",
        Judgement::Fenced => "fenced",
    }
}

/// The rows of the first table below a heading, without its head.
fn table(page: &str, heading: &str) -> Vec<Vec<String>> {
    page.lines()
        .skip_while(|line| !line.starts_with(heading))
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All files of the repository with this ending, by their path from its root.
fn files(ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("folders can be read") {
            let path = entry.expect("entries can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && !name.starts_with('.') && name != "target" {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == ending) {
                let path = path.strip_prefix(root()).expect("found below the root");
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
