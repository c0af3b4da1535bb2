//! A handle in another process: it does there what it is asked to do here.
//!
//! Every call is a connection of its own to a socket beside the file: the verb, the moment on the
//! rig's clock, what is asked; then the answer. The process ends with the handle, by `kill -9`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use oncekey::core::browse::{Count, Filter, Listing, Page, Summary};
use oncekey::core::record::Text;
use oncekey::core::store::Purged;
use oncekey::core::wake::Feed;
use oncekey::core::{
    Browse, Claim, Claimed, Clock, Completion, Erase, Erased, ErrorKind, KeyId, Lease, Lineage,
    ManualClock, Record, Renewal, Restore, Restored, Store, StoreError, Timestamp, Wake, Write,
};
use oncekey::store::sqlite::SqliteStore;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use crate::common::child::{self, Process};
use crate::wire::{self, Wire};

/// The handle.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    socket: PathBuf,
    /// The clock of the rig. The other process is told the time with every call.
    clock: Arc<ManualClock>,
    _process: Process,
}

impl Elsewhere {
    /// Starts a process that opens the file.
    pub(crate) fn open(path: &Path, clock: Arc<ManualClock>) -> Self {
        let mut process = Process::start(&mut child::command("serve", path, 0));
        process.expect("ready");
        Self { socket: socket_of(path, process.pid()), clock, _process: process }
    }

    async fn ask<A: Wire>(&self, verb: &str, of: &impl Wire) -> Result<A, StoreError> {
        let mut call = Vec::new();
        wire::put_bytes(verb.as_bytes(), &mut call);
        self.clock.now().put(&mut call);
        of.put(&mut call);
        let answer = exchange(&self.socket, &call).await.expect("the other process answers");
        wire::read(&answer)
    }
}

async fn exchange(socket: &Path, call: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(call).await?;
    stream.shutdown().await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}

fn socket_of(path: &Path, process: u32) -> PathBuf {
    path.with_file_name(format!("{process}.socket"))
}

/// What the other process does until its parent is gone.
pub(crate) fn serve(path: &Path, open: fn(&Path, Arc<dyn Clock>) -> SqliteStore) {
    let clock = Arc::new(Told::default());
    let store = Arc::new(open(path, Arc::clone(&clock) as Arc<dyn Clock>));
    crate::common::block_on(async {
        let listener = UnixListener::bind(socket_of(path, std::process::id())).expect("a socket");
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                tokio::spawn(serve_one(Arc::clone(&store), Arc::clone(&clock), stream));
            }
        });
        assert!(child::tell("ready"), "the parent listens");
        tokio::task::spawn_blocking(child::wait_for_parent).await.expect("its input is read");
    });
}

async fn serve_one(store: Arc<SqliteStore>, clock: Arc<Told>, mut stream: UnixStream) {
    let mut call = Vec::new();
    stream.read_to_end(&mut call).await.expect("a call");
    let answer = answer(&store, &clock, &call).await;
    // Whoever gave up waiting does not listen any more.
    drop(stream.write_all(&answer).await);
}

async fn answer(store: &SqliteStore, clock: &Told, mut call: &[u8]) -> Vec<u8> {
    let verb = wire::take_bytes(&mut call);
    clock.0.store(Timestamp::take(&mut call).micros(), Ordering::SeqCst);
    match verb {
        b"claim" => told(&store.claim(&wire::read(call)).await),
        b"renew" => {
            let (leases, span): (Vec<Lease>, _) = wire::read(call);
            told(&store.renew(&leases, span).await)
        }
        b"send" => told(&store.send(&wire::read(call)).await),
        b"complete" => {
            let (lease, completion) = wire::read(call);
            told(&store.complete(&lease, &completion).await)
        }
        b"release" => told(&store.release(&wire::read(call)).await),
        b"unknown" => told(&store.unknown(&wire::read(call)).await),
        b"get" => told(&store.get(&wire::read(call)).await),
        b"purge" => told(&store.purge(wire::read(call)).await),
        b"list" => {
            let (filter, page) = wire::read(call);
            told(&store.list(&filter, &page).await)
        }
        b"count" => {
            let (filter, cap) = wire::read(call);
            told(&store.count(&filter, cap).await)
        }
        b"find" => {
            let (key, limit) = wire::read(call);
            told(&store.find(&key, limit).await)
        }
        b"erase" => told(&store.erase(&wire::read(call)).await),
        b"restore" => told(&store.restore(&wire::read(call)).await),
        b"lineage" => told(&store.lineage().await),
        other => panic!("there is no verb {}", String::from_utf8_lossy(other)),
    }
}

fn told<A: Wire>(answer: &A) -> Vec<u8> {
    let mut out = Vec::new();
    answer.put(&mut out);
    out
}

/// The moment that the latest call came with.
#[derive(Debug, Default)]
struct Told(AtomicI64);

impl Clock for Told {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

#[async_trait]
impl Store for Elsewhere {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.ask("claim", claim).await
    }

    async fn renew(&self, leases: &[Lease], span: Duration) -> Result<Vec<Renewal>, StoreError> {
        self.ask("renew", &(leases.to_vec(), span)).await
    }

    async fn send(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.ask("send", lease).await
    }

    async fn complete(&self, lease: &Lease, completion: &Completion) -> Result<Write, StoreError> {
        self.ask("complete", &(*lease, completion.clone())).await
    }

    async fn release(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.ask("release", lease).await
    }

    async fn unknown(&self, lease: &Lease) -> Result<Write, StoreError> {
        self.ask("unknown", lease).await
    }

    async fn get(&self, id: &KeyId) -> Result<Option<Record>, StoreError> {
        self.ask("get", id).await
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        self.ask("purge", &limit).await
    }
}

#[async_trait]
impl Browse for Elsewhere {
    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError> {
        self.ask("list", &(filter.clone(), page.clone())).await
    }

    async fn count(&self, filter: &Filter, cap: usize) -> Result<Count, StoreError> {
        self.ask("count", &(filter.clone(), cap)).await
    }

    async fn find(&self, key: &Text, limit: usize) -> Result<Vec<Summary>, StoreError> {
        self.ask("find", &(key.clone(), limit)).await
    }
}

#[async_trait]
impl Erase for Elsewhere {
    async fn erase(&self, id: &KeyId) -> Result<Erased, StoreError> {
        self.ask("erase", id).await
    }
}

#[async_trait]
impl Restore for Elsewhere {
    async fn restore(&self, record: &Record) -> Result<Restored, StoreError> {
        self.ask("restore", record).await
    }

    async fn lineage(&self) -> Result<Lineage, StoreError> {
        self.ask("lineage", &()).await
    }
}

/// A feed cannot be carried over. Whoever watches does it here, and hears what happens there.
#[async_trait]
impl Wake for Elsewhere {
    async fn watch(&self) -> Result<Box<dyn Feed>, StoreError> {
        Err(StoreError::new(ErrorKind::Unsuitable, "watch through the handle of this process"))
    }
}
