//! Forgetting whom records were about, without forgetting that the work was done.

use oncekey_core::browse::{Browse, Cursor, Filter, Page};
use oncekey_core::erase::{Erase, Erased};
use oncekey_core::{KeyId, Scope, StateKind, StoreError};

use super::Engine;

/// What came of erasing a scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErasedScope {
    /// Finished records that hold nothing personal any more.
    pub blanked: usize,
    /// Records whose work has not ended, or whose outcome nobody knows. They were left alone,
    /// because their answers are still to come: erase the scope again when they have ended.
    pub unfinished: usize,
}

impl Engine {
    /// Erases what is personal in one record: its key, its scope, its answer. That the work was
    /// done stays, so a retry is still refused.
    ///
    /// `store` is the engine's own. Answers that other processes keep in memory are gone within a
    /// minute; copies and backups of the store are not touched.
    ///
    /// # Errors
    /// If the store could not be asked. Erasing again is harmless.
    pub async fn erase<S>(&self, store: &S, id: &KeyId) -> Result<Erased, StoreError>
    where
        S: Erase + ?Sized,
    {
        let erased = store.erase(id).await;
        // Also after an error, which may have come after the effect.
        self.0.finished.forget(id);
        erased
    }

    /// Erases what is personal in every finished record of a scope.
    ///
    /// # Errors
    /// If the store could not be asked. What was erased before stays erased.
    ///
    /// # Cancellation
    /// Dropping the future stops between two records, or in one. Erasing again goes on from there.
    pub async fn erase_scope<S>(&self, store: &S, scope: &Scope) -> Result<ErasedScope, StoreError>
    where
        S: Browse + Erase + ?Sized,
    {
        let mut total = ErasedScope::default();
        // The same scope is stored in another form under each key of the ring.
        for form in self.0.vault.scope_forms(scope) {
            let filter = Filter { scope: Some(form), ..Filter::default() };
            let mut after: Option<Cursor> = None;
            loop {
                let listing = store.list(&filter, &Page { after, ..Page::default() }).await?;
                for summary in &listing.summaries {
                    if summary.state != StateKind::Done {
                        total.unfinished += 1;
                        continue;
                    }
                    match self.erase(store, &summary.id).await? {
                        Erased::Blank => total.blanked += 1,
                        Erased::Unfinished => total.unfinished += 1,
                        Erased::Absent => {}
                    }
                }
                match listing.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
        }
        Ok(total)
    }
}
