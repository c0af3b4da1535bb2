//! One call that may fail midway, and what must be true of it afterwards.

use std::time::Duration;

use oncekey::core::{
    Claim, Claimed, Completion, ErrorKind, Lease, Refusal, Renewal, Sent, State, Store, StoreError,
    Write,
};
use tokio::time::Instant;

use crate::common::{LONG, answer, claim, completion, win};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Claim,
    Renew,
    Send,
    Complete,
    Release,
    Unknown,
}

/// A call of a verb, on a key of its own.
#[derive(Debug)]
pub(crate) struct Case {
    verb: Verb,
    number: u64,
    claim: Claim,
    /// What the verb is about; a claim begins without one.
    lease: Option<Lease>,
}

/// What the store said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// Won, applied, still held.
    Yes,
    /// Lost or fenced.
    No,
}

/// How a call ended that met a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Answered,
    /// Nothing changed, as it was said.
    Unavailable,
    /// Nobody was told, and it had not happened.
    AmbiguousUndone,
    /// Nobody was told, and it had happened.
    AmbiguousDone,
}

/// How long a request that a server has read may take to change something, for whoever looks whether
/// it did. Only what was said to have changed nothing is waited for.
const LATE: Duration = Duration::from_millis(20);

/// How often somebody asks again. A second connection may be broken too; and for a quarter of a
/// second after no connection could be opened, the PostgreSQL store does not try.
const TRIES: usize = 40;

impl Verb {
    pub(crate) const ALL: [Self; 6] =
        [Self::Claim, Self::Renew, Self::Send, Self::Complete, Self::Release, Self::Unknown];
}

impl Case {
    /// Everything that comes before the call.
    pub(crate) async fn prepare(verb: Verb, number: u64, calm: &impl Store) -> Self {
        let claim = claim(number, number);
        let lease = match verb {
            Verb::Claim => None,
            Verb::Renew | Verb::Send | Verb::Complete | Verb::Release | Verb::Unknown => {
                Some(win(calm, &claim).await.0)
            }
        };
        Self { verb, number, claim, lease }
    }

    /// The call itself.
    pub(crate) async fn ask(&self, store: &impl Store) -> Result<Said, StoreError> {
        let Some(lease) = &self.lease else {
            return Ok(match store.claim(&self.claim).await? {
                Claimed::Won { lease, .. } => {
                    assert_eq!((lease.id, lease.owner), (self.claim.id, self.claim.owner));
                    Said::Yes
                }
                Claimed::Lost { .. } => Said::No,
            });
        };
        let write = match self.verb {
            Verb::Claim | Verb::Renew => {
                let renewals = store.renew(std::slice::from_ref(lease), 2 * LONG).await?;
                return Ok(match renewals[..] {
                    [Renewal::Until(_)] => Said::Yes,
                    [Renewal::Lost] => Said::No,
                    _ => panic!("not an answer to one question: {renewals:?}"),
                });
            }
            Verb::Send => store.send(lease).await?,
            Verb::Complete => store.complete(lease, &self.completion()).await?,
            Verb::Release => store.release(lease).await?,
            Verb::Unknown => store.unknown(lease).await?,
        };
        Ok(match write {
            Write::Applied => Said::Yes,
            Write::Fenced => Said::No,
        })
    }

