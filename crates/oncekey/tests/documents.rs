//! The documents say what the code does.

use std::fs;
use std::path::Path;

use oncekey::problem::{Code, DEFAULT_BASE, Problem, Retryable};

#[test]
fn the_table_of_problems_is_the_code() {
    let page = read("docs/reference/problems.md");
    let rows = table(&page, "## Table");
    let shown: Vec<String> = rows.iter().map(|row| row.join(" | ")).collect();
    let expected = Code::ALL.map(|code| {
        let label = code.label();
        let retryable = match code.retryable() {
            Retryable::Yes => "yes",
            Retryable::No => "no",
        };
        let (status, executed) = (code.status(), code.executed().label());
        format!("[`{label}`](#{label}) | {status} | {executed} | {retryable}")
    });
    assert_eq!(shown, expected);
}

/// The type of a problem is a link that leads somewhere.
#[test]
fn every_problem_is_explained_under_its_anchor() {
    let page = read("docs/reference/problems.md");
    for code in Code::ALL {
        let uri = code.type_uri(DEFAULT_BASE);
        let (_, anchor) = uri.split_once('#').expect("an anchor");
        let heading = format!("\n## {anchor}\n\n");
        assert!(page.contains(&heading), "no section {anchor}");
    }
}

/// Every member that a document can have is in the table of members, in its order.
#[test]
fn every_member_of_a_problem_is_in_the_reference() {
    let mut problem = Problem::new(Code::KeyReused, "x");
    problem.request_id = Some("req_1".into());
    problem.retry_after = Some(std::time::Duration::from_secs(1));
    problem.differs = vec!["body".into()];
    problem.original_request = Some("req_0".into());
    problem.original_status = Some(201);
    problem.first_used = Some(oncekey::core::Timestamp::default());
    problem.hint = Some("x");
    let text = String::from_utf8(problem.to_json(DEFAULT_BASE)).expect("JSON is text");
    let place = |member: &str| text.find(&format!("\"{member}\":"));
    let page = read("docs/reference/problems.md");
    let members: Vec<String> =
        table(&page, "## Members").iter().map(|row| row[0].trim_matches('`').to_owned()).collect();
    let places: Vec<usize> = members.iter().filter_map(|member| place(member)).collect();
    assert_eq!(places.len(), members.len(), "{members:?} in {text}");
    assert!(places.is_sorted(), "{members:?} in {text}");
    let document: serde_json::Value = serde_json::from_str(&text).expect("a document");
    assert_eq!(document.as_object().map(serde_json::Map::len), Some(members.len()));
}

/// The example in the reference is what the code writes.
#[test]
fn the_example_of_a_problem_is_a_document_of_ours() {
    let page = read("docs/reference/problems.md");
    let example = page.split("```json\n").nth(1).and_then(|rest| rest.split("```").next());
    let shown: serde_json::Value =
        serde_json::from_str(example.expect("an example")).expect("JSON");
    let refused = oncekey::engine::Refused::Mismatch {
        differs: vec!["body:/amount".into()],
        original: "req_01k3c9vrs0d3p0x6y3n5v2a1fk".into(),
        first_used: oncekey::core::Timestamp::from_micros(1_786_788_251_000_000),
    };
    let mut problem = Problem::from(&refused);
    problem.request_id = Some("req_01k3c9w2m4xj0v5t8r7qz6hbny".into());
    let written: serde_json::Value =
        serde_json::from_slice(&problem.to_json(DEFAULT_BASE)).expect("JSON");
    assert_eq!(shown, written);
}

/// Every outcome that the status header can have is in the reference.
#[cfg(feature = "tower")]
#[test]
fn every_outcome_is_in_the_reference() {
    let page = read("docs/reference/wire.md");
    let row = page.lines().find(|line| line.starts_with("| what happened |")).expect("the row");
    let listed: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
    let words: Vec<&str> = oncekey::layer::Outcome::ALL
        .iter()
        .map(|outcome| outcome.word())
        // A request without a key passes through, and its answer is untouched.
        .filter(|word| *word != "keyless")
        .collect();
    assert_eq!(listed, words);
}

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The cells of the first table after a heading.
fn table(page: &str, heading: &str) -> Vec<Vec<String>> {
    let (_, rest) = page.split_once(&format!("\n{heading}\n")).expect(heading);
    rest.lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| {
            line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
        })
        .collect()
}
