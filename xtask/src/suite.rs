//! What the suite that certifies stores said, store by store and case by case.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::libtest::Fate;

/// Where all cases are listed once. Read and not called: this program must not depend on the crates
/// that it tests.
const LISTS: &str = include_str!("../../crates/core/src/conformance/lists.rs");

/// What stands above the names of the stores.
const TITLE: &str = "cases of the suite";

/// The verdicts of a run, and the cases that there are.
#[derive(Clone, Debug)]
pub(crate) struct Suites {
    kinds: Vec<Kind>,
    /// By store and configuration: what became of each of its cases.
    fates: BTreeMap<(String, String), BTreeMap<String, Fate>>,
}

/// The cases for one thing that a store may be able to do.
#[derive(Clone, Debug)]
struct Kind {
    name: String,
    cases: BTreeSet<String>,
}

impl Default for Suites {
    fn default() -> Self {
        Self { kinds: kinds(LISTS), fates: BTreeMap::new() }
    }
}

impl Suites {
    /// Takes note of a test if it is a case: a program's name is the store, and the module in it, if
    /// there is one, the configuration. A case that ran twice is as good as its worse run.
    pub(crate) fn note(&mut self, target: &str, test: &str, fate: Fate) {
        let (configuration, case) = test.rsplit_once("::").unwrap_or(("", test));
        if !self.kinds.iter().any(|kind| kind.cases.contains(case)) {
            return;
        }
        let store = target.strip_prefix("store_").unwrap_or(target);
        let row = self.fates.entry((store.to_owned(), configuration.to_owned())).or_default();
        let worst = row.entry(case.to_owned()).or_insert(fate);
        *worst = (*worst).max(fate);
    }

    /// Every configuration that has some cases of a kind and not all of them: one was forgotten.
    pub(crate) fn forgotten(&self) -> Vec<String> {
        let mut forgotten = Vec::new();
        for ((store, configuration), fates) in &self.fates {
            for kind in self.kinds.iter().filter(|kind| kind.is_tried(fates)) {
                let missing = kind.cases.iter().filter(|case| !fates.contains_key(*case));
                forgotten.extend(missing.map(|case| {
                    format!("the suite of {store} {configuration} lacks {case} ({})", kind.name)
                }));
            }
        }
        forgotten
    }

    /// The table: how many cases of each kind passed, of how many if not all of them did.
    pub(crate) fn text(&self) -> String {
        if self.fates.is_empty() {
            return String::new();
        }
        let names = self.fates.keys();
        let stores = names.clone().map(|(store, _)| store.len()).max().unwrap_or(0);
        let ways = names.map(|(_, way)| way.len()).max().unwrap_or(0);
        let ways = ways.max(TITLE.len().saturating_sub(stores + 2));
        let mut text = format!("\n{TITLE:width$}", width = stores + 2 + ways);
        for kind in &self.kinds {
            let _ = write!(text, "  {:>5}", kind.name);
        }
        text.push('\n');
        for ((store, way), fates) in &self.fates {
            let _ = write!(text, "{store:stores$}  {way:ways$}");
            for kind in &self.kinds {
                let _ = write!(text, "  {:>1$}", kind.cell(fates), kind.name.len().max(5));
            }
            text.push('\n');
        }
        text.push_str(
            "-: none here. Cases of clock need a clock that a test can set, cases of wake a store that \
             wakes\nthose who wait; elsewhere they look again and again.\n",
        );
        text
    }
}

impl Kind {
    fn is_tried(&self, fates: &BTreeMap<String, Fate>) -> bool {
        self.cases.iter().any(|case| fates.contains_key(case))
    }

    fn cell(&self, fates: &BTreeMap<String, Fate>) -> String {
        if !self.is_tried(fates) {
            return "-".to_owned();
        }
        let all = self.cases.len();
        let passed = self.cases.iter().filter(|case| fates.get(*case) == Some(&Fate::Passed));
        match passed.count() {
            passed if passed == all => all.to_string(),
            passed => format!("{passed}/{all}"),
        }
    }
}

/// Reads the macros that list the cases: `browse_conformance_cases` has those of `browse`.
fn kinds(lists: &str) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    for line in lists.lines().map(str::trim) {
        if let Some(list) = line.strip_prefix("macro_rules! ") {
            let name = list.trim_end_matches(" {").trim_end_matches("conformance_cases");
            let name = if name.is_empty() { "every store" } else { name.trim_end_matches('_') };
            kinds.push(Kind { name: name.replace('_', "+"), cases: BTreeSet::new() });
        } else if let (Some(kind), Some((_, case))) = (kinds.last_mut(), line.split_once("::"))
            && line.bytes().all(|byte| byte == b':' || byte == b'_' || byte.is_ascii_lowercase())
        {
            kind.cases.insert(case.to_owned());
        }
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: &str = "
macro_rules! conformance_cases {
    ($then:ident($($arguments:tt)*)) => {
        $crate::$then! { ($($arguments)*)
            claims::one
            races::two
        }
    };
}
macro_rules! erase_browse_conformance_cases {
            erase::three
}
";

    fn suites(tests: &[(&str, &str, Fate)]) -> Suites {
        let mut suites = Suites { kinds: kinds(SHORT), ..Suites::default() };
        for (target, test, fate) in tests {
            suites.note(target, test, *fate);
        }
        suites
    }

    #[test]
    fn every_configuration_says_what_it_kept() {
        let suites = suites(&[
            ("store_redis", "on_a_cluster::one", Fate::Passed),
            ("store_redis", "on_a_cluster::two", Fate::Passed),
            ("store_redis", "on_a_cluster::three", Fate::Ignored),
            ("memory", "one", Fate::Passed),
            ("memory", "two", Fate::Failed),
            ("memory", "two", Fate::Passed),
            ("memory", "four", Fate::Failed),
        ]);
        let expected = "
cases of the suite    every store  erase+browse
memory                        1/2             -
redis   on_a_cluster            2           0/1
";
        let text = suites.text();
        assert!(text.starts_with(expected), "{text}");
        assert_eq!(suites.forgotten(), Vec::<String>::new());
    }

    /// A filter may leave one store with a short name.
    #[test]
    fn short_names_stand_below_their_columns() {
        let text = suites(&[("memory", "one", Fate::Passed)]).text();
        let expected = "
cases of the suite  every store  erase+browse
memory                      1/2             -
";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn a_case_that_a_configuration_lacks_is_named() {
        let suites = suites(&[("store_sqlite", "here::two", Fate::Passed)]);
        let forgotten = "the suite of sqlite here lacks one (every store)";
        assert_eq!(suites.forgotten(), [forgotten]);
    }

    /// The lists are where they are looked for, and say what they are taken to say.
    #[test]
    fn the_lists_of_the_suite_are_found() {
        let kinds = kinds(LISTS);
        let names: Vec<_> = kinds.iter().map(|kind| kind.name.as_str()).collect();
        let expected = ["every store", "browse", "erase", "erase+browse", "restore"];
        assert_eq!(names[..5], expected);
        assert_eq!(names[5..], ["restore+browse", "wake", "clock"]);
        assert!(kinds.iter().all(|kind| !kind.cases.is_empty()));
        assert!(kinds[0].cases.contains("one_of_many_concurrent_claims_wins"));
    }
}
