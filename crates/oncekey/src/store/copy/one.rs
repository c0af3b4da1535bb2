//! One record on its way from a store to another.

use std::sync::Arc;
use std::time::Duration;

use oncekey_core::browse::Browse;
use oncekey_core::saved::NotKept;
use oncekey_core::{Answer, ErrorKind, KeyId, Record, Restored, State, StoreError, Tombstone};

use super::compare::{Compared, compare};
use super::{CopyError, Target, Verify};

/// From where to where.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) from: Arc<dyn Browse>,
    pub(super) to: Arc<dyn Target>,
    pub(super) verify: Verify,
}

/// What became of a record.
#[derive(Debug)]
pub(super) struct One {
    pub(super) id: KeyId,
    pub(super) ended: Ended,
}

/// How it ended.
#[derive(Debug)]
pub(super) enum Ended {
    Written,
    Kept,
    VerifiedWritten,
    VerifiedKept,
    Gone,
    Failed(String),
}

/// How often a store that does not answer is asked again, and after how long for the first time.
/// With twice the pause each time that is three seconds: a server that restarts is waited for, one
/// that is down is reported.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// One in so many is compared in a sample.
const SAMPLE: u8 = 64;

impl Way {
    pub(super) async fn copy(self: Arc<Self>, id: KeyId) -> Result<One, CopyError> {
        let ended = self.end_of(&id).await?;
        Ok(One { id, ended })
    }

    async fn end_of(&self, id: &KeyId) -> Result<Ended, CopyError> {
        let record = match patiently(|| self.from.get(id)).await {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(Ended::Gone),
            Err(error) => return about_one(error, CopyError::Source),
        };
        let restored = match patiently(|| self.to.restore(&record)).await {
            Ok(restored) => restored,
            Err(error) => return about_one(error, CopyError::Target),
        };
        if restored == Restored::Kept
            && let Err(error) = self.erase_too(&record).await
        {
            return about_one(error, CopyError::Target);
        }
        if !self.verify.chooses(id) {
            return Ok(match restored {
                Restored::Written => Ended::Written,
                Restored::Kept => Ended::Kept,
            });
        }
        self.verified(record, restored).await
    }

    /// An answer that was erased in the source since it was copied is erased in the target, too: it
    /// is no newer record, and would otherwise stay.
    async fn erase_too(&self, record: &Record) -> Result<(), StoreError> {
        if !is_erased(record) {
            return Ok(());
        }
        let found = patiently(|| self.to.get(&record.id)).await?;
        if found.is_some_and(|found| found.fence == record.fence && !is_erased(&found)) {
            // What it says of it is what the verification sees.
            let _ = patiently(|| self.to.erase(&record.id)).await?;
        }
        Ok(())
    }

    /// Reads the record back. If it differs, both are read once more: the source may have gone on.
    async fn verified(&self, record: Record, restored: Restored) -> Result<Ended, CopyError> {
        let id = record.id;
        let mut source = Some(record);
        let mut said = Compared::Same;
        for _ in 0..2 {
            let Some(record) = &source else { return Ok(Ended::Gone) };
            let target = match patiently(|| self.to.get(&id)).await {
                Ok(target) => target,
                Err(error) => return about_one(error, CopyError::Target),
            };
            said = compare(record, target.as_ref());
            if said == Compared::Same {
                return Ok(match restored {
                    Restored::Written => Ended::VerifiedWritten,
                    Restored::Kept => Ended::VerifiedKept,
                });
            }
            source = match patiently(|| self.from.get(&id)).await {
                Ok(source) => source,
                Err(error) => return about_one(error, CopyError::Source),
            };
        }
        let what = match said {
            Compared::Differs(what) => what,
            Compared::Same => unreachable!("it was returned"),
        };
        // A live source may have gone further since it was read: that is for the next pass.
        Ok(match source {
            None => Ended::Gone,
            Some(_) => Ended::Failed(format!("the copy differs: {what}")),
        })
    }
}

impl Verify {
    fn chooses(self, id: &KeyId) -> bool {
        let [.., last] = id.as_bytes();
        match self {
            Self::All => true,
            Self::Sample => last.is_multiple_of(SAMPLE),
        }
    }
}

/// Asks again while the store does not answer. Everything that is asked here may be asked twice.
pub(super) async fn patiently<T, F>(mut ask: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut pause = FIRST_PAUSE;
    for _ in 0..TRIES {
        match ask().await {
            Err(error) if is_passing(error.kind()) => {}
            answered => return answered,
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    ask().await
}

fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Ambiguous)
}

/// What concerns one record does not stop the others.
fn about_one(
    error: StoreError,
    of_all: impl FnOnce(StoreError) -> CopyError,
) -> Result<Ended, CopyError> {
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Rejected => Ok(Ended::Failed(error.to_string())),
        ErrorKind::Unavailable | ErrorKind::Ambiguous | ErrorKind::Unsuitable | _ => {
            Err(of_all(error))
        }
    }
}

fn is_erased(record: &Record) -> bool {
    let erased = NotKept::Erased;
    matches!(
        &record.state,
        State::Done { answer: Answer::Tombstone(Tombstone { reason, .. }), .. } if *reason == erased
    )
}
