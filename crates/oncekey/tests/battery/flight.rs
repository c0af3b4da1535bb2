//! What a second request meets while the first is running.

use std::time::Duration;

use oncekey::core::Policy;
use oncekey::core::policy::InFlight;

use crate::scene::{Director, Keeper, Server, stage};
use crate::wire::{KEY, Seen, ask, pay};

const BODY: &str = r#"{"amount": 500}"#;

/// A server under this policy with a payment under way.
async fn begun(
    keeper: Keeper,
    in_flight: InFlight,
) -> (Server, Director, tokio::task::JoinHandle<Seen>) {
    let (stage, mut director) = stage();
    let policy = Policy { in_flight, ..Policy::default() };
    let server = Server::start(keeper, policy, move |run, _| stage.payment(run)).await;
    let first = server.begin(&pay(BODY));
    director.reached().await;
    (server, director, first)
}

pub(crate) async fn a_duplicate_waits_and_gets_the_answer(keeper: Keeper) {
    let (server, director, first) = begun(keeper, Policy::default().in_flight).await;
    let second = server.begin(&pay(BODY));
    server.until_waiting(1).await;
    director.open();
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    second.assert_replays(&first);
    assert!(second.line("idempotency-status").starts_with("oncekey; coalesced; age=0; ttl="));
    assert_eq!(server.runs(), 1);
}

pub(crate) async fn a_duplicate_that_has_waited_long_enough_is_told_to_come_back(keeper: Keeper) {
    let wait = InFlight::Wait(Duration::from_millis(50));
    let (server, director, first) = begun(keeper, wait).await;
    let second = server.send(&pay(BODY)).await;
    assert_come_back(&second);
    director.open();
    let first = first.await.unwrap();
    assert_eq!(second.problem()["original_request"], first.line("request-id"));
    server.send(&pay(BODY)).await.assert_replays(&first);
    assert_eq!(server.runs(), 1);
}

pub(crate) async fn a_duplicate_is_told_to_come_back_at_once_where_nobody_waits(keeper: Keeper) {
    let (server, director, first) = begun(keeper, InFlight::Conflict).await;
    assert_come_back(&server.send(&pay(BODY)).await);
    director.open();
    let first = first.await.unwrap();
    server.send(&pay(BODY)).await.assert_replays(&first);
    assert_eq!(server.runs(), 1);
}

fn assert_come_back(seen: &Seen) {
    seen.assert_refused(409, "idempotency_in_progress", "unknown");
    let problem = seen.problem();
    assert_eq!(problem["retryable"], true);
    let seconds: u64 = seen.line("retry-after").parse().unwrap();
    assert!((1..=10).contains(&seconds), "{seconds}");
    assert!(problem["retry_after_ms"].as_u64().unwrap() <= seconds * 1_000);
}

pub(crate) async fn a_duplicate_is_told_where_its_answer_will_be(keeper: Keeper) {
    let (server, director, first) = begun(keeper, InFlight::Accepted).await;
    let second = server.send(&pay(BODY)).await;
    assert_eq!((second.status, second.is_replay()), (202, false));
    let location = second.line("location");
    assert_eq!(location, format!("/.idempotency/keys/{KEY}"));
    assert!(second.line("retry-after").parse::<u64>().unwrap() >= 1);
    let running = server.send(&ask("GET", location)).await;
    assert_eq!((running.status, running.line("location")), (202, location));
    // Whoever asks for the key of another tenant learns nothing.
    let other = server.send(&ask("GET", location).line("x-tenant", "globex")).await;
    other.assert_refused(404, "idempotency_key_not_found", "unknown");
    director.open();
    let first = first.await.unwrap();
    let done = server.send(&ask("GET", location)).await;
    done.assert_replays(&first);
    assert_eq!(done.line("location"), first.line("location"), "the answer's own location");
    assert_eq!(server.runs(), 1);
}
