//! What must never happen while nothing goes wrong.

use oncekey::core::Claimed;
use oncekey::core::decide::Grant;
use oncekey::engine::{Recorded, Refused};

use super::Judge;
use crate::log::{Note, Told, What};

impl Judge<'_> {
    /// L3 and L7: on a good day leases are kept, nothing is unknown and nobody is turned away.
    pub(super) fn look_calmly(&mut self, what: &What) {
        let text = match what {
            What::Committed { told, .. } => match &**told {
                Told::Claimed(Claimed::Won { grant: Grant::TakenOver, .. }) => {
                    "a lease was lost without a reason"
                }
                Told::Claimed(Claimed::Won { grant: Grant::Again, .. }) => "a claim was made twice",
                _ => return,
            },
            What::Replied { note: Note::Ran { recorded, .. }, .. } => match recorded {
                Recorded::Kept | Recorded::Tombstone(_) => return,
                Recorded::Released
                | Recorded::Unknown
                | Recorded::Journalled
                | Recorded::Fenced
                | Recorded::Unrecorded
                | Recorded::Unprotected => "an answer was not recorded",
            },
            What::Replied { note: Note::Refused(Refused::Unavailable { .. }), .. } => {
                "somebody was turned away"
            }
            What::Replied { note: Note::Refused(Refused::Unknown { .. }), .. } => {
                "something is unknown"
            }
            What::Denied { .. } => "an attempt was not allowed to send",
            _ => return,
        };
        self.wrong("L3", format!("all was well, and {text}"));
    }
}
