//! Runs the script of the README: the program is killed at each of its points.

use std::process::Command;

/// One ride, one receipt, one charge, wherever it was killed. The script says "WRONG" and fails if not.
#[test]
fn a_ride_that_is_killed_at_any_point_is_charged_once() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/kill.sh");
    let ran = Command::new("sh").arg(script).arg(env!("CARGO_BIN_EXE_rides")).output();
    let ran = ran.expect("a shell");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    // A script that kills nobody proves nothing.
    assert!(said.matches("killed at ").count() >= 10, "{said}");
}
