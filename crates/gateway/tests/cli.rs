//! The program as people meet it: what it prints, where, and how it ends.

use std::process::{Command, Output};

fn oncekey(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_oncekey")).args(arguments).output().expect("the program runs")
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("the program prints UTF-8")
}

#[test]
fn without_arguments_it_says_what_it_is_and_what_it_is_not() {
    let Output { status, stdout, stderr } = oncekey(&[]);
    let printed = text(stdout);
    assert!(status.success());
    assert_eq!(printed.lines().next(), Some("oncekey 0.1.0"));
    assert!(printed.contains("The gateway is not built yet"), "{printed}");
    assert_eq!(printed.lines().count(), 2);
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
fn help_lists_every_option() {
    for option in ["--help", "-h"] {
        let Output { status, stdout, .. } = oncekey(&[option]);
        let printed = text(stdout);
        assert!(status.success());
        for expected in ["Usage: oncekey", "-h, --help", "-V, --version"] {
            assert!(printed.contains(expected), "{printed}");
        }
    }
}

#[test]
fn an_unknown_argument_is_a_usage_error() {
    for arguments in [&["run"][..], &["--versoin"], &["--version", "now"], &[""]] {
        let Output { status, stdout, stderr } = oncekey(arguments);
        assert_eq!(status.code(), Some(64), "{arguments:?}");
        assert!(stdout.is_empty());
        let printed = text(stderr);
        let unknown = format!("unknown argument {:?}", arguments.last().unwrap());
        assert!(printed.contains(&unknown), "{printed}");
    }
}
