//! Removing what is over.
//!
//! Should nobody purge, Redis removes finished records by itself, a week after they may be forgotten.
//! Then a purge still clears the indexes.

use futures_util::future::try_join_all;
use oncekey_core::KeyId;
use oncekey_core::store::Purged;
use redis::Value;

use super::error::Failure;
use super::life::Witness;
use super::place::{shard_of, shards};
use super::reach::Reach;
use super::script::{Call, DUE, PURGE};

/// The most records that one script purges: below a millisecond of the server's time.
const SLICE: usize = 100;

/// What came of a slice.
#[derive(Debug)]
pub(super) struct Slice {
    purged: Purged,
    /// How many key ids were put off, or taken from the index of what is due.
    moved: usize,
    /// Who did it.
    pub(super) witness: Witness,
}

impl Reach {
    pub(super) async fn purge(&self, limit: usize) -> Result<Purged, Failure> {
        let mut purged = Purged::default();
        while purged.total() < limit {
            let due = self.due(limit - purged.total()).await?;
            if due.is_empty() {
                break;
            }
            let slices = due.chunk_by(|a, b| shard_of(a) == shard_of(b));
            let slices = slices.flat_map(|ids| ids.chunks(SLICE));
            let mut moved = 0;
            for slice in try_join_all(slices.map(|ids| self.purge_slice(ids))).await? {
                purged.forgotten += slice.purged.forgotten;
                purged.stripped += slice.purged.stripped;
                moved += slice.moved;
            }
            // Then the next round would find the same: another process has been quicker, or what is
            // due cannot be put off.
            if moved == 0 {
                break;
            }
        }
        Ok(purged)
    }

    /// Key ids that are due, at most `limit`, those of a shard side by side. Every one of them is
    /// in an index, from which a purge takes it or puts it off.
    async fn due(&self, limit: usize) -> Result<Vec<KeyId>, Failure> {
        let limit = limit.min(SLICE * 16);
        let due = |shard| async move {
            let call = Call::new(&DUE, [self.names.due(shard)]).arg(limit);
            let (value, _) = self.servers.read_by(self.names.slot(shard), &call).await?;
            let Value::Array(ids) = value else { return Err(Failure::Odd("an index")) };
            Ok(ids)
        };
        let mut found = Vec::new();
        for id in try_join_all(shards().map(due)).await?.into_iter().flatten().take(limit) {
            found.push(id_of(&id)?);
        }
        Ok(found)
    }

    /// Purges key ids of one shard.
    pub(super) async fn purge_slice(&self, ids: &[KeyId]) -> Result<Slice, Failure> {
        let shard = ids.first().map_or(0, shard_of);
        let names = &self.names;
        let indexes = [names.mark(shard), names.done(shard), names.due(shard)];
        let mut keys: Vec<Vec<u8>> = indexes.map(|name| name.as_bytes().to_vec()).into();
        keys.extend(ids.iter().map(|id| names.record(id)));
        let mut call = self.call(&PURGE, shard, &keys);
        for id in ids {
            call = call.arg(&id.as_bytes()[..]);
        }
        let mut reply = self.ask(shard, &call).await?;
        let mut count = || usize::try_from(reply.number()?).map_err(|_| Failure::Odd("a purge"));
        let purged = Purged { forgotten: count()?, stripped: count()? };
        let moved = count()?;
        Ok(Slice { purged, moved, witness: reply.witness })
    }
}

/// A key id as it stands in an index.
pub(super) fn id_of(value: &Value) -> Result<KeyId, Failure> {
    let Value::BulkString(bytes) = value else { return Err(Failure::Odd("an index")) };
    let bytes = bytes.as_slice().try_into().map_err(|_| Failure::Odd("an index"))?;
    Ok(KeyId::from_bytes(bytes))
}
