//! What one history is made of, drawn from its seed.
//!
//! Every fault is switched on or off for a whole history (swarm testing): a world in which
//! everything goes wrong all the time never gets far enough for the interesting failures.

use std::time::Duration;

use oncekey::core::Class;
use oncekey::core::policy::{Mark, Panicked, Retain};

use crate::dice::{Dice, Part};

/// The expanded seed.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    calm: bool,
    pub(crate) nodes: usize,
    pub(crate) clients: usize,
    pub(crate) ops_per_client: usize,
    pub(crate) keys: Vec<KeySpec>,
    pub(crate) lease: Duration,
    pub(crate) grace: Duration,
    pub(crate) retention: Duration,
    pub(crate) linger: Duration,
    /// The longest pause of a client between two operations.
    pub(crate) think: Duration,
    /// How long an engine waits for the store to take an end.
    pub(crate) patience: Duration,
    pub(crate) wake: Wakes,
    pub(crate) journal: Journal,
    pub(crate) sweeps: Sweeps,
    pub(crate) probes: Probes,
    /// In this many of a thousand cases the work takes its time before it sends.
    pub(crate) preludes: u32,
    /// How many claims a node may have under way.
    pub(crate) claims: usize,
    /// How many calls may wait for one key on one node.
    pub(crate) seats: usize,
    /// Bytes of answers that an engine keeps in memory.
    pub(crate) cache: u64,
    pub(crate) store: StoreFaults,
    pub(crate) upstream: UpstreamFaults,
    pub(crate) chaos: Chaos,
    /// In this many of a thousand calls the client's body is another one.
    pub(crate) mismatches: u32,
    /// In this many of a thousand calls the client hangs up early.
    pub(crate) hang_ups: u32,
    /// In this many of a thousand calls the class differs from the key's own.
    pub(crate) class_changes: u32,
}

/// What is fixed for a key.
#[derive(Clone, Debug)]
pub(crate) struct KeySpec {
    pub(crate) scope: &'static str,
    pub(crate) key: String,
    pub(crate) class: Class,
    pub(crate) mark: Mark,
    pub(crate) retain: Retain,
    pub(crate) panic: Panicked,
}

/// Whether engines hear of finished keys or have to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wakes {
    Polling,
    Feed,
}

/// Whether engines have a journal. It is a real folder and a real thread: slow, and not to be
/// repeated from a seed. So most histories do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Journal {
    None,
    Folder,
}

/// Whether engines look for what is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweeps {
    Never,
    NowAndThen,
}

/// Whether engines can ask somebody whether work happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probes {
    None,
    /// The upstream itself.
    Upstream,
}

/// What goes wrong on the way to the store and back, each per thousand calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreFaults {
    pub(crate) unavailable: u32,
    pub(crate) reply_lost: u32,
    pub(crate) request_lost: u32,
    pub(crate) late_effect: u32,
    pub(crate) slow: u32,
    /// Milliseconds that an ordinary call takes at most, each way.
    pub(crate) latency: u64,
}

/// What the upstream does, each per thousand requests; the rest is answered with 200.
#[derive(Clone, Debug, Default)]
pub(crate) struct UpstreamFaults {
    pub(crate) refuses: u32,
    pub(crate) never: u32,
    pub(crate) late: u32,
    pub(crate) declines: u32,
    pub(crate) busy: u32,
    pub(crate) fails: u32,
    pub(crate) gateway_timeout: u32,
    pub(crate) oversized: u32,
    /// The work itself panics, before or after it sent.
    pub(crate) panics: u32,
}

/// What happens to nodes and clocks: the pause between two such events, and what may be next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chaos {
    pub(crate) every: Option<Duration>,
    /// In this many of a thousand questions to the store something happens to the node right then.
    pub(crate) ambushes: u32,
    pub(crate) pauses: u32,
    pub(crate) crashes: u32,
    pub(crate) drains: u32,
    pub(crate) clock_steps: u32,
    pub(crate) outages: u32,
    pub(crate) forgeries: u32,
}

