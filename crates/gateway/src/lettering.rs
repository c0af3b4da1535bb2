//! How the names of fields were written: in upper case, in lower case, or mixed.
//!
//! It means nothing, and `http` keeps names in lower case only. But whoever compares what passes with
//! and without the gateway looks at bytes, and there are old clients and services that search for
//! `Content-Length` letter by letter. So a name goes on as it came.

use bytes::{BufMut as _, Bytes};

/// The names of a head in their order, letter by letter. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lettering(Bytes);

/// A lettering that grows line by line.
#[derive(Debug, Default)]
pub(crate) struct Letters {
    names: Vec<u8>,
    kind: Kind,
}

/// Whether there is anything to remember.
#[derive(Debug, Default, PartialEq, Eq)]
enum Kind {
    /// All in lower case so far, which is how they are written anyway.
    #[default]
    Lower,
    Mixed,
}

/// The names of ten lines, so that the list of a usual head is not moved while it grows.
const USUAL: usize = 160;

impl Letters {
    /// Takes down the name of the next line.
    pub(crate) fn note(&mut self, name: &[u8]) {
        // Nobody sends a longer one: `http` takes none either.
        let Ok(length) = u16::try_from(name.len()) else { return };
        if self.names.is_empty() {
            self.names.reserve(USUAL);
        }
        self.names.put_u16(length);
        self.names.extend_from_slice(name);
        if name.iter().any(u8::is_ascii_uppercase) {
            self.kind = Kind::Mixed;
        }
    }

    /// What there is to remember: nothing, if all names are in lower case.
    pub(crate) fn finish(self) -> Option<Lettering> {
        (self.kind == Kind::Mixed).then(|| Lettering(self.names.into()))
    }
}

impl Lettering {
    /// The first spelling of a name behind the place `from`, and the place behind it. The second line
    /// of a name is written as the second one was.
    pub(crate) fn find(&self, name: &str, from: usize) -> Option<(&[u8], usize)> {
        let mut rest = self.0.get(from..)?;
        while let Some((spelled, behind)) = first(rest) {
            rest = behind;
            if spelled.eq_ignore_ascii_case(name.as_bytes()) {
                return Some((spelled, self.0.len() - rest.len()));
            }
        }
        None
    }

    /// All names, in their order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            let (name, behind) = first(rest)?;
            rest = behind;
            Some(name)
        })
    }

    /// How much memory it takes.
    pub(crate) fn size(&self) -> usize {
        self.0.len()
    }
}

/// The first name of a list, and the others.
fn first(list: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = list.split_first_chunk()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lettering(names: &[&str]) -> Option<Lettering> {
        let mut letters = Letters::default();
        names.iter().for_each(|name| letters.note(name.as_bytes()));
        letters.finish()
    }

    #[test]
    fn each_line_of_a_name_has_the_letters_of_its_own() {
        let whole = lettering(&["Host", "X-b", "ACCEPT", "x-B", "Hos"]).unwrap();
        let (first, behind) = whole.find("x-b", 0).unwrap();
        let (second, last) = whole.find("x-b", behind).unwrap();
        assert_eq!((first, second), (&b"X-b"[..], &b"x-B"[..]));
        assert_eq!(whole.find("x-b", last), None);
        assert_eq!(whole.find("hos", 0).unwrap().0, b"Hos");
        assert_eq!(whole.find("te", 0), None);
        assert_eq!(whole.names().count(), 5);
    }

    #[test]
    fn names_in_lower_case_are_not_worth_remembering() {
        assert_eq!(lettering(&[]), None);
        assert_eq!(lettering(&["host", "x-1_a"]), None);
        assert!(lettering(&["host", "x-A"]).is_some());
    }
}
