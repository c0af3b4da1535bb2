//! A server that makes a commit and answers it with an error: nobody may hear that nothing has happened.

#![cfg(feature = "mysql")]

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder};
use oncekey::core::saved::{Headers, Saved};
use oncekey::core::{
    Answer, Claim, Claimed, Class, Completion, ErrorKind, Fingerprint, Grant, KeyId, Lease, Origin,
    Owner, Places, Sent, Store, Write,
};
use oncekey::store::mysql::{MysqlOptions, MysqlStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// "The disk is full": in answer to any other statement, nothing has happened.
const CODE: u16 = 1021;

/// A way to the server on which the next commit is answered with an error, after it was made.
struct Way {
    port: u16,
    spoils: Arc<AtomicBool>,
}

impl Way {
    async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it has an address").port();
        let spoils = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&spoils);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.expect("the server");
                let ((ask, tell), (answer, pass)) = (client.into_split(), server.into_split());
                let committing = Arc::new(AtomicBool::new(false));
                tokio::spawn(questions(ask, pass, Arc::clone(&committing), Arc::clone(&told)));
                tokio::spawn(answers(answer, tell, committing));
            }
        });
        Self { port, spoils }
    }

    fn spoil(&self) {
        self.spoils.store(true, Ordering::SeqCst);
    }
}

/// Passes questions on, and notes the one whose end is to be spoiled.
async fn questions(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    committing: Arc<AtomicBool>,
    spoils: Arc<AtomicBool>,
) {
    let mut buffer = vec![0; 65_536];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let text = &buffer[..count];
        if text.ends_with(b"COMMIT") && spoils.swap(false, Ordering::SeqCst) {
            committing.store(true, Ordering::SeqCst);
        }
        if to.write_all(text).await.is_err() {
            return;
        }
    }
}

/// Passes answers on, packet by packet.
async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, committing: Arc<AtomicBool>) {
    loop {
        let mut head = [0; 4];
        if from.read_exact(&mut head).await.is_err() {
            return;
        }
        let length = u32::from_le_bytes([head[0], head[1], head[2], 0]);
        let mut body = vec![0; usize::try_from(length).expect("a packet")];
        if from.read_exact(&mut body).await.is_err() {
            return;
        }
        if is_the_last(&body) && committing.swap(false, Ordering::SeqCst) {
            body = [&[0xff][..], &CODE.to_le_bytes(), b"#HY000", b"Disk full (s3cret)"].concat();
            head[0] = u8::try_from(body.len()).expect("a short one");
        }
        if to.write_all(&[&head[..], &body].concat()).await.is_err() {
            return;
        }
    }
}

/// Whether a packet says that all went well and nothing follows. Its numbers are small.
fn is_the_last(body: &[u8]) -> bool {
    const MORE: u8 = 8;
    matches!(body, [0, rows, id, status, ..] if *rows < 251 && *id < 251 && status & MORE == 0)
}

fn server() -> Opts {
    let url = env::var("ONCEKEY_TEST_MYSQL").expect(
        "ONCEKEY_TEST_MYSQL is not set: run `cargo xtask test`, or `cargo xtask servers` and its exports",
    );
    Opts::from_url(&url).expect("a mysql:// URL")
}

async fn run(sql: &str) {
    let options = OptsBuilder::from_opts(server()).prefer_socket(false);
    let mut connection = Conn::new(options).await.expect("MariaDB");
    connection.query_drop(sql).await.expect("a statement of the test");
}

fn claim(key: u8) -> Claim {
    Claim {
        id: KeyId::from_bytes([key; 32]),
        owner: Owner::from_bytes([1; 16]),
        fingerprint: Fingerprint::from_parts(1, [9; 32]),
        class: Class::Keyed,
        lease: Duration::from_secs(60),
        grace: Duration::from_secs(5),
        sent: Sent::No,
        origin: Origin::default(),
        places: Places::default(),
    }
}

fn completion(size: usize) -> Completion {
    let body = bytes::Bytes::from(vec![7; size]);
    Completion {
        answer: Answer::Kept(Saved { status: 201, headers: Headers::new(), body }),
        retention: Duration::from_secs(3_600),
        linger: Duration::from_secs(60),
    }
}

async fn win(store: &MysqlStore, claim: &Claim) -> (Lease, Grant) {
    match store.claim(claim).await.expect("a claim") {
        Claimed::Won { lease, grant, .. } => (lease, grant),
        lost @ Claimed::Lost { .. } => panic!("not won: {lost:?}"),
    }
}

#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn a_commit_that_is_answered_with_an_error_may_have_been_made() {
    let name = format!("oncekey_commit_{}", std::process::id());
    run(&format!("DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name}")).await;
    let server = server();
    let way = Way::to(format!("{}:{}", server.ip_or_hostname(), server.tcp_port())).await;
    let (user, password) = (server.user().unwrap_or("root"), server.pass().unwrap_or_default());
    let url = format!("mysql://{user}:{password}@127.0.0.1:{}/{name}", way.port);
    let store = MysqlOptions::new(url).writers(1).open().await.expect("the store opens");

    way.spoil();
    let error = store.claim(&claim(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "a claim: {error}");
    assert!(!error.to_string().contains("s3cret"), "the server's words: {error}");
    let (lease, grant) = win(&store, &claim(1)).await;
    assert_eq!(grant, Grant::Again, "it was made");

    // In a row of its own, and in pieces.
    for (key, size) in [(2, 10), (3, 100_000)] {
        let (lease, _) = win(&store, &claim(key)).await;
        way.spoil();
        let error = store.complete(&lease, &completion(size)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "a completion: {error}");
        assert_eq!(store.complete(&lease, &completion(size)).await.unwrap(), Write::Applied);
    }

    way.spoil();
    let error = store.release(&lease).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "a release: {error}");
    assert_eq!(store.get(&lease.id).await.unwrap(), None, "it was made");
    run(&format!("DROP DATABASE {name}")).await;
}
