//! Wake-ups between processes, by PostgreSQL.

use std::time::Duration;

use sqlx::postgres::{PgConnection, PgListener};

use super::stage::Outbox;
use crate::flow::sqlx::SqlxPostgres;
use crate::flow::{TxError, TxStore, Value};

/// How long to wait before a listener that has failed is tried again. The relay polls meanwhile.
const TROUBLE: Duration = Duration::from_secs(1);

impl Outbox<SqlxPostgres> {
    /// Wakes the relays of all processes that [`listen`](Self::listen), when this transaction commits.
    /// Several calls in one transaction wake once.
    ///
    /// Not part of staging, because PostgreSQL lets transactions that notify commit only one after the
    /// other: worth it for a message that is in a hurry, and not for a thousand in a second.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn notify(&self, conn: &mut PgConnection) -> Result<(), TxError> {
        let sql = self.store.layout().statement("SELECT pg_notify(?, '')");
        SqlxPostgres::execute(conn, &sql, &[Value::Text(&self.channel())]).await?;
        Ok(())
    }

    /// Wakes the relay of this process when another one calls [`notify`](Self::notify). Runs until it is
    /// dropped, and takes one connection of the pool. A listener that fails says so in the log and tries
    /// again; nothing is lost, because the relay polls.
    pub async fn listen(&self) {
        loop {
            if let Err(error) = self.heard().await {
                let error = TxError::new(crate::flow::TxTrouble::Unavailable, error);
                tracing::warn!(%error, "nobody listens for staged messages: the relay polls");
            }
            tokio::time::sleep(TROUBLE).await;
        }
    }

    async fn heard(&self) -> Result<(), sqlx::Error> {
        let mut listener = PgListener::connect_with(self.store.pool()).await?;
        listener.listen(&self.channel()).await?;
        loop {
            // What was staged before the listener was there, or while its connection was broken.
            self.wake();
            // Nothing: the connection broke, and is made again with the next call.
            if listener.try_recv().await?.is_none() {
                tracing::warn!("the listener for staged messages lost its connection");
            }
        }
    }

    /// The table's name: every schema has its own channel.
    fn channel(&self) -> String {
        self.store.layout().statement("{staged}").to_string()
    }
}
