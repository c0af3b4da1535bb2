//! Removing records. Whoever removes one raises the high-water mark of fences in the same transaction,
//! last, so that its lock is held no longer than the commit takes: see `claims.rs`.

use oncekey_core::{Fence, KeyId, Lease};

use super::ends;
use super::sql::{self, Tables};

/// Removes the record of a lease that holds it.
pub(super) fn held(tables: &Tables, lease: &Lease) -> String {
    format!("DELETE FROM {} WHERE {}", tables.records, ends::held(lease))
}

/// Removes the answer of an attempt whose record is gone or has a newer one.
pub(super) fn answer(tables: &Tables, id: &KeyId, fence: Fence) -> String {
    let Tables { records, answers, .. } = tables;
    let attempt = format!("`key_id` = {} AND `fence` = {fence}", sql::hex(id.as_bytes()));
    format!(
        "DELETE FROM {answers} WHERE {attempt} \
         AND NOT EXISTS (SELECT 1 FROM {records} WHERE {attempt})"
    )
}

/// Removes the pieces of a record that is gone, up to its fence, and of no other.
pub(super) fn pieces(tables: &Tables, id: &KeyId, fence: Fence) -> String {
    let Tables { records, pieces, .. } = tables;
    let id = sql::hex(id.as_bytes());
    format!(
        "DELETE FROM {pieces} WHERE `key_id` = {id} AND `fence` <= {fence} \
         AND NOT EXISTS (SELECT 1 FROM {records} WHERE `key_id` = {id})"
    )
}

/// Raises the mark to the fence of what was removed.
pub(super) fn raise(tables: &Tables, fence: Fence) -> String {
    let clock = &tables.clock;
    format!("UPDATE {clock} SET `fence` = {fence} WHERE `id` = 1 AND `fence` < {fence}")
}
