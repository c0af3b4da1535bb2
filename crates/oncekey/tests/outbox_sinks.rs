//! Sinks, and messages that flows stage.
#![cfg(all(feature = "outbox", feature = "sqlite", feature = "postgres", feature = "mysql"))]
#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]

mod outbox_common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use oncekey::core::{Key, Scope};
use oncekey::flow::sqlx::SqlxSqlite;
use oncekey::flow::{Definition, Flow, FlowKey, Flows, Halt, Options, Reply};
use oncekey::outbox::{HttpSink, Outbox, Relay, Secret, Staged};

use self::outbox_common::{Heard, Place, made, postgres, sqlite, stage};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEXT: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

async fn database() -> (tempfile::TempDir, SqlxSqlite) {
    let folder = tempfile::tempdir().unwrap();
    let store = made(sqlite(folder.path().join("app.db")).await).await;
    (folder, store)
}

/// A receiver that answers with one status after the other and remembers what came.
#[derive(Clone, Default)]
struct Receiver {
    came: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    answers: Arc<Mutex<Vec<u16>>>,
}

impl Receiver {
    async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let route = axum::routing::post(Self::take);
        let app = axum::Router::new().route("/hooks", route).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        format!("http://{address}/hooks")
    }

    async fn take(
        State(own): State<Self>,
        headers: HeaderMap,
        body: Bytes,
    ) -> (StatusCode, HeaderMap) {
        own.came.lock().unwrap().push((headers, body));
        let mut answers = own.answers.lock().unwrap();
        let status = if answers.is_empty() { 204 } else { answers.remove(0) };
        let mut headers = HeaderMap::new();
        if status == 429 {
            headers.insert("retry-after", "0".parse().unwrap());
        }
        (StatusCode::from_u16(status).unwrap(), headers)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_signed_and_keeps_its_id_over_attempts() {
    let (_folder, store) = database().await;
    let receiver = Receiver::default();
    *receiver.answers.lock().unwrap() = vec![429, 204];
    let url = receiver.start().await;
    let sink = HttpSink::signed(&url, Secret::parse(SECRET).unwrap()).unwrap();
    let sink = sink.also_signed(Secret::parse(NEXT).unwrap());
    let pause = Duration::from_millis(400);
    let relay = Relay::new(store.clone()).route("*", sink).backoff(pause, pause);
    let staged = Staged::new("order.paid", &serde_json::json!({"order": 7})).unwrap();
    // What is staged cannot pretend to be ours.
    let staged = staged.header("x-tenant", "acme").header("webhook-id", "msg_forged");
    let id = stage(&store, staged).await.to_string();
    let first = relay.run_once().await.unwrap();
    assert_eq!((first.later, first.sent), (1, 0));
    let failed = tokio::time::Instant::now();
    let second = loop {
        match relay.run_once().await.unwrap() {
            looked if looked.taken == 0 => tokio::time::sleep(Duration::from_millis(5)).await,
            second => break second,
        }
    };
    assert_eq!((second.later, second.sent), (0, 1));
    // The receiver said "at once", and the pause holds all the same: at least half of it.
    assert!(failed.elapsed() >= pause / 3, "{:?}", failed.elapsed());
    let came = receiver.came.lock().unwrap();
    assert_eq!(came.len(), 2);
    for (attempt, (headers, body)) in came.iter().enumerate() {
        let of = |name: &str| headers.get(name).unwrap().to_str().unwrap();
        assert_eq!(of("webhook-id"), id);
        assert_eq!(headers.get_all("webhook-id").iter().count(), 1);
        assert_eq!(of("idempotency-key"), format!("\"{id}\""));
        assert_eq!(of("webhook-attempt"), (attempt + 1).to_string());
        assert_eq!((of("x-tenant"), of("content-type")), ("acme", "application/json"));
        assert_eq!(&body[..], br#"{"order":7}"#);
        let seconds = of("webhook-timestamp").parse().unwrap();
        let sign = |secret| Secret::parse(secret).unwrap().sign(&id, seconds, body);
        assert_eq!(of("webhook-signature"), format!("{} {}", sign(SECRET), sign(NEXT)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_wants_no_more_gets_no_more() {
    let (_folder, store) = database().await;
    let receiver = Receiver::default();
    *receiver.answers.lock().unwrap() = vec![410];
    let url = receiver.start().await;
    let sink = HttpSink::signed(&url, Secret::parse(SECRET).unwrap()).unwrap();
    let relay = Relay::new(store.clone()).route("*", sink);
    let id = stage(&store, Staged::raw("t", "one")).await;
    assert_eq!(relay.run_once().await.unwrap().dead, 1);
    assert_eq!(relay.run_once().await.unwrap().taken, 0);
    let dead = Outbox::new(store).dead_letters(1).await.unwrap();
    assert_eq!((dead[0].id, &*dead[0].reason), (id, "the receiver answered 410"));
    assert_eq!(receiver.came.lock().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_not_there_is_tried_again() {
    let (_folder, store) = database().await;
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", closed.local_addr().unwrap());
    drop(closed);
    let sink = HttpSink::signed(&url, Secret::parse(SECRET).unwrap()).unwrap();
    let relay = Relay::new(store.clone()).route("*", sink).attempts(1);
    stage(&store, Staged::raw("t", "one")).await;
    assert_eq!(relay.run_once().await.unwrap().dead, 1);
    let dead = Outbox::new(store).dead_letters(1).await.unwrap();
    assert_eq!(&*dead[0].reason, "the receiver cannot be reached");
}

mod https {
    use rustls::ServerConfig;
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_rustls::TlsAcceptor;

    use super::*;

    const CA: &[u8] = include_bytes!("../../gateway/tests/features/tls/ca.pem");
    const OTHER_CA: &[u8] = include_bytes!("../../gateway/tests/features/tls/ca2.pem");
    /// For `localhost`, by the first authority.
    const SERVER: &[u8] = include_bytes!("../../gateway/tests/features/tls/server.pem");
    /// For `localhost`, by the second one, and out of date.
    const STALE: &[u8] = include_bytes!("../../gateway/tests/features/tls/stale.pem");

    /// Answers 204 to whatever comes over TLS. Returns its port and what came.
    async fn receiver(identity: &[u8]) -> (u16, Arc<Mutex<Vec<u8>>>) {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(identity).map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(identity).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, came) = (listener.local_addr().unwrap().port(), Arc::default());
        let see: Arc<Mutex<Vec<u8>>> = Arc::clone(&came);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut bytes = vec![0; 64 << 10];
                let count = stream.read(&mut bytes).await.unwrap();
                see.lock().unwrap().extend(&bytes[..count]);
                stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            }
        });
        (port, came)
    }

    /// What came of a message to a receiver with this certificate, and why.
    async fn sent(host: &str, identity: &[u8], roots: &[u8]) -> Result<Vec<u8>, String> {
        let (_folder, store) = database().await;
        let (port, came) = receiver(identity).await;
        let (url, secret) = (format!("https://{host}:{port}/"), Secret::parse(SECRET).unwrap());
        let sink = HttpSink::signed_trusting(&url, secret, roots).unwrap();
        let relay = Relay::new(store.clone()).route("*", sink).attempts(1);
        stage(&store, Staged::raw("t", "a secret")).await;
        let done = relay.run_once().await.unwrap();
        let dead = Outbox::new(store).dead_letters(1).await.unwrap();
        let came = came.lock().unwrap().clone();
        match dead.first() {
            Some(letter) => {
                assert!(came.is_empty(), "it was sent to somebody who was refused");
                Err(letter.reason.clone())
            }
            None => {
                assert_eq!(done.sent, 1);
                Ok(came)
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_webhook_goes_over_tls_to_whom_the_private_authority_vouches_for() {
        let came = sent("localhost", SERVER, CA).await.unwrap();
        let came = String::from_utf8(came).unwrap();
        assert!(came.starts_with("POST / HTTP/1.1\r\n") && came.contains("webhook-id"), "{came}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_certificate_that_is_refused_is_named_and_nothing_is_sent() {
        let before = "the receiver's certificate was refused: ";
        let why = async |host, identity, roots| {
            let why = sent(host, identity, roots).await.unwrap_err();
            why.strip_prefix(before).unwrap_or(&why).to_owned()
        };
        assert_eq!(
            why("localhost", SERVER, OTHER_CA).await,
            "no authority that is trusted has signed it"
        );
        assert_eq!(why("localhost", STALE, OTHER_CA).await, "it has expired");
        assert_eq!(why("127.0.0.1", SERVER, CA).await, "it is for another name");
    }

    /// The certificates of the machine do not know this authority.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_private_authority_is_not_trusted_unasked() {
        let (_folder, store) = database().await;
        let (port, came) = receiver(SERVER).await;
        let secret = Secret::parse(SECRET).unwrap();
        let sink = match HttpSink::signed(&format!("https://localhost:{port}/"), secret) {
            Ok(sink) => sink,
            // A machine without any certificates: refused even earlier.
            Err(error) => return assert_eq!(error, oncekey::outbox::BadEndpoint::NoRoots),
        };
        let relay = Relay::new(store.clone()).route("*", sink).attempts(1);
        stage(&store, Staged::raw("t", "one")).await;
        assert_eq!(relay.run_once().await.unwrap().dead, 1);
        assert!(came.lock().unwrap().is_empty());
    }
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run cargo xtask test"]
async fn a_message_becomes_an_entry_of_a_stream() {
    use oncekey::outbox::RedisStream;
    let (_folder, store) = database().await;
    let url = std::env::var("ONCEKEY_TEST_REDIS").expect("run `cargo xtask servers`");
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut name = [0; 8];
    getrandom::fill(&mut name).unwrap();
    let stream = format!("outbox-{:x}", u64::from_le_bytes(name));
    let relay = Relay::new(store.clone())
        .route("*", RedisStream::new(connection.clone(), stream.clone()).keep_about(1_000));
    let id = stage(&store, Staged::raw("order.paid", [0, 159, 146]).order_key("k")).await;
    assert_eq!(relay.run_once().await.unwrap().sent, 1);
    let entries: Vec<(String, Fields)> = redis::cmd("XRANGE")
        .arg(&stream)
        .arg("-")
        .arg("+")
        .query_async(&mut connection)
        .await
        .unwrap();
    let fields: Vec<_> = entries[0].1.iter().map(|(name, value)| (&**name, &value[..])).collect();
    let id = id.to_string();
    let expected: [(&str, &[u8]); 5] = [
        ("id", id.as_bytes()),
        ("topic", b"order.paid"),
        ("key", b"k"),
        ("headers", b"[]"),
        ("body", &[0, 159, 146]),
    ];
    assert_eq!((entries.len(), fields), (1, expected.to_vec()));
    // Something else is under this name: the server refuses, and the message stays.
    let _: () = redis::cmd("SET").arg(&stream).arg(1).query_async(&mut connection).await.unwrap();
    stage(&store, Staged::raw("t", "two")).await;
    assert_eq!(relay.run_once().await.unwrap().later, 1);
    let _: () = redis::cmd("DEL").arg(&stream).query_async(&mut connection).await.unwrap();
}

#[cfg(feature = "redis")]
type Fields = Vec<(String, Vec<u8>)>;

/// Stages in a phase and in the end, stops once before that commits, and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_flow_stages_what_it_commits_and_wakes_the_relay() {
    let (_folder, store) = database().await;
    let heard = Heard::default();
    // Nobody would poll within the test.
    let relay =
        Relay::new(store.clone()).route("*", heard.clone()).every(Duration::from_secs(3_600));
    let relay = tokio::spawn(async move { relay.run(std::future::pending()).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let tries = Arc::new(Mutex::new(0));
    let flow = Definition::new("rides.create", move |flow: Flow<SqlxSqlite>, ride: i64| {
        let tries = Arc::clone(&tries);
        async move {
            flow.phase("created", async |tx| tx.stage("ride.created", &ride).await.map(|_| ()))
                .await?;
            flow.finish(async |tx| {
                tx.stage_with(Staged::new("receipt", "sent").map_err(|_| Halt::park("body"))?)
                    .await?;
                let first = {
                    let mut tries = tries.lock().unwrap();
                    *tries += 1;
                    *tries == 1
                };
                // What was staged here rolls back with the rest.
                if first { Err(Halt::retry("not now")) } else { Reply::json(201, &ride) }
            })
            .await
        }
    });
    // The second request goes on at once.
    let options = Options { pause: Duration::ZERO, ..Options::default() };
    let flows = Flows::builder(store.clone(), "test").flow(flow).options(options);
    let flows = flows.build().unwrap();
    let key = FlowKey::new(Scope::new("shared").unwrap(), Key::new(b"key-1").unwrap());
    for _ in 0..2 {
        flows.run("rides.create", &key, &7_i64).await.unwrap();
    }
    let all = async {
        while heard.bodies().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all).await.expect("the relay is woken");
    tokio::time::sleep(Duration::from_millis(100)).await;
    relay.abort();
    assert_eq!(heard.bodies(), ["7", "\"sent\""]);
}

/// A transaction of the application's own, on its own pool.
#[tokio::test(flavor = "multi_thread")]
async fn a_plain_transaction_stages_beside_its_rows() {
    let (_folder, store) = database().await;
    let heard = Heard::default();
    let outbox = Outbox::new(store.clone());
    let relay =
        Relay::new(store.clone()).route("*", heard.clone()).every(Duration::from_secs(3_600));
    let relay = tokio::spawn(async move { relay.run(std::future::pending()).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut tx = store.pool().begin().await.unwrap();
    sqlx::query("CREATE TABLE orders (id INTEGER)").execute(&mut *tx).await.unwrap();
    outbox.stage(&mut tx, Staged::raw("order.paid", "7")).await.unwrap();
    tx.commit().await.unwrap();
    outbox.wake();
    let all = async {
        while heard.bodies().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all).await.expect("the relay is woken");
    relay.abort();
}

/// The relay is another process's, as far as it can tell: it shares nothing with whoever stages.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_relay_elsewhere_is_woken_by_a_commit() {
    let place = Place::fresh("postgres", &tempfile::tempdir().unwrap());
    let Place::Postgres(name) = place else { return };
    let (here, there) = (postgres(&name, 2).await, postgres(&name, 3).await);
    let here = made(here).await;
    let heard = Heard::default();
    let relay =
        Relay::new(there.clone()).route("*", heard.clone()).every(Duration::from_secs(3_600));
    let relay = tokio::spawn(async move { relay.run(std::future::pending()).await });
    let listener = Outbox::new(there);
    let listener = tokio::spawn(async move { listener.listen().await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let outbox = Outbox::new(here.clone());
    let mut tx = here.pool().begin().await.unwrap();
    outbox.stage(&mut tx, Staged::raw("t", "one")).await.unwrap();
    outbox.notify(&mut tx).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(heard.bodies().is_empty());
    tx.commit().await.unwrap();
    let all = async {
        while heard.bodies().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all).await.expect("the relay is woken");
    relay.abort();
    listener.abort();
}
