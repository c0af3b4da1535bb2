//! The program as people meet it: what it prints, where, and how it ends.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output};
use std::sync::mpsc;

fn oncekey(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_oncekey")).args(arguments).output().expect("the program runs")
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("the program prints UTF-8")
}

#[test]
fn without_arguments_it_says_what_it_is_and_where_to_start() {
    let Output { status, stdout, stderr } = oncekey(&[]);
    let printed = text(stdout);
    assert!(status.success());
    assert_eq!(printed.lines().next(), Some("oncekey 0.1.0"));
    assert!(printed.contains("oncekey dev --demo"), "{printed}");
    assert_eq!(printed.lines().count(), 7);
    assert!(stderr.is_empty());
}

#[test]
fn the_version_is_one_line() {
    for option in ["--version", "-V"] {
        let Output { status, stdout, .. } = oncekey(&[option]);
        assert!(status.success());
        assert_eq!(text(stdout), "oncekey 0.1.0\n");
    }
}

#[test]
fn help_lists_every_command_and_option() {
    let pages: [(&[&str], &[&str]); 8] = [
        (&["dev", "-h"], &["--demo", "--to", "--port", "--mode", "Examples:"]),
        (&["--help"], &["Usage: oncekey", "store", "status", "-h, --help", "-V, --version"]),
        (&["keys", "-h"], &["list", "show", "resolve", "release", "expire", "erase"]),
        (&["keys", "release", "-h"], &["<ID>", "--reason", "--confirm", "--admin", "--token-file"]),
        (&["store", "-h"], &["copy", "check", "migrate"]),
        (
            &["store", "copy", "--help"],
            &["--from", "--to", "--verify", "--final", "--resume", "--json", "Examples:"],
        ),
        (&["store", "check", "--help"], &["<URL>", "--json"]),
        (&["store", "migrate", "--help"], &["<URL>", "--print"]),
    ];
    for (arguments, expected) in pages {
        let Output { status, stdout, stderr } = oncekey(arguments);
        let printed = text(stdout);
        assert!(status.success() && stderr.is_empty(), "{arguments:?}");
        for word in expected {
            assert!(printed.contains(word), "{arguments:?} does not say {word}:\n{printed}");
        }
    }
}

#[test]
fn a_wrong_command_line_is_a_usage_error() {
    let wrong: [&[&str]; 26] = [
        &["run"],
        &["run", "--to", "banana"],
        &["run", "--to", ":3000", "--store", "foo://bar"],
        &["run", "--to", ":3000", "--mode", "foo"],
        &["run", "--to", ":3000", "--listen", "nowhere"],
        &["run", "--to", ":99999"],
        &["run", "--to", ":0"],
        &["run", "--to", ":abc"],
        &["run", "--to", "http://127.0.0.1:80800"],
        &["run", "--to", "http://127.0.0.1:/"],
        &["run", "--to", ":3000", "--admin", "127.0.0.1:87880"],
        &["dev", "--to", ":99999"],
        &["dev", "--to", "3000"],
        &["keys", "list", "--limit", "0"],
        &["keys", "release", "0"],
        &["health", "--live", "--ready"],
        &["status", "--admin", "https://localhost"],
        &["status", "--admin", "http://localhost:99999"],
        &["status", "--admin", "http://localhost:"],
        &["--versoin"],
        &["--version=now"],
        &[""],
        &["store"],
        &["store", "copy"],
        &["store", "copy", "--from", "sqlite://a.db"],
        &["store", "copy", "--from", "sqlite://a.db", "--to", "sqlite://b.db", "--at-once", "0"],
    ];
    for arguments in wrong {
        let Output { status, stdout, stderr } = oncekey(arguments);
        assert_eq!(status.code(), Some(64), "{arguments:?}");
        assert!(stdout.is_empty(), "{arguments:?}");
        assert!(!stderr.is_empty(), "{arguments:?}");
    }
}

/// I52: whatever is wrong with a command line, a password in it is not repeated.
#[test]
fn no_error_repeats_a_password() {
    let url = "postgres://oncekey:hunter2@localhost:1/keys";
    let with_option = format!("--form={url}");
    let lines: [&[&str]; 7] = [
        &["store", "copy", url],
        &["store", "copy", &with_option],
        &["store", "copy", "--from", url, "--to", url],
        &["store", "copy", "--from", "sqlite://no-such.db", "--to", url],
        &["store", "copy", "--from", url, "--to", "memory:"],
        &["store", "check", url],
        &["store", "migrate", url, url],
    ];
    for arguments in lines {
        let Output { status, stdout, stderr } = oncekey(arguments);
        assert!(!status.success(), "{arguments:?}");
        let said = text(stdout) + &text(stderr);
        assert!(!said.contains("hunter2"), "{arguments:?}: {said}");
    }
}

