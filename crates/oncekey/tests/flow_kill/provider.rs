//! A toy provider that dedupes by key and counts, in the parent: no child can fool it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// What was done under which key.
type Ledger = Arc<Mutex<BTreeMap<String, String>>>;

#[derive(Debug)]
pub(crate) struct Provider {
    address: SocketAddr,
    ledger: Ledger,
}

impl Provider {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ledger = Ledger::default();
        let books = Arc::clone(&ledger);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let books = Arc::clone(&books);
                std::thread::spawn(move || serve(stream, &books));
            }
        });
        Self { address, ledger }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Everything that was done for a flow, each under a key of its own: exactly once.
    pub(crate) fn check(&self, flow: &str, point: u64) {
        let name = format!("{flow}-{point}");
        let ledger = self.ledger.lock().unwrap();
        let suffix = format!("@{name}");
        let mut done: Vec<_> =
            ledger.values().filter_map(|what| what.strip_suffix(&suffix)).collect();
        done.sort_unstable();
        let expected: &[&str] = match flow {
            "rides" | "swift" => &["charge"],
            _ => &["charge", "refund", "release", "reserve"],
        };
        assert_eq!(done, expected, "{name}");
    }
}

/// One line is one request: a key and what to do. It is done once for a key.
fn serve(stream: TcpStream, books: &Ledger) {
    let mut answers = stream.try_clone().unwrap();
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        let Some((key, what)) = line.split_once(' ') else { return };
        let number = {
            let mut books = books.lock().unwrap();
            books.entry(key.to_owned()).or_insert_with(|| what.to_owned());
            books.len()
        };
        if writeln!(answers, "done {number}").is_err() {
            return;
        }
    }
}
