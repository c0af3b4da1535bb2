//! Remembers in which row an attempt runs, so that its end need not be looked for.
//!
//! A record is found by its key in two maps, and then read. Whoever ends an attempt has mostly begun it
//! a moment ago, on the same thread. What stands here is a guess and never a decision: the statement that
//! uses it compares key, fence and owner, and if it finds nothing, the record is looked for. So nothing
//! here has to be undone after a rollback, or when another process takes the attempt over.

use std::collections::HashMap;

use oncekey_core::{KeyId, KeyIdHash};

/// The rows of the attempts that this writer has begun and not ended.
#[derive(Debug, Default)]
pub(super) struct Running {
    rows: HashMap<KeyId, i64, KeyIdHash>,
}

/// Attempts that end elsewhere, or never, stay in here. Four times what may be under way in both lanes of
/// the writer: beyond it everything is forgotten, and ends are looked for, each once. A megabyte.
const MOST: usize = 16_384;

impl Running {
    /// An attempt begins in this row.
    pub(super) fn note(&mut self, id: KeyId, row: i64) {
        if self.rows.len() >= MOST {
            self.rows.clear();
        }
        self.rows.insert(id, row);
    }

    /// The row in which the attempt may run. It is asked for once, because an attempt ends once.
    pub(super) fn take(&mut self, id: &KeyId) -> Option<i64> {
        self.rows.remove(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_remembered_until_it_is_asked_for_and_not_for_ever() {
        let id = |number: u32| {
            let mut bytes = [0; 32];
            bytes[..4].copy_from_slice(&number.to_be_bytes());
            KeyId::from_bytes(bytes)
        };
        let mut running = Running::default();
        running.note(id(1), 7);
        running.note(id(1), 8);
        assert_eq!(running.take(&id(1)), Some(8));
        assert_eq!(running.take(&id(1)), None);
        for number in 0..100_000 {
            running.note(id(number), 1);
            assert!(running.rows.len() <= MOST);
        }
        assert_eq!(running.take(&id(99_999)), Some(1));
    }
}
