//! How the work ended, and what a retry then meets.

use crate::common::converse;
use crate::scene::{CLASSES, Scene};

const BODY: &str = r#"{"amount": 500}"#;

async fn assert_replayed(scene: Scene, status: u16) {
    let first = scene.send(&scene.pay(BODY).line("x-do", &format!("status={status}"))).await;
    assert_eq!((first.status, first.text()), (status, r#"{"id":"pay_1"}"#));
    // What the upstream would do now is not asked.
    scene.send(&scene.pay(BODY)).await.assert_replays(&first);
    assert_eq!(scene.runs().await, 1);
}

/// Row 15: a decline is an outcome.
pub(crate) async fn a_declined_payment_is_replayed(scene: Scene) {
    assert_replayed(scene, 402).await;
}

/// Row 8.
pub(crate) async fn a_refused_body_is_replayed(scene: Scene) {
    assert_replayed(scene, 400).await;
}

/// Row 7: the charge may have been made before the service failed.
pub(crate) async fn a_failure_of_the_service_is_replayed(scene: Scene) {
    assert_replayed(scene, 500).await;
}

async fn assert_runs_again(scene: Scene, status: u16) {
    let first = scene.send(&scene.pay(BODY).line("x-do", &format!("status={status}"))).await;
    assert_eq!((first.status, first.text()), (status, r#"{"id":"pay_1"}"#));
    assert_eq!(first.line("idempotency-status"), "oncekey; executed; recorded=released");
    assert_ran_again(&scene, "/payments", 2).await;
}

async fn assert_ran_again(scene: &Scene, path: &str, runs: usize) {
    let second = scene.send(&scene.pay(BODY).path(path)).await;
    assert_eq!((second.status, second.is_replay(), scene.runs().await), (201, false, runs));
    scene.send(&scene.pay(BODY).path(path)).await.assert_replays(&second);
    assert_eq!(scene.runs().await, runs);
}

/// Row 16.
pub(crate) async fn a_service_that_says_not_so_fast_runs_again(scene: Scene) {
    assert_runs_again(scene, 429).await;
}

pub(crate) async fn a_service_that_says_not_now_runs_again(scene: Scene) {
    assert_runs_again(scene, 503).await;
}

/// A first attempt that nobody knows the outcome of, under each class, and what a retry does.
async fn assert_unknown_by_class(scene: Scene, script: &str, expected: &[&str]) {
    let mut runs = 0;
    for class in CLASSES {
        let path = format!("/{class}");
        // Keys do not belong to paths.
        let ask = scene.pay(BODY).path(&path).key(class);
        let first = converse(scene.address(), &ask.clone().line("x-do", script).bytes()).await;
        let first = String::from_utf8(first).unwrap();
        expected.iter().for_each(|part| assert!(first.contains(part), "no {part} in {first}"));
        let second = scene.send(&ask).await;
        runs += 1;
        if class == "once" {
            second.assert_refused(409, "idempotency_outcome_unknown", "unknown");
            assert_eq!(second.problem()["retryable"], false);
            scene.send(&ask).await.assert_refused(409, "idempotency_outcome_unknown", "unknown");
        } else {
            runs += 1;
            assert_eq!((second.status, second.is_replay()), (201, false), "{class}");
            scene.send(&ask).await.assert_replays(&second);
        }
        assert_eq!(scene.runs().await, runs, "{class}");
    }
}

/// Row 18, as an answer: something behind the service gave up, and nobody knows what it had done.
pub(crate) async fn a_bad_gateway_is_an_unknown_outcome_or_runs_again_by_class(scene: Scene) {
    let expected = ["HTTP/1.1 502 ", "location: /payments", "oncekey; executed; recorded=unknown"];
    assert_unknown_by_class(scene, "status=502", &expected).await;
}

/// Row 9: a service that dies in the middle of its work.
pub(crate) async fn a_service_that_hangs_up_is_an_unknown_outcome_or_runs_again_by_class(
    scene: Scene,
) {
    let code = r#""code":"upstream_no_answer""#;
    // Whatever the class is, the first who hears of it is told what not to do.
    let (executed, hint) = (r#""executed":"unknown""#, r#""hint":""#);
    let expected = ["HTTP/1.1 502 ", code, executed, r#""request_id":"req_"#, hint];
    assert_unknown_by_class(scene, "hang-up", &expected).await;
}

/// F16: what is not whole is never kept, and its client sees what there was of it.
pub(crate) async fn an_answer_that_breaks_off_is_an_unknown_outcome_or_runs_again_by_class(
    scene: Scene,
) {
    let expected = ["HTTP/1.1 201 ", "location: /payments", "recorded=unknown"];
    assert_unknown_by_class(scene, "cut=112", &expected).await;
}
