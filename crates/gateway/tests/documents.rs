//! The reference of the command line says what the program does.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    std::fs::read_to_string(path).expect("the reference")
}

fn help(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
    let output = command.args(arguments).arg("--help").output().expect("the program runs");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Every word that begins with two dashes.
fn options(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "-_".contains(c)));
    let named = |word: &&str| {
        word.strip_prefix("--").is_some_and(|name| name.contains(char::is_alphabetic))
    };
    words.filter(named).map(str::to_owned).collect()
}

#[test]
fn every_option_is_in_the_reference_and_no_other() {
    let commands: [&[&str]; 24] = [
        &[],
        &["dev"],
        &["run"],
        &["validate"],
        &["config", "show"],
        &["config", "explain"],
        &["config", "schema"],
        &["status"],
        &["observed"],
        &["health"],
        &["reload"],
        &["drain"],
        &["keys", "list"],
        &["keys", "show"],
        &["keys", "resolve"],
        &["keys", "release"],
        &["keys", "expire"],
        &["keys", "erase"],
        &["version"],
        &["completions"],
        &["store"],
        &["store", "copy"],
        &["store", "check"],
        &["store", "migrate"],
    ];
    let mut known: BTreeSet<String> =
        commands.iter().flat_map(|command| options(&help(command))).collect();
    let mut shown = options(&page());
    // The page says how the program is built, too.
    for of_cargo in ["--release", "--features"] {
        shown.remove(of_cargo);
    }
    for every_program_has_it in ["--help", "--version"] {
        known.remove(every_program_has_it);
        shown.remove(every_program_has_it);
    }
    assert_eq!(shown, known);
}

#[test]
fn every_variable_is_in_the_reference() {
    let commands: [&[&str]; 6] = [
        &["run"],
        &["status"],
        &["keys", "list"],
        &["store", "copy"],
        &["store", "check"],
        &["store", "migrate"],
    ];
    for command in commands {
        let help = help(command);
        for variable in help.split("[env: ").skip(1) {
            let name = variable.split(['=', ']']).next().expect("a name");
            assert!(page().contains(&format!("| `{name}` |")), "{name}");
        }
        assert!(help.contains("[env: ONCEKEY_"), "{command:?} has one");
    }
}

#[cfg(feature = "sqlite")]
#[test]
fn every_member_of_a_result_is_in_the_reference_and_no_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
        command.current_dir(folder.path()).arg("store").args(arguments).output().expect("it runs")
    };
    assert!(run(&["migrate", "sqlite://a.db"]).status.success());
    let copied = run(&["copy", "--from", "sqlite://a.db", "--to", "sqlite://b.db", "--json"]);
    let result: serde_json::Value = serde_json::from_slice(&copied.stdout).expect("JSON");
    let known: BTreeSet<String> = result.as_object().expect("members").keys().cloned().collect();
    let page = page();
    let (_, table) = page.split_once("| member | means |").expect("the table");
    let (table, _) = table.split_once("\n\n").expect("its end");
    let cells = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let shown: BTreeSet<String> = names.map(str::to_owned).collect();
    assert_eq!(shown, known);
}

#[test]
fn every_exit_code_is_in_the_reference_and_no_other() {
    let source = include_str!("../src/exit.rs");
    let codes = source.split(": u8 = ").skip(1).filter_map(|rest| rest.split(';').next());
    let mut known: BTreeSet<&str> = codes.collect();
    known.insert("0");
    let page = page();
    let (_, table) = page.split_once("## Exit codes").expect("the table");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next());
    let shown: BTreeSet<&str> = rows.filter(|cell| *cell != "code").collect();
    assert_eq!(shown, known);
}

/// Whoever copies a configuration from a page gets one that works.
#[test]
fn every_configuration_of_the_pages_is_valid() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/how-to");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("oncekey.toml");
    let pages = [
        "configure-the-gateway.md",
        "put-the-gateway-in-front.md",
        "run-several-gateways.md",
        "run-under-systemd.md",
        "serve-tls.md",
    ];
    for page in pages {
        let text = std::fs::read_to_string(docs.join(page)).expect("the page");
        let blocks: Vec<&str> = text.split("```toml\n").skip(1).collect();
        assert!(!blocks.is_empty(), "{page}");
        for block in blocks {
            let config = block.split("```").next().unwrap_or_default();
            std::fs::write(&file, config).expect("a file");
            let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
            command.env("PGPASSWORD", "secret").arg("validate").arg("--config").arg(&file);
            let output = command.output().expect("the program runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{page}:\n{config}\n{said}");
        }
    }
}
