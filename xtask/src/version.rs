//! Version numbers as programs print them.

use std::fmt;

/// Major, minor and patch number; what a program leaves out is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32, pub(crate) u32);

impl Version {
    /// Finds the first dotted number in the answer to `--version`.
    ///
    /// A lone number does not count: it may be part of a name.
    pub(crate) fn find(text: &str) -> Option<Self> {
        text.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(Self::parse)
    }

    /// Whether a program of this version can stand in for one of version `wanted`, by the rule
    /// that Cargo applies to crates.
    pub(crate) fn replaces(self, wanted: Self) -> bool {
        let same_series = self.0 == wanted.0 && (self.0 > 0 || self.1 == wanted.1);
        same_series && self >= wanted
    }

    fn parse(word: &str) -> Option<Self> {
        let mut numbers = word.split('.').map(str::parse::<u32>);
        let major = numbers.next()?.ok()?;
        let minor = numbers.next()?.ok()?;
        let patch = numbers.next().and_then(Result::ok).unwrap_or(0);
        Some(Self(major, minor, patch))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_real_programs_print() {
        let cases = [
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", Version(15, 18, 0)),
            ("mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu", Version(10, 11, 19)),
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0", Version(7, 0, 15)),
            ("cargo-deny 0.20.2", Version(0, 20, 2)),
            ("setpriv from util-linux 2.38.1", Version(2, 38, 1)),
        ];
        for (text, version) in cases {
            assert_eq!(Version::find(text), Some(version), "{text}");
        }
        assert_eq!(Version::find("no number, only 64 and ..."), None);
    }

    #[test]
    fn only_the_same_series_replaces_a_version() {
        let wanted = Version(0, 20, 2);
        assert!(Version(0, 20, 3).replaces(wanted));
        assert!(!Version(0, 20, 1).replaces(wanted));
        assert!(!Version(0, 21, 0).replaces(wanted));
        assert!(Version(1, 6, 0).replaces(Version(1, 5, 0)));
        assert!(!Version(2, 0, 0).replaces(Version(1, 5, 0)));
    }
}
