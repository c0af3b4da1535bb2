//! The summary at the end of a test run.

use std::fmt::Write as _;
use std::time::Duration;

use crate::libtest::Counts;
use crate::screen::seconds;
use crate::suite::Suites;

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
}

impl Verdict {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
        }
    }
}

/// One line of the summary.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) step: &'static str,
    pub(crate) verdict: Verdict,
    /// Absent for a step that runs no tests.
    pub(crate) counts: Option<Counts>,
    pub(crate) took: Duration,
    /// What failed inside the step, if it can say so.
    pub(crate) failures: Vec<String>,
}

/// All steps of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    /// What the stores said to the suite.
    pub(crate) suites: Suites,
}

impl Report {
    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// A run without a single test proves nothing, so it does not pass.
    pub(crate) fn passed(&self) -> bool {
        let sound = self.rows.iter().all(|row| row.verdict == Verdict::Passed);
        sound && self.counts().executed() > 0
    }

    /// The table, what failed, and as the last line the count of tests.
    pub(crate) fn text(&self) -> String {
        let mut text = self.table();
        text.push_str(&self.suites.text());
        let failures = self.failures();
        if !failures.is_empty() {
            text.push_str("\nfailed:\n");
        }
        for failure in &failures {
            let _ = writeln!(text, "  {failure}");
        }
        let counts = self.counts();
        // Should a failed test ever go unnamed, it still counts.
        let failed = failures.len().max(counts.failed);
        let _ = write!(text, "\n{} passed, {failed} failed", counts.passed);
        if counts.ignored > 0 {
            let _ = write!(text, ", {} skipped", counts.ignored);
        }
        text.push('\n');
        text
    }

    fn table(&self) -> String {
        let width = self.rows.iter().map(|row| row.step.len()).max().unwrap_or(0).max(4);
        let mut text = format!("{:width$}  result  {:>6}  {:>8}\n", "step", "tests", "time");
        for row in &self.rows {
            let tests = row.counts.map_or_else(String::new, |counts| counts.executed().to_string());
            let _ = writeln!(
                text,
                "{:width$}  {}  {tests:>6}  {:>8}",
                row.step,
                row.verdict.label(),
                seconds(row.took),
            );
        }
        text
    }

    /// Every failed test, and every failed step that has no failed test to show for it: the last
    /// line must never say "0 failed" about a run that failed.
    fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for row in self.rows.iter().filter(|row| row.verdict == Verdict::Failed) {
            if row.failures.is_empty() {
                failures.push(format!("step {}", row.step));
            }
            failures.extend(row.failures.iter().cloned());
        }
        if failures.is_empty() && !self.passed() {
            failures.push("no test was executed".to_owned());
        }
        failures
    }

    fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for counts in self.rows.iter().filter_map(|row| row.counts) {
            sum.add(counts);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: &'static str, verdict: Verdict, counts: Option<Counts>) -> Row {
        Row { step, verdict, counts, took: Duration::from_millis(1250), failures: Vec::new() }
    }

    fn counts(passed: usize, failed: usize, ignored: usize) -> Option<Counts> {
        Some(Counts { passed, failed, ignored })
    }

    #[test]
    fn a_summary_ends_with_the_count() {
        let mut report = Report::default();
        report.add(row("format", Verdict::Passed, None));
        report.add(row("tests", Verdict::Passed, counts(120, 0, 0)));
        let expected = "\
step    result   tests      time
format  passed             1.2 s
tests   passed     120     1.2 s

120 passed, 0 failed
";
        assert_eq!(report.text(), expected);
        assert!(report.passed());
    }

    #[test]
    fn failed_tests_and_failed_steps_are_listed_and_counted() {
        let mut report = Report::default();
        report.add(row("clippy", Verdict::Failed, None));
        let mut tests = row("tests", Verdict::Failed, counts(7, 1, 2));
        tests.failures = vec!["core: a_test".to_owned()];
        report.add(tests);
        assert!(!report.passed());
        let text = report.text();
        let end = "failed:\n  step clippy\n  core: a_test\n\n7 passed, 2 failed, 2 skipped\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn a_run_without_tests_fails() {
        let mut report = Report::default();
        report.add(row("tests", Verdict::Passed, counts(0, 0, 3)));
        assert!(!report.passed());
        assert!(report.text().ends_with("0 passed, 1 failed, 3 skipped\n"));
    }
}