    /// Asks until it is told. Says how often it had to.
    pub(crate) async fn ask_patiently(&self, store: &impl Store) -> (Said, usize) {
        for tries in 1..=TRIES {
            match self.ask(store).await {
                Ok(said) => return (said, tries),
                Err(error) => self.must_be_about_the_way(&error),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{self:?} is not answered although the way is healthy");
    }

    /// Checks everything that must be true of a call that met a fault which is over.
    pub(crate) async fn settle(
        &self,
        said: Result<Said, StoreError>,
        store: &impl Store,
        calm: &impl Store,
    ) -> End {
        let end = match said {
            // Tries of the store's own may have found their own earlier work: see `Store::release`.
            Ok(said) => {
                assert!(self.has_happened(calm).await, "{self:?}: {said:?}, but it did not happen");
                assert!(said == Said::Yes || self.verb == Verb::Release, "{self:?}: {said:?}");
                End::Answered
            }
            Err(error) => {
                self.must_be_about_the_way(&error);
                if error.kind() == ErrorKind::Unavailable {
                    tokio::time::sleep(LATE).await;
                }
                match (error.kind(), self.has_happened(calm).await) {
                    (ErrorKind::Ambiguous, true) => End::AmbiguousDone,
                    (ErrorKind::Ambiguous, false) => End::AmbiguousUndone,
                    (_, false) => End::Unavailable,
                    (_, true) => panic!("{self:?}: it happened, although it was said: {error:?}"),
                }
            }
        };
        let (again, _) = self.ask_patiently(store).await;
        match self.verb {
            // Whether the first or the second release found the record nobody can say.
            Verb::Release => {}
            Verb::Claim | Verb::Renew | Verb::Send | Verb::Complete | Verb::Unknown => {
                assert_eq!(again, Said::Yes, "{self:?}: an owner that asks again is recognised");
            }
        }
        assert!(self.has_happened(calm).await, "{self:?}: it stands after it was asked again");
        self.meet_a_rival(calm).await;
        end
    }

    /// Whether the record shows what was asked for.
    async fn has_happened(&self, calm: &impl Store) -> bool {
        let found = calm.get(&self.claim.id).await.expect("the server is reached directly");
        let Some(record) = found else { return self.verb == Verb::Release };
        assert_eq!(record.owner, self.claim.owner, "nobody else has asked");
        if let Some(lease) = &self.lease {
            assert!(record.is_held_by(lease), "{self:?}: the fence has changed: {record:?}");
        }
        match (self.verb, &record.state) {
            (Verb::Claim, State::Running { .. }) => true,
            (Verb::Renew, State::Running { until, .. }) => {
                let before = self.lease.expect("it was claimed").until;
                until.since(before) > LONG / 2
            }
            (Verb::Send, State::Running { sent, .. }) => *sent == Sent::Yes,
            (Verb::Complete, State::Done { outcome, answer, .. }) => {
                assert_eq!(*answer, self.completion().answer, "{self:?}");
                *outcome == answer.outcome()
            }
            (Verb::Unknown, State::Unknown { .. }) => true,
            (_, State::Running { .. }) => false,
            (_, state) => panic!("{self:?} never leads to {state:?}"),
        }
    }

    /// Somebody else wants the key.
    async fn meet_a_rival(&self, calm: &impl Store) {
        let rival = claim(self.number, !self.number);
        match (self.verb, calm.claim(&rival).await.expect("the server is reached directly")) {
            (Verb::Release, Claimed::Won { lease, .. }) => {
                let before = self.lease.expect("it was claimed").fence;
                assert!(lease.fence > before, "{} after {before}", lease.fence);
            }
            (Verb::Complete, Claimed::Lost { refusal, .. }) => {
                assert_eq!(refusal, Refusal::Replay, "{self:?}");
            }
            (Verb::Unknown, Claimed::Lost { refusal, .. }) => {
                assert_eq!(refusal, Refusal::Unknown, "{self:?}");
            }
            (Verb::Claim | Verb::Renew | Verb::Send, Claimed::Lost { refusal, .. }) => {
                assert!(matches!(refusal, Refusal::InProgress(_)), "{self:?}: {refusal:?}");
            }
            (_, claimed) => panic!("{self:?}: a rival gets {claimed:?}"),
        }
    }

    fn completion(&self) -> Completion {
        completion(answer(self.number, 40))
    }

    fn must_be_about_the_way(&self, error: &StoreError) {
        let kind = error.kind();
        let is_right = matches!(kind, ErrorKind::Ambiguous | ErrorKind::Unavailable);
        assert!(is_right, "{self:?}: {kind:?}: {error}: {error:?}");
    }
}

/// Waits for something that must end by itself, within `limit`.
pub(crate) async fn within<T>(limit: Duration, what: &str, work: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    // Twice the limit: whatever takes longer is cut off, and told apart from what was only slow.
    match tokio::time::timeout(2 * limit, work).await {
        Ok(done) if begun.elapsed() <= limit => done,
        Ok(_) => panic!("{what} took {:?} instead of at most {limit:?}", begun.elapsed()),
        Err(_) => panic!("{what} did not end within twice {limit:?}"),
    }
}
