//! Reads the output of `cargo test`.
//!
//! The format of Rust's test programs has no stable machine-readable form, so this reads the
//! lines that people read. They have looked the same for years.

/// How many tests had which fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
}

/// What one run of `cargo test` did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Results {
    pub(crate) counts: Counts,
    /// `target: test` for each failed test, and `target: …` for a target that died.
    pub(crate) failures: Vec<String>,
    /// Every test: its target, its name, and what became of it.
    pub(crate) tests: Vec<(String, String, Fate)>,
}

/// What became of a test. The later, the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    Passed,
    Ignored,
    Failed,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    pub(crate) fn executed(self) -> usize {
        self.passed + self.failed
    }
}

/// Reads everything that `cargo test` printed, standard error included.
pub(crate) fn read(output: &str) -> Results {
    let mut reader = Reader::default();
    for line in output.lines() {
        reader.line(line);
    }
    reader.finish_target();
    reader.results
}

#[derive(Default)]
struct Reader {
    results: Results,
    target: String,
    /// The target has announced its tests and not yet given its result.
    running: bool,
    /// The names below the latest `failures:` line. The first such line begins the output of the
    /// failed tests, which may contain anything; the last one begins the list of names.
    names: Vec<String>,
}

impl Reader {
    fn line(&mut self, line: &str) {
        if let Some(target) = target_of(line) {
            self.finish_target();
            self.target = target;
        } else if announces_tests(line) {
            self.running = true;
        } else if let Some((test, fate)) = fate_of(line) {
            self.results.tests.push((self.target.clone(), test.to_owned(), fate));
        } else if line == "failures:" {
            self.names.clear();
        } else if let Some(name) = line.strip_prefix("    ") {
            self.names.push(name.to_owned());
        } else if let Some(counts) = result_of(line) {
            self.running = false;
            self.results.counts.add(counts);
            if counts.failed > 0 {
                let names = self.names.drain(..).map(|name| format!("{}: {name}", self.target));
                self.results.failures.extend(names);
            }
            self.names.clear();
        }
    }

    fn finish_target(&mut self) {
        if self.running {
            self.results.failures.push(format!("{}: ended without a result", self.target));
            self.results.counts.failed += 1;
        }
        self.running = false;
        self.names.clear();
    }
}

/// The name of the target that cargo is about to run, if the line announces one.
fn target_of(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(package) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{package} (documentation)"));
    }
    let (_, program) = line.strip_prefix("Running ")?.strip_suffix(')')?.rsplit_once('(')?;
    let file = program.rsplit('/').next()?;
    // Cargo appends a hash to the name of each test program.
    Some(file.rsplit_once('-').map_or(file, |(name, _)| name).to_owned())
}

/// The name of a test and what became of it, in a line such as `test a::b ... ok`.
fn fate_of(line: &str) -> Option<(&str, Fate)> {
    let (test, fate) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let fate = match fate {
        "ok" => Fate::Passed,
        "FAILED" => Fate::Failed,
        ignored if ignored.starts_with("ignored") => Fate::Ignored,
        _ => return None,
    };
    Some((test, fate))
}

fn announces_tests(line: &str) -> bool {
    let count = line.strip_prefix("running ").and_then(|rest| rest.split_once(" test"));
    count.is_some_and(|(number, _)| number.parse::<usize>().is_ok())
}

/// The counts in a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
fn result_of(line: &str) -> Option<Counts> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = Counts::default();
    for part in numbers.split("; ") {
        match part.split_once(' ') {
            Some((number, "passed")) => counts.passed = number.parse().ok()?,
            Some((number, "failed")) => counts.failed = number.parse().ok()?,
            Some((number, "ignored")) => counts.ignored = number.parse().ok()?,
            Some(_) | None => {}
        }
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_is_read_with_its_target_and_its_fate() {
        let output = "\
     Running tests/store_redis.rs (target/debug/deps/store_redis-0123456789abcdef)

running 3 tests
test on_a_cluster::one ... ok
test on_one_server::two ... FAILED
test alone ... ignored, needs Redis

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out
";
        let test = |name: &str, fate| ("store_redis".to_owned(), name.to_owned(), fate);
        let expected = [
            test("on_a_cluster::one", Fate::Passed),
            test("on_one_server::two", Fate::Failed),
            test("alone", Fate::Ignored),
        ];
        assert_eq!(read(output).tests, expected);
    }

    const MIXED: &str = "\
   Compiling oncekey v0.1.0
     Running unittests src/lib.rs (target/debug/deps/oncekey_core-0123456789abcdef)

running 3 tests
test decide::tests::one ... ok
test decide::tests::two ... FAILED
test decide::tests::three ... ignored

failures:

---- decide::tests::two stdout ----
assertion failed
    an indented line of output
failures:
    a line that a test printed

failures:
    decide::tests::two

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

error: test failed, to rerun pass `-p oncekey-core --lib`
   Doc-tests oncekey_core

running 1 test
test crates/core/src/lib.rs - (line 3) ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.20s
";

    #[test]
    fn results_of_several_targets_are_added_up() {
        let results = read(MIXED);
        assert_eq!(results.counts, Counts { passed: 2, failed: 1, ignored: 1 });
        assert_eq!(results.failures, ["oncekey_core: decide::tests::two"]);
    }

    #[test]
    fn a_target_that_dies_counts_as_a_failure() {
        let output = "     Running tests/crash.rs (target/debug/deps/crash-0123456789abcdef)\n\n\
                      running 2 tests\ntest one ... ok\nerror: test failed\n";
        let results = read(output);
        assert_eq!(results.counts, Counts { passed: 0, failed: 1, ignored: 0 });
        assert_eq!(results.failures, ["crash: ended without a result"]);
    }

    #[test]
    fn output_without_tests_counts_nothing() {
        assert_eq!(read("error: could not compile `oncekey`\n    indented\n"), Results::default());
    }

    #[test]
    fn a_cut_result_line_is_not_misread() {
        assert_eq!(result_of("test result: ok. x passed; 0 failed"), None);
        assert_eq!(result_of("test result"), None);
    }
}
