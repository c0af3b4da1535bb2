//! The suite that certifies a store.
