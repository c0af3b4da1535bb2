//! `oncekey keys`: records, and what became of them.

use std::path::Path;

use serde_json::{Value, json};

use super::args::{
    DangerArgs, EraseArgs, KeysCommand, ListArgs, ResolveArgs, ResolvedAs, ShowArgs,
};
use super::client::Reply;
use super::table::{pairs, table};
use super::text::{escaped, plain, word};
use super::{Client, shown};
use crate::exit::{self, Exit};

/// The digits of a whole id.
const WHOLE: usize = 64;
/// The digits of it that log lines show.
const SHORTEST: usize = 8;

pub(super) async fn run(command: KeysCommand) -> Result<String, Exit> {
    match command {
        KeysCommand::List(args) => list(&args).await,
        KeysCommand::Show(args) => show(&args).await,
        KeysCommand::Resolve(args) => resolve(&args).await,
        KeysCommand::Release(args) => danger("release", &args).await,
        KeysCommand::Expire(args) => danger("expire", &args).await,
        KeysCommand::Erase(args) => erase(&args).await,
    }
}

async fn list(args: &ListArgs) -> Result<String, Exit> {
    let limit = args.limit.to_string();
    let filters = [
        ("state", args.state.as_deref()),
        ("route", args.route.as_deref()),
        ("scope", args.scope.as_deref()),
        ("key", args.key.as_deref()),
        ("id", args.id.as_deref()),
        ("older_than", args.older_than.as_deref()),
        ("cursor", args.cursor.as_deref()),
        ("limit", Some(limit.as_str())),
    ];
    let filters = filters.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let query: Vec<String> =
        filters.map(|(name, value)| format!("{name}={}", escaped(value))).collect();
    let path = format!("/api/v1/keys?{}", query.join("&"));
    let page = Client::new(&args.target)?.get(&path).await?.document()?;
    Ok(shown(args.json, &page, || {
        let records = page["records"].as_array().into_iter().flatten();
        let names = ["state", "class", "status", "created", "route", "id"];
        let rows: Vec<Vec<String>> =
            records.map(|record| names.map(|name| word(&record[name])).to_vec()).collect();
        if rows.is_empty() {
            return "no such record\n".to_owned();
        }
        let more = match page["next"].as_str() {
            Some(next) => format!("more: --cursor {}\n", plain(next)),
            None => String::new(),
        };
        table(&names, &rows) + &more
    }))
}

async fn show(args: &ShowArgs) -> Result<String, Exit> {
    let client = Client::new(&args.target)?;
    let query = if args.payload { "?show=payload" } else { "" };
    let path = path(&whole(&client, &args.id, For::Looking).await?, query);
    let record = client.get(&path).await?.document()?;
    Ok(shown(args.json, &record, || words(&record)))
}

async fn resolve(args: &ResolveArgs) -> Result<String, Exit> {
    let outcome = match args.outcome {
        ResolvedAs::Succeeded => "succeeded",
        ResolvedAs::Failed => "failed",
        ResolvedAs::NotExecuted => "not_executed",
    };
    let mut body = json!({ "reason": args.reason, "outcome": outcome });
    let answered = args.status.is_some() || !args.header.is_empty() || args.body.is_some();
    if args.outcome == ResolvedAs::NotExecuted && answered {
        let message = "work that did not happen has no answer: leave out --status, --header and \
                       --body";
        return Err(Exit::new(exit::USAGE, message));
    }
    if args.outcome != ResolvedAs::NotExecuted {
        let status = args.status.ok_or_else(|| {
            let message = "say what clients get from now on: --status, such as 201, and with it \
                           --header and --body if there are any";
            Exit::new(exit::USAGE, message)
        })?;
        let headers = args.header.iter().map(|line| header(line)).collect::<Result<Vec<_>, _>>()?;
        let text = args.body.as_deref().map(read).transpose()?.unwrap_or_default();
        body["answer"] = json!({ "status": status, "headers": headers, "body": text });
    }
    if let Some(confirm) = &args.confirm {
        body["confirm"] = json!(confirm);
    }
    let client = Client::new(&args.target)?;
    let id = whole(&client, &args.id, For::Changing).await?;
    settled(&id, client.post(&path(&id, "/resolve"), &body).await?)
}

async fn danger(verb: &str, args: &DangerArgs) -> Result<String, Exit> {
    let mut body = json!({ "reason": args.reason });
    if let Some(confirm) = &args.confirm {
        body["confirm"] = json!(confirm);
    }
    let client = Client::new(&args.target)?;
    let id = whole(&client, &args.id, For::Changing).await?;
    settled(&id, client.post(&path(&id, &format!("/{verb}")), &body).await?)
}

async fn erase(args: &EraseArgs) -> Result<String, Exit> {
    let client = Client::new(&args.target)?;
    let path = path(&whole(&client, &args.id, For::Changing).await?, "/erase");
    let erased = client.post(&path, &json!({ "reason": args.reason })).await?.document()?;
    Ok(match erased["erased"].as_str() {
        Some("blank") => "erased\n".to_owned(),
        _ => "erased, but its work has not ended: erase it again when it has\n".to_owned(),
    })
}

