//! A connection that has become something else: bytes in both directions, until one side ends.

use std::future::Future;

use bytes::Bytes;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt as _, copy_bidirectional};

use crate::upstream::Stream;

/// Passes on whatever comes, once both sides have switched.
pub(super) async fn tunnel(
    client: OnUpgrade,
    upstream: impl Future<Output = hyper::Result<(Stream, Bytes)>>,
) {
    let (client, (mut upstream, first)) = match (client.await, upstream.await) {
        (Ok(client), Ok(upstream)) => (client, upstream),
        (Err(error), _) | (_, Err(error)) => {
            tracing::debug!(%error, "a connection was not switched");
            return;
        }
    };
    let mut client = TokioIo::new(client);
    // How a conversation ends that we do not understand is the business of those who have it.
    if client.write_all(&first).await.is_ok() {
        drop(copy_bidirectional(&mut client, &mut upstream).await);
    }
}
