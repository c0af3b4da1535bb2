//! Which life of the store a connection leads to: its cluster, its timeline and the epoch of the tables,
//! and whether it is an older copy of itself.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use oncekey_core::StoreError;

use crate::store::life;
pub(super) use crate::store::life::{Grants, Life, Lives, UNKNOWN};

/// Looks at every new connection.
#[derive(Debug)]
pub(super) struct Guard {
    /// How a life is asked for; not before the tables are there.
    question: OnceLock<String>,
    heights: Mutex<Heights>,
    pub(super) lives: Lives,
}

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

/// What people call the server.
const SERVER: &str = "PostgreSQL";

impl Default for Guard {
    fn default() -> Self {
        let lives = Lives::of(SERVER);
        Self { question: OnceLock::new(), heights: Mutex::default(), lives }
    }
}

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
        self.lock().clone()
    }

    /// Which life a server is in that was looked at. One whose log ends before what it had safely written
    /// when it was looked at last is an older copy of itself, such as a snapshot of its disk: its name is
    /// the same, its life is not. `before` is from before the look, so that two that look at the same time
    /// do not take each other for that.
    pub(super) fn name(&self, sight: &Sight, before: &Heights) -> String {
        let mut heights = self.lock();
        let Sight { name, written, end } = sight;
        let is = heights.entry(name.clone()).or_default();
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
            self.lives.met(&life);
        }
        life
    }

    fn lock(&self) -> MutexGuard<'_, Heights> {
        self.heights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nothing is granted in this life.
pub(super) fn moved() -> StoreError {
    life::moved(SERVER)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
