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

/// The five lines of the README are those of the how-to, which is compiled.
#[test]
fn the_readme_protects_a_service_as_the_how_to_does() {
    let readme = read("README.md");
    let (_, section) =
        readme.split_once("\n## Protect an axum service in five lines\n").expect("it");
    let (_, code) = section.split_once("```rust\n").expect("code");
    let (code, _) = code.split_once("```").expect("the end of the code");
    assert_eq!(code.lines().count(), 5);
    let indented: String = code.lines().map(|line| format!("    {line}\n")).collect();
    let how_to = read("docs/how-to/protect-an-axum-service.md");
    assert!(how_to.contains(&indented), "the how-to does not have:\n{indented}");
}

/// Every metric is in the reference with its type and its labels, and nothing else is.
#[test]
fn the_table_of_metrics_is_the_code() {
    let mut written = Vec::new();
    for source in sources("crates/oncekey/src") {
        for kind in ["counter", "gauge", "histogram"] {
            for call in source.split(&format!("{kind}!(")).skip(1) {
                let call = arguments(call);
                let name = call.split('"').nth(1).expect("a metric has a name");
                // The last text in front of each arrow is a label.
                let mut parts: Vec<&str> = call.split("=>").collect();
                parts.pop();
                let labels = parts.iter().filter_map(|part| part.rsplit('"').nth(1));
                let labels: Vec<String> = labels.map(|label| format!("`{label}`")).collect();
                let labels = if labels.is_empty() { "none".into() } else { labels.join(" ") };
                written.push(format!("`{name}` | {kind} | {labels}"));
            }
        }
    }
    let page = read("docs/reference/metrics.md");
    let rows = table(&page, "## Metrics");
    let mut shown: Vec<String> = rows.iter().map(|row| row[..3].join(" | ")).collect();
    written.sort();
    // A gauge is set to more than one value, in more than one place.
    written.dedup();
    shown.sort();
    assert_eq!(shown, written);
}

/// The words of a label are those of the code.
#[cfg(feature = "tower")]
#[test]
fn the_words_of_outcomes_and_modes_are_in_the_reference() {
    use oncekey::layer::{Mode, Outcome};
    let page = read("docs/reference/metrics.md");
    let rows = table(&page, "## Labels");
    let words = |label: &str| -> Vec<String> {
        let row = rows.iter().find(|row| row[0] == format!("`{label}`")).expect(label);
        row[1].split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    assert_eq!(words("outcome"), Outcome::ALL.map(Outcome::label));
    assert_eq!(words("mode"), [Mode::Off, Mode::Optional, Mode::Required].map(Mode::label));
}

/// The fields of the span are those of the code.
#[test]
fn the_fields_of_the_span_are_in_the_reference() {
    let code = read("crates/oncekey/src/layer/visit.rs");
    let (_, span) = code.split_once("info_span!(").expect("a span");
    let (span, _) = span.split_once(");").expect("the end of the span");
    let fields: Vec<String> = span
        .lines()
        .filter_map(|line| line.trim().split_once(" = "))
        .map(|(field, _)| format!("`{field}`"))
        .collect();
    let page = read("docs/reference/metrics.md");
    let shown: Vec<String> = table(&page, "## The span").iter().map(|row| row[0].clone()).collect();
    assert_eq!(shown, fields);
}

/// What stands between a parenthesis that was opened and the one that closes it.
fn arguments(text: &str) -> &str {
    let mut depth = 1;
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[..at];
        }
    }
    text
}

/// The text of every source file below a folder, without its tests.
fn sources(folder: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders = vec![root.join(folder)];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("folders can be read") {
            let path = entry.expect("entries can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = fs::read_to_string(path).expect("sources can be read");
                let code = text.split("#[cfg(test)]").next().unwrap_or_default();
                sources.push(code.to_owned());
            }
        }
    }
    sources
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
