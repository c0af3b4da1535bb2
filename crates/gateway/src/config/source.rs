//! Where a value was written, so that everything that is said about it can point there.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A text that settings come from.
pub(crate) struct Source {
    /// The file, the variable, the option or the preset.
    pub(crate) name: String,
    pub(crate) kind: SourceKind,
    pub(crate) text: String,
}

/// What kind of text it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceKind {
    File,
    /// An environment variable.
    Variable,
    /// An option of the command line.
    Option,
    /// A preset, which is a part of the program.
    Preset,
}

/// Some bytes of a source.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) source: Arc<Source>,
    pub(crate) span: Range<usize>,
}

/// A line of a source as it is shown to people, without passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excerpt {
    /// The name of the source.
    pub(crate) name: String,
    pub(crate) kind: SourceKind,
    /// Line and column, counted from 1; only files have them.
    pub(crate) position: Option<(usize, usize)>,
    pub(crate) line: String,
    /// How many characters of the line come before the place.
    pub(crate) indent: usize,
    /// How many characters the place has.
    pub(crate) width: usize,
}

/// Enough for what people write by hand; longer lines are shown in part.
const SHOWN: usize = 120;

impl Source {
    pub(crate) fn new(
        name: impl Into<String>,
        kind: SourceKind,
        text: impl Into<String>,
    ) -> Arc<Self> {
        Arc::new(Self { name: name.into(), kind, text: text.into() })
    }
}

/// Without the text, which may hold a password.
impl fmt::Debug for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Place {
    /// A part of this place, if the place is a string without escapes: then byte by byte.
    pub(crate) fn part(&self, inside: &Range<usize>, value: &str) -> Self {
        let written = self.source.text.get(self.span.clone()).unwrap_or_default();
        let quote = written.find(value).filter(|_| !value.is_empty());
        let span = match quote {
            Some(quote) => {
                let start = self.span.start + quote;
                start + inside.start..start + inside.end
            }
            None => self.span.clone(),
        };
        Self { source: Arc::clone(&self.source), span }
    }

    /// The line and the column, counted from 1.
    pub(crate) fn position(&self) -> (usize, usize) {
        let start = self.line_start();
        let before = &self.source.text[..start];
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        (line, self.source.text[start..self.start()].chars().count() + 1)
    }

    pub(crate) fn excerpt(&self) -> Excerpt {
        let text = &self.source.text;
        let (start, from) = (self.line_start(), self.start());
        let line = text[start..].lines().next().unwrap_or_default();
        let to = boundary(text, self.span.end.clamp(from, start + line.len().max(from - start)));
        let (indent, width) = (text[start..from].chars().count(), text[from..to].chars().count());
        // The line is shown from here on if the place would be out of sight.
        let fits = line.chars().count() <= SHOWN;
        let skipped = if fits { 0 } else { indent.saturating_sub(SHOWN / 2) };
        let line = masked(line).chars().skip(skipped).take(SHOWN).map(printable).collect();
        let indent = indent - skipped;
        Excerpt {
            name: self.source.name.clone(),
            kind: self.source.kind,
            position: (self.source.kind == SourceKind::File).then(|| self.position()),
            line,
            indent,
            width: width.clamp(1, SHOWN.saturating_sub(indent).max(1)),
        }
    }

    fn start(&self) -> usize {
        let text = &self.source.text;
        let start = boundary(text, self.span.start);
        // The end of the file is shown as the end of its last line.
        if start == text.len() { text.trim_end_matches(['\n', '\r']).len() } else { start }
    }

    fn line_start(&self) -> usize {
        self.source.text[..self.start()].rfind('\n').map_or(0, |newline| newline + 1)
    }
}

/// `oncekey.toml:31`, `ONCEKEY__SERVER__LISTEN`, `--to`, `preset stripe-v1`.
impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source.kind {
            SourceKind::File => write!(out, "{}:{}", self.source.name, self.position().0),
            SourceKind::Variable | SourceKind::Option => out.write_str(&self.source.name),
            SourceKind::Preset => write!(out, "preset {}", self.source.name),
        }
    }
}