impl Options {
    /// The options of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        let mut dice = Dice::of(seed, Part::Options);
        // One history in sixteen is calm: what happens there has no excuse.
        let calm = dice.chance(62);
        // No whole number of seconds: the sweeper's own leases are, and so the log tells them apart.
        let lease = Duration::from_millis(1_000 * dice.between(1, 5) + 10);
        let mut options = Self {
            seed,
            calm,
            nodes: dice.pick(&[1, 2, 2, 3, 3]),
            clients: dice.pick(&[3, 4, 5, 6]),
            ops_per_client: 0,
            keys: Vec::new(),
            lease,
            grace: dice.millis(0, 2_000),
            retention: dice.pick(&[Duration::from_secs(60), Duration::from_secs(3_600)]),
            linger: dice.pick(&[Duration::ZERO, Duration::from_secs(40)]),
            think: dice.pick(&[Duration::from_millis(50), lease / 2, lease * 4]),
            patience: dice.millis(200, 4_000),
            wake: dice.pick(&[Wakes::Polling, Wakes::Feed]),
            journal: Journal::None,
            sweeps: dice.pick(&[Sweeps::Never, Sweeps::NowAndThen]),
            probes: dice.pick(&[Probes::None, Probes::None, Probes::Upstream]),
            preludes: dice.pick(&[50, 150, 600]),
            claims: if calm { 4_096 } else { dice.pick(&[4_096, 4_096, 2]) },
            seats: dice.pick(&[32, 32, 1]),
            // All or nothing: an eviction in between would depend on the cache's own chance.
            cache: dice.pick(&[0, 64 * 1024 * 1024]),
            store: StoreFaults::default(),
            upstream: UpstreamFaults::default(),
            chaos: Chaos::default(),
            mismatches: dice.pick(&[0, 60, 150]),
            hang_ups: if calm { 0 } else { dice.pick(&[0, 100, 400]) },
            class_changes: dice.pick(&[0, 0, 100]),
        };
        // About fifty operations, with their retries a hundred calls.
        options.ops_per_client = 47 / options.clients + 1;
        let keys = dice.between(12, 18);
        options.keys = (0..keys).map(|number| KeySpec::draw(&mut dice, number)).collect();
        options.store = StoreFaults::draw(&mut dice, calm);
        options.upstream = UpstreamFaults::draw(&mut dice, calm);
        options.chaos = Chaos::draw(&mut dice, calm, lease);
        // A probe that says "no" vouches that nothing is under way. While the store's clock steps,
        // nobody can: what looks lapsed may have an owner that is about to send.
        if options.probes == Probes::Upstream {
            options.chaos.clock_steps = 0;
        }
        options
    }

    /// The same with a journal on every node, and with reasons to use it.
    pub(crate) fn with_journal(mut self) -> Self {
        self.calm = false;
        self.journal = Journal::Folder;
        self.patience = self.patience.min(Duration::from_secs(1));
        let chaos = &mut self.chaos;
        chaos.every = chaos.every.or(Some(self.lease * 3));
        chaos.outages = chaos.outages.max(150);
        chaos.crashes = chaos.crashes.max(100);
        self
    }

    /// Returns true if and only if nothing goes wrong, anywhere.
    pub(crate) fn is_calm(&self) -> bool {
        self.calm
    }
}

impl KeySpec {
    fn draw(dice: &mut Dice, number: u64) -> Self {
        // The same key in two scopes, and keys that a careless store takes for one: only exact
        // bytes tell them apart.
        let base = number / 4;
        let (scope, key) = match number % 4 {
            0 => ("tenant-a", format!("key-{base}")),
            1 => ("tenant-b", format!("key-{base}")),
            2 => ("tenant-a", format!("KEY-{base}")),
            _ => ("tenant-a", format!("key-{base} ")),
        };
        Self {
            scope,
            key,
            class: dice.pick(&[
                Class::Once,
                Class::Once,
                Class::Once,
                Class::Keyed,
                Class::Keyed,
                Class::Retry,
                Class::Tx,
            ]),
            mark: dice.pick(&[Mark::ByClass, Mark::ByClass, Mark::WithClaim, Mark::Apart]),
            retain: if dice.chance(60) { Retain::StatusOnly } else { Retain::Whole },
            panic: if dice.chance(200) { Panicked::Answer500 } else { Panicked::ByClass },
        }
    }
}

impl StoreFaults {
    fn draw(dice: &mut Dice, calm: bool) -> Self {
        let latency = dice.pick(&[1, 5, 30]);
        if calm {
            return Self { latency, ..Self::default() };
        }
        let mut rate = |most: u64| if dice.chance(500) { rate_below(dice, most) } else { 0 };
        Self {
            unavailable: rate(120),
            reply_lost: rate(120),
            request_lost: rate(80),
            late_effect: rate(80),
            slow: rate(60),
            latency,
        }
    }
}

impl UpstreamFaults {
    fn draw(dice: &mut Dice, calm: bool) -> Self {
        if calm {
            return Self::default();
        }
        let mut rate = |most: u64| if dice.chance(400) { rate_below(dice, most) } else { 0 };
        Self {
            refuses: rate(150),
            never: rate(150),
            late: rate(250),
            declines: rate(100),
            busy: rate(150),
            fails: rate(100),
            gateway_timeout: rate(100),
            oversized: rate(100),
            panics: rate(100),
        }
    }
}

impl Chaos {
    fn draw(dice: &mut Dice, calm: bool, lease: Duration) -> Self {
        if calm || dice.chance(100) {
            return Self::default();
        }
        let every = Some(dice.pick(&[lease, lease * 3, lease * 8]));
        let mut weight = |most: u64| if dice.chance(500) { rate_below(dice, most) } else { 0 };
        Self {
            every,
            ambushes: weight(40),
            pauses: weight(300),
            crashes: weight(150),
            drains: weight(100),
            clock_steps: weight(200),
            outages: weight(150),
            forgeries: weight(200),
        }
    }
}

fn rate_below(dice: &mut Dice, most: u64) -> u32 {
    u32::try_from(dice.between(1, most)).expect("rates are small")
}
