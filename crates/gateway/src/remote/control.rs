//! `oncekey reload` and `oncekey drain`.

use serde_json::{Value, json};

use super::args::{DrainArgs, ReloadArgs};
use super::text::word;
use super::{Client, shown};
use crate::exit::Exit;

pub(super) async fn reload(args: &ReloadArgs) -> Result<String, Exit> {
    let client = Client::new(&args.target)?;
    let path = if args.dry_run { "/api/v1/reload?dry_run=true" } else { "/api/v1/reload" };
    let reply = client.post(path, &why(args.reason.as_deref())).await?;
    if args.json
        && let Some(number) = reply.failed()
    {
        // Whoever reads documents gets one whatever became of it.
        crate::print(&format!("{:#}\n", reply.body))?;
        return Err(Exit::silent(number));
    }
    let reloaded = reply.document()?;
    Ok(shown(args.json, &reloaded, || {
        let changes: Vec<String> =
            reloaded["changes"].as_array().into_iter().flatten().map(word).collect();
        let verb = if args.dry_run { "would change" } else { "changed" };
        match changes.as_slice() {
            [] => format!("nothing {verb}\n"),
            changes => format!("{verb}:\n  {}\n", changes.join("\n  ")),
        }
    }))
}

pub(super) async fn drain(args: &DrainArgs) -> Result<String, Exit> {
    let client = Client::new(&args.target)?;
    let drained = client.post("/api/v1/drain", &why(args.reason.as_deref())).await?.document()?;
    Ok(shown(args.json, &drained, || {
        format!("draining: {} in flight\n", word(&drained["in_flight"]))
    }))
}

fn why(reason: Option<&str>) -> Value {
    reason.map_or_else(|| json!({}), |reason| json!({ "reason": reason }))
}
