//! Counts what the program allocates, if it is built to be measured (feature `count-allocations`).
//! `cargo xtask bench gateway` asks before and after some requests, and so shows what each costs.

use serde::Serialize;

/// What was asked of the allocator since the start.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Allocations {
    /// How often, growing included.
    count: usize,
    bytes: usize,
}

#[cfg(feature = "count-allocations")]
#[global_allocator]
static COUNTING: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

/// What was counted; `None` in a program that nobody measures.
#[cfg(feature = "count-allocations")]
pub(crate) fn so_far() -> Option<Allocations> {
    let stats = COUNTING.stats();
    let count = stats.allocations + stats.reallocations;
    Some(Allocations { count, bytes: stats.bytes_allocated })
}

/// What was counted; `None` in a program that nobody measures.
#[cfg(not(feature = "count-allocations"))]
pub(crate) const fn so_far() -> Option<Allocations> {
    None
}
