//! Traces, as a collector gets them.

#![expect(clippy::unwrap_used, reason = "all of it is a test, also what stands outside of one")]

#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "otlp")]
mod decode;
#[cfg(feature = "otlp")]
mod traced;

/// A setting that is not followed would be worse than none.
#[cfg(not(feature = "otlp"))]
#[test]
fn a_program_without_traces_says_how_to_build_one_with_them() {
    let home = common::gateway::Home::on_sqlite();
    home.configure("http://127.0.0.1:9", "[telemetry]\notlp = \"http://127.0.0.1:4318\"\n");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_oncekey"));
    let database = format!("sqlite://{}", home.path().join("keys.db").display());
    command.args(["run", "-c"]).arg(home.config()).env("ONCEKEY_STORE", database);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(said.contains("telemetry.otlp") && said.contains("--features otlp"), "{said}");
}
