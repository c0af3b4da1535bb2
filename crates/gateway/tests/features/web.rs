use crate::rig::Rig;

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
