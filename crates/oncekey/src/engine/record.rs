//! Gets the end of an attempt into the store, whatever the store does meanwhile.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use oncekey_core::policy::{Ending, Policy, Retain, Verdict};
use oncekey_core::{ErrorKind, KeyId, Saved, StoreError, Write};

use super::Shared;
use super::attempt::Grip;
use super::end::{End, Entry};
use super::gate::Tracked;
use super::measured::too_slow;
use super::redact::{Redacted, redact};
use super::reply::Recorded;
use super::sentry::Word;
use super::unwritten::Owed;
use super::within::within;

/// How far an end got.
#[derive(Debug)]
pub(super) enum Progress {
    /// It is written, or will never be.
    Final(Recorded),
    /// It is nowhere but in memory. In a box, because it is rare, and what every end returns stays small.
    Pending(Box<Entry>),
}

/// What became of trying to write an end, which stays with whoever asked.
enum Tried {
    /// It is written, or will never be.
    Final(Recorded),
    /// There was no more time.
    GivenUp,
}

/// Who waits while an end is written.
#[derive(Clone, Copy, Debug)]
enum Effort {
    /// The owner, for its answer.
    Owner,
    /// Nobody.
    Background,
}

impl Effort {
    const fn longest_pause(self) -> Duration {
        match self {
            Self::Owner => LONGEST_PAUSE,
            Self::Background => BACKGROUND_PAUSE,
        }
    }
}

/// The pause after the first failure: a store that restarts its connection is back by then.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// While the owner waits for its answer.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Afterwards, when nobody waits.
const BACKGROUND_PAUSE: Duration = Duration::from_secs(5);
/// How long an end without a journal is kept in memory, and a claim without an answer looked for: longer
/// than any restart of a store, and the end of this process loses it anyway.
pub(super) const BACKGROUND: Duration = Duration::from_secs(15 * 60);

impl Shared {
    /// How an attempt ended, as it is written down. `kept` is its answer as
    /// [`kept_form`](Self::kept_form) made it, if it is to be kept.
    pub(super) fn entry(
        &self,
        grip: &Grip,
        policy: &Policy,
        (verdict, ending): (Verdict, Ending),
        kept: Option<&Saved>,
    ) -> Entry {
        let stored = kept.map(|kept| self.vault.seal_answer(&grip.lease, kept));
        Entry { lease: grip.lease, end: End::of(policy, verdict, ending, stored) }
    }

    /// Records how an attempt ended, and says what the owner should be told; `now` is the time, by
    /// uptime. The entry is borrowed, because a future that owns it is copied with it.
    pub(super) async fn record(&self, entry: &mut Entry, now: Duration) -> Progress {
        match self.write(entry, Effort::Owner, now).await {
            Tried::Final(recorded) => Progress::Final(recorded),
            Tried::GivenUp => Box::pin(self.journal(entry)).await,
        }
    }

    /// Goes on trying to write an end that is nowhere but in memory, while its owner has its answer.
    pub(super) fn keep_trying_apart(self: Arc<Self>, entry: Box<Entry>, until: (Tracked, Owed)) {
        let spawner = Arc::clone(&self.spawner);
        spawner.spawn(Box::pin(async move {
            self.keep_trying(entry).await;
            drop(until);
        }));
    }

    /// Whether this node has the end of an attempt of this key, which the store does not have yet.
    pub(super) fn owes(&self, id: &KeyId) -> bool {
        self.unwritten.holds(id) || self.backlog.as_ref().is_some_and(|ends| ends.holds(id))
    }

    async fn keep_trying(&self, mut entry: Box<Entry>) {
        let now = self.uptime.elapsed();
        match self.write(&mut entry, Effort::Background, now).await {
            Tried::Final(_) => {}
            Tried::GivenUp => {
                tracing::error!(fence = %entry.lease.fence, "the end of an attempt is lost");
            }
        }
    }

    /// What is kept of an answer, and what every retry gets; `None` if nothing is.
    pub(super) fn kept_form(policy: &Policy, saved: &Saved) -> Option<Saved> {
        let kept = match &policy.retain {
            Retain::Whole => saved.clone(),
            Retain::StatusOnly => return None,
            Retain::Redacted(paths) => match redact(saved, paths) {
                Redacted::Fit(fit) => fit,
                Redacted::Unfit => return None,
            },
        };
        let fits = kept.body.len() <= policy.limits.saved_body
            && kept.headers.encoded_len() <= policy.limits.saved_headers;
        fits.then_some(kept)
    }

