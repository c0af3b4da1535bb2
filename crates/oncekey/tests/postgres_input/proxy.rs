//! A proxy on loopback that counts round trips and can lose answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::scene::url;

/// Passes bytes on, or only those of the client if it is to be silent, and counts how often the client's side falls silent before the server speaks:
/// those are round trips.
pub(crate) async fn counting_proxy(trips: Arc<AtomicUsize>, is_silent: Arc<AtomicBool>) -> u16 {
    let front = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let port = front.local_addr().expect("an address").port();
    let target = url::Url::parse(&url()).expect("a URL");
    let back = format!("127.0.0.1:{}", target.port().unwrap_or(5432));
    tokio::spawn(async move {
        while let Ok((mut client, _)) = front.accept().await {
            let mut server = TcpStream::connect(&back).await.expect("loopback");
            let (trips, is_silent) = (Arc::clone(&trips), Arc::clone(&is_silent));
            tokio::spawn(async move {
                let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
                let mut has_asked = false;
                loop {
                    tokio::select! {
                        read = client.read(&mut asked) => match read {
                            Ok(0) | Err(_) => return,
                            Ok(bytes) => {
                                has_asked = true;
                                server.write_all(&asked[..bytes]).await.expect("loopback");
                            }
                        },
                        read = server.read(&mut answered) => match read {
                            Ok(0) | Err(_) => return,
                            // The answer is lost, and nobody says so.
                            Ok(_) if is_silent.load(Ordering::SeqCst) => {}
                            Ok(bytes) => {
                                if std::mem::take(&mut has_asked) {
                                    trips.fetch_add(1, Ordering::SeqCst);
                                }
                                client.write_all(&answered[..bytes]).await.expect("loopback");
                            }
                        },
                    }
                }
            });
        }
    });
    port
}
