//! Leases on machines whose clocks differ.

use std::sync::Arc;
use std::time::Duration;

use oncekey::core::{
    Claimed, Class, Clock, Grant, ManualClock, Refusal, Renewal, Restore as _, Restored, Sent,
    State, Store as _, Timestamp, Write,
};
use oncekey::store::dynamodb::{Clocks, DynamoStore, Lapse};

use super::dynamodb::{ManualUptime, Table};
use super::scene::{GRACE, LEASE, claim, lose, refusal, win};

const HOUR: Duration = Duration::from_secs(60 * 60);
const NOON: Timestamp = Timestamp::from_micros(1_763_000_000_000_000);

/// A machine with clocks of its own.
struct Machine {
    store: DynamoStore,
    clock: Arc<ManualClock>,
    uptime: Arc<ManualUptime>,
}

impl Machine {
    async fn new(table: &Table, clock: Timestamp, lapse: Lapse, skew: Duration) -> Self {
        let (clock, uptime) = (Arc::new(ManualClock::at(clock)), Arc::new(ManualUptime::default()));
        let options = table.options().clock(Arc::clone(&clock) as Arc<dyn Clock>);
        let options = options.uptime(Arc::clone(&uptime) as _).lapse(lapse).skew(skew);
        let options = options.clocks(Clocks::Trusted);
        Self { store: options.open().await.expect("the table opens"), clock, uptime }
    }

    async fn watching(table: &Table, clock: Timestamp) -> Self {
        Self::new(table, clock, Lapse::Observed, Duration::from_secs(5)).await
    }

    fn pass(&self, by: Duration) {
        self.clock.advance(by);
        self.uptime.advance(by);
    }
}

/// F23: clocks that are an hour apart, in either direction, take nothing from an owner that is
/// alive, and keep nobody from replacing one that is not.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn clocks_that_differ_by_an_hour_change_nothing_about_leases() {
    let table = Table::new().await;
    let owner = Machine::watching(&table, NOON).await;
    for (key, clock) in [(1, NOON.after(HOUR)), (2, NOON.before(HOUR)), (3, NOON)] {
        let rival = Machine::watching(&table, clock).await;
        let (lease, _) = win(&owner.store, &claim(key, 1)).await;
        // The owner renews at a third of its lease, for an hour.
        for _ in 0..12 {
            assert!(matches!(refusal(&rival.store, &claim(key, 2)).await, Refusal::InProgress(_)));
            rival.pass(LEASE - Duration::from_secs(1));
            let renewed = owner.store.renew(&[lease], LEASE).await.unwrap();
            assert!(matches!(renewed[..], [Renewal::Until(_)]), "{renewed:?}");
        }
        // Then it dies.
        assert!(matches!(refusal(&rival.store, &claim(key, 2)).await, Refusal::InProgress(_)));
        rival.pass(LEASE + GRACE - Duration::from_micros(1));
        assert!(matches!(refusal(&rival.store, &claim(key, 2)).await, Refusal::InProgress(_)));
        rival.pass(Duration::from_micros(1));
        let (newer, grant) = win(&rival.store, &claim(key, 2)).await;
        assert_eq!(grant, Grant::TakenOver);
        assert!(newer.fence > lease.fence, "fences rise, whatever the clocks say");
        assert_eq!(owner.store.send(&lease).await.unwrap(), Write::Fenced);
    }
}

/// A clock that jumps on one machine takes nothing over either.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_clock_that_steps_forward_takes_nothing_over() {
    let table = Table::new().await;
    let (owner, rival) =
        (Machine::watching(&table, NOON).await, Machine::watching(&table, NOON).await);
    win(&owner.store, &claim(1, 1)).await;
    assert!(matches!(refusal(&rival.store, &claim(1, 2)).await, Refusal::InProgress(_)));
    rival.clock.advance(HOUR);
    let told = refusal(&rival.store, &claim(1, 2)).await;
    assert_eq!(told, Refusal::InProgress(NOON.after(HOUR + LEASE)), "on the clock of who asks");
}

/// What holds instead of the case that is left out of the suite: a process that has just started
/// waits for one lease before it takes an owner for lost, and then says what may have happened.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_new_process_waits_for_one_lease() {
    let table = Table::new().await;
    let before = Machine::watching(&table, NOON).await;
    let (lease, _) = win(&before.store, &claim(1, 1)).await;
    assert_eq!(before.store.send(&lease).await.unwrap(), Write::Applied);
    let after = Machine::watching(&table, NOON.after(HOUR)).await;
    assert!(matches!(refusal(&after.store, &claim(1, 2)).await, Refusal::InProgress(_)));
    after.pass(LEASE + GRACE);
    assert_eq!(refusal(&after.store, &claim(1, 2)).await, Refusal::Unknown);
}

