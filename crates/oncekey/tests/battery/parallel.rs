//! Twenty duplicates at once.

use std::sync::Arc;

use axum::body::Body;
use http::{HeaderValue, Response};
use oncekey::core::Policy;
use oncekey::core::policy::InFlight;
use tokio::task::JoinSet;

use crate::scene::{Director, Keeper, Server, stage};
use crate::wire::{Client, Seen, pay};

const BODY: &str = r#"{"amount": 500}"#;

/// Opens twenty connections, writes the same request into each, and lets the handler end when
/// nineteen wait for it.
async fn twenty(server: &Server, director: &mut Director) -> Vec<Seen> {
    let mut clients = JoinSet::new();
    let mut open = Vec::new();
    for _ in 0..20 {
        open.push(Client::open(server.address).await);
    }
    for mut client in open {
        clients.spawn(async move { client.ask(&pay(BODY)).await });
    }
    director.reached().await;
    server.until_waiting(19).await;
    director.open();
    clients.join_all().await
}

/// Row 1: executions of twenty.
pub(crate) async fn twenty_parallel_duplicates_run_once(keeper: Keeper) {
    let (stage, mut director) = stage();
    let server = Server::start(keeper, Policy::default(), move |run, _| stage.payment(run)).await;
    let answers = twenty(&server, &mut director).await;
    assert_eq!((answers.len(), server.runs()), (20, 1));
    assert!(server.send(&pay(BODY)).await.is_replay());
    assert_eq!(server.runs(), 1);
}

/// Row 2: what the nineteen others get.
pub(crate) async fn nineteen_of_twenty_get_the_first_ones_answer(keeper: Keeper) {
    let (stage, mut director) = stage();
    let server = Server::start(keeper, Policy::default(), move |run, _| stage.payment(run)).await;
    let answers = twenty(&server, &mut director).await;
    let (replays, firsts): (Vec<_>, Vec<_>) = answers.into_iter().partition(Seen::is_replay);
    assert_eq!((firsts.len(), replays.len()), (1, 19));
    assert_eq!((firsts[0].status, firsts[0].text()), (201, r#"{"id":"pay_1"}"#));
    for replay in replays {
        replay.assert_replays(&firsts[0]);
        for name in ["location", "content-type", "content-length", "idempotency-key"] {
            assert_eq!(replay.line(name), firsts[0].line(name), "{name}");
        }
        assert!(replay.line("idempotency-status").starts_with("oncekey; coalesced; "));
    }
}

/// Row 2, under the policy of most others: nobody waits, everybody is told when to come back.
pub(crate) async fn nineteen_of_twenty_are_told_to_come_back_where_nobody_waits(keeper: Keeper) {
    let (stage, mut director) = stage();
    let policy = Policy { in_flight: InFlight::Conflict, ..Policy::default() };
    let server = Server::start(keeper, policy, move |run, _| stage.payment(run)).await;
    let mut clients = JoinSet::new();
    for _ in 0..20 {
        let address = server.address;
        clients.spawn(async move { Client::open(address).await.ask(&pay(BODY)).await });
    }
    for _ in 0..19 {
        let refused = clients.join_next().await.unwrap().unwrap();
        refused.assert_refused(409, "idempotency_in_progress", "unknown");
        assert!(refused.line("retry-after").parse::<u64>().unwrap() >= 1);
    }
    director.reached().await;
    director.open();
    let first = clients.join_next().await.unwrap().unwrap();
    assert_eq!((first.status, server.runs()), (201, 1));
    server.send(&pay(BODY)).await.assert_replays(&first);
}

/// One of the eight others ran twenty times as soon as the answer set a cookie.
pub(crate) async fn twenty_parallel_duplicates_run_once_though_the_answer_sets_a_cookie(
    keeper: Keeper,
) {
    let (stage, mut director) = stage();
    let server = Server::start(keeper, Policy::default(), move |run, _| {
        let stage = stage.clone();
        Box::pin(async move {
            let mut response: Response<Body> = stage.payment(run).await;
            let cookie = HeaderValue::from_static("session=1");
            response.headers_mut().insert("set-cookie", cookie);
            response
        })
    })
    .await;
    let answers = twenty(&server, &mut director).await;
    assert_eq!(server.runs(), 1);
    let cookies: Vec<bool> = answers.iter().map(|seen| seen.has("set-cookie")).collect();
    assert_eq!(cookies.iter().filter(|has| **has).count(), 1, "the cookie is the first one's");
    for seen in &answers {
        assert_eq!((seen.status, seen.has("set-cookie")), (201, !seen.is_replay()));
    }
}

/// Two processes on one store: ten clients each.
pub(crate) async fn twenty_parallel_duplicates_on_two_servers_run_once(keeper: Keeper) {
    let kept = keeper.keep();
    let (stage, mut director) = stage();
    let mut servers = Vec::new();
    for _ in 0..2 {
        let (store, stage) = (Arc::clone(&kept.store), stage.clone());
        servers.push(
            Server::start_on(store, Policy::default(), move |run, _| stage.payment(run)).await,
        );
    }
    let mut clients = JoinSet::new();
    for place in 0..20 {
        let address = servers[place % 2].address;
        clients.spawn(async move { Client::open(address).await.ask(&pay(BODY)).await });
    }
    director.reached().await;
    for server in &servers {
        server.until_waiting(9).await;
    }
    director.open();
    let answers = clients.join_all().await;
    assert_eq!(servers.iter().map(Server::runs).sum::<usize>(), 1);
    assert!(answers.iter().all(|seen| seen.status == 201 && seen.text() == answers[0].text()));
    assert_eq!(answers.iter().filter(|seen| seen.is_replay()).count(), 19);
}
