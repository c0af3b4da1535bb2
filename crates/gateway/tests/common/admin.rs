//! What an operator asks the gateway.

use serde_json::Value;

use super::gateway::Gateway;
use super::until;
use super::wire::{Client, Seen, ask};

impl Gateway {
    /// Asks the admin listener.
    pub(crate) async fn look(&self, path: &str) -> Seen {
        let request = ask("GET", path).line("connection", "close");
        Client::open(self.admin).await.ask(&request).await
    }

    pub(crate) async fn status(&self) -> Value {
        serde_json::from_slice(&self.look("/api/v1/status").await.body).unwrap()
    }

    /// How many requests wait for the answer of another.
    pub(crate) async fn waiters(&self) -> u64 {
        self.status().await["waiters"].as_u64().unwrap()
    }

    /// The sum of all series of a metric whose labels say all of this, as in `kind="hollow"`.
    pub(crate) async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let page = self.look("/metrics").await;
        let lines = page.text().lines().filter(|line| {
            let series = line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
            series && labels.iter().all(|label| line.contains(label))
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Waits until a metric has this value; it is written after the answer.
    pub(crate) async fn until_metric(&self, name: &str, labels: &[&str], value: f64) {
        until(&format!("{name} {labels:?} = {value}"), async || {
            (self.metric(name, labels).await - value).abs() < 0.5
        })
        .await;
    }
}
