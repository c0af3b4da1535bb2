//! Moments as text: RFC 3339.
//!
//! A date library for one format in one time zone would be the largest part of this crate.

use oncekey_core::Timestamp;

/// RFC 3339 in UTC, to the second. Years beyond 0000–9999 cannot be written and are clamped.
#[must_use]
pub fn rfc3339(moment: Timestamp) -> String {
    const DAY: i64 = 86_400;
    /// The first second of the year 0 and the last one of 9999.
    const WRITABLE: (i64, i64) = (-62_167_219_200, 253_402_300_799);
    let seconds = moment.micros().div_euclid(1_000_000).clamp(WRITABLE.0, WRITABLE.1);
    let (days, of_day) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));

    // Count from 1 March of the year 0: the leap day is then the last day of a year, and every
    // 400 years (146 097 days) are the same.
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March on have 31, 30, 31, 30, 31 days, and again: 153 days for each five.
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let (month, carry) =
        if month_from_march < 10 { (month_from_march + 3, 0) } else { (month_from_march - 9, 1) };
    let year = era * 400 + year_of_era + carry;
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// RFC 3339 in UTC, to the millisecond: for logs, where a second holds a thousand lines.
#[must_use]
pub fn rfc3339_millis(moment: Timestamp) -> String {
    let mut text = rfc3339(moment);
    let millis = moment.micros().div_euclid(1_000).rem_euclid(1_000);
    text.truncate(text.len() - 1);
    text.push_str(&format!(".{millis:03}Z"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_millisecond_has_three_digits_also_before_1970() {
        for (micros, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_786_788_251_007_999, "2026-08-15T10:04:11.007Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(rfc3339_millis(Timestamp::from_micros(micros)), expected);
        }
    }

    #[test]
    fn moments_are_written_as_everybody_writes_them() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_786_788_251, "2026-08-15T10:04:11Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
            (253_402_300_800, "9999-12-31T23:59:59Z"),
            (-62_167_219_201, "0000-01-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(Timestamp::from_micros(seconds * 1_000_000)), expected);
        }
        assert_eq!(rfc3339(Timestamp::from_micros(i64::MIN)), "0000-01-01T00:00:00Z");
        assert_eq!(rfc3339(Timestamp::from_micros(i64::MAX)), "9999-12-31T23:59:59Z");
        assert_eq!(rfc3339(Timestamp::from_micros(1_999_999)), "1970-01-01T00:00:01Z");
    }

    /// Every day of eight centuries follows the day before.
    #[test]
    fn no_day_is_skipped_or_doubled() {
        let day = |n: i64| rfc3339(Timestamp::from_micros(n * 86_400_000_000))[..10].to_owned();
        let mut before = day(-146_097);
        for n in -146_096..=146_097 {
            let today = day(n);
            let (old, new): (Vec<u32>, Vec<u32>) = (numbers(&before), numbers(&today));
            let next = new == [old[0], old[1], old[2] + 1];
            let month = new == [old[0], old[1] + 1, 1] && old[2] >= 28;
            let year = new == [old[0] + 1, 1, 1] && old[1..] == [12, 31];
            assert!(next || month || year, "{before} then {today}");
            before = today;
        }
    }

    fn numbers(date: &str) -> Vec<u32> {
        date.split('-').map(|part| part.parse().unwrap()).collect()
    }
}
