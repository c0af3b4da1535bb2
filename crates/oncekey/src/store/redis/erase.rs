//! Blanks what is personal in a record.

use oncekey_core::erase::blank;
use oncekey_core::{Erased, KeyId};

use super::error::Failure;
use super::layout;
use super::life::Witness;
use super::place::shard_of;
use super::reach::Reach;
use super::script::ERASE;
use crate::store::parts::is_forgotten;

impl Reach {
    /// What a blank record looks like is computed here, because it needs new seals; a script puts it
    /// in place if the record is still the one that was read. Each time it is not, somebody else has
    /// got on with it, and that ends: a record is claimed, completed and stripped a few times in its
    /// life.
    pub(super) async fn erase(&self, id: &KeyId) -> Result<(Erased, Witness), Failure> {
        let shard = shard_of(id);
        loop {
            let (now, found) = self.find(id).await?;
            let found = found.filter(|(_, found)| !is_forgotten(&found.record, now));
            let Some((bytes, found)) = found else {
                // Also what the indexes may still have of it.
                let slice = self.purge_slice(&[*id]).await?;
                return Ok((Erased::Absent, slice.witness));
            };
            found.check_outcome()?;
            let mut record = found.record;
            let erased = blank(&mut record);
            let old = layout::halves(&bytes)?;
            let keys = self.names.record_and_mark(id);
            let call = self
                .call(&ERASE, shard, &keys)
                .arg(old.head_and_fence)
                .arg(old.state)
                .arg(old.ending)
                .arg(&layout::new_head(&record)[..])
                .arg(layout::new_tail(&record))
                .arg(layout::new_ending(&record));
            let mut reply = self.ask(shard, &call).await?;
            if reply.code == 1 {
                self.saw(shard, reply.number()?);
                return Ok((erased, reply.witness));
            }
        }
    }
}
