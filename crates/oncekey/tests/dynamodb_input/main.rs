//! What the suite cannot see of the DynamoDB store: a table that is missing or wrong, answers that
//! get lost, clocks that differ, bodies in pieces, and a crowd on a few keys.

#![cfg(feature = "dynamodb")]

mod bodies;
mod crowd;
#[path = "../common/dynamodb.rs"]
mod dynamodb;
mod opening;
mod proxy;
mod records;
mod replies;
mod scene;
mod watching;
