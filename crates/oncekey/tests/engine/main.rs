//! The engine on the reference store: what owners, duplicates and latecomers get.

mod aborts;
mod answers;
mod faults;
mod journal;
mod loops;
mod outages;
mod owners;
mod runs;
mod scene;
mod secrets;
