//! What a copy has done, in numbers.

use oncekey_core::KeyId;
use serde::{Deserialize, Serialize};

use super::one::{Ended, One};

/// Counts of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Looked at.
    pub seen: u64,
    /// Written to the target.
    pub written: u64,
    /// Not written, because the target held one that is at least as new.
    pub kept: u64,
    /// Gone from the source before they were read: forgotten or released.
    pub gone: u64,
    /// Read back and found to be the same, or newer.
    pub verified: u64,
    /// Not copied, or not the same when they were read back.
    pub failed: u64,
}

/// What came of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// In numbers, earlier runs included that this one has resumed.
    pub totals: Totals,
    /// How many records there were to copy at the beginning.
    pub expected: usize,
    /// Records that a live pass has left out, because they have not ended.
    pub left: usize,
    /// How many the target has at the end, others than the source's included.
    pub target: usize,
    /// Running records of the source whose owners are gone, if it was a final copy.
    pub lapsed: usize,
    /// Records of the target that have not ended and are not in the source, if it was a final copy:
    /// their keys stay blocked until somebody resolves them.
    pub strangers: usize,
    /// The first records that could not be copied.
    pub failed: Vec<Failed>,
}

/// A record that could not be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Which.
    pub id: KeyId,
    /// Why, in lower case.
    pub why: String,
}

/// More than a person reads; the number of all is in [`Totals::failed`].
const MOST_NAMED: usize = 20;

impl Copied {
    pub(super) fn add(&mut self, One { id, ended }: One) {
        let totals = &mut self.totals;
        totals.seen += 1;
        match ended {
            Ended::Written => totals.written += 1,
            Ended::Kept => totals.kept += 1,
            Ended::Gone => totals.gone += 1,
            Ended::VerifiedWritten => {
                totals.written += 1;
                totals.verified += 1;
            }
            Ended::VerifiedKept => {
                totals.kept += 1;
                totals.verified += 1;
            }
            Ended::Failed(why) => {
                totals.failed += 1;
                if self.failed.len() < MOST_NAMED {
                    self.failed.push(Failed { id, why });
                }
            }
        }
    }
}
