//! Clients that go away: F11, I41.

use tokio::io::AsyncWriteExt as _;

use crate::common::wire::Client;
use crate::scene::Scene;

const BODY: &str = r#"{"amount": 500}"#;

/// A client begins, leaves while the upstream works, and comes back twice: while it still works, and
/// afterwards.
async fn gives_up(scene: Scene, leave: impl AsyncFnOnce(Client)) {
    let ask = scene.pay(BODY).line("x-do", "hold");
    let mut client = Client::open(scene.address()).await;
    client.write(&ask.bytes()).await;
    scene.until_begun(1).await;
    leave(client).await;
    let meanwhile = scene.begin(&ask);
    scene.until_waiting(1).await;
    scene.release().await;
    let meanwhile = meanwhile.await.unwrap();
    assert_eq!((meanwhile.status, meanwhile.text()), (201, r#"{"id":"pay_1"}"#));
    assert!(meanwhile.is_replay());
    let afterwards = scene.send(&ask).await;
    assert!(afterwards.is_replay());
    assert_eq!((afterwards.text(), scene.runs().await), (meanwhile.text(), 1));
}

/// Row 10, by FIN.
pub(crate) async fn a_client_that_closes_its_connection_stops_nothing(scene: Scene) {
    gives_up(scene, async |client| drop(client)).await;
}

/// Row 10, by RST.
pub(crate) async fn a_client_that_resets_its_connection_stops_nothing(scene: Scene) {
    gives_up(scene, async |client: Client| {
        client.socket.set_zero_linger().unwrap();
        drop(client);
    })
    .await;
}

/// Row 10, by half-close: this client still listens.
pub(crate) async fn a_client_that_closes_its_sending_side_gets_its_answer(scene: Scene) {
    let ask = scene.pay(BODY).line("x-do", "hold");
    let mut client = Client::open(scene.address()).await;
    client.write(&ask.bytes()).await;
    client.socket.shutdown().await.unwrap();
    scene.until_begun(1).await;
    scene.release().await;
    let first = client.read("POST").await;
    assert_eq!((first.status, first.text()), (201, r#"{"id":"pay_1"}"#));
    assert!(client.is_at_its_end().await);
    scene.send(&ask).await.assert_replays(&first);
    assert_eq!(scene.runs().await, 1);
}

/// Before the body is complete nothing is claimed: the retry runs, and need not wait.
pub(crate) async fn a_client_that_leaves_in_the_middle_of_its_body_claims_nothing(scene: Scene) {
    let whole = scene.pay(BODY).bytes();
    let head = whole.len() - BODY.len();
    for sent in head..whole.len() {
        let mut client = Client::open(scene.address()).await;
        client.write(&whole[..sent]).await;
        client.socket.shutdown().await.unwrap();
        // Its end of the connection says that it is done with the request.
        client.is_at_its_end().await;
    }
    assert_eq!(scene.runs().await, 0);
    let first = scene.send(&scene.pay(BODY)).await;
    assert_eq!((first.status, first.is_replay(), scene.runs().await), (201, false, 1));
}
