//! What the benchmarks have in common: a clock, medians, tables, bars, and a description of the
//! machine.
//!
//! A figure of a benchmark stands beside another of the same run, is the median of several rounds,
//! and says on what machine it was measured. The programs themselves are in the folders beside
//! this one; run them with `cargo xtask bench`.

pub mod bars;
pub mod clock;
pub mod machine;
pub mod scratch;
pub mod stats;
pub mod table;

/// What can go wrong in a benchmark is shown and ends it.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
