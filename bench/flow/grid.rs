//! Every contender with one request and with many in flight, in turns.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use oncekey::flow::Flows;
use oncekey::flow::sqlx::SqlxPostgres;
use oncekey_bench::stats::{Sample, median, median_ratio};
use oncekey_bench::table::Table;
use oncekey_bench::{Result, scratch};
use serde_json::{Value, json};
use sqlx::postgres::{PgPool, PgPoolOptions};

use crate::stub::{self, Stub};
use crate::{by_hand, drive, ours};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    pub(crate) span: Duration,
    pub(crate) staged: usize,
    /// Everybody and the relay, or only one of them: to see where its time goes.
    pub(crate) only: Option<Contender>,
}

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Contender {
    ByHand,
    Ours,
    RocketRides,
    Durare,
}

impl Contender {
    pub(crate) const ALL: [Self; 4] = [Self::ByHand, Self::Ours, Self::RocketRides, Self::Durare];

    const fn label(self) -> &'static str {
        match self {
            Self::ByHand => "by hand, without safety",
            Self::Ours => "oncekey flow",
            Self::RocketRides => "rocket-rides' statements",
            Self::Durare => "durare 0.5.0",
        }
    }
}

/// How many requests are in flight. The bar is at the last one.
pub(crate) const IN_FLIGHT: [usize; 2] = [1, 32];

/// As many as there are requests in flight at the most, so that nobody waits for one.
const CONNECTIONS: u32 = 32;

/// Everything that was measured: by number in flight and contender, one sample per round.
#[derive(Debug)]
pub(crate) struct Grid {
    cells: Vec<(usize, Contender, Vec<Sample>)>,
    /// Rows per second of the relay, by round.
    pub(crate) relay: Vec<f64>,
    /// Why there is no peer, if there is none.
    pub(crate) no_peer: Option<String>,
}

/// What the requests of all contenders need.
struct Scene {
    pool: PgPool,
    stub: Stub,
    address: std::net::SocketAddr,
    flows: Flows<SqlxPostgres>,
    peer: std::result::Result<PathBuf, String>,
    url: String,
}

/// What the scratch project of the peer consists of.
const FILES: [(&str, &str); 4] = [
    ("Cargo.toml", include_str!("peer/manifest.toml")),
    ("src/drive.rs", include_str!("drive.rs")),
    ("src/peer.rs", include_str!("peer/peer.rs")),
    ("src/stub.rs", include_str!("stub.rs")),
];

