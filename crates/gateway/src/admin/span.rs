//! Spans of time in queries.

use std::time::Duration;

use super::problem::Problem;

/// A span such as `90s`, `5m`, `12h` or `7d`.
pub(super) fn span(text: &str) -> Result<Duration, Problem> {
    let units = [("s", 1), ("m", 60), ("h", 60 * 60), ("d", 24 * 60 * 60)];
    let found = units.into_iter().find_map(|(unit, seconds)| {
        let number = text.strip_suffix(unit)?;
        let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| number.parse::<u64>().ok()?.checked_mul(seconds)).flatten()
    });
    let wrong = || Problem::invalid("a span of time is a number with s, m, h or d: 90s, 5m, 12h");
    found.map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_a_unit_and_an_end() {
        assert_eq!(span("90s").unwrap().as_secs(), 90);
        assert_eq!(span("5m").unwrap().as_secs(), 300);
        assert_eq!(span("7d").unwrap().as_secs(), 604_800);
        for wrong in ["", "5", "m", "-5m", "+5m", "5 m", "1e3s", "5m5s", "99999999999999999999d"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }
}
