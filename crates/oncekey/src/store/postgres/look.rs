//! Looks at keys that are likely known, many of them in one question.
//!
//! A replay is a read and changes nothing, but a statement for each would cost the server as much as
//! its parsing, planning and two messages do: a storm of retries would be answered no faster than by
//! plain selects. So those who come while a question is under way are asked about together. Nobody
//! waits for company: a lone look leaves at once.

use std::sync::Arc;

use oncekey_core::{ErrorKind, KeyId, StoreError};

use super::batch::by_id;
use super::connect::Dialler;
use super::error::{Aftermath, aftermath, from_postgres, gone};
use super::line::Line;
use super::row::{self, Found};
use super::sql::Sql;
use crate::store::group::{Answers, Backend, Failure, Group, Limits, Operation};

/// Looks of all callers.
#[derive(Debug)]
pub(super) struct Looks(Group<Look>);

/// Which key is looked at.
#[derive(Debug)]
struct Look(KeyId);

/// How questions reach PostgreSQL.
#[derive(Debug)]
struct Questions {
    dialler: Arc<Dialler>,
    sql: Arc<Sql>,
}

impl Looks {
    pub(super) fn start(dialler: &Arc<Dialler>, sql: &Arc<Sql>, limits: Limits) -> Self {
        let questions = Questions { dialler: Arc::clone(dialler), sql: Arc::clone(sql) };
        Self(Group::start(&Arc::new(questions), limits))
    }

    /// What stands under a key, without a body that is large.
    pub(super) async fn look(&self, id: KeyId) -> Result<Option<Found>, StoreError> {
        let looked = self.0.ask(Look(id)).await;
        match looked {
            // Nothing has changed, whoever does not answer.
            Err(error) if error.kind() == ErrorKind::Ambiguous => {
                Err(StoreError::new(ErrorKind::Unavailable, error.to_string()).with_source(error))
            }
            looked => Ok(looked?.map(|found| *found)),
        }
    }
}

impl Operation for Look {
    type Reply = Option<Box<Found>>;
    const RANKS: usize = 1;

    fn rank(&self) -> usize {
        0
    }

    /// None that anybody would have to wait for: any number may look at one key.
    fn ids(&self) -> impl Iterator<Item = KeyId> {
        std::iter::empty()
    }

    fn size(&self) -> usize {
        0
    }
}

impl Backend for Questions {
    type Op = Look;
    type Connection = Line;

    async fn connect(&self) -> Result<Line, StoreError> {
        self.dialler.line().await
    }

    async fn run(&self, line: &mut Line, batch: &[Look]) -> Result<Answers<Look>, Failure> {
        if !self.dialler.is_good(line) {
            return Err(Failure::NotSent(gone()));
        }
        let mut ids: Vec<&[u8]> = batch.iter().map(|Look(id)| id.as_bytes().as_slice()).collect();
        ids.sort_unstable();
        ids.dedup();
        let rows = line.query(&self.sql.found, &[&ids]).await.map_err(|error| {
            self.dialler.learn_from(&error);
            match aftermath(&error) {
                Aftermath::Refused => Failure::Refused(from_postgres(error)),
                // A question changes nothing, so another connection may be asked.
                Aftermath::Elsewhere | Aftermath::Unknown => Failure::NotSent(from_postgres(error)),
            }
        })?;
        let found = by_id(&rows);
        let answer = |Look(id): &Look| {
            let row = found.get(id.as_bytes().as_slice());
            Ok(row.map(|row| row::read(row).map(Box::new)).transpose()?)
        };
        Ok(batch.iter().map(answer).collect())
    }
}
