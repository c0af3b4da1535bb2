//! The proxy does what it says: else every test behind it would prove less than it seems to.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use crate::common::proxy::{Fault, How, Proxy, Then, Way};

/// Longer than loopback takes on a busy machine.
const SOON: Duration = Duration::from_secs(5);

/// A server that sends everything back, and the port that it listens on.
async fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                drop(tokio::io::copy(&mut from, &mut to).await);
            });
        }
    });
    port
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(("127.0.0.1", proxy.port())).await.expect("the proxy listens")
}

/// Sends eight bytes and says how many come back before the connection ends, and how it ended.
async fn exchange(stream: &mut TcpStream) -> (usize, Option<How>) {
    let mut count = 0;
    if stream.write_all(b"12345678").await.is_err() {
        return (count, Some(How::Reset));
    }
    while count < 8 {
        let mut buffer = [0; 8];
        match timeout(SOON, stream.read(&mut buffer)).await.expect("something happens") {
            Ok(0) => return (count, Some(How::Fin)),
            Ok(read) => count += read,
            Err(_) => return (count, Some(How::Reset)),
        }
    }
    (count, None)
}

#[tokio::test]
async fn a_cut_comes_after_exactly_so_many_bytes() {
    let proxy = Proxy::start(echo().await).await;
    for how in [How::Reset, How::Fin] {
        for way in Way::BOTH {
            for after in 0..8 {
                let mut stream = connect(&proxy).await;
                assert_eq!(exchange(&mut stream).await, (8, None), "a healthy way");
                let (up, down) = (proxy.total(Way::Up), proxy.total(Way::Down));
                proxy.set(Fault::Cut { way, after, how, then: Then::Heal });
                let (count, end) = exchange(&mut stream).await;
                assert!(end.is_some(), "it is cut");
                let passed = [proxy.total(Way::Up) - up, proxy.total(Way::Down) - down];
                let limit = u64::try_from(after).unwrap();
                match way {
                    Way::Up => assert_eq!(passed[0], limit, "{way:?} {after}"),
                    Way::Down => {
                        assert_eq!(passed, [8, limit], "{way:?} {after}");
                        assert_eq!(count, after, "what passed is read before the end");
                        assert_eq!(end, Some(how), "{way:?} {after}");
                    }
                }
            }
        }
    }
    assert_eq!(proxy.cuts(), 32);
}

#[tokio::test]
async fn after_a_cut_connections_are_refused_until_it_is_healed() {
    let proxy = Proxy::start(echo().await).await;
    let (mut one, mut other) = (connect(&proxy).await, connect(&proxy).await);
    assert_eq!(exchange(&mut one).await, (8, None));
    assert_eq!(exchange(&mut other).await, (8, None));
    proxy.set(Fault::Cut { way: Way::Up, after: 3, how: How::Reset, then: Then::Refuse });
    assert!(exchange(&mut one).await.1.is_some());
    assert!(exchange(&mut other).await.1.is_some(), "a cut is for all connections");
    assert_eq!(exchange(&mut connect(&proxy).await).await.0, 0, "nothing passes");
    proxy.heal();
    assert_eq!(exchange(&mut connect(&proxy).await).await, (8, None));
}

#[tokio::test]
async fn what_is_lost_is_not_told_and_what_is_slow_comes() {
    let proxy = Proxy::start(echo().await).await;
    for way in Way::BOTH {
        let mut stream = connect(&proxy).await;
        assert_eq!(exchange(&mut stream).await, (8, None));
        proxy.set(Fault::Lose(way));
        stream.write_all(b"12345678").await.unwrap();
        let read = timeout(Duration::from_millis(100), stream.read(&mut [0; 8])).await;
        assert!(read.is_err(), "nobody says anything");
        proxy.heal();
        // A connection that has lost something in the middle is of no more use.
        assert!(exchange(&mut stream).await.1.is_some());
    }
    let mut stream = connect(&proxy).await;
    let delay = Duration::from_millis(60);
    proxy.set(Fault::Delay(Way::Down, delay));
    let begun = Instant::now();
    assert_eq!(exchange(&mut stream).await, (8, None));
    assert!(begun.elapsed() >= delay);
    proxy.end_all(How::Fin);
    assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test]
async fn bytes_and_round_trips_are_counted() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = connect(&proxy).await;
    proxy.listen();
    for _ in 0..3 {
        assert_eq!(exchange(&mut stream).await, (8, None));
    }
    let heard = proxy.heard();
    assert_eq!((heard.up.len(), heard.down.len(), heard.trips), (24, 24, 3));
    assert_eq!(heard.up, heard.down);
    assert_eq!(proxy.open(), 1);
    drop(proxy);
    assert_eq!(stream.read(&mut [0; 8]).await.unwrap_or(0), 0, "it ends with the proxy");
}
