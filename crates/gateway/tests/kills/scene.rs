//! One payment in each class, and what becomes of them.

use crate::common::gateway::{Gateway, Home};
use crate::common::script::{Language, Ran, Script};
use crate::common::wire::{Ask, Client, Seen, pay};
use crate::common::{until, within};

pub(crate) const CLASSES: [&str; 3] = ["once", "keyed", "retry"];

/// Leases are as short as they can be: the tests wait for their end in real time.
const ROUTES: &str = r#"
[defaults]
scope = ["header:X-Tenant"]
mode = "required"
in_flight = { lease = "1s", grace = "100ms", wait = "20s" }
[[route]]
match = "POST /once"
[[route]]
match = "POST /keyed"
class = "keyed"
[[route]]
match = "POST /retry"
class = "retry"
"#;

/// A gateway that is going to be killed.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) home: Home,
    pub(crate) upstream: Script,
    pub(crate) gateway: Gateway,
}

/// A payment in a class. Its tenant has the name of the class.
pub(crate) fn payment(class: &str) -> Ask {
    pay(r#"{"amount": 500}"#).path(&format!("/{class}")).line("x-tenant", class)
}

impl Scene {
    pub(crate) fn set() -> Self {
        let upstream = Script::start(Language::Python);
        Self::with(&upstream.url(), upstream)
    }

    /// With a gateway in front of something else than the upstream.
    pub(crate) fn with(url: &str, upstream: Script) -> Self {
        let home = Home::on_sqlite();
        home.configure(url, ROUTES);
        let gateway = home.run();
        Self { home, upstream, gateway }
    }

    /// Sends one payment of each class, and hears no answers.
    pub(crate) async fn begin(&self, script: &str) -> Vec<Client> {
        let mut clients = Vec::new();
        for class in CLASSES {
            let mut client = Client::open(self.gateway.address).await;
            client.write(&payment(class).line("x-do", script).bytes()).await;
            clients.push(client);
        }
        clients
    }

    /// Waits until every payment has arrived at the upstream.
    pub(crate) async fn until_sent(&self) {
        for class in CLASSES {
            self.upstream.until_begun(class, 1).await;
        }
    }

    pub(crate) async fn until_in_flight(&self, count: u64) {
        until("payments under way", async || self.gateway.status().await["in_flight"] == count)
            .await;
    }

    /// Kills the gateway, starts another, and sends every payment again.
    pub(crate) async fn kill_and_retry(self) -> After {
        let Self { home, upstream, gateway } = self;
        gateway.kill();
        for class in CLASSES {
            upstream.release(class).await;
        }
        home.configure(&upstream.url(), ROUTES);
        let gateway = home.run();
        let address = gateway.address;
        let retries = CLASSES.map(|class| {
            tokio::spawn(async move { Client::open(address).await.ask(&payment(class)).await })
        });
        let mut answers = Vec::new();
        for retry in retries {
            answers.push(within("a retry", retry).await.unwrap());
        }
        After { _home: home, upstream, gateway, answers }
    }
}

/// What is there after a kill and a retry.
#[derive(Debug)]
pub(crate) struct After {
    _home: Home,
    upstream: Script,
    gateway: Gateway,
    answers: Vec<Seen>,
}

impl After {
    /// The answer of a class, and everything that the upstream did for it.
    pub(crate) async fn of(&self, class: &str) -> (&Seen, Vec<Ran>) {
        let at = CLASSES.iter().position(|known| *known == class).unwrap();
        (&self.answers[at], self.upstream.runs(class).await)
    }

    async fn again(&self, class: &str) -> Seen {
        Client::open(self.gateway.address).await.ask(&payment(class)).await
    }

    /// Nobody knows whether it happened, and nobody does it again.
    pub(crate) async fn assert_unknown(&self, class: &str, runs: usize) {
        let (seen, _) = self.of(class).await;
        seen.assert_refused(409, "idempotency_outcome_unknown", "unknown");
        let again = self.again(class).await;
        again.assert_refused(409, "idempotency_outcome_unknown", "unknown");
        assert_eq!(self.upstream.runs(class).await.len(), runs, "{class}");
    }

    /// The retry ran, after so many others, each under the same derived key.
    pub(crate) async fn assert_ran(&self, class: &str, before: usize) {
        let (seen, runs) = self.of(class).await;
        assert_eq!(
            (seen.status, seen.is_replay(), runs.len()),
            (201, false, before + 1),
            "{class}"
        );
        assert!(runs.iter().all(|run| run.key == runs[0].key), "{runs:?}");
        let attempts: Vec<u64> = runs.iter().map(|run| run.attempt.parse().unwrap()).collect();
        assert!(attempts.is_sorted_by(|one, next| one < next), "{attempts:?}");
        self.again(class).await.assert_replays(seen);
        assert_eq!(self.upstream.runs(class).await.len(), before + 1, "{class}");
    }

    /// The retry got the first answer.
    pub(crate) async fn assert_replayed(&self, class: &str) {
        let (seen, runs) = self.of(class).await;
        assert_eq!((seen.status, seen.text()), (201, r#"{"id":"pay_1"}"#));
        assert!(seen.is_replay() && runs.len() == 1, "{class}: {seen:?} {runs:?}");
    }
}
