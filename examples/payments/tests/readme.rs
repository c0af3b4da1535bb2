//! The README is true: every command in it is run against the real program, in order, and every
//! answer is compared with the one that the page shows.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A fenced block of the page.
enum Block<'p> {
    /// Commands for a shell.
    Commands(&'p str),
    /// What they print, as far as the page shows it.
    Shown(&'p str),
    /// The program is stopped and started again.
    Restart,
}

/// The program, running. Killed if a test ends early.
struct Program {
    child: Child,
    address: String,
    output: BufReader<std::process::ChildStdout>,
}

#[test]
fn every_answer_is_as_the_readme_shows_it() {
    let installed = Command::new("curl").arg("--version").stdout(Stdio::null()).status();
    assert!(installed.is_ok_and(|status| status.success()), "this test needs curl: install it");

    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(folder.path());
    let mut printed = None;
    let mut compared = 0;
    for block in blocks(include_str!("../README.md")) {
        match block {
            Block::Commands(commands) => {
                assert!(printed.is_none(), "the page shows no answer to the commands before it");
                let commands = commands.replace("127.0.0.1:3000", &program.address);
                printed = Some((run(&commands, folder.path()), commands));
            }
            Block::Shown(shown) => {
                let (printed, commands) = printed.take().expect("commands before the answer");
                compare(&printed, shown).unwrap_or_else(|why| {
                    panic!("{why}\n\n{commands}\nprinted\n{printed}\n\nand not\n{shown}")
                });
                compared += 1;
            }
            Block::Restart => {
                program.stop();
                program = Program::start(folder.path());
            }
        }
    }
    assert_eq!((compared, printed.is_some()), (12, false));
    program.stop();
}

/// The program tells its user what to try.
#[test]
fn the_program_prints_the_commands_of_the_readme() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(folder.path());
    let address = program.address.clone();
    let printed = program.stop();
    for block in blocks(include_str!("../README.md")) {
        if let Block::Commands(commands) = block {
            let commands = commands.replace("127.0.0.1:3000", &address);
            assert!(printed.contains(&commands), "it does not print\n{commands}");
        }
    }
}

impl Program {
    /// Starts the program on a port that is free, with a database in `folder`.
    fn start(folder: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_payments"))
            .arg("127.0.0.1:0")
            .current_dir(folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap().to_owned();
        Self { child, address, output }
    }

    /// Stops it as Ctrl-C does, and returns what it printed.
    fn stop(&mut self) -> String {
        run(&format!("kill -INT {}", self.child.id()), Path::new("/"));
        let mut printed = String::new();
        while self.output.read_line(&mut printed).unwrap() > 0 {}
        assert!(self.child.wait().unwrap().success(), "{printed}");
        assert!(printed.ends_with("stopped; 0 payments were broken off\n"), "{printed}");
        printed
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails if it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn blocks(page: &str) -> impl Iterator<Item = Block<'_>> {
    let fenced = page.split("\n```").skip(1).step_by(2);
    fenced.filter_map(|block| match block.split_once('\n').unwrap() {
        ("sh", commands) => Some(Block::Commands(commands)),
        ("http", shown) => Some(Block::Shown(shown)),
        ("console", "^C\ncargo run") => Some(Block::Restart),
        ("console", "cargo run") => None,
        (language, text) => panic!("what is this block of {language} for?\n{text}"),
    })
}

fn run(commands: &str, folder: &Path) -> String {
    let output = Command::new("sh").args(["-ec", commands]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{commands}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().replace('\r', "")
}

/// Compares answers with what the page shows of them: the status, every header line that it shows,
/// and the body.
fn compare(printed: &str, shown: &str) -> Result<(), String> {
    let answers = |text: &str| -> Vec<String> {
        let parts = text.split("HTTP/1.1 ").skip(1);
        parts.map(|answer| answer.trim_end().to_owned()).collect()
    };
    let (printed, shown) = (answers(printed), answers(shown));
    if printed.len() != shown.len() {
        return Err(format!("{} answers instead of {}", printed.len(), shown.len()));
    }
    for (printed, shown) in printed.iter().zip(&shown) {
        let (head, body) = printed.split_once("\n\n").ok_or("no body")?;
        let (shown_head, shown_body) = shown.split_once("\n\n").ok_or("no body is shown")?;
        for line in shown_head.lines().filter(|line| *line != "…") {
            if !head.lines().any(|printed| fits(printed, line)) {
                return Err(format!("there is no line like {line:?}"));
            }
        }
        let replayed = |head: &str| head.contains("idempotent-replayed");
        if replayed(head) != replayed(shown_head) {
            return Err("one is a replay, the other is not".to_owned());
        }
        if !fits(body, shown_body) {
            return Err(format!("the body is not like {shown_body}"));
        }
    }
    Ok(())
}

/// Whether a text is like a pattern in which `…` stands for anything.
fn fits(text: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut last = None;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        last = Some(part);
    }
    match last {
        None => rest.is_empty(),
        Some(part) => part.is_empty() || rest.is_empty(),
    }
}
