//! The engine on the reference store: what owners, duplicates and latecomers get.

mod answers;
mod scene;
