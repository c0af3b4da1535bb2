use crate::rig::Rig;

const REQUIRED: &str = "[[route]]\nmatch = 'POST /pay'\nmode = 'required'\nscope = ['shared']\n";
const KEY: &str = "Idempotency-Key: 8e03978e-40d5-43e8";

#[test]
fn refusals_have_the_status_and_the_shape_that_stripe_gives_them() {
    let rig = Rig::new(&format!(
        "[errors]\nformat = 'stripe'\nstatuses = {{ missing_key = 428, mismatch = 409 }}\n{REQUIRED}"
    ));
    let missing = rig.send("POST /pay", &[], "1");
    assert_eq!(missing.status(), 428);
    assert_eq!(missing.json()["error"]["type"], "invalid_request_error");
    assert_eq!(missing.json()["error"]["code"], "idempotency_key_missing");
    assert_eq!(missing.header("stripe-should-retry"), Some("false"));
    assert_eq!(rig.send("POST /pay", &[KEY], "1").status(), 200);
    let reused = rig.send("POST /pay", &[KEY], "2");
    assert_eq!(reused.status(), 409);
    assert_eq!(reused.json()["error"]["type"], "idempotency_error");
    assert_eq!(
        reused.header("idempotency-status"),
        Some("oncekey; mismatch; executed=no; retry=?0")
    );
    assert_eq!(rig.seen().len(), 1);
}

#[test]
fn refusals_come_in_the_envelope_of_the_api() {
    let rig = Rig::with(|folder| {
        let template = r#"{"fault":{"kind":"{{code}}","http":{{status}},"id":"{{request_id}}"}}"#;
        std::fs::write(folder.join("fault.json"), template).expect("the template");
        format!("[errors]\nformat = 'template'\ntemplate_file = 'fault.json'\n{REQUIRED}")
    });
    let missing = rig.send("POST /pay", &[], "1");
    assert_eq!((missing.status(), missing.header("content-type")), (400, Some("application/json")));
    let fault = &missing.json()["fault"];
    assert_eq!((&fault["kind"], &fault["http"]), (&"idempotency_key_missing".into(), &400.into()));
    assert_eq!(fault["id"].as_str(), missing.header("request-id"));
}

/// What never reached the upstream was not executed, and says so everywhere.
#[test]
fn a_request_that_never_got_through_does_not_say_that_it_was_executed() {
    let rig = Rig::alone(REQUIRED);
    let unreached = rig.send("POST /pay", &[KEY], "1");
    assert_eq!(unreached.status(), 502);
    assert_eq!(
        unreached.header("idempotency-status"),
        Some("oncekey; not-delivered; executed=no; retry=?1")
    );
    assert_eq!(unreached.header("retry-after"), Some("1"));
    let document = unreached.json();
    assert_eq!(
        (&document["code"], &document["executed"]),
        (&"upstream_unreachable".into(), &"no".into())
    );
    assert_eq!(document["request_id"].as_str(), unreached.header("request-id"));
    let unprotected = rig.send("POST /other", &[], "1");
    assert_eq!(unprotected.status(), 502);
    assert!(unprotected.json()["request_id"].as_str().is_some_and(|id| id.starts_with("req_")));
    assert_eq!(unprotected.header("idempotency-status"), None);
}
