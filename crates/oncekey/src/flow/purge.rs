//! Removes flows that ended long ago.

use std::time::Duration;

use super::claim::micros;
use super::registry::Flows;
use super::store::{TxError, TxStore, Value};

impl<S: TxStore> Flows<S> {
    /// Removes flows that were finished, or wholly taken back, longer ago than `age`: at most `most`,
    /// the oldest first. Says how many.
    ///
    /// Whoever repeats the key of such a flow begins it anew. What was parked or given up stays. An age below
    /// that of the longest attempt is too short: who is still at it would not find what another one did.
    /// A crash in between leaves whole flows: each goes in a transaction of its own.
    ///
    /// # Errors
    /// If the database cannot be asked.
    pub async fn purge(&self, age: Duration, most: usize) -> Result<usize, TxError> {
        let store = &self.0.store;
        let sql = store.layout().sql();
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let old = store.query_once(&sql.old, &[Value::Int(micros(age)), Value::Int(most)]).await?;
        let parts = ["steps", "effects", "events"].map(|table| {
            store.layout().statement(&format!("DELETE FROM {{{table}}} WHERE flow_id = ?"))
        });
        let mut removed = 0;
        for row in old {
            let id = Value::Bytes(row.bytes(0)?);
            let mut tx = store.begin().await?;
            // Somebody else may have removed it, and a client begun it anew.
            let old = [id, Value::Int(micros(age))];
            if S::execute(S::conn(&mut tx), &sql.remove, &old).await? == 0 {
                S::rollback(tx).await?;
                continue;
            }
            for part in &parts {
                S::execute(S::conn(&mut tx), part, &[id]).await?;
            }
            S::commit(tx).await?;
            removed += 1;
        }
        Ok(removed)
    }
}
