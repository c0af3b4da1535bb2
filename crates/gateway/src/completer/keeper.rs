//! Keeps requests, each as a record of its own beside the record of its key.

use std::fmt;
use std::time::Duration;

use oncekey::core::saved::NotKept;
use oncekey::core::{
    Answer, Erased, Fence, Key, KeyId, Record, Restore as _, State, Store as _, StoreError,
    Tombstone,
};
use oncekey::engine::{Engine, Looked, Ran, Recorded, Refused, Reply};
use oncekey::store::Opened;

use super::kept::Kept;
use crate::shelf::Shelf;

/// Keeps requests and finds them again. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Keeper {
    engine: Engine,
    store: Opened,
    shelf: Shelf,
}

/// A request is not kept, so it must not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request could not be kept")]
pub(crate) struct Unkept;

impl Keeper {
    pub(crate) fn new(engine: Engine, store: Opened) -> Self {
        let shelf = Shelf::of_kept_requests(engine.clone());
        Self { engine, store, shelf }
    }

    /// Keeps the request of the key `of` for a time. When this returns, a crash does not lose it.
    ///
    /// Only the owner of the key calls this, so there is one at a time. What an earlier attempt
    /// kept makes way if it is another request; the same one stays for its own time, so that no retry
    /// makes it outlive the first attempt by more. A crash between the two leaves a key without a
    /// request, as one before the keeping does: a retry takes over.
    ///
    /// # Cancellation
    /// The request may be kept or not. Keeping it again is harmless.
    pub(crate) async fn keep(&self, of: &KeyId, kept: &Kept, time: Duration) -> Result<(), Unkept> {
        let saved = kept.to_saved().map_err(|_| Unkept)?;
        // A second try, if the first one found something that had to make way.
        for _ in 0..2 {
            match self.shelf.put(name(of), saved.clone(), time).await {
                Reply::Ran(Ran { recorded: Recorded::Kept | Recorded::Journalled, .. }) => {
                    return Ok(());
                }
                Reply::Replayed(known) if known.saved == saved => return Ok(()),
                Reply::Replayed(_)
                | Reply::Refused(
                    Refused::NotRetained { .. } | Refused::Expired { .. } | Refused::Damaged,
                ) => self.forget(of).await.map_err(|_| Unkept)?,
                Reply::Ran(_) | Reply::Refused(_) => return Err(Unkept),
            }
        }
        Err(Unkept)
    }

    /// The attempt that stands under a key.
    pub(super) async fn fence(&self, of: &KeyId) -> Result<Option<Fence>, StoreError> {
        Ok(self.store.get(of).await?.map(|record| record.fence))
    }

    /// The kept request of a key; `None` if there is none, or its time is over.
    pub(super) async fn find(&self, of: &KeyId) -> Result<Option<Kept>, StoreError> {
        match self.engine.look(&self.id(of)).await? {
            Some(Looked::Done(known)) => Ok(Kept::from_saved(&known.saved)),
            Some(Looked::Running(_) | Looked::Without(_)) | None => Ok(None),
        }
    }

    /// Forgets the kept request of a key, if there is one.
    ///
    /// A finished record never changes, so this puts a newer one in its place whose time is over,
    /// and has that removed. After a crash in between nothing of the request is left either.
    pub(crate) async fn forget(&self, of: &KeyId) -> Result<(), StoreError> {
        let id = self.id(of);
        if let Some(over) = self.store.get(&id).await?.and_then(over) {
            self.store.restore(&over).await?;
        }
        // Also takes it out of memory, from which it would be found.
        let _: Erased = self.engine.erase(&self.store, &id).await?;
        Ok(())
    }

    fn id(&self, of: &KeyId) -> KeyId {
        self.shelf.id(&name(of))
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Keeper")
    }
}

/// How the kept request of a key is called.
fn name(of: &KeyId) -> Key {
    Key::new(of.to_string().as_bytes()).expect("64 digits")
}

/// The record of a kept request as it is when nobody needs it any more; `None` if it is being
/// written just now.
fn over(stored: Record) -> Option<Record> {
    let State::Done { at, outcome, ref answer, .. } = stored.state else { return None };
    let fence = stored.fence.number().checked_add(1).and_then(Fence::from_number)?;
    let answer = Answer::Tombstone(Tombstone { status: answer.status(), reason: NotKept::Expired });
    let state = State::Done { at, expires: at, forget: at, outcome, answer };
    Some(Record { fence, state, ..stored })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use http::{HeaderMap, Method, Uri};
    use oncekey::core::Scope;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    async fn keeper() -> Keeper {
        let store = oncekey::store::open("memory:").await.unwrap();
        Keeper::new(Engine::new(Arc::new(store.clone())).unwrap(), store)
    }

    fn kept(body: &'static str) -> Kept {
        Kept {
            method: Method::POST,
            uri: Uri::from_static("/a"),
            scope: Scope::shared(),
            headers: HeaderMap::new(),
            body: Bytes::from_static(body.as_bytes()),
        }
    }

    #[tokio::test]
    async fn what_is_kept_is_found_under_its_key_until_it_is_forgotten() {
        let keeper = keeper().await;
        let (one, two) = (KeyId::from_bytes([1; 32]), KeyId::from_bytes([2; 32]));
        keeper.keep(&one, &kept("a"), HOUR).await.unwrap();
        keeper.keep(&one, &kept("a"), HOUR).await.unwrap();
        assert_eq!(keeper.find(&one).await.unwrap(), Some(kept("a")));
        assert_eq!(keeper.find(&two).await.unwrap(), None);
        keeper.forget(&two).await.unwrap();
        keeper.forget(&one).await.unwrap();
        assert_eq!(keeper.find(&one).await.unwrap(), None);
        keeper.keep(&one, &kept("a"), HOUR).await.unwrap();
        assert_eq!(keeper.find(&one).await.unwrap(), Some(kept("a")));
    }

    #[tokio::test]
    async fn another_request_takes_the_place_of_the_first() {
        let keeper = keeper().await;
        let id = KeyId::from_bytes([1; 32]);
        for body in ["a", "b", "a"] {
            keeper.keep(&id, &kept(body), HOUR).await.unwrap();
            assert_eq!(keeper.find(&id).await.unwrap(), Some(kept(body)));
        }
    }

    #[tokio::test]
    async fn its_time_ends_it() {
        let keeper = keeper().await;
        let id = KeyId::from_bytes([1; 32]);
        keeper.keep(&id, &kept("a"), Duration::from_millis(50)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(keeper.find(&id).await.unwrap(), None);
        keeper.keep(&id, &kept("a"), HOUR).await.unwrap();
        assert_eq!(keeper.find(&id).await.unwrap(), Some(kept("a")));
    }
}
