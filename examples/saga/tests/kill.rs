//! Runs the script of the README: the program is killed at each of its points, on its way forward and on
//! its way back, on each database.

use std::process::Command;

/// One charge, or one charge and its refund, and the right stock, wherever it was killed. The script says
/// "WRONG" and fails if not.
fn killed_everywhere(database: Option<&str>) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/kill.sh");
    let mut command = Command::new("sh");
    command.arg(script).arg(env!("CARGO_BIN_EXE_saga"));
    if let Some(variable) = database {
        command.arg(std::env::var(variable).expect("run `cargo xtask servers` and its exports"));
    }
    let ran = command.output().expect("a shell");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    // A script that kills nobody proves nothing.
    for article in ["book", "piano", "yacht"] {
        let killed = said.matches(&format!("{article} killed at ")).count();
        assert!(killed >= 20, "{article}: {killed}: {said}");
    }
}

#[test]
fn a_saga_that_is_killed_at_any_point_ends_or_is_taken_back_once() {
    killed_everywhere(None);
}

#[test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
fn a_saga_that_is_killed_at_any_point_ends_or_is_taken_back_once_on_postgres() {
    killed_everywhere(Some("ONCEKEY_TEST_POSTGRES"));
}

#[test]
#[ignore = "needs MySQL: run cargo xtask test"]
fn a_saga_that_is_killed_at_any_point_ends_or_is_taken_back_once_on_mysql() {
    killed_everywhere(Some("ONCEKEY_TEST_MYSQL"));
}