/// Every shell gets a script that knows the commands, and `man` a page of each.
#[test]
fn shells_and_manuals_know_the_commands() {
    for shell in ["bash", "fish", "zsh"] {
        let Output { status, stdout, .. } = oncekey(&["completions", shell]);
        assert!(status.success() && text(stdout).contains("status"), "{shell}");
    }
    let Output { status, stdout, .. } = oncekey(&["man"]);
    let pages = text(stdout);
    assert!(status.success() && pages.contains(".TH oncekey"), "{pages}");
    assert!(
        pages.contains("oncekey\\-keys\\-release") || pages.contains("keys-release"),
        "{pages}"
    );
    let Output { status, stdout, .. } = oncekey(&["version", "--json"]);
    let version: serde_json::Value = serde_json::from_slice(&stdout).expect("JSON");
    assert!(status.success());
    assert_eq!(version["version"], "0.1.0");
}

/// A gateway that is not there is said in one line that helps.
#[test]
fn a_gateway_that_is_not_there_is_named() {
    for command in [&["status"][..], &["health"], &["drain"], &["keys", "list"]] {
        let arguments = [command, &["--admin", "http://127.0.0.1:1"]].concat();
        let Output { status, stdout, stderr } = oncekey(&arguments);
        assert_eq!(status.code(), Some(1), "{command:?}");
        assert!(stdout.is_empty());
        let said = text(stderr);
        assert!(said.contains("is it running? tried http://127.0.0.1:1"), "{said}");
    }
}

/// Without a file or an API there is nothing to run, and both ways are named.
#[test]
fn what_is_missing_and_what_was_meant_is_said() {
    let said = |arguments: &[&str]| text(oncekey(arguments).stderr);
    let nothing = said(&["run"]);
    assert!(nothing.contains("--config") && nothing.contains("--to"), "{nothing}");
    for (given, meant) in [("3000", ":3000"), ("localhost:3000", "http://localhost:3000")] {
        let told = said(&["run", "--to", given]);
        assert!(told.contains(&format!("did you mean {meant}?")), "{told}");
    }
    let elsewhere =
        said(&["run", "--to", ":3000", "--listen", "192.0.2.1:80", "--store", "memory:"]);
    assert!(elsewhere.contains("does not have that address"), "{elsewhere}");
    let warnings = elsewhere.matches("records are kept in memory only").count();
    assert_eq!(warnings, 1, "{elsewhere}");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("oncekey.toml");
    let none = said(&["validate", "-c", file.to_str().expect("a name")]);
    assert!(none.contains("there is no file") && none.contains("with -c"), "{none}");
}

/// Whoever starts a second gateway learns which of its two ports is taken, and how to choose another.
#[test]
fn a_port_that_is_taken_is_said_with_the_option_that_changes_it() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = listener.local_addr().expect("its number").to_string();
    let free = "127.0.0.1:0";
    for (listen, admin, named) in [
        (taken.as_str(), free, ["for clients", "--listen", "server.listen"]),
        (free, taken.as_str(), ["the admin listener", "--admin", "admin.listen"]),
    ] {
        let run = ["run", "--to", ":3000", "--store", "memory:", "--listen", listen];
        let Output { status, stderr, .. } = oncekey(&[&run[..], &["--admin", admin]].concat());
        assert_eq!(status.code(), Some(1));
        let said = text(stderr);
        for words in named.iter().chain([&taken.as_str(), &"is another program there?"]) {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
}

/// Whatever another server says, it is not taken for a gateway, and nothing is changed there.
#[test]
fn another_program_is_not_taken_for_a_gateway() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its number"));
    let (send, heads) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let head: Vec<String> = BufReader::new(&stream)
                .lines()
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty())
                .collect();
            let body = r#"{"status":"live","ready":true,"state":"done","erased":"blank"}"#;
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            drop((&stream).write_all(answer.as_bytes()));
            drop(send.send(head.join("\n").to_lowercase()));
        }
    });
    let id = "a".repeat(64);
    let commands: [&[&str]; 8] = [
        &["status"],
        &["health"],
        &["health", "--live"],
        &["reload"],
        &["drain"],
        &["keys", "list"],
        &["keys", "erase", &id, "--reason", "x"],
        &["keys", "release", &id, "--reason", "x", "--confirm", "aaaaaaaa"],
    ];
    for command in commands {
        let mut program = Command::new(env!("CARGO_BIN_EXE_oncekey"));
        program.args(command).args(["--admin", &url]).env("ONCEKEY_ADMIN_TOKEN", "hunter2");
        let Output { status, stdout, stderr } = program.output().expect("the program runs");
        let said = text(stderr);
        assert_eq!(status.code(), Some(1), "{command:?}: {said}");
        assert!(stdout.is_empty(), "{command:?}");
        assert!(said.contains("is not the admin listener of oncekey"), "{said}");
        assert!(said.contains("--admin"), "{said}");
    }
    for head in heads.try_iter() {
        assert!(head.starts_with("get /healthz"), "{head}");
        assert!(!head.contains("hunter2"), "no token goes there");
    }
}
