//! Whether the user of the store may do what the store does.
//!
//! Each right is tried by a statement that has nothing to do: the server looks at rights before it looks
//! for rows. What the grants say would have to be put together from those of the user, of its roles and
//! of every level.

use oncekey_core::StoreError;

use super::error::{DENIED, Trouble, unsuitable};
use super::session::Session;
use super::sql::Tables;

/// Refuses a user that lacks a right, and names the table and the right.
pub(super) async fn check(session: &mut Session, tables: &Tables) -> Result<(), StoreError> {
    for (table, right, statement) in trials(tables) {
        match session.run(&[statement]).await {
            Ok(_) => {}
            Err(trouble) if trouble.code().is_some_and(|code| DENIED.contains(&code)) => {
                return Err(unsuitable(format!(
                    "the user may not {right} in {table}: grant it SELECT, INSERT, UPDATE and \
                     DELETE on the tables of oncekey"
                )));
            }
            Err(trouble) => return Err(Trouble::of_read(trouble)),
        }
    }
    Ok(())
}

/// Every right that is needed: the table, the word for it, and a statement that needs it.
fn trials(tables: &Tables) -> Vec<(&str, &'static str, String)> {
    let Tables { records, answers, pieces, clock, .. } = tables;
    let mut trials = Vec::new();
    for (table, column) in [(records, "at"), (answers, "due"), (pieces, "part")] {
        let (table, nothing) = (table.as_str(), "WHERE 1 = 0");
        trials.extend([
            (table, "SELECT", format!("SELECT `{column}` FROM {table} {nothing}")),
            (table, "INSERT", format!("INSERT INTO {table} SELECT * FROM {table} {nothing}")),
            (table, "UPDATE", format!("UPDATE {table} SET `{column}` = 0 {nothing}")),
            (table, "DELETE", format!("DELETE FROM {table} {nothing}")),
        ]);
    }
    // Its row is made with the tables, and is never removed.
    let clock = clock.as_str();
    trials.push((clock, "SELECT", format!("SELECT `fence` FROM {clock} WHERE 1 = 0")));
    trials.push((clock, "UPDATE", format!("UPDATE {clock} SET `fence` = 0 WHERE 1 = 0")));
    trials
}
