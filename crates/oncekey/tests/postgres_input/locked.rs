//! Rows that somebody else holds.

use std::time::Duration;

use oncekey::core::{Renewal, State, Store, Write};
use oncekey::store::postgres::{PostgresOptions, Prepared};

use crate::scene::{admin, claim, completion, drop_schema, fresh_schema, url, win};

/// I7: a row that somebody holds for longer than a lease costs no other lease its renewal, and its own is
/// not lost: nobody else has it.
#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_row_that_somebody_holds_costs_no_other_lease_its_renewal() {
    let (mut holder, admin) = (admin().await, admin().await);
    for prepared in [Prepared::Auto, Prepared::Off] {
        let schema = fresh_schema(&admin).await;
        let options = PostgresOptions::new(url()).schema(&schema).prepared(prepared);
        let store = options.open().await.unwrap();
        let mut leases = Vec::new();
        for number in 0..5 {
            leases.push(win(&store, &claim(number, 1)).await);
        }
        assert_eq!(store.complete(&leases[4], &completion()).await.unwrap(), Write::Applied);
        let row = format!("WHERE fence = {} AND state = 15", leases[2].fence);
        let holds = [
            format!("SELECT FROM {schema}.oncekey_records {row} FOR UPDATE"),
            format!("UPDATE {schema}.oncekey_records SET at = at + 1 {row}"),
            format!("DELETE FROM {schema}.oncekey_records {row}"),
        ];
        for hold in holds {
            let transaction = holder.transaction().await.unwrap();
            transaction.batch_execute(&hold).await.unwrap();
            let span = Duration::from_secs(600);
            // Sooner than the server gives up waiting for a lock.
            let renewing = tokio::time::timeout(Duration::from_secs(1), store.renew(&leases, span));
            let renewals = renewing.await.expect("nobody waits").expect("the others are renewed");
            for place in [0, 1, 3] {
                let Renewal::Until(until) = renewals[place] else { panic!("{hold}: {renewals:?}") };
                let state = store.get(&leases[place].id).await.unwrap().expect("a record").state;
                assert!(matches!(state, State::Running { until: u, .. } if u == until), "{hold}");
            }
            assert_eq!(renewals[2], Renewal::Failed, "{hold}");
            assert_eq!(renewals[4], Renewal::Lost, "{hold}: it is done");
            transaction.rollback().await.unwrap();
            let renewals = store.renew(&leases[2..3], span).await.unwrap();
            assert!(matches!(renewals[..], [Renewal::Until(_)]), "{hold}: {renewals:?}");
        }
        drop(store);
        drop_schema(&admin, &schema).await;
    }
}
