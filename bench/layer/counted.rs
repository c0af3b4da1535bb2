//! Counts what the layer allocates, on demand of `bench-layer`.

mod allocations;
mod answer;
mod drive;
mod ours;
mod service;

fn main() {
    answer::answer(ours::memory_lanes, allocations::allocations);
}
