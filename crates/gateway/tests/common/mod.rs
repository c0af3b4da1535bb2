//! What the tests of the running gateway share: the program as a process, upstreams, and a client
//! with nothing between it and the socket.

#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod admin;
pub(crate) mod gateway;
pub(crate) mod script;
pub(crate) mod stub;
#[path = "../../../oncekey/tests/battery/wire.rs"]
pub(crate) mod wire;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What takes longer hangs. Everything here takes less than a second on a machine that is not busy.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

/// Waits for something, and says so if it never happens.
pub(crate) async fn within<T>(what: &str, waited_for: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(LONGEST, waited_for).await;
    waited.unwrap_or_else(|_| panic!("{what} takes longer than {LONGEST:?}"))
}

/// Asks again and again until something holds. For what rings no bell.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    within(what, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Says something, says that this was all, and listens until the other side closes.
pub(crate) async fn converse(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(address).await.unwrap();
    // Whoever is refused may find that nobody listens any more, and a reset is an end, too.
    let _ = socket.write_all(bytes).await;
    let _ = socket.shutdown().await;
    let mut heard = Vec::new();
    let _ = within("an answer", socket.read_to_end(&mut heard)).await;
    heard
}

/// Whether `part` stands somewhere in `whole`.
pub(crate) fn contains(whole: &[u8], part: &[u8]) -> bool {
    whole.windows(part.len()).any(|window| window == part)
}
