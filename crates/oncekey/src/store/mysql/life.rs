//! Which life of the store a connection leads to: the epoch of the tables and the name of the server.
//!
//! A server that comes back on an older copy of its own disk is not noticed: that has the same name.

use oncekey_core::StoreError;

use super::error::Trouble;
use super::restore;
use super::session::Session;
use super::sql::Tables;
use crate::store::life;
pub(super) use crate::store::life::{Grants, Life, Lives, UNKNOWN};

/// Asks every new connection.
#[derive(Debug)]
pub(super) struct Guard {
    tables: Tables,
    pub(super) lives: Lives,
}

/// What people call the server.
const SERVER: &str = "MySQL";

impl Guard {
    pub(super) fn new(tables: &Tables) -> Self {
        Self { tables: tables.clone(), lives: Lives::of(SERVER) }
    }

    /// Which life a new connection leads to. A server that refuses to say, because it has no tables for
    /// example, is in none that anybody knows.
    pub(super) async fn meet(&self, session: &mut Session) -> Result<Life, Trouble> {
        let life = match restore::life(session, &self.tables).await {
            Ok(life) => Life::from(life),
            Err(Trouble::Refused(_) | Trouble::Row(_)) => UNKNOWN.into(),
            Err(trouble) => return Err(trouble),
        };
        self.lives.met(&life);
        Ok(life)
    }
}

/// Nothing is granted in this life.
pub(super) fn moved() -> StoreError {
    life::moved(SERVER)
}
