//! Where memory comes from, and how much of it is asked for.
//!
//! A new key allocates on one thread and is freed on another, and part of it stays in the memory of
//! recent answers. The allocator of the C library grows its heaps for that in steps so small that the
//! kernel is asked all the time: an eighth of a new key's processor time. This one is not.
//!
//! A program that is built to be measured (feature `count-allocations`) counts instead. `cargo xtask
//! bench gateway` asks before and after some requests, and so shows what each costs.

use serde::Serialize;

/// What was asked of the allocator since the start.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Allocations {
    /// How often, growing included.
    count: usize,
    bytes: usize,
}

#[cfg(not(feature = "count-allocations"))]
#[global_allocator]
static SWIFT: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
