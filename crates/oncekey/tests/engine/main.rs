//! The engine on the reference store: what owners, duplicates and latecomers get.

#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]
#![expect(clippy::wildcard_enum_match_arm, reason = "any other reply is a failure")]

mod aborts;
mod answers;
mod erasing;
mod faults;
mod journal;
mod late;
mod loops;
mod outages;
mod owners;
mod regression;
mod review;
mod runs;
mod scene;
mod secrets;
mod sweeping;
mod waiting;
