//! The commands against a real admin listener.

use super::args::{
    DangerArgs, DrainArgs, EraseArgs, HealthArgs, KeysCommand, ListArgs, ReloadArgs, ResolveArgs,
    ResolvedAs, ShowArgs, StatusArgs, Target,
};
use super::{control, health, keys, status};
use crate::admin::Written;
use crate::admin::tests::rig::{Plan, Rig, TOKEN};
use crate::exit::Exit;

fn target(rig: &Rig) -> Target {
    Target { admin: format!("http://{}", rig.address), token_file: None }
}

fn list(rig: &Rig) -> ListArgs {
    ListArgs {
        target: target(rig),
        state: None,
        route: None,
        scope: None,
        key: None,
        id: None,
        older_than: None,
        limit: 50,
        cursor: None,
        json: false,
    }
}

fn said(exit: Result<String, Exit>) -> (u8, String) {
    let exit = exit.expect_err("it did not work");
    (exit.code(), exit.text().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_is_one_screen() {
    let rig = Rig::new().await;
    rig.unknown("order-1").await;
    let mut args = StatusArgs { target: target(&rig), json: false, watch: false };
    let screen = status::ask(&args).await.unwrap();
    assert!(screen.starts_with("oncekey 0.1.0 · node-1 · up "), "{screen}");
    for part in ["SQLite", "1  → oncekey keys list --state unknown", "1 observe, 1 required"] {
        assert!(screen.contains(part), "{part} in:\n{screen}");
    }
    args.json = true;
    let document: serde_json::Value =
        serde_json::from_str(&status::ask(&args).await.unwrap()).unwrap();
    assert_eq!(document["instance"], "node-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_get_a_word_or_a_one() {
    let rig = Rig::new().await;
    let mut args = HealthArgs { target: target(&rig), live: false, ready: false };
    assert_eq!(health::ask(&args).await.unwrap(), "ready\n");
    let drain = DrainArgs { target: target(&rig), reason: None, json: false };
    assert_eq!(control::drain(&drain).await.unwrap(), "draining: 0 in flight\n");
    assert_eq!(said(health::ask(&args).await), (1, "not ready; drain: draining\n".to_owned()));
    args.live = true;
    assert_eq!(health::ask(&args).await.unwrap(), "live\n");
    args.target.admin = "http://127.0.0.1:1".to_owned();
    let (code, text) = said(health::ask(&args).await);
    assert_eq!(code, 1);
    assert!(text.contains("is it running? tried http://127.0.0.1:1"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_says_what_changed() {
    let rig = Rig::new().await;
    let mut args = ReloadArgs { target: target(&rig), dry_run: true, reason: None, json: false };
    let dry = control::reload(&args).await.unwrap();
    assert_eq!(dry, "would change:\n  create-charge: observe → required\n");
    args.dry_run = false;
    rig.gateway.bad_config.store(true, std::sync::atomic::Ordering::SeqCst);
    let (code, text) = said(control::reload(&args).await);
    assert_eq!(code, 3);
    assert!(text.contains("oncekey.toml:3:1"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_listed_and_shown() {
    let rig = Rig::new().await;
    let id = rig.done("order-1").await.to_string();
    rig.unknown("order 2&x=y").await;
    let all = keys::run(KeysCommand::List(list(&rig))).await.unwrap();
    assert!(all.starts_with("STATE"), "{all}");
    assert_eq!(all.lines().count(), 3);
    let one = ListArgs { key: Some("order-1".into()), ..list(&rig) };
    let one = keys::run(KeysCommand::List(one)).await.unwrap();
    assert!(one.contains(&id) && one.lines().count() == 2, "{one}");
    let odd = ListArgs { key: Some("order 2&x=y".into()), ..list(&rig) };
    assert_eq!(keys::run(KeysCommand::List(odd)).await.unwrap().lines().count(), 2);
    let page = ListArgs { limit: 1, ..list(&rig) };
    let page = keys::run(KeysCommand::List(page)).await.unwrap();
    assert!(page.contains("more: --cursor "), "{page}");
    let show = |payload| {
        let (id, target) = (id.clone(), target(&rig));
        KeysCommand::Show(ShowArgs { id, target, payload, json: false })
    };
    assert!(!keys::run(show(false)).await.unwrap().contains("order-1"));
    assert!(keys::run(show(true)).await.unwrap().contains("order-1"));
    let short = ListArgs { id: Some(id[..8].into()), ..list(&rig) };
    let short = keys::run(KeysCommand::List(short)).await.unwrap();
    assert!(short.contains(&id) && short.lines().count() == 2, "{short}");
    let wrong = ListArgs { state: Some("lost".into()), ..list(&rig) };
    assert_eq!(said(keys::run(KeysCommand::List(wrong)).await).0, 64);
}

/// "No such record" would be a lie that somebody acts on.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_alone_is_not_looked_for_where_it_cannot_be_found() {
    let rig = Rig::with(Plan { written: Written::Encrypted, ..Plan::default() }).await;
    let id = rig.done("order-1").await.to_string();
    let (key, scope) = (Some("order-1".to_owned()), Some("tenant-7".to_owned()));
    for half in [
        ListArgs { key: key.clone(), ..list(&rig) },
        ListArgs { scope: scope.clone(), ..list(&rig) },
    ] {
        let (code, text) = said(keys::run(KeysCommand::List(half)).await);
        assert_eq!(code, 64, "{text}");
        assert!(text.contains("encrypted") && text.contains("together"), "{text}");
    }
    let both = ListArgs { key, scope, ..list(&rig) };
    assert!(keys::run(KeysCommand::List(both)).await.unwrap().contains(&id));
    let short = ListArgs { id: Some(id[..8].into()), ..list(&rig) };
    assert!(keys::run(KeysCommand::List(short)).await.unwrap().contains(&id));
}

/// Eight digits are all that a log line shows of a record.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_found_by_what_a_log_line_shows_of_it() {
    let rig = Rig::new().await;
    let id = rig.done("order-1").await.to_string();
    rig.unknown("order-2").await;
    let show = |id: &str| {
        KeysCommand::Show(ShowArgs {
            id: id.to_owned(),
            target: target(&rig),
            payload: false,
            json: false,
        })
    };
    for digits in [id[..8].to_owned(), id[..8].to_ascii_uppercase(), id[..40].to_owned()] {
        let shown = keys::run(show(&digits)).await.unwrap();
        assert!(shown.contains(&id), "{shown}");
    }
    let other = if id.starts_with('0') { "1" } else { "0" };
    let (code, text) = said(keys::run(show(&other.repeat(8))).await);
    assert_eq!(code, 1);
    assert!(text.contains("no record has an id that begins with"), "{text}");
    assert_eq!(said(keys::run(show(&id[..7])).await).0, 64);
    let (reason, target) = ("a wish".to_owned(), target(&rig));
    let erase = KeysCommand::Erase(EraseArgs { id: id[..8].to_owned(), target, reason });
    assert_eq!(keys::run(erase).await.unwrap(), "erased\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_dangerous_has_to_be_said_twice() {
    let rig = Rig::new().await;
    let id = rig.unknown("order-1").await.to_string();
    let release = |confirm: Option<&str>| {
        let (reason, confirm) = ("ticket 1".to_owned(), confirm.map(str::to_owned));
        KeysCommand::Release(DangerArgs { id: id.clone(), target: target(&rig), reason, confirm })
    };
    let (code, text) = said(keys::run(release(None)).await);
    assert_eq!(code, 7);
    assert!(text.contains("class") && text.contains(&format!("--confirm {}", &id[..8])), "{text}");
    assert_eq!(keys::run(release(Some(&id[..8]))).await.unwrap(), "free\n");
    assert_eq!(said(keys::run(release(Some(&id[..8]))).await).0, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_written_down_and_erased() {
    let rig = Rig::new().await;
    let id = rig.unknown("order-1").await.to_string();
    let body = rig.folder.path().join("charge.json");
    std::fs::write(&body, "{\"id\":\"ch_1\"}").unwrap();
    let resolve = ResolveArgs {
        id: id.clone(),
        target: target(&rig),
        outcome: ResolvedAs::Succeeded,
        reason: "in the ledger".into(),
        status: Some(201),
        header: vec!["content-type: application/json".into()],
        body: Some(body),
        confirm: None,
    };
    let unsaid = ResolveArgs { status: None, header: Vec::new(), body: None, ..resolve.clone() };
    let (code, text) = said(keys::run(KeysCommand::Resolve(unsaid)).await);
    assert!(code == 64 && text.contains("--status"), "{text}");
    let both = ResolveArgs { outcome: ResolvedAs::NotExecuted, ..resolve.clone() };
    let (code, text) = said(keys::run(KeysCommand::Resolve(both)).await);
    assert!(code == 64 && text.contains("leave out --status"), "{text}");
    assert_eq!(keys::run(KeysCommand::Resolve(resolve)).await.unwrap(), "done\n");
    let erase = EraseArgs { id: id.clone(), target: target(&rig), reason: "gdpr".into() };
    assert_eq!(keys::run(KeysCommand::Erase(erase)).await.unwrap(), "erased\n");
    let (target, confirm) = (target(&rig), Some(id[..8].to_owned()));
    let expire = DangerArgs { id, target, reason: "test".into(), confirm };
    assert_eq!(keys::run(KeysCommand::Expire(expire)).await.unwrap(), "expired\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_comes_from_a_file_and_a_wrong_one_is_denied() {
    let rig = Rig::with(Plan { token: Some(TOKEN), ..Plan::default() }).await;
    let path = rig.folder.path().join("token");
    std::fs::write(&path, format!("{TOKEN}\n")).unwrap();
    let mut args = StatusArgs { target: target(&rig), json: false, watch: false };
    let (code, text) = said(status::ask(&args).await);
    assert_eq!(code, 8);
    assert!(text.contains("asks for a token"), "{text}");
    assert!(text.contains("--token-file") && text.contains("ONCEKEY_ADMIN_TOKEN"), "{text}");
    let other = rig.folder.path().join("other");
    std::fs::write(&other, "f".repeat(32)).unwrap();
    args.target.token_file = Some(other);
    let (code, text) = said(status::ask(&args).await);
    assert_eq!(code, 8);
    assert!(text.contains("not the one of this gateway"), "{text}");
    assert!(text.contains("--token-file") && text.contains("ONCEKEY_ADMIN_TOKEN"), "{text}");
    args.target.token_file = Some(path);
    assert!(status::ask(&args).await.unwrap().starts_with("oncekey"));
    args.target.token_file = Some("/no/such/file".into());
    assert_eq!(said(status::ask(&args).await).0, 64);
    for url in ["https://127.0.0.1:1", "127.0.0.1:1", "http://me:secret@localhost", "x y"] {
        args.target = Target { admin: url.into(), token_file: None };
        let (code, text) = said(status::ask(&args).await);
        assert!(code == 64 && !text.contains("secret"), "{url}: {text}");
    }
}
