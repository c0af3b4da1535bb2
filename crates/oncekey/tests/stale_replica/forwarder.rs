//! An address behind which servers can change: what a failover looks like to a client.

use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes connections on to a port, or to nobody.
pub(crate) struct Forwarder {
    pub(crate) port: u16,
    target: Arc<watch::Sender<Option<u16>>>,
}

impl Forwarder {
    pub(crate) async fn to(target: Option<u16>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = Arc::new(watch::Sender::new(target));
        let targets = Arc::clone(&target);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass_on(stream, targets.subscribe()));
            }
        });
        Self { port, target }
    }

    /// Breaks every connection, and passes new ones on to `target`.
    pub(crate) fn switch(&self, target: Option<u16>) {
        self.target.send_replace(target);
    }

    /// Passes new connections on to `target`. Those that stand stay where they are.
    pub(crate) fn lead_on(&self, target: u16) {
        self.target.send_if_modified(|now| {
            *now = Some(target);
            false
        });
    }
}

async fn pass_on(mut here: TcpStream, mut target: watch::Receiver<Option<u16>>) {
    let Some(port) = *target.borrow_and_update() else { return };
    let Ok(mut there) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let _ = here.set_nodelay(true).and(there.set_nodelay(true));
    tokio::select! {
        _ = copy_bidirectional(&mut here, &mut there) => {}
        _ = target.changed() => {}
    }
}
