//! What must never happen while nothing goes wrong.

use oncekey::core::Claimed;
use oncekey::core::decide::Grant;
use oncekey::engine::{Recorded, Refused};

use super::Judge;
use crate::log::{Note, Told, What};

impl Judge<'_> {
    /// L3 and L7: on a good day leases are kept, nothing is unknown and nobody is turned away.
    pub(super) fn look_calmly(&mut self, what: &What) {
        if let What::Committed { told, .. } = what
            && let Told::Claimed(Claimed::Won { grant, .. }) = &**told
        {
            match grant {
                Grant::TakenOver => self.spoilt("a lease was lost"),
                Grant::Again => self.spoilt("a claim was made twice"),
                Grant::Fresh | Grant::Reused => {}
            }
        }
        if let What::Denied { .. } = what {
            self.spoilt("an attempt was not allowed to send");
        }
        let What::Replied { note, .. } = what else { return };
        match note {
            Note::Ran { recorded: Recorded::Kept | Recorded::Tombstone(_), .. } => {}
            Note::Ran { .. } => self.spoilt("an answer was not recorded"),
            Note::Refused(Refused::Unavailable { .. }) => self.spoilt("somebody was turned away"),
            Note::Refused(Refused::Unknown { .. }) => self.spoilt("something is unknown"),
            Note::Replayed { .. } | Note::Refused(_) => {}
        }
    }

    fn spoilt(&mut self, how: &str) {
        self.wrong("L3", format!("all was well, and {how}"));
    }
}
