//! Servers that take no more connections, and many callers on one connection. F41, F42.

use std::time::Duration;

use futures_util::future::join_all;
use mysql_async::{Conn, Opts};
use oncekey::core::{Claimed, ErrorKind, Store as _};
use tokio_postgres::NoTls;

use crate::common::proxy::{How, Proxy};
use crate::common::{claim, say};
use crate::place::{Kind, Manner, Place};
use crate::server::Server;
use crate::verbs::within;

const MANNER: Manner = Manner { patience: Duration::from_secs(5), connections: 1 };

/// How long anybody waits for an answer, or for being told that there is none.
const LIMIT: Duration = Duration::from_secs(30);

/// Connections that do nothing but be there.
#[derive(Default)]
struct Crowd {
    postgres: Vec<tokio_postgres::Client>,
    mariadb: Vec<Conn>,
    redis: Vec<redis::aio::MultiplexedConnection>,
}

impl Crowd {
    /// One more, unless the server takes no more.
    async fn grow(&mut self, kind: Kind, url: &str) -> bool {
        match kind {
            Kind::Postgres => match tokio_postgres::connect(url, NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    self.postgres.push(client);
                    true
                }
                Err(_) => false,
            },
            Kind::MariaDb => {
                let options = Opts::from_url(url).expect("a mysql:// URL");
                Conn::new(options).await.map(|connection| self.mariadb.push(connection)).is_ok()
            }
            Kind::Redis => {
                let client = redis::Client::open(url).expect("a redis:// URL");
                let connection = client.get_multiplexed_async_connection().await;
                connection.map(|connection| self.redis.push(connection)).is_ok()
            }
            Kind::DynamoDb => panic!("it takes as many connections as there are"),
        }
    }
}

/// The store says so, changes nothing, and goes on as soon as there is room.
async fn full_house(kind: Kind, settings: &[&str]) {
    let server = Server::start(kind, settings);
    let place = Place::on(kind, &server.url()).await;
    let proxy = Proxy::start(server.port()).await;
    let store = place.open(proxy.port(), MANNER).await.expect("the store opens");
    assert!(matches!(store.claim(&claim(1, 1)).await, Ok(Claimed::Won { .. })));
    // Its connections are lost, and others take their places.
    proxy.end_all(How::Fin);
    let mut crowd = Crowd::default();
    // The server notices a moment later that a connection has ended, so once is not enough.
    let mut refusals = 0;
    while refusals < 20 {
        refusals = if crowd.grow(kind, &server.url()).await { 0 } else { refusals + 1 };
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut told = String::new();
    for number in 2..6 {
        let claim = claim(number, number);
        match within(LIMIT, "a claim without room", store.claim(&claim)).await {
            // The first may still meet the connection that was lost.
            Err(error) if number == 2 => {
                let kind = error.kind();
                let is_right = matches!(kind, ErrorKind::Unavailable | ErrorKind::Ambiguous);
                assert!(is_right, "{error}: {error:?}");
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}: {error:?}");
                told = error.to_string();
            }
            Ok(claimed) => panic!("there is no room for {claimed:?}"),
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(told.contains("connection"), "it says what is wrong: {told}");
    let error = place.open(proxy.port(), MANNER).await.expect_err("there is no room");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}: {error:?}");
    assert!(error.to_string().contains("connection"), "it says what is wrong: {error}");
    drop(crowd);
    let mut tries = 0;
    while store.claim(&claim(3, 3)).await.is_err() {
        tries += 1;
        assert!(tries < 50, "there is room again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    say(&format!("{kind:?} without room: {told}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn postgres_without_room_is_told_and_recovers() {
    let few = ["-c", "max_connections=12", "-c", "superuser_reserved_connections=0"];
    full_house(Kind::Postgres, &few).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn mariadb_without_room_is_told_and_recovers() {
    full_house(Kind::MariaDb, &["--max-connections=12"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: run cargo xtask test"]
async fn redis_without_room_is_told_and_recovers() {
    full_house(Kind::Redis, &["--maxclients", "12"]).await;
}

/// Hundreds of callers and one connection: each gets its answer.
async fn one_line(kind: Kind) {
    const CALLERS: u64 = 400;
    let place = Place::on_shared(kind).await;
    let manner = Manner { patience: Duration::from_secs(20), connections: 1 };
    let store = place.open(place.port(), manner).await.expect("the store opens");
    let calls = (0..CALLERS).map(|number| {
        let store = store.clone();
        async move { store.claim(&claim(number, number)).await }
    });
    for claimed in within(2 * LIMIT, "four hundred claims", join_all(calls)).await {
        let claimed = claimed.unwrap_or_else(|error| panic!("{kind:?}: {error}: {error:?}"));
        assert!(matches!(claimed, Claimed::Won { .. }), "{kind:?}: {claimed:?}");
    }
    drop(store);
    place.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn postgres_serves_hundreds_over_one_connection() {
    one_line(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn mariadb_serves_hundreds_over_one_connection() {
    one_line(Kind::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Redis: run cargo xtask test"]
async fn redis_serves_hundreds_over_one_connection() {
    one_line(Kind::Redis).await;
}
