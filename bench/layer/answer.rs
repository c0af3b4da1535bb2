//! Answers questions of the benchmark: the main loop of its child processes. The peer's programs
//! have a copy of this file.
//!
//! A line of the input asks for one measurement, `<operation> <callers> <requests>`. The answer is
//! a line with the two counters of the meter for each service, for all requests together.

use std::io::{BufRead as _, Write as _};

use crate::drive::{Callers, Lane, Meter, measure};
use crate::service::Operation;

/// Answers until the input ends. `lanes` makes the services that are compared; it runs on the
/// runtime that they are measured on.
pub(crate) fn answer(lanes: fn() -> Vec<Lane>, meter: Meter) {
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("the benchmark speaks UTF-8");
        let words: Vec<&str> = line.split(' ').collect();
        let &[operation, callers, requests] = words.as_slice() else {
            panic!("not a question: {line}");
        };
        let operation = Operation::ALL.into_iter().find(|known| known.label() == operation);
        let callers = Callers::ALL.into_iter().find(|known| known.label() == callers);
        let what = (operation.expect("a known one"), callers.expect("a known one"));
        let requests = requests.parse().expect("a number");
        let spent = measure(what, requests, lanes, meter).expect("a runtime");
        let spent: Vec<String> = spent.into_iter().flatten().map(|n| n.to_string()).collect();
        writeln!(output, "{}", spent.join(" ")).expect("somebody asked");
        output.flush().expect("somebody asked");
    }
}