/// What came of a change. One that needs to be confirmed shows the record and how to.
fn settled(id: &str, reply: Reply) -> Result<String, Exit> {
    if reply.code() == "admin_confirmation_required" {
        let digits = id.get(..8).unwrap_or(id).to_ascii_lowercase();
        let text = format!(
            "{}nothing was done: after this the work may run again. If you are sure, add --confirm {digits}\n",
            words(&reply.body["record"])
        );
        return Err(Exit::verbatim(exit::REFUSED, text));
    }
    let settled = reply.document()?;
    let expired = settled["expired"] == true;
    Ok(format!("{}\n", if expired { "expired".to_owned() } else { word(&settled["state"]) }))
}

/// A record, one member a line.
fn words(record: &Value) -> String {
    let members = record.as_object().into_iter().flatten();
    let rows: Vec<(&str, String)> =
        members.map(|(name, value)| (name.as_str(), word(value))).collect();
    pairs(&rows)
}

/// What a record is looked for for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    Looking,
    Changing,
}

/// The whole id of the one record whose id begins so. For a change it must be the only one: among many
/// millions of records some begin alike, and the one that is meant may be older than what is searched.
async fn whole(client: &Client, id: &str, why: For) -> Result<String, Exit> {
    let id = digits(id)?;
    if id.len() == WHOLE {
        return Ok(id);
    }
    let page = client.get(&format!("/api/v1/keys?id={id}&limit=2")).await?.document()?;
    let found = page["records"].as_array().into_iter().flatten();
    let found: Vec<&str> = found.filter_map(|record| record["id"].as_str()).collect();
    chosen(&id, &found, &page["next"], why)
}

/// The one that is meant by the digits `id`, of those that were `found` before the place `next`.
fn chosen(id: &str, found: &[&str], next: &Value, why: For) -> Result<String, Exit> {
    match (found, next) {
        ([one], Value::Null) => digits(one),
        ([one], _) if why == For::Looking => digits(one),
        ([one], _) => {
            let message = format!(
                "older records may have ids that begin with {id}, too: look at the newest one, and \
                 if it is meant give its whole id: {}",
                digits(one)?
            );
            Err(Exit::new(exit::USAGE, &message))
        }
        ([], Value::Null) => {
            Err(Exit::new(exit::FAILURE, &format!("no record has an id that begins with {id}")))
        }
        ([], _) => {
            let message = format!(
                "none of the newest records has an id that begins with {id}: go on with oncekey \
                 keys list --id {id} --cursor {}",
                word(next)
            );
            Err(Exit::new(exit::FAILURE, &message))
        }
        (_, _) => {
            let message = format!(
                "several records have ids that begin with {id}, give more digits: oncekey keys \
                 list --id {id}"
            );
            Err(Exit::new(exit::USAGE, &message))
        }
    }
}

/// Only what an id is made of: anything else would be another path.
fn digits(id: &str) -> Result<String, Exit> {
    if (SHORTEST..=WHOLE).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(id.to_ascii_lowercase());
    }
    let message = "a key id has 64 hexadecimal digits, of which 8 are enough: log lines and oncekey \
                   keys list show them";
    Err(Exit::new(exit::USAGE, message))
}

fn path(id: &str, rest: &str) -> String {
    format!("/api/v1/keys/{id}{rest}")
}

fn header(line: &str) -> Result<[&str; 2], Exit> {
    let (name, value) = line
        .split_once(':')
        .ok_or_else(|| Exit::new(exit::USAGE, "a header line is written as `name: value`"))?;
    Ok([name.trim(), value.trim()])
}

fn read(path: &Path) -> Result<String, Exit> {
    std::fs::read_to_string(path).map_err(|error| {
        let message = format!("cannot read {}", path.display());
        Exit::chain(exit::USAGE, &message, Some(&error))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_stays_one_value() {
        assert_eq!(escaped("a b&c=é%"), "a%20b%26c%3D%C3%A9%25");
    }

    #[test]
    fn a_change_needs_digits_that_surely_mean_one_record() {
        let (one, two) = ("1".repeat(64), "12".repeat(32));
        let (end, more) = (Value::Null, json!("0a"));
        let chosen = |found: &[&str], next, why| chosen("11111111", found, next, why).ok();
        for why in [For::Looking, For::Changing] {
            assert_eq!(chosen(&[&one], &end, why).as_deref(), Some(&*one));
            for next in [&end, &more] {
                assert_eq!(chosen(&[], next, why), None);
                assert_eq!(chosen(&[&one, &two], next, why), None);
            }
        }
        assert_eq!(chosen(&[&one], &more, For::Looking).as_deref(), Some(&*one));
        assert_eq!(chosen(&[&one], &more, For::Changing), None, "an older one may begin so, too");
    }

    #[test]
    fn an_id_cannot_be_another_path() {
        assert!(digits(&"A".repeat(64)).is_ok_and(|id| id == "a".repeat(64)));
        assert!(digits("1f2e3d4c").is_ok());
        for wrong in [
            "",
            "1f2e3d4",
            "../drain",
            &"z".repeat(64),
            &"a".repeat(65),
            &format!("{}/", "a".repeat(63)),
        ] {
            assert!(digits(wrong).is_err(), "{wrong}");
        }
    }
}
