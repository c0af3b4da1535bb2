use crate::rig::Rig;

const KEY: &str = "Idempotency-Key: 8e03978e-40d5-43e8";

fn rig(path: &str) -> Rig {
    Rig::new(&format!(
        "[[route]]\nmatch = 'POST /lost'\nmode = 'required'\nscope = ['shared']\n\
         probe = '{{upstream}}{path}'\n"
    ))
}

fn sent(rig: &Rig) -> usize {
    rig.seen().iter().filter(|request| request.first.starts_with("POST")).count()
}

#[test]
fn a_lost_answer_is_found_again() {
    let rig = rig("/outcomes/happened");
    let lost = rig.send("POST /lost", &[KEY], "1");
    assert_eq!((lost.status(), &lost.json()["executed"]), (502, &"unknown".into()));
    assert_eq!(
        lost.header("idempotency-status"),
        Some("oncekey; unknown; executed=unknown; retry=?0")
    );
    for _ in 0..2 {
        let found = rig.send("POST /lost", &[KEY], "1");
        assert_eq!((found.status(), found.body.as_str()), (201, "paid"));
        assert_eq!(found.header("idempotent-replayed"), Some("true"));
    }
    assert_eq!(sent(&rig), 1, "it is never sent again");
}

#[test]
fn what_did_not_happen_may_happen_now() {
    let rig = rig("/outcomes/never");
    assert_eq!(rig.send("POST /lost", &[KEY], "1").status(), 502);
    assert_eq!(rig.send("POST /lost", &[KEY], "1").status(), 502);
    assert_eq!(sent(&rig), 2);
}

/// A wrong address says 404 to everybody.
#[test]
fn who_does_not_repeat_the_key_does_not_know() {
    let rig = rig("/wrong");
    assert_eq!(rig.send("POST /lost", &[KEY], "1").status(), 502);
    let unknown = rig.send("POST /lost", &[KEY], "1");
    assert_eq!(
        (unknown.status(), &unknown.json()["code"]),
        (409, &"idempotency_outcome_unknown".into())
    );
    assert_eq!(sent(&rig), 1);
}
