//! Ends that are nowhere but in the memory of this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oncekey_core::KeyId;

/// The keys of such ends, and how many each has.
///
/// Whoever asks for one of them while the store is down must not run its work again: it was done here,
/// a moment ago.
#[derive(Debug, Default)]
pub(super) struct Unwritten(Mutex<HashMap<KeyId, usize>>);

/// An end that is not written yet. It counts until it is dropped.
#[derive(Debug)]
pub(super) struct Owed {
    id: KeyId,
    unwritten: Arc<Unwritten>,
}

impl Unwritten {
    /// Notes the end of a key.
    pub(super) fn add(self: &Arc<Self>, id: KeyId) -> Owed {
        *self.lock().entry(id).or_default() += 1;
        Owed { id, unwritten: Arc::clone(self) }
    }

    /// Whether a key has such an end.
    pub(super) fn holds(&self, id: &KeyId) -> bool {
        self.lock().contains_key(id)
    }

    /// Nothing that holds the lock can panic half-way.
    fn lock(&self) -> MutexGuard<'_, HashMap<KeyId, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let mut keys = self.unwritten.lock();
        if let Some(count) = keys.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                keys.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_held_until_its_last_end_is_written() {
        let unwritten = Arc::new(Unwritten::default());
        let id = KeyId::from_bytes([7; 32]);
        let (first, second) = (unwritten.add(id), unwritten.add(id));
        drop(first);
        assert!(unwritten.holds(&id));
        drop(second);
        assert!(!unwritten.holds(&id));
    }
}
