//! Runs the script of the README: the program is killed at each of its points, on its way forward and on
//! its way back.

use std::process::Command;

/// One charge, or one charge and its refund, and the right stock, wherever it was killed. The script says
/// "WRONG" and fails if not.
#[test]
fn a_saga_that_is_killed_at_any_point_ends_or_is_taken_back_once() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/kill.sh");
    let ran = Command::new("sh").arg(script).arg(env!("CARGO_BIN_EXE_saga")).output();
    let ran = ran.expect("a shell");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    // A script that kills nobody proves nothing.
    for article in ["book", "piano", "yacht"] {
        let killed = said.matches(&format!("{article} killed at ")).count();
        assert!(killed >= 20, "{article}: {killed}: {said}");
    }
}
