//! The only place that draws random bits.
//!
//! Owner tokens, request ids and the salts of encryption come from here, so that a simulation can
//! bring its own and be repeated from a seed.

use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Where random bits come from.
pub trait Entropy: fmt::Debug + Send + Sync + 'static {
    /// Fills `bytes` with bits that nobody can predict.
    fn fill(&self, bytes: &mut [u8]);
}

/// The operating system's random bits, fetched a page at a time.
///
/// A system call for each owner token would cost more than everything else about a claim in
/// memory.
pub struct SystemEntropy(Mutex<Pool>);

/// One page: 256 owner tokens for one system call.
const POOL: usize = 4_096;

struct Pool {
    bytes: Box<[u8; POOL]>,
    used: usize,
}

impl Default for SystemEntropy {
    fn default() -> Self {
        Self(Mutex::new(Pool { bytes: Box::new([0; POOL]), used: POOL }))
    }
}

impl Entropy for SystemEntropy {
    /// # Panics
    /// If the operating system has no random bits to give. Nothing safe can be done without them.
    fn fill(&self, bytes: &mut [u8]) {
        if bytes.len() > POOL {
            getrandom::fill(bytes).expect("the operating system gives random bits");
            return;
        }
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.used + bytes.len() > POOL {
            getrandom::fill(&mut pool.bytes[..]).expect("the operating system gives random bits");
            pool.used = 0;
        }
        let (from, to) = (pool.used, pool.used + bytes.len());
        bytes.copy_from_slice(&pool.bytes[from..to]);
        // What was given away is not kept: it may become a key.
        pool.bytes[from..to].fill(0);
        pool.used = to;
    }
}

impl fmt::Debug for SystemEntropy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SystemEntropy")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_draws_are_the_same() {
        let entropy = SystemEntropy::default();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..2_000 {
            let mut owner = [0; 16];
            entropy.fill(&mut owner);
            assert!(seen.insert(owner));
        }
        let mut large = [0; 2 * POOL];
        entropy.fill(&mut large);
        assert!(large.iter().any(|byte| *byte != 0));
    }
}
