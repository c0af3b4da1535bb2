//! The official Python SDK of Stripe in front of a toy of its API, over a wire that is cut.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::gateway::Home;
use crate::common::script::{Script, file};
use crate::common::wire::{Client, ask};
use crate::common::within;
use crate::cutter::Cutter;

const ROUTES: &str = r#"
[defaults]
scope = ["credential"]
mode = "optional"
[[route]]
match = "POST /v1/{rest...}"
"#;

/// A Python with the SDK.
fn python() -> OsString {
    std::env::var_os("ONCEKEY_TEST_STRIPE_PYTHON").unwrap_or_else(|| {
        panic!("ONCEKEY_TEST_STRIPE_PYTHON is not set: run `cargo xtask test`, or name a Python that has the package stripe")
    })
}

/// F11 with somebody else's client: its own retries end in one charge and the first answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the Python package stripe: run cargo xtask test"]
async fn the_sdk_of_stripe_charges_once_over_a_wire_that_is_cut() {
    let toy = Script::run("python3", Command::new("python3").arg(file("gateway/toy_stripe.py")));
    let home = Home::on_sqlite();
    home.configure(&toy.url(), ROUTES);
    let gateway = home.run();
    let cutter = Cutter::start(gateway.address, 2).await;
    let mut sdk = Command::new(python());
    sdk.arg(file("gateway/charge.py")).arg(format!("http://{}", cutter.address));
    let sdk = sdk.stdin(Stdio::null()).output();
    let output =
        within("the SDK", tokio::task::spawn_blocking(move || sdk)).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let got: Value = serde_json::from_slice(&output.stdout).unwrap();
    let request = ask("GET", "/charges").line("connection", "close");
    let charges = Client::open(toy.address).await.ask(&request).await;
    let charges: Value = serde_json::from_slice(&charges.body).unwrap();
    assert_eq!(cutter.cut(), 2, "the wire was cut twice");
    assert_eq!(charges.as_array().unwrap().len(), 1, "{charges}");
    assert_eq!(got["id"], charges[0]["id"], "the SDK got the answer of that charge");
    assert_eq!((&got["amount"], &got["replayed"]), (&Value::from(2_000), &Value::from("true")));
}
