//! Spans of time and sizes as people write them: `30s`, `1h30m`, `256KiB`.

use std::time::Duration;

/// Units of time in seconds, the largest first; `ms` is read apart.
const TIMES: [(&str, u64); 5] = [("w", 604_800), ("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];

/// Units of size. `kB` is a thousand and `KiB` is 1024; `K` alone is refused, because people
/// disagree about it.
const SIZES: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Reads a span of time: numbers with units, the larger ones first.
pub(crate) fn read_time(text: &str) -> Result<Duration, String> {
    let example = "write a number and a unit, such as 500ms, 30s, 1h30m or 7d";
    let wrong = || Err(format!("`{text}` is not a span of time: {example}"));
    let mut total = Duration::ZERO;
    let mut rest = text;
    let mut last = u64::MAX;
    if rest.is_empty() {
        return wrong();
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let letters = rest[digits..].bytes().take_while(u8::is_ascii_alphabetic).count();
        let (Ok(number), unit) = (rest[..digits].parse::<u64>(), &rest[digits..digits + letters])
        else {
            return wrong();
        };
        let (part, size) = match (unit, TIMES.iter().find(|(name, _)| *name == unit)) {
            ("ms", _) => (Duration::from_millis(number), 0),
            (_, Some((_, size))) => (Duration::from_secs(number.saturating_mul(*size)), *size),
            (_, None) => return wrong(),
        };
        if size >= last {
            return wrong();
        }
        total = total.saturating_add(part);
        (last, rest) = (size, &rest[digits + letters..]);
    }
    Ok(total)
}

/// Writes a span of time as it is read.
pub(crate) fn show_time(time: Duration) -> String {
    let mut text = String::new();
    let mut rest = time.as_secs();
    for (unit, size) in TIMES.iter().skip(1) {
        if rest >= *size {
            text += &format!("{}{unit}", rest / size);
            rest %= size;
        }
    }
    match (time.subsec_millis(), text.is_empty()) {
        (0, true) => "0s".to_owned(),
        (0, false) => text,
        (millis, _) => format!("{text}{millis}ms"),
    }
}

/// Reads a size: a number and a unit.
pub(crate) fn read_size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let unit = text[digits..].trim_start();
    let size = SIZES.iter().find(|(name, _)| *name == unit).map(|(_, size)| *size);
    let number = text[..digits].parse::<u64>().ok();
    size.zip(number).and_then(|(size, number)| number.checked_mul(size)).ok_or_else(|| {
        format!("`{text}` is not a size: write a number and a unit, such as 512B, 256KiB or 1MiB")
    })
}

/// Writes a size as it is read.
pub(crate) fn show_size(size: u64) -> String {
    let fits = |(_, unit): &&(&str, u64)| size >= *unit && size.is_multiple_of(*unit);
    let (name, unit) = SIZES.iter().find(fits).copied().unwrap_or(("B", 1));
    format!("{}{name}", size / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written_alike() {
        for (text, seconds) in
            [("0s", 0), ("30s", 30), ("1h30m", 5_400), ("7d", 604_800), ("1d1s", 86_401)]
        {
            let time = read_time(text).unwrap();
            assert_eq!(time, Duration::from_secs(seconds), "{text}");
            assert_eq!(show_time(time), text);
        }
        assert_eq!(read_time("1s500ms"), Ok(Duration::from_millis(1_500)));
        assert_eq!(show_time(Duration::from_millis(1_500)), "1s500ms");
        assert_eq!(read_time("2w"), read_time("14d"));
    }

    #[test]
    fn numbers_without_a_unit_or_with_an_odd_one_are_refused() {
        for text in ["", "30", "s", "-1s", "1.5h", "30 s", "1m1h", "1s1s", "1y", "30S", "1h ", "ä"]
        {
            assert!(read_time(text).is_err(), "{text}");
        }
        for text in ["", "1", "MiB", "1K", "1M", "1mb", "-1B", "1.5MiB", "99999999999GiB", "1ä"] {
            assert!(read_size(text).is_err(), "{text}");
        }
        assert!(read_time("99999999999999999999s").is_err());
    }

    #[test]
    fn sizes_are_read_and_written_alike() {
        for (text, bytes) in [("1MiB", 1 << 20), ("256KiB", 1 << 18), ("1kB", 1_000), ("7B", 7)] {
            assert_eq!(read_size(text), Ok(bytes));
            assert_eq!(show_size(bytes), text);
        }
        assert_eq!(read_size("1 MiB"), Ok(1 << 20));
        assert_eq!(show_size(0), "0B");
    }
}
