//! Measures the fingerprint of a JSON body of 1 KiB beside what it cannot do without: one SHA-256
//! over the same bytes and one parse of them.
//!
//! ```text
//! cargo xtask bench fingerprint
//! ```
//!
//! Ends with 0 even if the bar is missed: it is a report. `--strict` makes that 1.

#![allow(clippy::print_stdout, reason = "a report is what it is for")]

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use oncekey_core::Fingerprint;
use oncekey_core::fingerprint::{FingerprintRules, JsonBodies, KeepPlaces, Subject};
use sha2::{Digest, Sha256};

/// A fingerprint may cost this many times what it cannot do without.
const BAR: f64 = 3.0;
/// Rounds, of which the medians count; each measures everything in turns.
const ROUNDS: usize = 21;
/// Repetitions in a round: a few milliseconds, so that a round fits between two interruptions.
const TIMES: u32 = 1_000;

fn main() -> ExitCode {
    let body = body();
    let subject = Subject {
        method: "POST",
        path: b"/v1/charges",
        query: None,
        content_type: Some(b"application/json"),
        headers: &[],
        body: body.as_bytes(),
    };
    let canonical = FingerprintRules::default();
    let no_places = FingerprintRules { places: KeepPlaces::No, ..FingerprintRules::default() };
    let raw = FingerprintRules { json: JsonBodies::Raw, ..FingerprintRules::default() };
    let fingerprint = |rules: &FingerprintRules| {
        black_box(Fingerprint::v1(black_box(&subject), rules));
    };
    let digest = || {
        black_box(Sha256::digest(black_box(body.as_bytes())));
    };
    let parse = || {
        let value: serde_json::Value =
            serde_json::from_str(black_box(&body)).expect("the body is JSON");
        black_box(value);
    };
    let mut spans = [const { Vec::new() }; 5];
    for _ in 0..ROUNDS {
        let round = [
            time(digest),
            time(parse),
            time(|| fingerprint(&canonical)),
            time(|| fingerprint(&no_places)),
            time(|| fingerprint(&raw)),
        ];
        for (all, one) in spans.iter_mut().zip(round) {
            all.push(one);
        }
    }
    let [digest, parse, canonical, no_places, raw] = spans.map(median);

    println!("body of {} bytes, medians of {ROUNDS} rounds of {TIMES}, microseconds", body.len());
    for (name, micros) in [
        ("SHA-256", digest),
        ("serde_json parse", parse),
        ("fingerprint", canonical),
        ("fingerprint without places", no_places),
        ("fingerprint of raw bytes", raw),
    ] {
        println!("{name:28}{micros:8.2}");
    }
    let times = canonical / (digest + parse);
    let is_met = times <= BAR;
    let verdict = if is_met { "PASS" } else { "MISS" };
    println!("\nfingerprint / (SHA-256 + parse) <= {BAR} x: {times:.2} x  {verdict}");
    let is_strict = std::env::args().any(|argument| argument == "--strict");
    if is_strict && !is_met { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// An order of 1 KiB: nested, with numbers, escapes and members that are not sorted.
fn body() -> String {
    let mut body = String::from(
        r#"{"customer":"cus_8h2k1","currency":"eur","capture":true,"note":"gr\u00fcn \"2\"","items":["#,
    );
    let end = r#"],"amount":4200.50,"metadata":{"order":"4711","channel":"web"}}"#;
    let mut number = 0;
    while body.len() + end.len() < 1024 - 80 {
        let comma = if number == 0 { "" } else { "," };
        body.push_str(&format!(
            r#"{comma}{{"sku":"A-{number:04}","quantity":{},"price":{}.95,"gift":false}}"#,
            number + 1,
            10 + number
        ));
        number += 1;
    }
    body + end
}

/// Microseconds for one call.
fn time(call: impl Fn()) -> f64 {
    let elapsed = elapsed(|| {
        for _ in 0..TIMES {
            call();
        }
    });
    elapsed.as_secs_f64() * 1e6 / f64::from(TIMES)
}

#[expect(clippy::disallowed_methods, reason = "this is the clock of this program")]
fn elapsed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
