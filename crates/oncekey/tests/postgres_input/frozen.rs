//! A machine that is gone without a word while the server answers it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncekey::core::{Answer, Claimed, ErrorKind, Refusal, Store, Write};
use oncekey::store::postgres::PostgresOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};

use crate::scene::{admin, claim, completion, drop_schema, fresh_schema, url, url_with, win};

/// A way to the server that takes little at a time, and nothing any more once its machine is gone. It says
/// no farewell either.
async fn way_of(is_gone: Arc<AtomicBool>) -> u16 {
    let front = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let port = front.local_addr().expect("loopback").port();
    let back = url::Url::parse(&url()).expect("a URL").port().unwrap_or(5432);
    tokio::spawn(async move {
        while let Ok((near, _)) = front.accept().await {
            let socket = TcpSocket::new_v4().expect("loopback");
            socket.set_recv_buffer_size(32 * 1024).expect("loopback");
            let far =
                socket.connect(SocketAddr::from(([127, 0, 0, 1], back))).await.expect("loopback");
            let ((mut asks, mut hears), (mut answers, mut hands)) =
                (near.into_split(), far.into_split());
            let is_gone = Arc::clone(&is_gone);
            tokio::spawn(async move {
                let mut bytes = vec![0; 64 * 1024];
                loop {
                    if is_gone.load(Ordering::SeqCst) {
                        std::future::pending::<()>().await;
                    }
                    let read = answers.read(&mut bytes).await.unwrap_or(0);
                    if read == 0 || hears.write_all(&bytes[..read]).await.is_err() {
                        return;
                    }
                }
            });
            tokio::spawn(async move {
                let mut bytes = vec![0; 64 * 1024];
                loop {
                    let read = asks.read(&mut bytes).await.unwrap_or(0);
                    if read == 0 {
                        std::future::pending::<()>().await;
                    }
                    if hands.write_all(&bytes[..read]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// The server waited for it with an open transaction, and everybody else for its rows.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_machine_that_is_gone_while_it_is_answered_holds_up_nobody() {
    const DONE: u32 = 60;
    let admin = admin().await;
    let schema = fresh_schema(&admin).await;
    let others = PostgresOptions::new(url()).schema(&schema).open().await.unwrap();
    let mut large = completion();
    if let Answer::Kept(saved) = &mut large.answer {
        saved.body = vec![7; 64_000].into();
        for _ in 0..12 {
            saved.headers.push(b"x-long", &[b'a'; 8_000]).unwrap();
        }
    }
    for number in 0..DONE {
        let lease = win(&others, &claim(number, 1)).await;
        assert_eq!(others.complete(&lease, &large).await.unwrap(), Write::Applied);
    }
    let is_gone = Arc::new(AtomicBool::new(false));
    let port = way_of(Arc::clone(&is_gone)).await;
    let url = url_with(|url| {
        url.set_ip_host([127, 0, 0, 1].into()).unwrap();
        url.set_port(Some(port)).unwrap();
    });
    let options = PostgresOptions::new(url).schema(&schema).writers(1);
    let store = Arc::new(options.call_timeout(Duration::from_secs(2)).open().await.unwrap());
    // Statements are prepared from here on.
    win(&store, &claim(500, 1)).await;
    is_gone.store(true, Ordering::SeqCst);
    // One batch, because nobody else runs while they queue: keys that are done, and a new one.
    let claims: Vec<_> = (0..DONE)
        .chain([100])
        .map(|number| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.claim(&claim(number, 7)).await })
        })
        .collect();
    for claim in claims {
        let error = claim.await.unwrap().expect_err("nobody answers");
        assert!(matches!(error.kind(), ErrorKind::Ambiguous | ErrorKind::Unavailable), "{error}");
    }
    // The machine is not heard of again. Another one gets a word about every key.
    for number in (0..DONE).chain([100]) {
        match others.claim(&claim(number, 8)).await.expect("an answer") {
            Claimed::Lost { refusal: Refusal::Replay, .. } if number < DONE => {}
            Claimed::Lost { refusal: Refusal::InProgress(_), .. } | Claimed::Won { .. }
                if number >= DONE => {}
            other @ (Claimed::Lost { .. } | Claimed::Won { .. }) => panic!("{number}: {other:?}"),
        }
    }
    let cut = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE wait_event = 'ClientWrite' AND query LIKE '%{schema}.%'"
    );
    drop(store);
    admin.batch_execute(&cut).await.unwrap();
    drop(others);
    drop_schema(&admin, &schema).await;
}