impl Grid {
    pub(crate) async fn measure(plan: &Plan, url: &str) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
        sqlx::raw_sql("DROP SCHEMA IF EXISTS bench CASCADE").execute(&pool).await?;
        sqlx::raw_sql(by_hand::TABLES).execute(&pool).await?;
        let address = stub::serve().await?;
        let stub = Stub::new(address);
        let flows = ours::flows(&pool, &stub).await?;
        let peer = match plan.only.is_none_or(|only| only == Contender::Durare) {
            true => scratch::build("bench-flow-peer", &FILES).map(|folder| folder.join("peer")),
            false => Err("it is not asked for".into()),
        };
        let peer = peer.map_err(|error| error.to_string());
        let scene = Scene { pool, stub, address, flows, peer, url: url.to_owned() };
        let mut grid = Self {
            cells: Vec::new(),
            relay: Vec::new(),
            no_peer: scene.peer.as_ref().err().cloned(),
        };
        for callers in IN_FLIGHT {
            for who in Contender::ALL {
                if plan.only.is_none_or(|only| only == who) {
                    grid.cells.push((callers, who, Vec::new()));
                }
            }
        }
        for round in 0..plan.rounds {
            for (callers, who, samples) in &mut grid.cells {
                if *who == Contender::Durare && scene.peer.is_err() {
                    continue;
                }
                samples.push(scene.sample(*who, *callers, plan.span, round).await?);
            }
            if plan.only.is_none() {
                grid.relay.push(ours::drain(&scene.pool, plan.staged).await?);
            }
        }
        Ok(grid)
    }

    pub(crate) fn samples(&self, callers: usize, who: Contender) -> &[Sample] {
        let found = self.cells.iter().find(|(c, w, _)| (*c, *w) == (callers, who));
        found.map_or(&[], |(.., samples)| samples)
    }

    /// What the rate of one is to that of another, round by round.
    pub(crate) fn ratio(&self, callers: usize, left: Contender, right: Contender) -> Option<f64> {
        let rates = |who| self.samples(callers, who).iter().map(|sample| sample.rate);
        let (left, right) = (rates(left), rates(right));
        (right.len() > 0).then(|| median_ratio(left, right))
    }

    pub(crate) fn relay_rate(&self) -> f64 {
        median(self.relay.iter().copied())
    }

    pub(crate) fn peer_text(&self) -> String {
        self.no_peer
            .as_ref()
            .map_or_else(|| "durare 0.5.0".to_owned(), |why| format!("none: {why}"))
    }

    pub(crate) fn text(&self) -> String {
        let columns = ["in flight", "who", "requests/s", "p50 ms", "p99 ms", "of by hand"];
        let mut table = Table::new(&columns);
        for (callers, who, samples) in &self.cells {
            let ratio = self.ratio(*callers, *who, Contender::ByHand).unwrap_or_default();
            let Sample { rate, p50, p99 } = Sample::median(samples);
            let mut line = vec![callers.to_string(), who.label().to_owned()];
            match samples.is_empty() {
                true => {
                    line.extend(["-".to_owned(), "-".to_owned(), "-".to_owned(), "-".to_owned()])
                }
                false => line.extend([
                    format!("{rate:.0}"),
                    format!("{:.2}", p50 / 1e3),
                    format!("{:.2}", p99 / 1e3),
                    format!("{ratio:.2} x"),
                ]),
            }
            table.add(line);
        }
        format!("{}\nThe relay hands out {:.0} staged rows/s.\n", table.text(), self.relay_rate())
    }

    pub(crate) fn to_json(&self) -> Value {
        let cells = self.cells.iter().map(|(callers, who, samples)| {
            let rounds: Vec<_> = samples.iter().map(|sample| sample.to_json()).collect();
            json!({ "in_flight": callers, "who": who.label(), "rounds": rounds })
        });
        json!({ "requests": cells.collect::<Value>(), "relay_rows_per_second": self.relay })
    }
}

impl Scene {
    async fn sample(
        &self,
        who: Contender,
        callers: usize,
        span: Duration,
        round: usize,
    ) -> Result<Sample> {
        let (pool, stub, flows) = (self.pool.clone(), self.stub.clone(), self.flows.clone());
        // On a server that was measured before, the keys of that run would be replays.
        let run = std::process::id();
        let key = move |number: usize| format!("{run}-{}-{callers}-{round}-{number}", who.label());
        let (count, elapsed, each) = match who {
            Contender::ByHand => {
                drive::drive(callers, span, move |number| {
                    let (pool, stub, key) = (pool.clone(), stub.clone(), key(number));
                    async move { by_hand::unsafe_request(&pool, &stub, &key).await }
                })
                .await?
            }
            Contender::RocketRides => {
                drive::drive(callers, span, move |number| {
                    let (pool, stub, key) = (pool.clone(), stub.clone(), key(number));
                    async move { by_hand::rocket_rides(&pool, &stub, &key).await }
                })
                .await?
            }
            Contender::Ours => {
                drive::drive(callers, span, move |number| {
                    let (flows, key) = (flows.clone(), key(number));
                    async move { ours::request(&flows, &key).await }
                })
                .await?
            }
            Contender::Durare => return self.ask_peer(callers, span).await,
        };
        Ok(Sample::new(count, elapsed, each))
    }

    async fn ask_peer(&self, callers: usize, span: Duration) -> Result<Sample> {
        let mut command = Command::new(self.peer.as_ref().map_err(Clone::clone)?);
        command.args([self.url.clone(), self.address.to_string(), callers.to_string()]);
        command.args([span.as_millis().to_string(), CONNECTIONS.to_string()]);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let figures: Vec<f64> = text.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        let [rate, p50, p99] = figures[..] else {
            return Err(format!("the peer: {}", String::from_utf8_lossy(&output.stderr)).into());
        };
        Ok(Sample { rate, p50, p99 })
    }
}
