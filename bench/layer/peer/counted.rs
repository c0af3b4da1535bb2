//! Counts what the crate `idempotent` allocates.

mod allocations;
mod answer;
mod drive;
mod peer;
mod service;

fn main() {
    answer::answer(peer::lanes, allocations::allocations);
}
