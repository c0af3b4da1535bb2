//! A damaged row is an error that a person sees: never a wrong replay, never a second run, and
//! never somebody else's problem. F55, I40, I53.

#![cfg(feature = "sqlite")]

mod bytes;
mod columns;
#[path = "../common/mod.rs"]
mod common;
mod rows;
mod scene;
