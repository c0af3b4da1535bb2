//! The pure core of oncekey.