/// The start of the character that an offset is in.
fn boundary(text: &str, offset: usize) -> usize {
    let whole = |offset: &usize| text.is_char_boundary(*offset);
    (0..=offset.min(text.len())).rev().find(whole).unwrap_or(0)
}

/// A tab is as wide as any other character here, so that the marks stand where they should; what
/// could command a terminal is not printed.
pub(crate) fn printable(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

/// The text with stars instead of what may be a secret, and as long as before: users and passwords
/// in URLs, and the values of settings that somebody named like a secret.
pub(crate) fn masked(text: &str) -> String {
    let mut hidden = vec![false; text.chars().count()];
    let characters: Vec<char> = text.chars().collect();
    let mut hide = |range: Range<usize>| {
        for at in range {
            if let Some(hidden) = hidden.get_mut(at) {
                *hidden = !matches!(characters[at], '"' | '\'');
            }
        }
    };
    for (start, _) in text.match_indices("://") {
        let start = start + 3;
        let end = text[start..].find(['"', '\'', ' ', '\n']).map_or(text.len(), |end| start + end);
        if let Some(at) = text[start..end].rfind('@') {
            let from = text[..start].chars().count();
            hide(from..from + text[start..start + at].chars().count());
        }
        if let Some(query) = text[start..end].find('?') {
            let from = text[..=start + query].chars().count();
            hide(from..from + text[start + query + 1..end].chars().count());
        }
    }
    if let Some((name, value)) = text.split_once('=').filter(|(name, _)| sounds_secret(name)) {
        let from = name.chars().count() + 1;
        let spaces = value.chars().take_while(|c| c.is_whitespace()).count();
        hide(from + spaces..from + value.trim_end().chars().count());
    }
    characters.iter().zip(hidden).map(|(c, hidden)| if hidden { '*' } else { *c }).collect()
}

fn sounds_secret(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    let words = ["token", "secret", "password", "passwd", "pepper", "credential", "private"];
    !name.ends_with("_file")
        && !name.ends_with("_files")
        && words.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str, span: Range<usize>) -> Place {
        Place { source: Source::new("a.toml", SourceKind::File, text), span }
    }

    #[test]
    fn a_place_is_shown_with_its_line() {
        let excerpt = place("version = 1\nmodee = 'x'\n", 12..17).excerpt();
        assert_eq!(excerpt.position, Some((2, 1)));
        assert_eq!((excerpt.line.as_str(), excerpt.indent, excerpt.width), ("modee = 'x'", 0, 5));
    }

    #[test]
    fn places_at_odd_spots_are_shown_too() {
        for (text, span) in [("", 0..0), ("a\n", 2..2), ("ä = 1", 1..1), ("a\nb", 0..3)] {
            let excerpt = place(text, span).excerpt();
            assert!(excerpt.width >= 1, "{text:?}");
        }
        let long = format!("x = '{}'", "y".repeat(10_000));
        let excerpt = place(&long, 9_000..9_001).excerpt();
        assert_eq!((excerpt.line.len(), excerpt.indent), (SHOWN, SHOWN / 2));
    }

    /// I52: no text for people holds a credential.
    #[test]
    fn secrets_are_not_shown() {
        for text in [
            "url = \"postgres://app:hunter2@db/x\"",
            "url = 'postgres://app:hun@ter2hunter2@db/x'",
            "url = 'postgres://db/x?password=hunter2'",
            "token = \"hunter2\"",
            "pepper = 'hunter2' # hunter2",
        ] {
            let shown = masked(text);
            assert!(!shown.contains("hunter2"), "{shown}");
            assert_eq!(shown.chars().count(), text.chars().count());
        }
        assert_eq!(masked("token_file = 'a'"), "token_file = 'a'");
    }
}
