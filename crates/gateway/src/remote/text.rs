//! Words for people: what came from elsewhere, made harmless, and numbers that can be read.

use serde_json::Value;

/// A text without what a terminal would obey. Route names and keys come from clients and files; one
/// with an escape sequence could rewrite the screen.
pub(super) fn plain(text: &str) -> String {
    let harmless = |letter: char| {
        // Directions of writing can make a text look like another.
        let turns = matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}')
            || matches!(letter, '\u{2066}'..='\u{2069}');
        if letter.is_control() || turns { '\u{fffd}' } else { letter }
    };
    text.chars().map(harmless).collect()
}

/// The same for a text of several lines, which stay lines.
pub(super) fn block(text: &str) -> String {
    text.lines().map(|line| plain(line) + "\n").collect()
}

/// A member as words: a text as it is, a number as it is, nothing as a dash.
pub(super) fn word(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => plain(text),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            plain(&value.to_string())
        }
    }
}

/// A value of a query: whatever is not plainly harmless is a code.
pub(super) fn escaped(text: &str) -> String {
    let letter = |byte: u8| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(letter).collect()
}

/// A span of whole seconds, in its two largest units.
pub(super) fn span(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (length, unit) in UNITS {
        if rest >= length && parts.len() < 2 {
            parts.push(format!("{} {unit}", rest / length));
        }
        rest %= length;
    }
    if parts.is_empty() { "0 s".to_owned() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T20: nothing that a client chose moves the cursor or turns the text around.
    #[test]
    fn a_text_cannot_command_a_terminal() {
        let hostile = "a\u{1b}[2Jb\u{9b}31mc\r\nd\u{7}e\u{202e}f";
        assert!(!plain(hostile).chars().any(|letter| letter.is_control() || letter == '\u{202e}'));
        assert_eq!(plain("create-charge é €"), "create-charge é €");
        assert_eq!(block("a\u{1b}[2J\n  b\rc"), "a\u{fffd}[2J\n  b\u{fffd}c\n");
    }

    #[test]
    fn spans_have_two_units_at_most() {
        for (seconds, expected) in
            [(0, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7_260, "2 h 1 min"), (90_061, "1 d 1 h")]
        {
            assert_eq!(span(seconds), expected);
        }
    }
}
