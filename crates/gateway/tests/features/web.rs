use crate::rig::{Message, Rig};

const ROUTES: &str = "[[route]]\nmatch = 'POST /pay'\nmode = 'optional'\nscope = ['shared']\n\
                      key.sources = ['header:X-Key']\n\
                      [[route]]\nmatch = 'POST /watched'\nmode = 'observe'\n";

#[test]
fn browsers_may_send_the_key_and_see_what_became_of_it() {
    let rig = Rig::new(&format!("[cors]\namend = true\n{ROUTES}"));
    let ask = |path: &str, method: &str| {
        let wanted = format!("Access-Control-Request-Method: {method}");
        let answer = rig.send(&format!("OPTIONS {path}"), &["Origin: https://shop", &wanted], "");
        answer.lines("access-control-allow-headers")
    };
    assert_eq!(ask("/pay", "POST"), "x-key");
    assert_eq!(ask("/pay", "GET"), "");
    assert_eq!(ask("/watched", "POST"), "");
    let keyed = rig.send("POST /pay", &["X-Key: 8e03978e-40d5-43e8"], "1");
    assert!(keyed.lines("access-control-expose-headers").contains("Idempotency-Status"));
    let watched = rig.send("POST /watched", &["Idempotency-Key: 8e03978e-40d5-43e8"], "1");
    assert_eq!(watched.lines("access-control-expose-headers"), "");
}

/// A page of another origin than the first may read a replay if it is allowed to, and the lines of
/// the first answer are for nobody else.
#[test]
fn pages_read_replays_and_refusals_if_they_may() {
    let cors = "[cors]\norigins = ['https://app', 'https://shop']\ncredentials = true\n\
                [status]\npath = '/.keys/'\n";
    let rig = Rig::new(&format!("{cors}{ROUTES}"));
    let key = "X-Key: 8e03978e-40d5-43e8";
    let allow = |answer: &Message| answer.lines("access-control-allow-origin");
    let pay = |origin: &str, body: &str| {
        rig.send("POST /pay", &[key, &format!("Origin: {origin}")], body)
    };
    let first = pay("https://shop", "1");
    assert_eq!(allow(&first), "https://shop", "the upstream says so");
    assert_eq!(first.header("vary"), None, "and we say nothing to it");
    for (origin, allowed) in [("https://app", "https://app"), ("https://evil", ""), ("null", "")] {
        for (body, status) in [("1", 200), ("2", 422)] {
            let answer = pay(origin, body);
            assert_eq!(answer.status(), status);
            assert_eq!(allow(&answer), allowed, "{origin}: {answer:?}");
            let credentials = answer.header("access-control-allow-credentials").is_some();
            assert_eq!(credentials, !allowed.is_empty(), "{origin}: {answer:?}");
            assert_eq!(answer.lines("vary"), "Origin", "{answer:?}");
            let exposed = answer.lines("access-control-expose-headers");
            assert_eq!(exposed.contains("Idempotency-Status"), !allowed.is_empty(), "{exposed}");
        }
    }
    let status = rig.send("GET /.keys/8e03978e-40d5-43e8", &["Origin: https://app"], "");
    assert_eq!((status.status(), allow(&status).as_str()), (200, "https://app"), "{status:?}");
    let passed = rig.send("GET /anything", &["Origin: https://app"], "");
    assert_eq!(allow(&passed), "https://shop", "what the upstream says is left alone");
}

/// Without the setting a replay names no origin at all: least of all that of the first request.
#[test]
fn the_origin_of_the_first_request_is_not_echoed_to_another() {
    let rig = Rig::new(&format!("[cors]\namend = true\n{ROUTES}"));
    let pay = |origin: &str| {
        rig.send("POST /pay", &["X-Key: 8e03978e-40d5-43e8", &format!("Origin: {origin}")], "1")
    };
    assert_eq!(pay("https://shop").lines("access-control-allow-origin"), "https://shop");
    let replay = pay("https://app");
    assert_eq!(replay.header("idempotent-replayed"), Some("true"));
    assert!(!replay.headers.iter().any(|(name, _)| name.starts_with("access-control-")));
}

#[test]
fn nothing_is_amended_unless_somebody_says_so() {
    let rig = Rig::new(ROUTES);
    let wanted = "Access-Control-Request-Method: POST";
    let preflight = rig.send("OPTIONS /pay", &["Origin: https://shop", wanted], "");
    assert_eq!(preflight.lines("access-control-allow-headers"), "");
    let document = rig.send("GET /.well-known/idempotency", &[], "");
    assert_eq!(document.json()["number"], 2, "it is the upstream's");
}

#[test]
fn clients_can_read_what_they_can_rely_on() {
    let rig = Rig::new(&format!("[well_known]\nenabled = true\n{ROUTES}"));
    let document = rig.send("GET /.well-known/idempotency", &[], "");
    assert_eq!(document.header("content-type"), Some("application/json"));
    let routes = &document.json()["routes"];
    assert_eq!(
        (&routes[0]["path"], &routes[0]["keys"][0]),
        (&"/pay".into(), &"header:x-key".into())
    );
    assert_eq!(routes[1], serde_json::Value::Null, "observe mode is nobody's business");
    assert_eq!(rig.seen().len(), 0);
}
