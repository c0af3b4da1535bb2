//! How statements travel on a connection.

use std::fmt;

use futures_util::future::join5;
use tokio::sync::OnceCell;
use tokio::task::AbortHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row};

use super::life::Life;
use super::sql::Statement;

/// A connection on which many statements may be under way at the same time.
///
/// Dropping it closes the socket at once. No cancel request is ever sent: with synchronous
/// replication one would make the server report a commit that no standby has.
pub(super) struct Line {
    pub(super) client: Client,
    /// The server that it leads to.
    pub(super) life: Life,
    /// Those that are prepared, by their places; `None` where nothing may be.
    pub(super) statements: Option<Vec<OnceCell<tokio_postgres::Statement>>>,
    pub(super) task: AbortHandle,
}

/// The values of a statement.
pub(super) type Values<'v> = [&'v (dyn ToSql + Sync)];

/// What went wrong with statements that belong together.
#[derive(Debug)]
pub(super) enum Together {
    /// One of them was not carried out, and so none was.
    Statement(Error),
    /// Their beginning or their end: nobody knows.
    Frame(Error),
}

/// What became of a question after a transaction.
#[derive(Debug)]
pub(super) enum Asked {
    Answered(Result<Vec<Row>, Error>),
    /// It has to be asked on its own.
    NotYet,
}

/// For how long a statement may leave something on the server for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// As long as the connection stands, which is ours alone.
    OfConnection,
    /// Until the transaction ends: from then on a pooler may lend the server to somebody else.
    OfTransaction,
}

impl Line {
    pub(super) fn remembers(&self) -> Memory {
        match self.statements {
            Some(_) => Memory::OfConnection,
            None => Memory::OfTransaction,
        }
    }

    /// Runs one statement: one round trip.
    pub(super) async fn query(
        &self,
        statement: &Statement,
        values: &Values<'_>,
    ) -> Result<Vec<Row>, Error> {
        let mut values = values.to_vec();
        values.extend(statement.mark.as_ref().map(|mark| mark as &(dyn ToSql + Sync)));
        let Some(place) = self.place_of(statement) else {
            return self.query_plain(statement, &values).await;
        };
        let prepared = self.prepared(statement, place).await?;
        self.client.query(prepared, &values).await
    }

    /// Runs two statements, one after the other, in one transaction, and a question after its end. Each
    /// sees whatever those before it had to wait for. All of it is one round trip.
    ///
    /// Nothing large may be answered within the transaction: a client that does not take it, because its
    /// machine is gone, would keep the server from the commit, and everybody else from the rows.
    ///
    /// An error of a statement has taken both of them back; an error of the commit leaves it open. One of
    /// the question says nothing about them.
    pub(super) async fn query_together(
        &self,
        [(first, values), (second, others)]: [(&Statement, &Values<'_>); 2],
        (question, about): (&Statement, &Values<'_>),
    ) -> Result<([Vec<Row>; 2], Asked), Together> {
        // The first use costs a round trip more. After that nothing stands between them.
        for statement in [first, second, question] {
            if let Some(place) = self.place_of(statement) {
                self.prepared(statement, place).await.map_err(Together::Statement)?;
            }
        }
        // Polled in this order, and a statement is sent when it is first polled.
        let (begun, one, two, committed, asked) = join5(
            self.client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED"),
            self.query(first, values),
            self.query(second, others),
            self.client.batch_execute("COMMIT"),
            async {
                // A pooler may lend the server to somebody else from the commit on, half of a question
                // or not: see `pool.rs`.
                match self.remembers() {
                    Memory::OfConnection => Asked::Answered(self.query(question, about).await),
                    Memory::OfTransaction => Asked::NotYet,
                }
            },
        )
        .await;
        // Without a transaction around them, those after an error may have been carried out.
        begun.map_err(Together::Frame)?;
        let [one, two] = [one, two].map(|ended| ended.map_err(Together::Statement));
        let rows = [one?, two?];
        committed.map_err(Together::Frame)?;
        Ok((rows, asked))
    }

    /// Runs one statement without preparing it: it has no name that somebody else's could have.
    async fn query_plain(
        &self,
        statement: &Statement,
        values: &Values<'_>,
    ) -> Result<Vec<Row>, Error> {
        let types = statement.types.iter().cloned();
        let typed: Vec<_> = values.iter().copied().zip(types).collect();
        self.client.query_typed(&statement.text, &typed).await
    }

    fn place_of(&self, statement: &Statement) -> Option<&OnceCell<tokio_postgres::Statement>> {
        self.statements.as_ref()?.get(statement.place)
    }

    async fn prepared<'l>(
        &self,
        statement: &Statement,
        place: &'l OnceCell<tokio_postgres::Statement>,
    ) -> Result<&'l tokio_postgres::Statement, Error> {
        place.get_or_try_init(|| self.client.prepare_typed(&statement.text, &statement.types)).await
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Line")
            .field("is_closed", &self.client.is_closed())
            .finish_non_exhaustive()
    }
}
