//! Measures the crate `idempotent`, for comparison. This is a template: the benchmark writes it
//! into a folder of its own, with copies of three files of ours, and compiles it there. So that
//! crate never becomes a dependency of this repository.
//!
//! Each line of the input asks for one measurement, `<operation> <callers> <requests>`, and is
//! answered by one line: nanoseconds on the wall and of processor time without the layer, and the
//! same two with it, for all requests together.

mod clock;
mod drive;
mod service;

use std::io::{BufRead as _, Write as _};

use idempotent::memory::MemoryStore;
use idempotent::middleware::IdempotencyLayer;

use crate::drive::{Callers, Front, Lane, drive};
use crate::service::Operation;

fn main() {
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("the benchmark speaks UTF-8");
        let words: Vec<&str> = line.split(' ').collect();
        let &[operation, callers, requests] = words.as_slice() else {
            panic!("not a question: {line}");
        };
        let operation = Operation::ALL.into_iter().find(|known| known.label() == operation);
        let callers = Callers::ALL.into_iter().find(|known| known.label() == callers);
        let lanes = measure(
            operation.expect("a known one"),
            callers.expect("a known one"),
            requests.parse().expect("a number"),
        );
        let spans = lanes.map(|lane| lane.span());
        let figures = spans.map(|span| format!("{} {}", span.wall.as_nanos(), span.cpu.as_nanos()));
        writeln!(output, "{}", figures.join(" ")).expect("a reader");
        output.flush().expect("a reader");
    }
}

/// Measures in a runtime and with a store of its own.
fn measure(operation: Operation, callers: Callers, requests: usize) -> [Lane; 2] {
    let runtime = callers.runtime().expect("a runtime");
    runtime.block_on(async {
        let store = MemoryStore::builder().try_build().expect("a store");
        let layer = IdempotencyLayer::new(store);
        let mut lanes = [
            Lane::new(Front::Bare, |service| service),
            Lane::new(Front::Layer, |service| service.layer(layer)),
        ];
        drive(&mut lanes, operation, callers, requests).await;
        lanes
    })
}