    /// Tries to write an end for as long as the effort says, from `began` on.
    async fn write(&self, entry: &mut Entry, effort: Effort, began: Duration) -> Tried {
        let mut asked = began;
        let mut pause = FIRST_PAUSE;
        let mut in_doubt = false;
        loop {
            // A try that is given up may still take effect, and the next one then finds that out.
            let tried = match &entry.end {
                End::Complete(completion) => {
                    let written = pin!(self.store.completed(&entry.lease, completion, asked));
                    within(self.patience_of(effort), written).await.map(|written| written.result)
                }
                End::Release | End::Unknown => {
                    let written = Box::pin(entry.write(&*self.store));
                    within(self.patience_of(effort), pin!(written)).await
                }
            };
            let error = match tried.unwrap_or_else(|| Err(too_slow())) {
                Ok(Write::Applied) => {
                    self.health.answered();
                    self.note_end(entry, Write::Applied);
                    return Tried::Final(entry.end.recorded());
                }
                // A release leaves nothing that could say that it was ours.
                Ok(Write::Fenced) if in_doubt && entry.end == End::Release => {
                    self.note_end(entry, Write::Applied);
                    return Tried::Final(Recorded::Released);
                }
                // The record is put back soon, and then the end can be written.
                Ok(Write::Fenced) if Box::pin(self.word()).await == Word::Doubtful => forgotten(),
                Ok(Write::Fenced) => {
                    tracing::warn!(fence = %entry.lease.fence, "a late end was refused");
                    self.note_end(entry, Write::Fenced);
                    return Tried::Final(Recorded::Fenced);
                }
                Err(error) => error,
            };
            match (error.kind(), entry.end.without_answer()) {
                (ErrorKind::Unavailable | ErrorKind::Ambiguous, _) => {
                    if let Some(sentry) = &self.sentry {
                        sentry.doubt();
                    }
                    in_doubt |= error.kind() == ErrorKind::Ambiguous;
                    self.health.failed(self.uptime.elapsed());
                }
                // A store that refuses to work as it is set up may be set right. The work is done.
                (ErrorKind::Unsuitable, _) => {
                    tracing::warn!(%error, "the store refuses to take the end of an attempt");
                }
                (ErrorKind::Rejected, Some(smaller)) => {
                    entry.end = smaller;
                    continue;
                }
                (_, _) => {
                    tracing::error!(%error, "the end of an attempt cannot be recorded");
                    return Tried::Final(Recorded::Unrecorded);
                }
            }
            if self.uptime.elapsed().saturating_sub(began) >= self.patience_of(effort) {
                return Tried::GivenUp;
            }
            Box::pin(tokio::time::sleep(pause)).await;
            pause = (pause * 2).min(effort.longest_pause());
            asked = self.uptime.elapsed();
        }
    }

    fn patience_of(&self, effort: Effort) -> Duration {
        match effort {
            Effort::Owner => self.patience,
            Effort::Background => BACKGROUND,
        }
    }

    /// Whether what the store does not know can be taken for gone.
    pub(super) async fn word(&self) -> Word {
        match &self.sentry {
            Some(sentry) => sentry.word().await,
            None => Word::Good,
        }
    }

    /// Notes what the store made of an end.
    fn note_end(&self, entry: &Entry, write: Write) {
        if let Some(sentry) = &self.sentry {
            sentry.wrote(entry, write, self.store_now());
        }
    }

    /// Keeps an end that the store does not take, if there is a journal.
    async fn journal(&self, entry: &Entry) -> Progress {
        let pending = || Progress::Pending(Box::new(entry.clone()));
        let Some(backlog) = &self.backlog else { return pending() };
        match backlog.keep(entry.clone()).await {
            Ok(()) => Progress::Final(Recorded::Journalled),
            Err(error) => {
                tracing::error!(%error, "an end cannot be journalled");
                pending()
            }
        }
    }
}

/// The store has forgotten the attempt. Nothing has changed, and asking again later helps.
fn forgotten() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "the store has forgotten the attempt")
}
