//! What is wrong with a configuration, as it is shown to people and to programs.
//!
//! A problem names the place, marks it in its line, and says what to do instead. All problems of a
//! file are reported at once: who fixes one should not have to ask for the next.

use std::fmt;

use serde_json::{Value, json};

use super::source::{Excerpt, Place, SourceKind, printable};

/// The page that explains every setting.
pub(crate) const REFERENCE: &str = "docs/reference/config.md";

/// Something that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct ConfigProblem {
    pub(crate) severity: Severity,
    /// A word for programs.
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) excerpt: Option<Box<Excerpt>>,
    /// What is said beside the mark.
    label: Box<str>,
    /// What else helps.
    notes: Vec<String>,
    /// The setting in the reference.
    anchor: Option<Box<str>>,
}

/// Whether it can be lived with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    Error,
    Warning,
}

impl ConfigProblem {
    pub(crate) fn error(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            code,
            // Names that a file makes up may hold what commands a terminal.
            message: message.into().chars().map(printable).collect(),
            excerpt: None,
            label: Box::default(),
            notes: Vec::new(),
            anchor: None,
        }
    }

    pub(crate) fn warning(code: &'static str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(code, message) }
    }

    pub(crate) fn at(mut self, place: &Place) -> Self {
        self.excerpt = Some(Box::new(place.excerpt()));
        self
    }

    /// Points to a place if there is one.
    pub(crate) fn maybe_at(self, place: Option<&Place>) -> Self {
        match place {
            Some(place) => self.at(place),
            None => self,
        }
    }

    pub(crate) fn label(mut self, label: impl Into<Box<str>>) -> Self {
        self.label = label.into();
        self
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Points to a setting, such as `route.mode`, in the reference.
    pub(crate) fn about(mut self, setting: &str) -> Self {
        self.anchor = Some(anchor(setting).into());
        self
    }

    /// Proposes a word, if one was found.
    pub(crate) fn suggest(self, word: Option<&str>) -> Self {
        match word {
            Some(word) => self.label(format!("did you mean `{word}`?")),
            None => self,
        }
    }

    /// For `--json`.
    pub(crate) fn to_json(&self) -> Value {
        let position = self.excerpt.as_ref().and_then(|excerpt| excerpt.position);
        json!({
            "severity": self.severity.label(),
            "code": self.code,
            "message": self.message,
            "source": self.excerpt.as_ref().map(|excerpt| &excerpt.name),
            "line": position.map(|(line, _)| line),
            "column": position.map(|(_, column)| column),
            "label": self.label,
            "notes": self.notes,
            "docs": self.anchor.as_ref().map(|anchor| format!("{REFERENCE}#{anchor}")),
        })
    }

    /// Where it was written, if it was.
    pub(crate) fn written_in(&self) -> Option<SourceKind> {
        self.excerpt.as_ref().map(|excerpt| excerpt.kind)
    }

    /// In which order problems are shown: as they are met when reading.
    pub(crate) fn order(&self) -> impl Ord + use<> {
        let at = self.excerpt.as_ref().map(|excerpt| (excerpt.name.clone(), excerpt.position));
        (at, self.severity, self.message.clone())
    }
}

impl Severity {
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, code, message, .. } = self;
        writeln!(out, "{}[{code}]: {message}", severity.label())?;
        let mut margin = "  ".to_owned();
        if let Some(Excerpt { name, position, line, indent, width, .. }) = self.excerpt.as_deref() {
            let number = position.map_or_else(|| margin.clone(), |(line, _)| line.to_string());
            margin = " ".repeat(number.len().max(margin.len()));
            match position {
                Some((line, column)) => writeln!(out, "{margin}┌─ {name}:{line}:{column}")?,
                None => writeln!(out, "{margin}┌─ {name}")?,
            }
            writeln!(out, "{number:>0$}│ {line}", margin.len())?;
            let marks = format!("{}{} {}", " ".repeat(*indent), "^".repeat(*width), self.label);
            writeln!(out, "{margin}│ {}", marks.trim_end())?;
        } else if !self.label.is_empty() {
            writeln!(out, "{margin}= {}", self.label)?;
        }
        for note in &self.notes {
            writeln!(out, "{margin}= {note}")?;
        }
        match &self.anchor {
            Some(anchor) => writeln!(out, "{margin}= {REFERENCE}#{anchor}"),
            None => Ok(()),
        }
    }
}

/// `route.in_flight.wait` becomes `route-in_flight-wait`.
pub(crate) fn anchor(setting: &str) -> String {
    setting.replace('.', "-")
}

#[cfg(test)]
mod tests {
    use super::super::source::{Source, SourceKind};
    use super::*;

    #[test]
    fn a_problem_is_shown_where_it_is() {
        let text = "[[route]]\nmodee = \"required\"\n";
        let source = Source::new("oncekey.toml", SourceKind::File, text);
        let problem =
            ConfigProblem::error("unknown-field", "`modee` is not a setting of [[route]]")
                .at(&Place { source, span: 10..15 })
                .suggest(Some("mode"))
                .note("allowed: off, observe, optional, required")
                .about("route.mode");
        let expected = "\
error[unknown-field]: `modee` is not a setting of [[route]]
  ┌─ oncekey.toml:2:1
 2│ modee = \"required\"
  │ ^^^^^ did you mean `mode`?
  = allowed: off, observe, optional, required
  = docs/reference/config.md#route-mode
";
        assert_eq!(problem.to_string(), expected);
        assert_eq!(problem.to_json()["line"], 2);
    }
}
