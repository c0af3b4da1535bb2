//! A wire that is cut at the worst moment: when a request has gone through, and before its answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// A proxy for connections. It cuts the first few, and leaves the others alone.
#[derive(Debug)]
pub(crate) struct Cutter {
    pub(crate) address: SocketAddr,
    cut: Arc<AtomicUsize>,
}

impl Cutter {
    /// Cuts so many connections to `target`, each as soon as the answer to its first request begins.
    pub(crate) async fn start(target: SocketAddr, cuts: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cut = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&cut);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let counter = Arc::clone(&counter);
                tokio::spawn(async move { carry(client, target, &counter, cuts).await });
            }
        });
        Self { address, cut }
    }

    /// How many connections were cut.
    pub(crate) fn cut(&self) -> usize {
        self.cut.load(Ordering::SeqCst)
    }
}

async fn carry(mut client: TcpStream, target: SocketAddr, cut: &AtomicUsize, cuts: usize) {
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let took = cut
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |done| (done < cuts).then_some(done + 1));
    if took.is_err() {
        drop(copy_bidirectional(&mut client, &mut server).await);
        return;
    }
    let (mut said, mut answered) = ([0; 16_384], [0; 1]);
    loop {
        tokio::select! {
            // The first byte of an answer: the request has been done, and nobody will hear of it.
            _ = server.read(&mut answered) => break,
            count = client.read(&mut said) => match count {
                Ok(count @ 1..) if server.write_all(&said[..count]).await.is_ok() => {}
                _ => break,
            },
        }
    }
    client.set_zero_linger().unwrap();
}
