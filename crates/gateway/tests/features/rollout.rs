use crate::rig::Rig;

const KEY: &str = "Idempotency-Key: 8e03978e-40d5-43e8";

/// Who is outside is observed: nothing about its requests and answers changes.
#[test]
fn only_callers_who_are_in_are_protected() {
    let rig = Rig::new(
        "[[route]]\nmatch = 'POST /pay'\nmode = 'required'\nscope = ['header:X-Tenant']\n\
         rollout = { percent = 50, exempt = ['scope:acme'] }\n",
    );
    let mut inside = 0;
    for number in 0..20 {
        let tenant = format!("X-Tenant: tenant {number}");
        let first = rig.send("POST /pay", &[&tenant, KEY], "1");
        let again = rig.send("POST /pay", &[&tenant, KEY], "1");
        let replayed = again.header("idempotent-replayed").is_some();
        assert_eq!(first.header("idempotency-status").is_some(), replayed, "{tenant}");
        assert_eq!(first.body == again.body, replayed, "{tenant}");
        inside += usize::from(replayed);
    }
    assert!((3..18).contains(&inside), "{inside}");
    for _ in 0..2 {
        let left_alone = rig.send("POST /pay", &["X-Tenant: acme"], "1");
        assert_eq!((left_alone.status(), left_alone.header("idempotency-status")), (200, None));
    }
    assert_eq!(rig.seen().len(), inside + 2 * (20 - inside) + 2);
}
