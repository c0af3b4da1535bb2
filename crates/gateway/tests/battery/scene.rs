//! Gateways in front of an API, and what a row does with them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinHandle;

use crate::common::gateway::{Gateway, Home};
use crate::common::script::{Language, Script};
use crate::common::until;
use crate::common::wire::{self, Ask, Client, Seen};

/// What all rows share.
#[derive(Debug)]
pub(crate) struct Stage {
    gateways: Vec<Gateway>,
    pub(crate) upstream: Script,
    turn: AtomicUsize,
}

/// What a row sees of it.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) stage: Arc<Stage>,
    pub(crate) tenant: &'static str,
}

/// The classes of effects, each under a path of its own.
pub(crate) const CLASSES: [&str; 3] = ["once", "keyed", "retry"];

const ROUTES: &str = r#"
[defaults]
scope = ["header:X-Tenant"]
mode = "required"

[[route]]
match = "POST /payments"
[[route]]
match = "POST /refunds"
[[route]]
match = "POST /conflict"
in_flight = { on_duplicate = "conflict" }
[[route]]
match = "POST /once"
[[route]]
match = "POST /keyed"
class = "keyed"
[[route]]
match = "POST /retry"
class = "retry"
"#;

impl Stage {
    pub(crate) fn set(language: Language, home: &Home, gateways: usize) -> Self {
        let upstream = Script::start(language);
        home.configure(&upstream.url(), ROUTES);
        let gateways = (0..gateways).map(|_| home.run()).collect();
        Self { gateways, upstream, turn: AtomicUsize::new(0) }
    }
}

impl Scene {
    /// A payment of this row.
    pub(crate) fn pay(&self, body: impl Into<Vec<u8>>) -> Ask {
        wire::pay(body).line("x-tenant", self.tenant)
    }

    /// Whose turn it is.
    pub(crate) fn address(&self) -> SocketAddr {
        let turn = self.stage.turn.fetch_add(1, Ordering::Relaxed);
        self.stage.gateways[turn % self.stage.gateways.len()].address
    }

    pub(crate) async fn send(&self, ask: &Ask) -> Seen {
        Client::open(self.address()).await.ask(ask).await
    }

    /// Sends a request from a task of its own.
    pub(crate) fn begin(&self, ask: &Ask) -> JoinHandle<Seen> {
        let (scene, ask) = (self.clone(), ask.clone());
        tokio::spawn(async move { scene.send(&ask).await })
    }

    /// How often the upstream did something for this row.
    pub(crate) async fn runs(&self) -> usize {
        self.stage.upstream.runs(self.tenant).await.len()
    }

    pub(crate) async fn until_begun(&self, times: usize) {
        self.stage.upstream.until_begun(self.tenant, times).await;
    }

    pub(crate) async fn release(&self) {
        self.stage.upstream.release(self.tenant).await;
    }

    /// Waits until so many requests wait for another one's answer.
    pub(crate) async fn until_waiting(&self, requests: u64) {
        until("requests that wait", async || {
            let mut waiters = 0;
            for gateway in &self.stage.gateways {
                waiters += gateway.waiters().await;
            }
            waiters >= requests
        })
        .await;
    }
}
