//! The statements of one transaction, each looked for once.
//!
//! The cache of a connection finds a statement by all of its text, and copies that text, each time:
//! for a claim and its completion that was an eighth of what the writer does. A transaction serves many
//! of both, so what it has used stays at hand until its end. What is rare, such as a purge, asks the
//! connection as before.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use rusqlite::{CachedStatement, Connection, Statement};

/// A connection, and the statements that were used on it so far.
///
/// They go back to the connection's cache when this is dropped, and let go of their values then. Until
/// then each holds what it was last given: no more than the operations of one batch bring.
pub(super) struct Statements<'c> {
    connection: &'c Connection,
    free: RefCell<Vec<Known<'c>>>,
}

/// A statement while it is used.
pub(super) struct Lent<'s, 'c> {
    /// There until it is given back.
    known: Option<Known<'c>>,
    free: &'s RefCell<Vec<Known<'c>>>,
}

type Known<'c> = (&'static str, CachedStatement<'c>);

impl<'c> Statements<'c> {
    pub(super) const fn of(connection: &'c Connection) -> Self {
        Self { connection, free: RefCell::new(Vec::new()) }
    }

    /// The statement with this text. Another one, if somebody uses the one with this text just now.
    pub(super) fn get(&self, text: &'static str) -> rusqlite::Result<Lent<'_, 'c>> {
        let mut free = self.free.borrow_mut();
        let known = match free.iter().position(|(known, _)| *known == text) {
            Some(place) => free.swap_remove(place),
            None => (text, self.connection.prepare_cached(text)?),
        };
        Ok(Lent { known: Some(known), free: &self.free })
    }
}

impl Deref for Statements<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

impl<'c> Deref for Lent<'_, 'c> {
    type Target = Statement<'c>;

    fn deref(&self) -> &Statement<'c> {
        &self.known.as_ref().expect("given back only at the end").1
    }
}

impl<'c> DerefMut for Lent<'_, 'c> {
    fn deref_mut(&mut self) -> &mut Statement<'c> {
        &mut self.known.as_mut().expect("given back only at the end").1
    }
}

impl Drop for Lent<'_, '_> {
    fn drop(&mut self) {
        self.free.borrow_mut().extend(self.known.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAME: &str = "SELECT ?1";

    #[test]
    fn a_statement_is_used_again_and_never_twice_at_once() {
        let connection = Connection::open_in_memory().unwrap();
        let statements = Statements::of(&connection);
        let ask = |lent: &mut Lent<'_, '_>, value: i64| -> i64 {
            lent.query_row([value], |row| row.get(0)).unwrap()
        };
        let mut first = statements.get(SAME).unwrap();
        let mut second = statements.get(SAME).unwrap();
        assert_eq!((ask(&mut first, 1), ask(&mut second, 2)), (1, 2));
        drop((first, second));
        assert_eq!(statements.free.borrow().len(), 2);
        assert_eq!(ask(&mut statements.get(SAME).unwrap(), 3), 3);
        assert_eq!(statements.free.borrow().len(), 2, "no third was made");
    }

    /// A statement that broke off in the middle is whole again for whoever comes next.
    #[test]
    fn a_statement_that_was_left_in_the_middle_begins_anew() {
        let connection = Connection::open_in_memory().unwrap();
        let statements = Statements::of(&connection);
        let rows = "SELECT value FROM (SELECT 1 AS value UNION ALL SELECT 2)";
        for _ in 0..2 {
            let mut lent = statements.get(rows).unwrap();
            let mut found = lent.query([]).unwrap();
            let first: i64 = found.next().unwrap().unwrap().get(0).unwrap();
            assert_eq!(first, 1);
        }
    }
}
