//! The points: F1 to F5.

use std::net::SocketAddr;

use rustix::process::Signal;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::common::script::{Language, Script};
use crate::common::wire::Client;
use crate::scene::{CLASSES, Scene, payment};

/// F1: while the body comes in, nothing is claimed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_before_the_claim_a_retry_runs() {
    let scene = Scene::set();
    let mut clients = Vec::new();
    for class in CLASSES {
        let bytes = payment(class).bytes();
        let mut client = Client::open(scene.gateway.address).await;
        client.write(&bytes[..bytes.len() - 1]).await;
        clients.push(client);
    }
    let after = scene.kill_and_retry().await;
    for class in CLASSES {
        after.assert_ran(class, 0).await;
    }
}

/// A server that lets nobody in: its queue is full, so connections to it are neither made nor
/// refused.
async fn full() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut inside = Vec::new();
    let patience = std::time::Duration::from_millis(300);
    while let Ok(stream) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
        inside.push(stream.unwrap());
    }
    (listener, inside, address)
}

/// F2, where the mark that something may be sent is written with the claim: no byte was sent, but
/// nobody can prove it, so `once` does not send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_between_claim_and_send_once_is_unknown_and_others_run() {
    let upstream = Script::start(Language::Python);
    let (_listener, _inside, address) = full().await;
    let scene = Scene::with(&format!("http://{address}"), upstream);
    let _clients = scene.begin("").await;
    scene.until_in_flight(3).await;
    let after = scene.kill_and_retry().await;
    after.assert_unknown("once", 0).await;
    after.assert_ran("keyed", 0).await;
    after.assert_ran("retry", 0).await;
}

/// F3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_the_send_once_is_unknown_and_others_run_again() {
    let scene = Scene::set();
    let _clients = scene.begin("hold").await;
    scene.until_sent().await;
    let after = scene.kill_and_retry().await;
    after.assert_unknown("once", 1).await;
    after.assert_ran("keyed", 1).await;
    after.assert_ran("retry", 1).await;
}

/// F4: the gateway is frozen when the answers come, and never wakes up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_the_answer_once_is_unknown_and_others_run_again() {
    let scene = Scene::set();
    let _clients = scene.begin("hold").await;
    scene.until_sent().await;
    scene.gateway.tell(Signal::STOP);
    for class in CLASSES {
        scene.upstream.release(class).await;
    }
    let after = scene.kill_and_retry().await;
    after.assert_unknown("once", 1).await;
    after.assert_ran("keyed", 1).await;
    after.assert_ran("retry", 1).await;
}

/// F4: the answers are there and cannot be written, because somebody else holds the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_while_it_completes_once_is_unknown_and_others_run_again() {
    let scene = Scene::set();
    let clients = scene.begin("hold").await;
    scene.until_sent().await;
    let held = rusqlite::Connection::open(scene.home.path().join("keys.db")).unwrap();
    held.execute_batch("BEGIN IMMEDIATE").unwrap();
    for class in CLASSES {
        scene.upstream.release(class).await;
    }
    // Nobody is answered before his answer is kept.
    for client in &clients {
        let early =
            tokio::time::timeout(std::time::Duration::from_millis(100), client.socket.readable());
        assert!(early.await.is_err(), "an answer came before it was kept");
    }
    let Scene { home, upstream, gateway } = scene;
    gateway.tell(Signal::STOP);
    drop(held);
    let after = Scene { home, upstream, gateway }.kill_and_retry().await;
    after.assert_unknown("once", 1).await;
    after.assert_ran("keyed", 1).await;
    after.assert_ran("retry", 1).await;
}

/// F5: the answers are kept, and their clients never heard them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_the_completion_everybody_gets_the_first_answer() {
    let scene = Scene::set();
    let clients = scene.begin("hold").await;
    scene.until_sent().await;
    drop(clients);
    for class in CLASSES {
        scene.upstream.release(class).await;
    }
    scene.until_in_flight(0).await;
    let after = scene.kill_and_retry().await;
    for class in CLASSES {
        after.assert_replayed(class).await;
    }
}