/// I1: a record that is put back, further on or after it was lost, does not begin to count its renewals
/// anew: a rival that has seen a beat, and sees the same later, would take the owner for dead.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_record_that_is_put_back_never_shows_an_earlier_beat_again() {
    let table = Table::new().await;
    for (key, is_lost) in [(1, false), (2, true)] {
        let owner = Machine::watching(&table, NOON).await;
        let rival = Machine::watching(&table, NOON).await;
        let (lease, _) = win(&owner.store, &claim(key, 1)).await;
        let renew = async || {
            for _ in 0..3 {
                let renewed = owner.store.renew(&[lease], LEASE).await.unwrap();
                assert!(matches!(renewed[..], [Renewal::Until(_)]), "{renewed:?}");
            }
        };
        renew().await;
        assert!(matches!(refusal(&rival.store, &claim(key, 2)).await, Refusal::InProgress(_)));
        let mut record = owner.store.get(&lease.id).await.unwrap().expect("a record");
        if is_lost {
            lose(&table, &lease.id).await;
        } else {
            record.state = State::Running { until: lease.until, sent: Sent::Yes };
        }
        assert_eq!(owner.store.restore(&record).await.unwrap(), Restored::Written);
        // As often as before, while the rival looks elsewhere.
        renew().await;
        rival.pass(LEASE + GRACE);
        let told = refusal(&rival.store, &claim(key, 2)).await;
        assert!(matches!(told, Refusal::InProgress(_)), "lost: {is_lost}: {told:?}");
        // And an owner that is dead is replaced, or its work left open, as ever.
        rival.pass(LEASE + GRACE);
        match rival.store.claim(&claim(key, 2)).await.unwrap() {
            Claimed::Won { grant, .. } => assert!(is_lost && grant == Grant::TakenOver),
            Claimed::Lost { refusal, .. } => assert!(!is_lost && refusal == Refusal::Unknown),
        }
    }
}

/// With leases by the clock, a declared skew is respected to the moment.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_declared_skew_protects_an_owner_whose_clock_is_slow() {
    let table = Table::new().await;
    let skew = Duration::from_secs(60);
    let owner = Machine::new(&table, NOON, Lapse::Clocked, skew).await;
    let (lease, _) = win(&owner.store, &claim(1, 1)).await;
    // The rival's clock is ahead by the whole skew: the lease has lapsed by it, but not really.
    let rival = Machine::new(&table, NOON.after(skew), Lapse::Clocked, skew).await;
    rival.pass(LEASE + GRACE - Duration::from_micros(1));
    let told = refusal(&rival.store, &claim(1, 2)).await;
    assert_eq!(told, Refusal::InProgress(lease.until.after(skew)));
    rival.pass(Duration::from_micros(1));
    assert_eq!(win(&rival.store, &claim(1, 2)).await.1, Grant::TakenOver);
}

/// The worst that clocks can do where they were declared to agree and do not: a live owner is
/// replaced. It cannot send any more, so the work happens once.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn even_clocks_that_break_their_word_send_nothing_twice() {
    let table = Table::new().await;
    let owner = Machine::new(&table, NOON, Lapse::Clocked, Duration::ZERO).await;
    let rival = Machine::new(&table, NOON.after(HOUR), Lapse::Clocked, Duration::ZERO).await;
    let (lease, _) = win(&owner.store, &claim(1, 1)).await;
    let (newer, grant) = win(&rival.store, &claim(1, 2)).await;
    assert_eq!(grant, Grant::TakenOver, "the clocks lied");
    assert_eq!(owner.store.send(&lease).await.unwrap(), Write::Fenced, "so it does not send");
    assert_eq!(rival.store.send(&newer).await.unwrap(), Write::Applied);
    // And what was announced is not sent again, however wrong the clock.
    let sent = oncekey::core::Claim { sent: Sent::Yes, class: Class::Once, ..claim(2, 1) };
    win(&owner.store, &sent).await;
    assert_eq!(refusal(&rival.store, &claim(2, 2)).await, Refusal::Unknown);
}
