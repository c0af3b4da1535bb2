//! `oncekey health`: an exit code for probes of containers.

use serde_json::Value;

use super::Client;
use super::args::HealthArgs;
use super::client::Reply;
use super::text::{plain, word};
use crate::exit::{self, Exit};

/// `Ok` with a word if all is well. Otherwise the code is 1, whatever the reason: a probe knows no
/// other.
pub(super) async fn ask(args: &HealthArgs) -> Result<String, Exit> {
    let client = Client::new(&args.target)?;
    if args.live {
        let Reply { status, body } = client.get("/healthz").await?;
        let live = status == 200 && body["status"] == "live";
        return if live { Ok("live\n".to_owned()) } else { Err(not("not live", "")) };
    }
    let Reply { status, body } = client.get("/readyz").await?;
    let ready = status == 200 && body["ready"] == true;
    if ready { Ok("ready\n".to_owned()) } else { Err(not("not ready", &reasons(&body))) }
}

fn not(what: &str, why: &str) -> Exit {
    Exit::verbatim(exit::FAILURE, format!("{what}{why}\n"))
}

fn reasons(body: &Value) -> String {
    let checks = body["checks"].as_array().into_iter().flatten();
    checks
        .filter(|check| check["ok"] != true)
        .map(|check| match check["why"].as_str() {
            None => format!("; {}", word(&check["name"])),
            Some(why) => format!("; {}: {}", word(&check["name"]), plain(why)),
        })
        .collect()
}
