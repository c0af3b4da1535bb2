//! What is finished without a retry.

use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::common::wire::Client;
use crate::scene::{
    A_LOOK, KEPT, SECRET, Scene, ended, listed, payment, retry, routes, until_ended,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_whose_gateway_was_killed_is_made_again_and_its_retry_is_a_replay() {
    let scene = Scene::set();
    scene.abandon(&routes("")).await;
    assert!(!scene.is_on_disk(SECRET), "a credential is on the disk");
    scene.upstream.release("acme").await;
    let gateway = scene.run(&routes(""));
    scene.upstream.until_begun("acme", 2).await;
    until_ended(&gateway, "finished").await;
    gateway.says("an abandoned request was finished").await;
    let seen = retry(&gateway).await;
    assert_eq!((seen.status, seen.text()), (201, r#"{"id":"pay_2"}"#));
    assert!(seen.is_replay(), "{seen:?}");
    assert_eq!(scene.runs().await.len(), 2);
    assert_eq!(listed(&gateway, KEPT).await, 0, "nobody needs the request any more");
    assert!(!gateway.log().contains("s3cret"), "a credential is in the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_upstream_is_away_it_is_tried_again_until_it_is_back() {
    let scene = Scene::set();
    scene.abandon(&routes("")).await;
    scene.upstream.release("acme").await;
    // Nobody listens there.
    scene.home.configure("http://127.0.0.1:9", &routes(""));
    let gateway = scene.home.run();
    until_ended(&gateway, "open").await;
    assert_eq!(scene.runs().await.len(), 1);
    scene.home.configure(&scene.upstream.url(), &routes(""));
    gateway.tell(Signal::HUP);
    scene.upstream.until_begun("acme", 2).await;
    until_ended(&gateway, "finished").await;
    let seen = retry(&gateway).await;
    assert!(seen.is_replay() && seen.text() == r#"{"id":"pay_2"}"#, "{seen:?}");
    assert_eq!(scene.runs().await.len(), 2);
}

/// An upstream that refuses the credentials of then has said nothing about the payment, even where
/// such answers are kept for clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_credentials_are_no_answer_for_the_client() {
    let scene = Scene::set();
    let routes = routes("record = { \"4xx\" = \"replay\" }\n");
    scene.abandon(&routes).await;
    scene.upstream.release("acme").await;
    let guard = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", guard.local_addr().unwrap());
    let guard = tokio::spawn(async move {
        let answer = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        loop {
            let (mut client, _) = guard.accept().await.unwrap();
            let mut request = vec![0; 64 * 1024];
            // A payment comes in one piece.
            let _read = client.read(&mut request).await;
            client.write_all(answer).await.unwrap();
        }
    });
    scene.home.configure(&url, &routes);
    let gateway = scene.home.run();
    until_ended(&gateway, "open").await;
    guard.abort();
    scene.home.configure(&scene.upstream.url(), &routes);
    gateway.tell(Signal::HUP);
    until_ended(&gateway, "finished").await;
    let seen = retry(&gateway).await;
    assert!(seen.is_replay() && seen.status == 201, "{seen:?}");
}

/// The upstream closes its connection without an answer, and then once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_without_an_answer_is_made_again_though_its_gateway_lives() {
    let scene = Scene::set();
    let gateway = scene.run(&routes(""));
    let lost = payment().line("x-do", "hang-up");
    let seen = Client::open(gateway.address).await.ask(&lost).await;
    seen.assert_refused(502, "upstream_no_answer", "unknown");
    scene.upstream.until_begun("acme", 2).await;
    until_ended(&gateway, "open").await;
    assert!(gateway.metric("oncekey_completer_waiting", &[]).await > 0.5);
    assert_eq!(listed(&gateway, KEPT).await, 1, "it is needed for the next attempt");
    scene.runs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_gateways_one_makes_it() {
    one_makes_it(Scene::set()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn of_two_gateways_on_postgres_one_makes_it() {
    one_makes_it(Scene::at(crate::common::gateway::Home::on_postgres("completer"))).await;
}

/// Both look at the same record; the claim says whose it is, and the other leaves it alone.
async fn one_makes_it(scene: Scene) {
    scene.abandon(&routes("")).await;
    let (one, two) = (scene.run(&routes("")), scene.run(&routes("")));
    scene.upstream.until_begun("acme", 2).await;
    // For longer than a lease, which is renewed, and than each takes for a look.
    tokio::time::sleep(A_LOOK).await;
    assert_eq!(scene.runs().await.len(), 2);
    scene.upstream.release("acme").await;
    crate::common::until("the end", async || {
        ended(&one, "finished").await + ended(&two, "finished").await > 0.5
    })
    .await;
    tokio::time::sleep(A_LOOK).await;
    assert_eq!(scene.runs().await.len(), 2);
    assert!(retry(&two).await.is_replay() && retry(&one).await.is_replay());
}

/// The scope of the record is kept with the request: a token that has expired by now, a certificate
/// or another configuration do not change whose payment it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whose_it_is_was_decided_when_it_came() {
    let scene = Scene::set();
    scene.abandon(&routes("")).await;
    scene.upstream.release("acme").await;
    let gateway = scene.run(&routes("scope = [\"shared\"]\n"));
    until_ended(&gateway, "finished").await;
    assert_eq!(scene.runs().await.len(), 2);
    gateway.kill();
    let gateway = scene.run(&routes(""));
    assert!(retry(&gateway).await.is_replay());
}
