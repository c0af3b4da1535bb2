//! Measures the time that the crate `idempotent` takes.

mod answer;
mod clock;
mod drive;
mod peer;
mod service;

fn main() {
    answer::answer(peer::lanes, clock::times);
}
