//! The ring in memory: the newest note of each key, as long as its slot is not used again.

use std::collections::{HashMap, VecDeque};

use oncekey_core::KeyId;

use super::note::{Note, What};

/// What the slots of a ring say.
#[derive(Debug)]
pub(super) struct Book {
    notes: HashMap<KeyId, Place>,
    /// In the order of their numbers, oldest first. Some were overtaken by a newer note of the key.
    order: VecDeque<(u64, KeyId)>,
    slots: usize,
    next: u64,
}

#[derive(Clone, Debug)]
struct Place {
    number: u64,
    note: Note,
    author: Author,
}

/// Who wrote a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Author {
    /// This process.
    Here,
    /// An earlier one.
    Earlier,
}

/// How many notes one new note may push on. A node that holds more keys than the ring has slots would
/// otherwise push all of them on with each; so the oldest have to go.
const MOST_ANEW: usize = 8;

impl Book {
    pub(super) fn new(slots: usize) -> Self {
        let slots = slots.max(1);
        Self { notes: HashMap::new(), order: VecDeque::new(), slots, next: 1 }
    }

    /// Takes over a note that was found under a number, in the order of the numbers.
    pub(super) fn found(&mut self, number: u64, note: Note) {
        self.next = self.next.max(number.saturating_add(1));
        self.put(number, note, Author::Earlier);
    }

    /// Takes a note, unless it says nothing new. Returns what is to be written, with its numbers:
    /// the note, and what would otherwise be lost because its slot is used again.
    pub(super) fn add(&mut self, note: Note) -> Vec<(u64, Note)> {
        let known = self.notes.get(&note.lease.id);
        if known.is_some_and(|known| !note.is_newer_than(&known.note)) {
            return Vec::new();
        }
        let mut written = Vec::with_capacity(1);
        self.write(note, &mut written);
        // Work that runs for longer than it takes to use all slots is noted anew.
        while self.order.len() > self.slots {
            let Some((number, id)) = self.order.pop_front() else { break };
            let Some(place) = self.notes.get(&id).filter(|place| place.number == number) else {
                continue;
            };
            let runs_on = place.author == Author::Here && place.note.what == What::Running;
            if runs_on && written.len() <= MOST_ANEW {
                let note = place.note.clone();
                self.write(note, &mut written);
            } else {
                self.notes.remove(&id);
            }
        }
        written
    }

    /// What is known of a key.
    pub(super) fn find(&self, id: &KeyId) -> Option<&Note> {
        self.notes.get(id).map(|place| &place.note)
    }

    /// All that was noted after the number `after`, newest first.
    pub(super) fn since(&self, after: u64) -> Vec<Note> {
        let is_after = |place: &&Place| place.number > after;
        self.places().take_while(is_after).map(|place| place.note.clone()).collect()
    }

    /// The newest notes that `which` picks, at most `limit` of them.
    pub(super) fn newest_of(&self, limit: usize, which: impl Fn(&Note) -> bool) -> Vec<Note> {
        let notes = self.places().map(|place| &place.note).filter(|note| which(note));
        notes.take(limit).cloned().collect()
    }

    /// What counts, newest first.
    fn places(&self) -> impl Iterator<Item = &Place> {
        let newest = self.order.iter().rev();
        newest.filter_map(|(number, id)| self.notes.get(id).filter(|at| at.number == *number))
    }

    /// The number of the newest note; zero if there is none.
    pub(super) fn newest(&self) -> u64 {
        self.next - 1
    }

    fn write(&mut self, note: Note, written: &mut Vec<(u64, Note)>) {
        let number = self.next;
        self.next += 1;
        written.push((number, note.clone()));
        self.put(number, note, Author::Here);
    }

    fn put(&mut self, number: u64, note: Note, author: Author) {
        let id = note.lease.id;
        if self.notes.get(&id).is_some_and(|known| known.note.is_newer_than(&note)) {
            return;
        }
        self.order.push_back((number, id));
        self.notes.insert(id, Place { number, note, author });
    }
}

#[cfg(test)]
mod tests {
    use super::super::note::tests::{done, note};
    use super::*;

    fn keys(book: &Book) -> Vec<u8> {
        book.since(0).iter().map(|note| note.lease.id.as_bytes()[0]).collect()
    }

    #[test]
    fn the_newest_note_of_a_key_counts_and_a_late_one_does_not() {
        let mut book = Book::new(8);
        assert_eq!(book.add(note(1, 5, What::Running)).len(), 1);
        assert_eq!(book.add(note(1, 5, done())).len(), 1);
        for late in [note(1, 5, What::Running), note(1, 4, done()), note(1, 5, done())] {
            assert_eq!(book.add(late), []);
        }
        assert_eq!(book.since(0), [note(1, 5, done())]);
        assert_eq!(book.since(book.newest()), []);
    }

    #[test]
    fn the_oldest_go_first() {
        let mut book = Book::new(4);
        for key in 1..=9 {
            book.add(note(key, 5, done()));
        }
        assert_eq!(keys(&book), [9, 8, 7, 6]);
    }

    /// A payment that takes a minute must not be forgotten because others take a millisecond.
    #[test]
    fn what_still_runs_stays_however_much_comes_after_it() {
        let mut book = Book::new(4);
        book.add(note(1, 5, What::Running));
        for key in 2..=99 {
            book.add(note(key, 5, done()));
        }
        assert!(keys(&book).contains(&1));
        book.add(note(1, 5, What::Gone));
        for key in 100..=110 {
            book.add(note(key, 5, done()));
        }
        assert!(!keys(&book).contains(&1));
    }

    /// I43: however many keys are held, the book is no larger than the ring.
    #[test]
    fn the_book_is_bounded_even_if_everything_runs() {
        let mut book = Book::new(4);
        for key in 1..=99 {
            book.add(note(key, 5, What::Running));
            assert!(book.order.len() <= 4 + 2 && book.notes.len() <= 4 + 2);
        }
    }

    /// What an earlier process ran is not noted anew for ever: nobody would ever end it.
    #[test]
    fn what_an_earlier_process_ran_goes_like_the_rest() {
        let mut book = Book::new(4);
        book.found(1, note(1, 5, What::Running));
        for key in 2..=9 {
            book.add(note(key, 5, done()));
        }
        assert_eq!(keys(&book), [9, 8, 7, 6]);
    }
}
