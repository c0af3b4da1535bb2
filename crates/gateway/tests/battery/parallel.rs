//! Twenty duplicates at once.

use tokio::task::JoinHandle;

use crate::common::wire::{Ask, Seen};
use crate::scene::Scene;

const BODY: &str = r#"{"amount": 500}"#;

/// Sends the same request twenty times, and lets the upstream end when nineteen wait for it.
async fn twenty(scene: &Scene, ask: &Ask) -> Vec<Seen> {
    let clients: Vec<JoinHandle<Seen>> = (0..20).map(|_| scene.begin(ask)).collect();
    scene.until_begun(1).await;
    scene.until_waiting(19).await;
    scene.release().await;
    let mut answers = Vec::new();
    for client in clients {
        answers.push(client.await.unwrap());
    }
    answers
}

/// Rows 1 and 2: executions of twenty, and what the nineteen others get.
pub(crate) async fn twenty_parallel_duplicates_run_once_and_get_one_answer(scene: Scene) {
    let ask = scene.pay(BODY).line("x-do", "hold");
    let answers = twenty(&scene, &ask).await;
    let (replays, firsts): (Vec<_>, Vec<_>) = answers.into_iter().partition(Seen::is_replay);
    assert_eq!((firsts.len(), replays.len()), (1, 19));
    assert_eq!((firsts[0].status, firsts[0].text()), (201, r#"{"id":"pay_1"}"#));
    for replay in replays {
        replay.assert_replays(&firsts[0]);
        for name in ["location", "content-type", "content-length", "idempotency-key"] {
            assert_eq!(replay.line(name), firsts[0].line(name), "{name}");
        }
    }
    assert!(scene.send(&ask).await.is_replay());
    assert_eq!(scene.runs().await, 1);
}

/// Row 2, under the policy of most others: nobody waits, everybody is told when to come back.
pub(crate) async fn nineteen_of_twenty_are_told_to_come_back_where_nobody_waits(scene: Scene) {
    let ask = scene.pay(BODY).path("/conflict").line("x-do", "hold");
    let first = scene.begin(&ask);
    scene.until_begun(1).await;
    let others: Vec<JoinHandle<Seen>> = (0..19).map(|_| scene.begin(&ask)).collect();
    for other in others {
        let refused = other.await.unwrap();
        refused.assert_refused(409, "idempotency_in_progress", "unknown");
        assert!(refused.line("retry-after").parse::<u64>().unwrap() >= 1);
    }
    scene.release().await;
    let first = first.await.unwrap();
    assert_eq!((first.status, scene.runs().await), (201, 1));
    scene.send(&ask).await.assert_replays(&first);
}

/// One of the eight others ran twenty times as soon as the answer set a cookie.
pub(crate) async fn twenty_parallel_duplicates_run_once_though_the_answer_sets_a_cookie(
    scene: Scene,
) {
    let answers = twenty(&scene, &scene.pay(BODY).line("x-do", "hold cookie")).await;
    assert_eq!(scene.runs().await, 1);
    assert_eq!(answers.iter().filter(|seen| seen.is_replay()).count(), 19);
    for seen in &answers {
        assert_eq!((seen.status, seen.has("set-cookie")), (201, !seen.is_replay()));
    }
}

pub(crate) async fn a_duplicate_waits_and_gets_the_answer(scene: Scene) {
    let ask = scene.pay(BODY).line("x-do", "hold");
    let first = scene.begin(&ask);
    scene.until_begun(1).await;
    let second = scene.begin(&ask);
    scene.until_waiting(1).await;
    scene.release().await;
    second.await.unwrap().assert_replays(&first.await.unwrap());
    assert_eq!(scene.runs().await, 1);
}
