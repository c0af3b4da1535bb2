//! A connection that has become something else: bytes in both directions, until one side ends.

use bytes::Bytes;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt as _, copy_bidirectional};

use crate::upstream::Stream;

/// Passes on whatever comes, once both sides have switched.
pub(super) async fn tunnel(client: OnUpgrade, (mut upstream, first): (Stream, Bytes)) {
    let client = match client.await {
        Ok(client) => client,
        Err(error) => {
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
