//! The DynamoDB store keeps every promise of the suite: with leases that go by the clock, through one
//! handle and through two that take turns as two machines would, and with leases that are watched.

#![cfg(feature = "dynamodb")]

#[path = "common/dynamodb.rs"]
mod dynamodb;
#[path = "common/turns.rs"]
#[allow(dead_code, reason = "nothing wakes on DynamoDB")]
mod turns;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use oncekey::core::conformance::model::{Op, agrees_while_erasing, agrees_with_the_model};
use oncekey::core::conformance::{self, Case, Rig};
use oncekey::core::{Clock, ManualClock, Store, Timestamp};
use oncekey::store::dynamodb::{Clocks, DynamoStore, Lapse};

use self::dynamodb::{ManualUptime, Table};
use self::turns::InTurns;

/// A table of its own, with clocks that the test moves.
struct TableRig<S> {
    clock: Arc<ManualClock>,
    uptime: Arc<ManualUptime>,
    table: Table,
    lapse: Lapse,
    handles: fn(Vec<DynamoStore>) -> S,
    open: Mutex<Arc<S>>,
}

/// Leases go by the clock of the rig, which everybody shares: no skew.
async fn one_handle() -> TableRig<DynamoStore> {
    TableRig::new(Lapse::Clocked, |mut handles| handles.remove(0)).await
}

async fn two_handles() -> TableRig<InTurns<DynamoStore>> {
    TableRig::new(Lapse::Clocked, |handles| InTurns::new(handles.into_iter().map(Arc::new))).await
}

/// Leases are watched, as by default.
async fn watching() -> TableRig<DynamoStore> {
    TableRig::new(Lapse::Observed, |mut handles| handles.remove(0)).await
}

impl<S> TableRig<S> {
    async fn new(lapse: Lapse, handles: fn(Vec<DynamoStore>) -> S) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_763_000_000_000_000)));
        let uptime = Arc::new(ManualUptime::default());
        let table = Table::new().await;
        let open = Mutex::new(Arc::new(handles(opened(&table, lapse, &clock, &uptime).await)));
        Self { clock, uptime, table, lapse, handles, open }
    }
}

async fn opened(
    table: &Table,
    lapse: Lapse,
    clock: &Arc<ManualClock>,
    uptime: &Arc<ManualUptime>,
) -> Vec<DynamoStore> {
    let mut handles = Vec::new();
    for _ in 0..2 {
        let options = table
            .options()
            .lapse(lapse)
            .skew(Duration::ZERO)
            .clock(Arc::clone(clock) as Arc<dyn Clock>)
            .clocks(Clocks::Trusted)
            .uptime(Arc::clone(uptime) as _);
        handles.push(options.open().await.expect("the table opens"));
    }
    handles
}

impl<S: Store> Rig for TableRig<S> {
    type Store = S;

    fn store(&self) -> Arc<S> {
        Arc::clone(&self.open.lock().expect("no test panics while it holds this"))
    }

    async fn reopen(&self) -> Arc<S> {
        let handles = opened(&self.table, self.lapse, &self.clock, &self.uptime).await;
        let store = Arc::new((self.handles)(handles));
        *self.open.lock().expect("no test panics while it holds this") = Arc::clone(&store);
        store
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
        self.uptime.advance(by);
    }

    /// A wall clock steps, an uptime does not.
    async fn step_back(&self, by: Duration) {
        self.clock.step_back(by);
    }

    fn clock(&self) -> Option<Arc<dyn Clock>> {
        Some(Arc::clone(&self.clock) as Arc<dyn Clock>)
    }
}

mod through_one_handle {
    oncekey::core::conformance!(
        #[ignore = "needs DynamoDB: run cargo xtask test"]
        async || super::one_handle().await
    );
    oncekey::core::clock_conformance!(
        #[ignore = "needs DynamoDB: run cargo xtask test"]
        async || super::one_handle().await
    );
    oncekey::core::browse_conformance!(
        #[ignore = "needs DynamoDB: run cargo xtask test"]
        async || super::one_handle().await
    );
    oncekey::core::erase_conformance!(
        #[ignore = "needs DynamoDB: run cargo xtask test"]
        async || super::one_handle().await
    );
    oncekey::core::erase_browse_conformance!(
        #[ignore = "needs DynamoDB: run cargo xtask test"]
        async || super::one_handle().await
    );
    oncekey::core::restore_conformance!(
        #[ignore = "needs DynamoDB: run cargo xtask test"]
        async || super::one_handle().await
    );
    oncekey::core::restore_browse_conformance!(
        #[ignore = "needs DynamoDB: run cargo xtask test"]
        async || super::one_handle().await
    );
}

mod through_two_handles_in_turns {
    oncekey::core::conformance!(
        #[ignore = "needs DynamoDB: run cargo xtask test"]
        async || super::two_handles().await
    );
    oncekey::core::clock_conformance!(
        #[ignore = "needs DynamoDB: run cargo xtask test"]
        async || super::two_handles().await
    );
    oncekey::core::erase_conformance!(
        #[ignore = "needs DynamoDB: run cargo xtask test"]
        async || super::two_handles().await
    );
    oncekey::core::restore_conformance!(
        #[ignore = "needs DynamoDB: run cargo xtask test"]
        async || super::two_handles().await
    );
    oncekey::core::browse_conformance!(
        #[ignore = "needs DynamoDB: run cargo xtask test"]
        async || super::two_handles().await
    );
    oncekey::core::erase_browse_conformance!(
        #[ignore = "needs DynamoDB: run cargo xtask test"]
        async || super::two_handles().await
    );
    oncekey::core::restore_browse_conformance!(
        #[ignore = "needs DynamoDB: run cargo xtask test"]
        async || super::two_handles().await
    );
}

/// What takes a lease for lapsed that began before the process did, the history by opening the store
/// again and again. What holds there instead is in `dynamodb_input.rs`.
const NOT_BY_WATCHING: [&str; 2] =
    ["a_send_mark_survives_a_restart", "a_long_history_agrees_with_the_decision_tables"];

/// Whoever was there all the time has watched every lease, so the suite sees no difference.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn promises_are_kept_by_watching() {
    let mut cases = conformance::cases();
    cases.extend(conformance::clock_cases());
    cases.extend(conformance::restore_cases());
    let all = cases.len();
    cases.retain(|case| !NOT_BY_WATCHING.contains(&case.name));
    assert_eq!(cases.len(), all - NOT_BY_WATCHING.len(), "what is left out has another name now");
    // A few at a time: each waits for the server more than for anything else.
    let each = |case: Case<TableRig<DynamoStore>>| async move {
        let rig = watching().await;
        conformance::bounded(case.name, (case.run)(&rig)).await;
    };
    futures_util::stream::iter(cases).for_each_concurrent(4, each).await;
}

/// Random histories: the store says what the decision tables say, and shows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn agrees_with_the_model_in_many_histories() {
    for seed in 100..116 {
        agrees_with_the_model(&one_handle().await, &Op::history(seed, 60)).await;
        agrees_while_erasing(&one_handle().await, &Op::history(seed, 60)).await;
    }
}

/// One long history meets more of the past than many short ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn agrees_with_the_model_through_a_long_history() {
    agrees_with_the_model(&two_handles().await, &Op::history(7, 600)).await;
    agrees_while_erasing(&two_handles().await, &Op::history(8, 600)).await;
}
