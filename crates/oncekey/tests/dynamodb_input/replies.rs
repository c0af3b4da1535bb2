//! Answers that get lost, and questions that come late.

use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use oncekey::core::{ErrorKind, Grant, Refusal, Renewal, State, Store as _, Write};
use oncekey::store::dynamodb::{DynamoStore, Lapse};
use tokio::sync::Semaphore;

use super::dynamodb::{ManualUptime, Table, client};
use super::proxy::{Proxy, Step};
use super::scene::{GRACE, LEASE, claim, completion, items, refusal, win};

/// A handle on the table itself, and one that goes through a proxy.
async fn two_ways(table: &Table) -> (DynamoStore, DynamoStore, Proxy) {
    let proxy = Proxy::start().await;
    let direct = table.options().open().await.expect("the table opens");
    let proxied = table.options().endpoint(proxy.url()).open().await.expect("through it, too");
    (direct, proxied, proxy)
}

/// I5: a claimant whose answer was lost is recognised, by the same call and by the next.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_claimant_whose_answer_was_lost_keeps_its_key() {
    let table = Table::new().await;
    let (direct, proxied, proxy) = two_ways(&table).await;
    proxy.then([Step::LoseAnswer]);
    let (lease, grant) = win(&proxied, &claim(1, 1)).await;
    assert_eq!((grant, proxy.left()), (Grant::Again, 0), "the second try finds the first");
    let record = direct.get(&lease.id).await.unwrap().expect("it is on record");
    assert!(record.is_held_by(&lease));

    proxy.then([const { Step::LoseAnswer }; 4]);
    let error = proxied.claim(&claim(2, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    assert_eq!(win(&direct, &claim(2, 1)).await.1, Grant::Again, "it had gone through");
    assert!(matches!(refusal(&direct, &claim(2, 2)).await, Refusal::InProgress(_)));
}

/// Every write of an owner may lose its answer, and says the truth anyway.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn every_write_survives_the_loss_of_its_answer() {
    let table = Table::new().await;
    let (direct, proxied, proxy) = two_ways(&table).await;
    let lost = || {
        assert_eq!(proxy.left(), 0, "the step before was taken");
        proxy.then([Step::LoseAnswer]);
    };
    let (lease, _) = win(&direct, &claim(1, 1)).await;
    lost();
    let renewed = proxied.renew(&[lease], LEASE).await.unwrap();
    assert!(matches!(renewed[..], [Renewal::Until(_)]), "{renewed:?}");
    lost();
    assert_eq!(proxied.send(&lease).await.unwrap(), Write::Applied);
    lost();
    assert_eq!(proxied.unknown(&lease).await.unwrap(), Write::Applied);
    lost();
    let answer = completion(1, 700_000);
    assert_eq!(proxied.complete(&lease, &answer).await.unwrap(), Write::Applied);
    lost();
    assert_eq!(proxied.complete(&lease, &completion(1, 10)).await.unwrap(), Write::Fenced);
    let (lease, _) = win(&direct, &claim(2, 1)).await;
    lost();
    assert_eq!(proxied.release(&lease).await.unwrap(), Write::Applied, "its own doing");
    assert_eq!(proxied.release(&lease).await.unwrap(), Write::Fenced, "a repetition");
    let (lease, _) = win(&direct, &claim(3, 1)).await;
    lost();
    assert_eq!(proxied.complete(&lease, &completion(1, 10)).await.unwrap(), Write::Applied);
    assert_eq!(proxy.left(), 0);
}

/// F52: a connection that breaks before the question was read may break again, and then the caller
/// is told that nothing is certain; the next try of the same call settles it.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_broken_connection_is_tried_again() {
    let table = Table::new().await;
    let (direct, proxied, proxy) = two_ways(&table).await;
    proxy.then([Step::LoseQuestion, Step::LoseQuestion]);
    assert_eq!(win(&proxied, &claim(1, 1)).await.1, Grant::Fresh);
    proxy.then([const { Step::LoseQuestion }; 4]);
    let error = proxied.claim(&claim(2, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "nobody can tell: {error}");
    assert_eq!(direct.get(&claim(2, 1).id).await.unwrap(), None);
}

