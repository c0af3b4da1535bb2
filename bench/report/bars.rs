//! What is demanded, and whether it was met in this run.

use serde_json::{Value, json};

use crate::table::Table;

/// One demand.
#[derive(Debug)]
pub struct Bar {
    what: String,
    wanted: String,
    found: String,
    verdict: Verdict,
}

/// Whether a demand was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was.
    Pass,
    /// It was not.
    Miss,
    /// Nobody knows: what it takes to find out was not there.
    NotMeasured,
}

impl Bar {
    /// A demand in words, and what was found.
    pub fn new(
        what: impl Into<String>,
        wanted: impl Into<String>,
        found: String,
        met: bool,
    ) -> Self {
        let verdict = if met { Verdict::Pass } else { Verdict::Miss };
        Self { what: what.into(), wanted: wanted.into(), found, verdict }
    }

    /// At least so many times as much.
    #[must_use]
    pub fn at_least(what: &str, wanted: f64, found: f64) -> Self {
        Self::new(what, format!(">= {wanted} x"), format!("{found:.2} x"), found >= wanted)
    }

    /// At most so many times as much.
    #[must_use]
    pub fn at_most(what: &str, wanted: f64, found: f64) -> Self {
        Self::new(what, format!("<= {wanted} x"), format!("{found:.2} x"), found <= wanted)
    }

    /// A demand that could not be looked at, and why.
    pub fn not_measured(what: &str, wanted: impl Into<String>, why: &str) -> Self {
        let verdict = Verdict::NotMeasured;
        Self { what: what.to_owned(), wanted: wanted.into(), found: why.to_owned(), verdict }
    }
}

impl Verdict {
    /// The word for it in reports.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Miss => "MISS",
            Self::NotMeasured => "NOT MEASURED",
        }
    }
}

/// All demands as a table.
#[must_use]
pub fn text(bars: &[Bar]) -> String {
    let mut table = Table::new(&["bar", "wanted", "found", "verdict"]);
    for Bar { what, wanted, found, verdict } in bars {
        let line = [what.as_str(), wanted, found, verdict.label()];
        table.add(line.map(str::to_owned).to_vec());
    }
    table.text()
}

/// Whether every demand was met. One that was not measured was not.
#[must_use]
pub fn are_met(bars: &[Bar]) -> bool {
    bars.iter().all(|bar| bar.verdict == Verdict::Pass)
}

/// All demands for a program.
#[must_use]
pub fn to_json(bars: &[Bar]) -> Value {
    let all = bars.iter().map(|Bar { what, wanted, found, verdict }| {
        json!({ "bar": what, "wanted": wanted, "found": found, "verdict": verdict.label() })
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_not_met() {
        let met = || Bar::at_most("speed", 2.0, 1.0);
        assert!(are_met(&[met()]));
        assert!(!are_met(&[met(), Bar::at_least("speed", 2.0, 1.0)]));
        assert!(!are_met(&[met(), Bar::not_measured("speed", "<= 2 x", "no network")]));
    }
}
