//! Counts the allocations of the whole program. The peer's program has a copy of this file.
//!
//! A program of its own does this, because counting costs time. The counting allocator is a crate:
//! an allocator cannot be written without `unsafe`, and there is none in this repository.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How often memory was asked for, and how many bytes, since the program began.
pub(crate) fn allocations() -> [u64; 2] {
    let stats = COUNTING.stats();
    [stats.allocations + stats.reallocations, stats.bytes_allocated]
        .map(|count| u64::try_from(count).unwrap_or(u64::MAX))
}
