//! A payment that is abandoned after it was sent.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use crate::common::gateway::{Gateway, Home};
use crate::common::script::{Language, Ran, Script};
use crate::common::until;
use crate::common::wire::{Ask, Client, Seen, pay};

/// The route of kept requests, as it is asked for in a URL.
pub(crate) const KEPT: &str = "/api/v1/keys?route=oncekey:%20kept%20request";
/// Somewhere in it the completer has looked once, surely: it does so every 5 seconds or so.
pub(crate) const A_LOOK: Duration = Duration::from_secs(7);
/// What no store may hold as it is.
pub(crate) const SECRET: &str = "Bearer s3cret-of-acme";

/// A gateway whose requests are completed.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) home: Home,
    pub(crate) upstream: Script,
}

/// A route of payments, and what else it says. Leases are as short as they can be: the tests wait
/// for their end in real time.
pub(crate) fn routes(more: &str) -> String {
    format!(
        "[store]\nencrypt_with_files = [\"ring.keys\"]\n\
         [defaults]\nscope = [\"header:X-Tenant\"]\nmode = \"required\"\n\
         in_flight = {{ lease = \"1s\", grace = \"100ms\", wait = \"20s\" }}\n\
         [[route]]\nmatch = \"POST /payments\"\nname = \"pay\"\nclass = \"keyed\"\n\
         complete = true\n{more}"
    )
}

/// A payment with a credential.
pub(crate) fn payment() -> Ask {
    pay(r#"{"amount": 500}"#).line("authorization", SECRET)
}

impl Scene {
    pub(crate) fn set() -> Self {
        Self::at(Home::on_sqlite())
    }

    pub(crate) fn at(home: Home) -> Self {
        let ring = home.path().join("ring.keys");
        fs::write(&ring, "a:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n").unwrap();
        fs::set_permissions(&ring, fs::Permissions::from_mode(0o600)).unwrap();
        Self { home, upstream: Script::start(Language::Python) }
    }

    /// Starts a gateway with these routes.
    pub(crate) fn run(&self, routes: &str) -> Gateway {
        self.home.configure(&self.upstream.url(), routes);
        self.home.run()
    }

    /// Sends a payment, and kills the gateway when the upstream has it.
    pub(crate) async fn abandon(&self, routes: &str) {
        let gateway = self.run(routes);
        let mut client = Client::open(gateway.address).await;
        client.write(&payment().line("x-do", "hold").bytes()).await;
        self.upstream.until_begun("acme", 1).await;
        gateway.kill();
    }

    /// Everything that the upstream did: always under the same derived key, each time for a newer
    /// attempt.
    pub(crate) async fn runs(&self) -> Vec<Ran> {
        let runs = self.upstream.runs("acme").await;
        assert!(runs.iter().all(|run| run.key == runs[0].key), "{runs:?}");
        assert!(runs.iter().all(|run| run.body == runs[0].body), "{runs:?}");
        let attempts: Vec<u64> = runs.iter().map(|run| run.attempt.parse().unwrap()).collect();
        assert!(attempts.is_sorted_by(|one, next| one < next), "{attempts:?}");
        runs
    }

    /// Whether a text stands in a file of the store.
    pub(crate) fn is_on_disk(&self, text: &str) -> bool {
        ["keys.db", "keys.db-wal"].iter().any(|name| {
            let bytes = fs::read(self.home.path().join(name)).unwrap_or_default();
            crate::common::contains(&bytes, text.as_bytes())
        })
    }
}

/// The retry of a client.
pub(crate) async fn retry(gateway: &Gateway) -> Seen {
    Client::open(gateway.address).await.ask(&payment()).await
}

/// How often the completer ended like this.
pub(crate) async fn ended(gateway: &Gateway, result: &str) -> f64 {
    let result = format!("result=\"{result}\"");
    gateway.metric("oncekey_completer_attempts_total", &["route=\"pay\"", &result]).await
}

pub(crate) async fn until_ended(gateway: &Gateway, result: &str) {
    until(result, async || ended(gateway, result).await > 0.5).await;
}

/// How many records a list of the admin API shows.
pub(crate) async fn listed(gateway: &Gateway, path: &str) -> usize {
    let page: serde_json::Value = serde_json::from_slice(&gateway.look(path).await.body).unwrap();
    page["records"].as_array().unwrap_or_else(|| panic!("{page}")).len()
}
