//! What is written on, in tests.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// Keeps what is written. All clones are one.
#[derive(Clone, Default)]
pub(super) struct Paper(Arc<Mutex<Vec<u8>>>);

impl Paper {
    /// What stands on it.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
