//! What there is to try with the demonstration. A test runs these very lines.

use super::banner::Keeps;

/// Something to try.
#[derive(Clone, Debug)]
pub(super) struct Try {
    /// What one will see.
    pub(super) about: &'static str,
    /// A line for a shell.
    pub(super) command: String,
}

/// Everything there is to try, in this order, with the gateway at `gateway`.
pub(super) fn all(gateway: &str, keeps: Keeps) -> Vec<Try> {
    let url = format!("{gateway}/v1/charges");
    let pay = |options: &str, key: &str, amount: u32| {
        format!(
            "curl {options} {url} -H 'Content-Type: application/json' -H 'Idempotency-Key: {key}' \
             -d '{{\"amount\":{amount}}}'"
        )
    };
    let words = match keeps {
        Keeps::Promise => [
            "pay: the charge is made",
            "again, as a retry would: the same answer, with Idempotent-Replayed: true",
            "the same key for another amount: 422, and it says where the two differ",
            "two at once: the second waits, and gets the answer of the first",
            "what was really charged: ch_1 and ch_2, once each",
        ],
        Keeps::Nothing => [
            "pay: the charge is made",
            "again, as a retry would: it is charged a second time",
            "the same key for another amount: it is charged, too",
            "two at once: both are charged",
            "what was really charged: five times",
        ],
    };
    let both = format!("for n in 1 2; do {} & done; wait", pay("-s", "order-2", 500));
    let commands = [
        pay("-i", "order-1", 1_000),
        pay("-i", "order-1", 1_000),
        pay("-i", "order-1", 9_900),
        both,
        format!("curl -s {url}"),
    ];
    let tries = words.into_iter().zip(commands);
    tries.map(|(about, command)| Try { about, command }).collect()
}
