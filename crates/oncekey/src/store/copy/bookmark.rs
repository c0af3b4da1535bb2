//! Where a copy has come to, so that the next run goes on there.

use oncekey_core::browse::Cursor;
use serde::{Deserialize, Serialize};

use super::Pass;
use super::totals::Totals;

/// A place in a copy. Everything before it is in the target, durably.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bookmark {
    pub(super) cursor: Option<Cursor>,
    pub(super) totals: Totals,
    pub(super) pass: Pass,
    /// What the source was like, if it is of a final pass.
    pub(super) trace: String,
}

/// Why a text is no bookmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BookmarkError {
    /// It is not what [`Bookmark::to_json`] writes.
    #[error("it is not the bookmark of a copy")]
    Unreadable,
    /// It is of a copy between other stores.
    #[error("it is the bookmark of a copy between other stores")]
    OtherStores,
    /// It is of a live copy and this is the final one, or the other way round.
    #[error("it is the bookmark of a copy of the other kind, live or final")]
    OtherPass,
}

/// How a bookmark is written down.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    oncekey_copy: u8,
    from: String,
    to: String,
    pass: Pass,
    cursor: String,
    trace: String,
    totals: Totals,
}

/// The format of bookmarks that this version writes.
const FORMAT: u8 = 1;

impl Bookmark {
    /// What has been done up to here.
    #[must_use]
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The bookmark as a line of JSON. `from` and `to` say which stores it belongs to, such as the
    /// texts of their lineages: a place in one store means nothing in another.
    #[must_use]
    pub fn to_json(&self, from: &str, to: &str) -> String {
        let cursor = self.cursor.as_ref().map_or(&[][..], |Cursor(bytes)| bytes);
        let written = Written {
            oncekey_copy: FORMAT,
            from: from.to_owned(),
            to: to.to_owned(),
            pass: self.pass,
            cursor: cursor.iter().map(|byte| format!("{byte:02x}")).collect(),
            trace: self.trace.clone(),
            totals: self.totals,
        };
        serde_json::to_string(&written).unwrap_or_default()
    }

    /// Reads a bookmark of such a pass between these two stores.
    ///
    /// # Errors
    /// If it is none.
    pub fn from_json(text: &str, from: &str, to: &str, pass: Pass) -> Result<Self, BookmarkError> {
        let written: Written = serde_json::from_str(text).map_err(|_| BookmarkError::Unreadable)?;
        if written.oncekey_copy != FORMAT {
            return Err(BookmarkError::Unreadable);
        }
        if (written.from.as_str(), written.to.as_str()) != (from, to) {
            return Err(BookmarkError::OtherStores);
        }
        if written.pass != pass {
            return Err(BookmarkError::OtherPass);
        }
        let bytes = unhex(&written.cursor).ok_or(BookmarkError::Unreadable)?;
        let cursor = (!bytes.is_empty()).then_some(Cursor(bytes));
        Ok(Self { cursor, totals: written.totals, pass, trace: written.trace })
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    let pairs = (0..text.len()).step_by(2).map(|at| text.get(at..at + 2));
    pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bookmark_is_read_as_it_was_written() {
        let totals = Totals { seen: 7, written: 5, kept: 1, gone: 1, ..Totals::default() };
        for cursor in [None, Some(Cursor(vec![0, 9, 255]))] {
            let bookmark = Bookmark { cursor, totals, pass: Pass::Final, trace: "t".to_owned() };
            let text = bookmark.to_json("a", "b");
            let read = |from, to, pass| Bookmark::from_json(&text, from, to, pass);
            assert_eq!(read("b", "a", Pass::Final), Err(BookmarkError::OtherStores));
            assert_eq!(read("a", "b", Pass::Live), Err(BookmarkError::OtherPass));
            assert_eq!(read("a", "b", Pass::Final), Ok(bookmark));
        }
    }

    #[test]
    fn what_is_no_bookmark_is_refused() {
        let sound = Bookmark { cursor: Some(Cursor(vec![1])), ..Bookmark::default() };
        let sound = sound.to_json("a", "b");
        let cut = &sound[..sound.len() - 3];
        let odd = sound.replace("\"01\"", "\"0\"");
        let other = sound.replace("\"01\"", "\"zz\"");
        let newer = sound.replace("\"oncekey_copy\":1", "\"oncekey_copy\":2");
        for text in ["", "{}", "[1]", cut, &odd, &other, &newer] {
            let read = Bookmark::from_json(text, "a", "b", Pass::Live);
            assert_eq!(read, Err(BookmarkError::Unreadable), "{text}");
        }
    }
}