/// F52: what DynamoDB refuses is tried again if that may help, and told for what it is if not.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn every_refusal_is_told_for_what_it_is() {
    use ErrorKind::{Ambiguous, Unavailable, Unsuitable};
    let table = Table::new().await;
    let (direct, proxied, proxy) = two_ways(&table).await;
    // Once is not noticed.
    let passing = [
        (400, "ProvisionedThroughputExceededException"),
        (400, "ThrottlingException"),
        (400, "RequestLimitExceeded"),
        (400, "TransactionConflictException"),
        (400, "ReplicatedWriteConflictException"),
        (500, "InternalServerError"),
        (503, "ServiceUnavailable"),
    ];
    for (key, (status, code)) in (100..).zip(passing) {
        proxy.then([Step::Refuse(status, code), Step::Refuse(status, code)]);
        assert_eq!(win(&proxied, &claim(key, 1)).await.1, Grant::Fresh, "{code}");
    }
    // What does not pass is told, after the tries that make sense.
    let lasting = [
        (400, "ThrottlingException", 4, Unavailable),
        (400, "TransactionConflictException", 4, Unavailable),
        (500, "InternalServerError", 4, Ambiguous),
        (400, "ResourceNotFoundException", 1, Unsuitable),
        (400, "AccessDeniedException", 1, Unsuitable),
        (400, "UnrecognizedClientException", 1, Unsuitable),
        (400, "ExpiredTokenException", 1, Unavailable),
        (400, "ItemCollectionSizeLimitExceededException", 1, Unsuitable),
        (400, "ValidationException", 1, Unsuitable),
    ];
    for (status, code, tries, kind) in lasting {
        proxy.then(vec![Step::Refuse(status, code); tries]);
        let error = proxied.claim(&claim(1, 1)).await.unwrap_err();
        assert_eq!((error.kind(), proxy.left()), (kind, 0), "{code}: {error}");
        let cause = std::error::Error::source(&error).expect("a cause").to_string();
        // The name of the table may look like one.
        let said = format!("{error} {error:?} {cause}").replace("oncekey-", "");
        assert!(!said.contains("key-1"), "{code}: {error:?}");
    }
    // A try that is in doubt is not settled by one that was refused for certain.
    proxy.then([Step::LoseAnswer, Step::Refuse(400, "AccessDeniedException")]);
    let error = proxied.claim(&claim(2, 1)).await.unwrap_err();
    assert_eq!(error.kind(), Ambiguous, "{error}");
    assert_eq!(win(&direct, &claim(2, 1)).await.1, Grant::Again, "it had gone through");
    // A question that changes nothing is never in doubt.
    proxy.then(vec![Step::Refuse(500, "InternalServerError"); 4]);
    assert_eq!(proxied.get(&claim(2, 1).id).await.unwrap_err().kind(), Unavailable);
}

/// I8: a takeover that was decided before the owner announced its send does not happen after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_send_mark_stops_a_takeover_that_is_under_way() {
    let table = Table::new().await;
    let uptime = Arc::new(ManualUptime::default());
    let proxy = Proxy::start().await;
    let owner = table.options().open().await.unwrap();
    let watched = table.options().endpoint(proxy.url()).lapse(Lapse::Observed);
    let rival = watched.uptime(Arc::clone(&uptime) as _).open().await.unwrap();
    let (lease, _) = win(&owner, &claim(1, 1)).await;
    assert!(matches!(refusal(&rival, &claim(1, 2)).await, Refusal::InProgress(_)));
    uptime.advance(LEASE + GRACE);
    // The first question is refused and brings the record, the second is the takeover.
    let (arrived, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let hold = Step::Hold { arrived: Arc::clone(&arrived), go_on: Arc::clone(&go_on) };
    proxy.then([Step::Pass, hold]);
    let takeover = tokio::spawn(async move { refusal(&rival, &claim(1, 2)).await });
    arrived.acquire().await.unwrap().forget();
    assert_eq!(owner.send(&lease).await.unwrap(), Write::Applied, "the owner was not replaced");
    go_on.add_permits(1);
    assert_eq!(takeover.await.unwrap(), Refusal::Unknown, "it may have happened");
}

/// What is wrong with one lease costs the others nothing, however many are renewed in one call.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn one_bad_lease_costs_no_other_its_renewal() {
    const LEASES: u32 = 100;
    let table = Table::new().await;
    let (direct, proxied, proxy) = two_ways(&table).await;
    let mut leases = Vec::new();
    for key in 0..LEASES {
        leases.push(win(&direct, &claim(key, 1)).await.0);
    }
    // The first two: what fails at once must not end what has not begun.
    let mut damaged = items(&table, &leases[0].id).await.remove(0);
    damaged.insert("s".to_owned(), AttributeValue::N("14".to_owned()));
    client().put_item().table_name(table.name()).set_item(Some(damaged)).send().await.unwrap();
    proxy.throttle(leases[1].fence);
    let renewals = proxied.renew(&leases, 2 * LEASE).await.unwrap();
    assert_eq!(renewals[..2], [Renewal::Lost, Renewal::Failed]);
    for (lease, renewal) in leases.iter().zip(&renewals).skip(2) {
        let Renewal::Until(told) = *renewal else { panic!("{renewal:?} for one that is well") };
        let record = direct.get(&lease.id).await.unwrap().expect("it runs");
        let State::Running { until, .. } = record.state else { panic!("it runs: {record:?}") };
        assert_eq!(until, told);
        assert!(until > lease.until, "it was extended");
    }
    // If none could be renewed, that is an error, as ever.
    let error = proxied.renew(&leases[1..2], LEASE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
