//! How long a head takes. Not a test of anything: it prints.
//!
//! `cargo test --release -p oncekey-gateway -- --ignored --nocapture speed_of`

use std::hint::black_box;

use tokio::time::Instant;

use super::super::{Limits, Passed, Sieve};

const HEAD: &str = "POST /v1/charges HTTP/1.1\r\n\
    Host: api.example.com\r\n\
    User-Agent: payments/4.2.0 (linux; x86_64)\r\n\
    Accept: application/json\r\n\
    Content-Type: application/json\r\n\
    Authorization: Bearer 2f1c7a9e5d3b48f6a0c1\r\n\
    Idempotency-Key: \"8e03978e-40d5-43dd-bc93-6894a57f9324\"\r\n\
    Connection: keep-alive\r\n\
    Content-Length: 16\r\n\r\n";

const ROUNDS: u32 = 2_000_000;

#[test]
#[ignore = "prints a figure and checks nothing"]
fn speed_of_a_head() {
    let request = format!("{HEAD}{}", r#"{"amount": 1200}"#);
    let mut sieve = Sieve::new(Limits::default());
    let start = Instant::now();
    for _ in 0..ROUNDS {
        let passed = sieve.pass(black_box(request.as_bytes()));
        assert_eq!(passed, Passed { bytes: request.len(), refused: None });
    }
    let each = start.elapsed() / ROUNDS;
    #[expect(clippy::print_stderr, reason = "the figure is the purpose")]
    {
        eprintln!("{} bytes of head, {} of body: {each:?}", HEAD.len(), request.len() - HEAD.len());
    }
}
