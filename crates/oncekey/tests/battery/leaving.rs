//! Clients that go away: F11, I41.
//!
//! hyper drops the future of a request as soon as its client is gone, and for it a client that
//! closes only its sending side is gone too. The doors in front of the layer show that it did so;
//! the handler, which was at a quarter of its work, goes on all the same.

use axum::body::Body;
use http::Request;
use oncekey::core::Policy;
use tokio::io::AsyncWriteExt as _;

use crate::scene::{Answer, Keeper, Server, Stage, at_once, created, stage};
use crate::wire::{Client, pay};

const BODY: &str = r#"{"amount": 500}"#;
const QUARTERS: [usize; 4] = [1, 2, 3, 4];

/// Work in four quarters, with a stop after the first.
fn in_quarters(stage: Stage) -> impl Fn(usize, Request<Body>) -> Answer {
    move |run, _| {
        let mut stage = stage.clone();
        Box::pin(async move {
            for quarter in QUARTERS {
                stage.reach(quarter);
                stage.opened().await;
            }
            created(run)
        })
    }
}

/// A client begins, leaves at a quarter of the work, and comes back twice: while the work still
/// runs, and afterwards.
async fn gives_up(keeper: Keeper, leave: impl AsyncFnOnce(Client) -> Option<Client>) {
    let (stage, mut director) = stage();
    let server = Server::start(keeper, Policy::default(), in_quarters(stage)).await;
    let mut client = Client::open(server.address).await;
    client.write(&pay(BODY).bytes()).await;
    assert_eq!(director.reached().await, 1);
    let half = leave(client).await;
    server.doors.until_left(1).await;

    let meanwhile = server.begin(&pay(BODY));
    server.until_waiting(1).await;
    director.open();
    let meanwhile = meanwhile.await.unwrap();
    assert_eq!((meanwhile.status, meanwhile.text()), (201, r#"{"id":"pay_1"}"#));
    assert!(meanwhile.is_replay());
    let afterwards = server.send(&pay(BODY)).await;
    assert!(afterwards.is_replay());
    assert_eq!(afterwards.text(), meanwhile.text());
    assert_eq!(director.rest(), QUARTERS[1..], "the work went on, and was done once");
    assert_eq!(server.runs(), 1);
    if let Some(mut half) = half {
        assert!(half.is_at_its_end().await, "axum's server has nothing for a half-closed client");
    }
}

/// Row 10, by FIN.
pub(crate) async fn a_client_that_closes_its_connection_stops_nothing(keeper: Keeper) {
    gives_up(keeper, async |client| {
        drop(client);
        None
    })
    .await;
}

/// Row 10, by RST.
pub(crate) async fn a_client_that_resets_its_connection_stops_nothing(keeper: Keeper) {
    gives_up(keeper, async |client: Client| {
        client.socket.set_zero_linger().unwrap();
        drop(client);
        None
    })
    .await;
}

/// Row 10, by half-close.
pub(crate) async fn a_client_that_closes_its_sending_side_stops_nothing(keeper: Keeper) {
    gives_up(keeper, async |mut client: Client| {
        client.socket.shutdown().await.unwrap();
        Some(client)
    })
    .await;
}

/// Before the body is complete nothing is claimed: the retry runs, and need not wait.
pub(crate) async fn a_client_that_leaves_in_the_middle_of_its_body_claims_nothing(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), at_once).await;
    let whole = pay(BODY).bytes();
    let head = whole.len() - BODY.len();
    for sent in head..whole.len() {
        let mut client = Client::open(server.address).await;
        client.write(&whole[..sent]).await;
        client.socket.shutdown().await.unwrap();
        // Nothing, or a refusal: it depends on whether the server finds out before it hangs up.
        // Either way its end of the connection says that it is done with the request.
        client.is_at_its_end().await;
    }
    assert_eq!(server.runs(), 0);
    let first = server.send(&pay(BODY)).await;
    assert_eq!((first.status, first.is_replay(), server.runs()), (201, false, 1));
}
