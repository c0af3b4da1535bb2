use crate::rig::{Message, Rig};

const JSON: &str = "Content-Type: application/json";
const FORM: &str = "Content-Type: application/x-www-form-urlencoded";
const KEY: &str = "8e03978e-40d5-43e8";

fn rig(mode: &str, more: &str) -> Rig {
    Rig::new(&format!(
        "[[route]]\nmatch = 'POST /pay'\nmode = '{mode}'\nscope = ['shared']\n\
         key.sources = ['header:Idempotency-Key', 'query:key', 'json:$.meta.key']\n{more}"
    ))
}

fn is_replay(message: &Message) -> bool {
    message.header("idempotent-replayed") == Some("true")
}

#[test]
fn a_key_in_a_query_or_in_a_body_protects_like_one_in_a_header() {
    let rig = rig("required", "");
    let body = format!(r#"{{"amount":1,"meta":{{"key":"{KEY}"}}}}"#);
    let first = rig.send("POST /pay", &[JSON], &body);
    let again = rig.send("POST /pay", &[JSON], &body);
    assert_eq!((first.status(), is_replay(&first), is_replay(&again)), (200, false, true));
    assert_eq!(first.body, again.body);
    assert_eq!(again.header("idempotency-key"), Some(&*format!("\"{KEY}\"")));
    let path = "POST /pay?a=1&key=query-0123456789ab";
    assert!(!is_replay(&rig.send(path, &[FORM], "b=2")));
    assert!(is_replay(&rig.send(path, &[FORM], "b=2")));
    let seen = rig.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].body, body, "the upstream gets what the client sent");
    assert!(seen[0].header("idempotency-key").is_some_and(|key| key.starts_with("ok1_")));
}

#[test]
fn two_places_that_disagree_are_refused() {
    let rig = rig("optional", "");
    let body = format!(r#"{{"meta":{{"key":"{KEY}"}}}}"#);
    for (first, headers) in [
        ("POST /pay?key=another-0123456789", &[JSON][..]),
        ("POST /pay", &[JSON, "Idempotency-Key: another-0123456789"]),
    ] {
        let refused = rig.send(first, headers, &body);
        assert_eq!(refused.status(), 400, "{first}");
        assert_eq!(refused.json()["code"], "idempotency_key_invalid");
    }
    assert_eq!(rig.seen().len(), 0);
    let same = format!("Idempotency-Key: {KEY}");
    assert_eq!(rig.send("POST /pay", &[JSON, &same], &body).status(), 200);
}

#[test]
fn without_a_key_a_body_that_was_read_is_passed_on() {
    let rig = rig("optional", "");
    for (header, body) in [
        (JSON, r#"{"amount":1}"#),
        (JSON, r#"{"amount":1,"meta":{"key":null}}"#),
        (FORM, "meta.key=8e03978e-40d5-43e8"),
        ("Content-Type: text/plain", r#"{"meta":{"key":"8e03978e-40d5-43e8"}}"#),
    ] {
        let before = rig.seen().len();
        for _ in 0..2 {
            let passed = rig.send("POST /pay", &[header], body);
            assert_eq!((passed.status(), passed.header("idempotency-status")), (200, None));
        }
        let seen = rig.seen();
        assert_eq!(seen.len(), before + 2, "{header}: {body}");
        assert_eq!(seen[before].body, body);
    }
}

#[test]
fn a_body_with_two_meanings_is_refused() {
    let rig = rig("required", "");
    for body in [
        r#"{"meta":{"key":"aaaaaaaaaaaaaaaa","key":"bbbbbbbbbbbbbbbb"}}"#,
        "{",
        r#"{"meta":{"key":1}}"#,
    ] {
        let refused = rig.send("POST /pay", &[JSON], body);
        assert_eq!(refused.json()["code"], "idempotency_key_invalid", "{body}");
    }
    assert_eq!(rig.send("POST /pay", &[JSON], "{}").json()["code"], "idempotency_key_missing");
    assert_eq!(rig.seen().len(), 0);
}

#[test]
fn a_weak_key_is_refused_where_the_route_says_so() {
    let strict = rig("required", "key.quality = 'reject'\n");
    for weak in ["1", "order-42", "somebody@example.com"] {
        let refused = strict.send("POST /pay", &[&format!("Idempotency-Key: {weak}")], "1");
        assert_eq!(refused.json()["code"], "idempotency_key_invalid", "{weak}");
    }
    assert_eq!(strict.send("POST /pay", &[&format!("Idempotency-Key: {KEY}")], "1").status(), 200);
    let lenient = rig("required", "key.quality = 'warn'\n");
    assert_eq!(lenient.send("POST /pay", &["Idempotency-Key: 1"], "1").status(), 200);
}
