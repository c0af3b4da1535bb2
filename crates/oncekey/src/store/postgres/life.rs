//! Which life of the server a connection leads to, and whether it may grant keys.
//!
//! A connection leads to one server process for as long as it stands, and a server that was promoted
//! or recovered since is met on a new connection. So every connection asks once, when it is made. As
//! soon as somebody relies on the life of the store (see `Restore::lineage`), a connection to another
//! one grants nothing until that is adopted. There is no moment in between: the very claim for which
//! the connection was made is refused.
//!
//! Behind a pooler a connection of ours stays while the server behind it changes. Then only whoever
//! asks for the lineage now and again notices.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use oncekey_core::StoreError;

use super::error::unsuitable;

/// Knows the life that grants may be made in.
#[derive(Debug, Default)]
pub(super) struct Guard {
    /// How a life is asked for; not before the tables are there.
    question: OnceLock<String>,
    known: Mutex<Known>,
}

/// A life of the server: its cluster, its timeline and the epoch of the tables.
pub(super) type Life = Arc<str>;

/// What a server says about its life.
#[derive(Debug)]
pub(super) struct Sight {
    /// Its cluster, its timeline and the epoch of the tables.
    pub(super) name: String,
    /// Up to here its log was safe on its disk.
    pub(super) written: i64,
    /// Here its log ended.
    pub(super) end: i64,
}

/// How far servers have come, by what they say about their lives.
pub(super) type Heights = HashMap<String, Height>;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Height {
    /// The most that was ever seen to be safe.
    written: i64,
    /// How often an older copy has taken its place.
    turn: u32,
}

#[derive(Debug, Default)]
struct Known {
    heights: Heights,
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
const UNKNOWN: &str = "unknown";

impl Guard {
    /// How a life is asked for, from now on.
    pub(super) fn ask_by(&self, question: String) {
        // Only the first one counts, and there is only one.
        let _ = self.question.set(question);
    }

    pub(super) fn question(&self) -> Option<&str> {
        self.question.get().map(String::as_str)
    }

    /// How far every server had come when somebody looked last. To be asked for before a look.
    pub(super) fn heights(&self) -> Heights {
        self.lock().heights.clone()
    }

    /// Which life a server is in that was looked at. One whose log ends before what it had safely written
    /// when it was looked at last is an older copy of itself, such as a snapshot of its disk: its name is
    /// the same, its life is not. `before` is from before the look, so that two that look at the same time
    /// do not take each other for that.
    pub(super) fn name(&self, sight: &Sight, before: &Heights) -> String {
        let mut known = self.lock();
        let Sight { name, written, end } = sight;
        let is = known.heights.entry(name.clone()).or_default();
        let was = before.get(name).copied().unwrap_or_default();
        let turn = if *end >= was.written {
            was.turn
        } else {
            if is.turn == was.turn {
                *is = Height { written: *written, turn: was.turn + 1 };
            }
            is.turn
        };
        if turn == is.turn {
            is.written = is.written.max(*written);
        }
        match turn {
            0 => name.clone(),
            turn => format!("{name}:{turn}"),
        }
    }

    /// A new connection leads to this life, if the server knows.
    pub(super) fn meet(&self, sight: Option<&Sight>, before: &Heights) -> Life {
        let life = sight.map_or_else(|| UNKNOWN.into(), |sight| self.name(sight, before).into());
        if self.question.get().is_some() {
            self.met(&life);
        }
        life
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
            Some(accepted) if known.newest.as_ref() != Some(accepted) => Err(moved()),
            Some(_) | None => Ok(()),
        }
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
                "PostgreSQL failed over or was restored: no key is granted until somebody has seen \
                 to what was lost and calls `adopt`"
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
        "PostgreSQL failed over or was restored, and may have lost what it acknowledged last: no key \
         is granted until somebody has seen to that and calls `adopt`; an engine with a ring does",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(name: &str) -> Life {
        name.into()
    }

    #[test]
    fn a_store_on_which_nobody_relies_grants_in_every_life() {
        let guard = Guard::default();
        guard.met(&life("a"));
        guard.met(&life("b"));
        assert_eq!(guard.grants(&life("b")), Grants::Allowed);
        assert!(guard.stopped().is_ok());
    }

    #[test]
    fn another_life_grants_nothing_until_it_is_adopted() {
        let guard = Guard::default();
        guard.told("a");
        guard.met(&life("b"));
        assert_eq!(guard.grants(&life("b")), Grants::Stopped);
        assert_eq!(guard.grants(&life("a")), Grants::Stopped, "the old one is not to be trusted");
        assert!(guard.is_outdated(&life("a")) && !guard.is_outdated(&life("b")));
        assert!(guard.stopped().is_err());
        guard.told("b");
        guard.adopt();
        assert_eq!(guard.grants(&life("b")), Grants::Allowed);
        assert_eq!(guard.grants(&life("a")), Grants::Outdated);
        assert!(guard.stopped().is_ok());
    }

    fn sight(written: i64, end: i64) -> Sight {
        Sight { name: "a".to_owned(), written, end }
    }

    #[test]
    fn an_older_copy_of_a_server_is_another_life() {
        let guard = Guard::default();
        let name = |written, end| guard.name(&sight(written, end), &guard.heights());
        assert_eq!(name(100, 110), "a");
        // A crash loses what was not safe yet, and nobody was told of that.
        assert_eq!(name(100, 100), "a");
        assert_eq!(name(120, 130), "a");
        assert_eq!(name(50, 60), "a:1");
        assert_eq!(name(55, 60), "a:1");
        assert_eq!(name(10, 20), "a:2");
    }

    /// The one that looked first is heard last.
    #[test]
    fn two_that_look_at_the_same_time_see_one_life() {
        let guard = Guard::default();
        let before = guard.heights();
        assert_eq!(guard.name(&sight(200, 210), &before), "a");
        assert_eq!(guard.name(&sight(100, 110), &before), "a");
        let before = guard.heights();
        assert_eq!(guard.name(&sight(50, 60), &before), "a:1");
        assert_eq!(guard.name(&sight(55, 65), &before), "a:1");
        assert_eq!(guard.name(&sight(201, 211), &before), "a", "it led to the old one");
    }

    /// Two failovers in a row: what was looked at is not what is there now.
    #[test]
    fn a_life_that_nobody_has_looked_at_is_not_adopted() {
        let guard = Guard::default();
        guard.told("a");
        guard.met(&life("b"));
        guard.told("b");
        guard.met(&life("c"));
        guard.adopt();
        assert_eq!(guard.grants(&life("c")), Grants::Stopped);
    }

    /// The old primary is still up, and a connection to it is made by chance: F40.
    #[test]
    fn a_connection_to_a_life_that_is_over_stops_grants_until_the_next_one() {
        let guard = Guard::default();
        guard.told("a");
        guard.told("b");
        guard.adopt();
        guard.met(&life("a"));
        assert_eq!(guard.grants(&life("b")), Grants::Stopped);
        guard.met(&life("b"));
        assert_eq!(guard.grants(&life("b")), Grants::Allowed);
    }
}
