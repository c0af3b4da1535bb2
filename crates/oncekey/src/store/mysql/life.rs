//! Which life of the server a connection leads to, and whether it may grant keys.
//!
//! A connection leads to one server for as long as it stands, and a replica that was promoted, or a
//! server on a restored backup, is met on a new connection. So every connection asks once, when it is
//! made. As soon as somebody relies on the life of the store (see `Restore::lineage`), a connection to
//! another one grants nothing until that is adopted. There is no moment in between: the very claim for
//! which the connection was made is refused.
//!
//! It does not notice a server that comes back on an older copy of its own disk: that has the same name.
//! Behind a proxy a connection of ours may stay while the server behind it changes. Then only whoever
//! asks for the lineage now and again notices.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oncekey_core::StoreError;

use super::error::{Trouble, unsuitable};
use super::restore;
use super::session::Session;
use super::sql::Tables;

/// Knows the life that grants may be made in.
#[derive(Debug)]
pub(super) struct Guard {
    tables: Tables,
    known: Mutex<Known>,
}

/// A life of the store: the epoch of the tables and the name of the server.
pub(super) type Life = Arc<str>;

#[derive(Debug, Default)]
struct Known {
    /// The life that grants are made in; `None` as long as nobody relies on it.
    accepted: Option<Life>,
    /// The life that was told to whoever asked last.
    told: Option<Life>,
    /// The life that was met last. Connections to others are not used any more.
    newest: Option<Life>,
}

/// Whether a connection may grant keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grants {
    Allowed,
    /// The server is in a life that nobody has accepted yet.
    Stopped,
    /// The connection leads to a life that is over. Another one will do.
    Outdated,
}

/// What a server says that does not know. It is no life that anybody accepts.
pub(super) const UNKNOWN: &str = "unknown";

impl Guard {
    pub(super) fn new(tables: &Tables) -> Self {
        Self { tables: tables.clone(), known: Mutex::default() }
    }

    /// Which life a new connection leads to. A server that refuses to say, because it has no tables for
    /// example, is in none that anybody knows.
    pub(super) async fn meet(&self, session: &mut Session) -> Result<Life, Trouble> {
        let life = match restore::life(session, &self.tables).await {
            Ok(life) => Life::from(life),
            Err(Trouble::Refused(_) | Trouble::Row(_)) => UNKNOWN.into(),
            Err(trouble) => return Err(trouble),
        };
        self.met(&life);
        Ok(life)
    }

    /// Somebody was told that the store is in this life, and relies on it.
    pub(super) fn told(&self, life: &str) {
        let life = Life::from(life);
        let mut known = self.lock();
        known.accepted.get_or_insert_with(|| Arc::clone(&life));
        known.told = Some(Arc::clone(&life));
        drop(known);
        self.met(&life);
    }

    /// Accepts the life that was told last. Another one that was met since is not accepted: nobody
    /// has looked at it.
    pub(super) fn adopt(&self) {
        let mut known = self.lock();
        known.accepted = known.told.clone();
    }

    /// Whether a connection to `life` may grant keys.
    pub(super) fn grants(&self, life: &Life) -> Grants {
        let known = self.lock();
        match &known.accepted {
            None => Grants::Allowed,
            Some(accepted) if known.newest.as_ref() != Some(accepted) => Grants::Stopped,
            Some(accepted) if accepted == life => Grants::Allowed,
            Some(_) => Grants::Outdated,
        }
    }

    /// Whether a connection to `life` leads to where others do not lead any more. What is read there
    /// would say nothing about the store.
    pub(super) fn is_outdated(&self, life: &Life) -> bool {
        let known = self.lock();
        known.accepted.is_some() && known.newest.as_ref() != Some(life)
    }

    fn met(&self, life: &Life) {
        let mut known = self.lock();
        if known.newest.as_ref() == Some(life) {
            return;
        }
        if let Some(accepted) = known.accepted.as_ref().filter(|accepted| *accepted != life) {
            tracing::error!(
                before = &**accepted,
                now = &**life,
                "MySQL failed over or was restored: no key is granted until somebody has seen to \
                 what was lost and calls `adopt`"
            );
        }
        known.newest = Some(Arc::clone(life));
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nothing is granted in this life.
pub(super) fn moved() -> StoreError {
    unsuitable(
        "MySQL failed over or was restored, and may have lost what it acknowledged last: no key is \
         granted until somebody has seen to that and calls `adopt`; an engine with a ring does",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> Guard {
        Guard::new(&Tables::new("oncekey_").unwrap())
    }

    fn life(name: &str) -> Life {
        name.into()
    }

    #[test]
    fn a_store_on_which_nobody_relies_grants_in_every_life() {
        let guard = guard();
        guard.met(&life("a"));
        guard.met(&life("b"));
        assert_eq!(guard.grants(&life("b")), Grants::Allowed);
    }

    #[test]
    fn another_life_grants_nothing_until_it_is_adopted() {
        let guard = guard();
        guard.told("a");
        guard.met(&life("b"));
        assert_eq!(guard.grants(&life("b")), Grants::Stopped);
        assert_eq!(guard.grants(&life("a")), Grants::Stopped, "the old one is not to be trusted");
        assert!(guard.is_outdated(&life("a")) && !guard.is_outdated(&life("b")));
        guard.told("b");
        guard.adopt();
        assert_eq!(guard.grants(&life("b")), Grants::Allowed);
        assert_eq!(guard.grants(&life("a")), Grants::Outdated);
    }

    /// Two failovers in a row: what was looked at is not what is there now.
    #[test]
    fn a_life_that_nobody_has_looked_at_is_not_adopted() {
        let guard = guard();
        guard.told("a");
        guard.met(&life("b"));
        guard.told("b");
        guard.met(&life("c"));
        guard.adopt();
        assert_eq!(guard.grants(&life("c")), Grants::Stopped);
    }

    /// The old primary is still up, and a connection to it is made by chance.
    #[test]
    fn a_connection_to_a_life_that_is_over_stops_grants_until_the_next_one() {
        let guard = guard();
        guard.told("a");
        guard.told("b");
        guard.adopt();
        guard.met(&life("a"));
        assert_eq!(guard.grants(&life("b")), Grants::Stopped);
        guard.met(&life("b"));
        assert_eq!(guard.grants(&life("b")), Grants::Allowed);
    }
}
