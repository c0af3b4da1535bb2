//! Bodies that are large or binary, and the lines around them.

use tokio::io::AsyncWriteExt as _;

use crate::common::wire::{Client, Seen};
use crate::scene::Scene;

const BODY: &str = r#"{"amount": 500}"#;
const THREE_MEGABYTES: usize = 3 * 1024 * 1024;

/// Row 11: refused by its declared length, or by reading it.
pub(crate) async fn a_body_of_three_megabytes_is_refused_and_claims_nothing(scene: Scene) {
    let mut client = Client::open(scene.address()).await;
    client.write(&scene.pay("").head(&format!("content-length: {THREE_MEGABYTES}\r\n"))).await;
    client.read("POST").await.assert_refused(413, "idempotency_body_too_large", "no");
    assert!(client.is_at_its_end().await, "the rest of the body is no request");

    // A client that does not listen before it has said everything.
    let mut client = Client::open(scene.address()).await;
    let chunk = [b"100000\r\n".to_vec(), vec![b'x'; 0x10_0000], b"\r\n".to_vec()].concat();
    let head = scene.pay("").head("transfer-encoding: chunked\r\n");
    let _ = client.socket.write_all(&[head, chunk.repeat(3)].concat()).await;
    client.read("POST").await.assert_refused(413, "idempotency_body_too_large", "no");
    assert_eq!(scene.runs().await, 0);
    let small = scene.send(&scene.pay(BODY)).await;
    assert_eq!((small.status, small.is_replay(), scene.runs().await), (201, false, 1));
}

/// Row 13: all 256 values of a byte, in all their neighbourhoods, both ways.
pub(crate) async fn a_binary_body_is_replayed_byte_for_byte(scene: Scene) {
    let body: Vec<u8> =
        (0..=u8::MAX).flat_map(|high| (0..=u8::MAX).flat_map(move |low| [high, low])).collect();
    let binary = |body: &[u8]| {
        let ask = scene.pay(body).line("content-type", "application/octet-stream");
        ask.line("x-do", "echo")
    };
    for replay in [false, true] {
        let seen = scene.send(&binary(&body)).await;
        assert!(seen.is_replay() == replay && seen.body == body, "replay: {replay}");
    }
    let mut other = body.clone();
    other[40_000] ^= 1;
    scene.send(&binary(&other)).await.assert_refused(422, "idempotency_key_reused", "no");
    assert_eq!(scene.runs().await, 1);
}

/// I18: a tombstone says that it ran, with which status, and that its answer is not here.
pub(crate) async fn an_answer_too_large_to_keep_reaches_its_client_and_never_runs_again(
    scene: Scene,
) {
    let first = scene.send(&scene.pay(BODY).line("x-do", "big=3000000")).await;
    assert_eq!((first.status, first.body.len()), (201, 3_000_000));
    assert!(first.body.iter().all(|byte| *byte == b'x'));
    for _ in 0..2 {
        let again = scene.send(&scene.pay(BODY)).await;
        again.assert_refused(409, "idempotency_response_not_retained", "yes");
        assert_eq!(again.problem()["original_status"], 201);
    }
    assert_eq!(scene.runs().await, 1);
}

fn values<'s>(seen: &'s Seen, names: &[&str]) -> Vec<(&'s str, &'s [u8])> {
    let lines = seen.lines.iter().filter(|(name, _)| names.contains(&name.as_str()));
    lines.map(|(name, value)| (name.as_str(), &value[..])).collect()
}

/// Row 12: as often as they came, in their order, with their commas; but no cookies.
pub(crate) async fn location_and_repeated_lines_are_replayed_and_cookies_are_not(scene: Scene) {
    let names = ["location", "link", "x-warning", "x-empty", "content-type"];
    let first = scene.send(&scene.pay(BODY).line("x-do", "lines cookie")).await;
    assert_eq!(values(&first, &["link", "x-warning"]).len(), 4);
    assert_eq!(values(&first, &["set-cookie"]).len(), 2);
    let again = scene.send(&scene.pay(BODY)).await;
    again.assert_replays(&first);
    assert_eq!(values(&again, &names), values(&first, &names));
    assert!(!again.has("set-cookie"), "cookies are for the first client");
    assert_eq!(again.line("location"), "/payments/pay_1");
    assert_eq!(scene.runs().await, 1);
}

/// I42, on one connection: what follows shows that nothing more was sent.
pub(crate) async fn an_answer_without_content_is_replayed_without_content(scene: Scene) {
    let mut client = Client::open(scene.address()).await;
    for status in [204_u16, 304] {
        let ask = scene.pay(BODY).key(&format!("key-for-{status}"));
        let ask = ask.line("x-do", &format!("status={status}"));
        let first = client.ask(&ask).await;
        let again = client.ask(&ask).await;
        assert_eq!((first.status, again.status), (status, status));
        assert!(again.is_replay() && !first.is_replay());
        assert!(!again.has("content-length") && !again.has("transfer-encoding"), "{again:?}");
    }
    assert_eq!(scene.runs().await, 2);
}

/// The key that the client chose stays here; the upstream gets one that is ours.
pub(crate) async fn the_upstream_gets_the_same_derived_key_on_every_attempt(scene: Scene) {
    let ask = scene.pay(BODY).path("/keyed");
    scene.send(&ask.clone().line("x-do", "hang-up")).await;
    scene.send(&ask).await;
    let runs = scene.stage.upstream.runs(scene.tenant).await;
    assert_eq!(runs.len(), 2);
    assert!(runs[0].key.starts_with("ok1_"), "{runs:?}");
    assert_eq!(runs[0].key, runs[1].key);
    let attempt = |at: usize| runs[at].attempt.parse::<u64>().unwrap();
    assert!(attempt(1) > attempt(0), "{runs:?}");
}
