//! Which life of a server a connection leads to, and whether it may grant keys.
//!
//! A connection leads to one server for as long as it stands. A replica that was promoted, or a server on
//! a restored backup, is met on a new connection. So every connection asks once, when it is made. As soon
//! as somebody relies on the life of the store (see `Restore::lineage`), a connection to another one
//! grants nothing until that is adopted. There is no moment in between: the very claim for which the
//! connection was made is refused.
//!
//! Behind a pooler or a proxy a connection of ours stays while the server behind it changes. Then only
//! whoever asks for the lineage now and again notices.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oncekey_core::health::Finding;
use oncekey_core::{ErrorKind, StoreError};

/// Knows the life that grants may be made in.
#[derive(Debug)]
pub(super) struct Lives {
    /// What people call the server.
    server: &'static str,
    known: Mutex<Known>,
}

/// What a server says about its life, as one word.
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

impl Lives {
    pub(super) fn of(server: &'static str) -> Self {
        Self { server, known: Mutex::default() }
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

    /// Why nothing is granted, if so.
    pub(super) fn stopped(&self) -> Result<(), StoreError> {
        let known = self.lock();
        match &known.accepted {
            Some(accepted) if known.newest.as_ref() != Some(accepted) => Err(moved(self.server)),
            Some(_) | None => Ok(()),
        }
    }

    /// The same, for people.
    pub(super) fn finding(&self) -> Finding {
        match self.stopped() {
            Ok(()) => Finding::good("lineage", "no failover was noticed that nobody has seen to"),
            Err(error) => Finding::refused("lineage", error.to_string()),
        }
    }

    /// A new connection leads to this life.
    pub(super) fn met(&self, life: &Life) {
        let mut known = self.lock();
        if known.newest.as_ref() == Some(life) {
            return;
        }
        if let Some(accepted) = known.accepted.as_ref().filter(|accepted| *accepted != life) {
            tracing::error!(
                server = self.server,
                before = &**accepted,
                now = &**life,
                "the server of the store failed over or was restored: no key is granted until \
                 somebody has seen to what was lost and calls `adopt`"
            );
        }
        known.newest = Some(Arc::clone(life));
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nothing is granted in this life.
pub(super) fn moved(server: &str) -> StoreError {
    let text = format!(
        "{server} failed over or was restored, and may have lost what it acknowledged last: no key is \
         granted until somebody has seen to that and calls `adopt`; an engine with a ring does"
    );
    StoreError::new(ErrorKind::Unsuitable, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lives() -> Lives {
        Lives::of("The server")
    }

    fn life(name: &str) -> Life {
        name.into()
    }

    #[test]
    fn a_store_on_which_nobody_relies_grants_in_every_life() {
        let lives = lives();
        lives.met(&life("a"));
        lives.met(&life("b"));
        assert_eq!(lives.grants(&life("b")), Grants::Allowed);
        assert!(lives.stopped().is_ok());
    }

    #[test]
    fn another_life_grants_nothing_until_it_is_adopted() {
        let lives = lives();
        lives.told("a");
        lives.met(&life("b"));
        assert_eq!(lives.grants(&life("b")), Grants::Stopped);
        assert_eq!(lives.grants(&life("a")), Grants::Stopped, "the old one is not to be trusted");
        assert!(lives.is_outdated(&life("a")) && !lives.is_outdated(&life("b")));
        assert!(lives.stopped().is_err());
        lives.told("b");
        lives.adopt();
        assert_eq!(lives.grants(&life("b")), Grants::Allowed);
        assert_eq!(lives.grants(&life("a")), Grants::Outdated);
        assert!(lives.stopped().is_ok());
    }

    /// Two failovers in a row: what was looked at is not what is there now.
    #[test]
    fn a_life_that_nobody_has_looked_at_is_not_adopted() {
        let lives = lives();
        lives.told("a");
        lives.met(&life("b"));
        lives.told("b");
        lives.met(&life("c"));
        lives.adopt();
        assert_eq!(lives.grants(&life("c")), Grants::Stopped);
    }

    /// The old primary is still up, and a connection to it is made by chance: F40.
    #[test]
    fn a_connection_to_a_life_that_is_over_stops_grants_until_the_next_one() {
        let lives = lives();
        lives.told("a");
        lives.told("b");
        lives.adopt();
        lives.met(&life("a"));
        assert_eq!(lives.grants(&life("b")), Grants::Stopped);
        lives.met(&life("b"));
        assert_eq!(lives.grants(&life("b")), Grants::Allowed);
    }
}
