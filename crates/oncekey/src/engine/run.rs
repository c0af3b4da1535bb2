//! The engine for work that has nothing to do with HTTP: jobs, commands, message handlers.
//!
//! ```
//! use std::sync::Arc;
//! use oncekey::clock::SystemClock;
//! use oncekey::core::{Key, MemoryStore};
//! use oncekey::engine::{Engine, Failure};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::new(Arc::new(MemoryStore::new(Arc::new(SystemClock))))?;
//! let invoices = engine.runner("send-invoice");
//! let key = Key::new(b"invoice-42")?;
//! for _ in 0..2 {
//!     let sent = invoices
//!         .run(&key, invoices.fingerprint(&42)?, async |attempt| {
//!             let _forwarded = attempt.derived_key("mail");
//!             Ok::<_, Failure<std::io::Error>>("sent".to_owned())
//!         })
//!         .await?;
//!     assert_eq!(sent.value, "sent");
//! }
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use bytes::Bytes;
use oncekey_core::{
    Fingerprint, FingerprintRules, Headers, Key, Places, Policy, Saved, Scope, Subject,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::reply::{Ran, Recorded, Refused, Reply};
use super::{Attempt, Call, Engine, Finish, NoSend};

/// Runs one kind of work, each key at most once.
#[derive(Clone, Debug)]
#[must_use]
pub struct Runner {
    engine: Engine,
    name: Arc<str>,
    scope: Scope,
    policy: Arc<Policy>,
}

/// A value, and whether it was made now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made<T> {
    /// The value.
    pub value: T,
    /// Whether this call made it.
    pub now: MadeBy,
}

/// Who made a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MadeBy {
    /// This call; and what became of the value in the store.
    ThisCall(Recorded),
    /// Another call, now or before.
    Another,
}

/// How work failed. What the work knows about its failure decides whether a retry may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// Nothing happened: a retry runs.
    NothingHappened(E),
    /// It may have happened: the policy's class decides. This is what `?` makes of an error.
    MayHaveHappened(E),
}

/// Why there is no value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<E> {
    /// The work ran in this call and failed.
    #[error("the work failed")]
    Failed(Failure<E>),
    /// The work ran, in this call or in another one before, and panicked.
    #[error("the work panicked")]
    Panicked(Recorded),
    /// The work did not begin.
    #[error("the work was not begun: {0}")]
    NotBegun(NoSend),
    /// There is no value, and nothing ran.
    #[error("refused: {}", .0.outcome())]
    Refused(Refused),
    /// A value cannot be written as JSON, or what was kept is not what this type reads.
    #[error("a value does not fit its type")]
    Value(#[from] serde_json::Error),
}

/// How much of a name counts, so that every name makes a scope. Nobody writes longer ones.
const LONGEST_NAME: usize = 255;

/// The status under which a value is recorded.
const VALUE: u16 = 200;

/// What the work of a runner ends with.
enum Outcome<T, E> {
    Value(T),
    Failed(Failure<E>),
    NotBegun(NoSend),
    Unwritable(serde_json::Error),
}

impl Engine {
    /// Runs one kind of work, by name, in a scope of that name and with the default policy.
    ///
    /// No client of a layer on the same engine gets into that scope, and neither does another runner: a
    /// stranger who guesses the key of tonight's job could otherwise use it up.
    pub fn runner(&self, name: &str) -> Runner {
        let policy = Arc::new(Policy::default());
        let counts = &name.as_bytes()[..name.len().min(LONGEST_NAME)];
        let scope = Scope::of_parts(&[b"oncekey-runner", counts]);
        let scope = scope.expect("two short parts, one of which is not empty");
        Runner { engine: self.clone(), name: name.into(), scope, policy }
    }

    /// Runs `work` at most once for `key`: [`Runner::run`] with every default.
    ///
    /// # Errors
    /// See [`RunError`].
    pub async fn run<T, E, W, F>(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        work: W,
    ) -> Result<Made<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Send + 'static,
        W: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Result<T, Failure<E>>> + Send + 'static,
    {
        self.runner("run").run(key, fingerprint, work).await
    }
}

impl Runner {
    /// Whom the keys belong to.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// What the work promises.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Arc::new(policy);
        self
    }

    /// The fingerprint of an input: what must not change between attempts.
    ///
    /// # Errors
    /// If the input cannot be written as JSON.
    pub fn fingerprint<I: Serialize>(&self, input: &I) -> Result<Fingerprint, serde_json::Error> {
        let body = serde_json::to_vec(input)?;
        let subject = Subject {
            method: "RUN",
            path: self.name.as_bytes(),
            query: None,
            content_type: Some(b"application/json"),
            headers: &[],
            body: &body,
        };
        Ok(Fingerprint::v1(&subject, &FingerprintRules::default()).0)
    }

    /// Runs `work` at most once for `key`, and gives everybody its value.
    ///
    /// The send mark is written before `work` is called.
    ///
    /// # Errors
    /// See [`RunError`]. A failure that may have happened is recorded as unknown in class `once`.
    ///
    /// # Cancellation
    /// Dropping the future stops the waiting, not the work.
    pub async fn run<T, E, W, F>(
        &self,
        key: &Key,
        fingerprint: Fingerprint,
        work: W,
    ) -> Result<Made<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Send + 'static,
        W: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Result<T, Failure<E>>> + Send + 'static,
    {
        let call = Call {
            exact: None,
            id: self.engine.key_id(&self.scope, key),
            key: key.clone(),
            scope: self.scope.clone(),
            fingerprint,
            places: Places::default(),
            route: Arc::clone(&self.name),
            request: self.engine.request_id(),
            policy: Arc::clone(&self.policy),
        };
        match self.engine.answer(call, |attempt| finish(attempt, work)).await {
            Reply::Ran(Ran { value: Some(Outcome::Value(value)), recorded, .. }) => {
                Ok(Made { value, now: MadeBy::ThisCall(recorded) })
            }
            Reply::Ran(Ran { value: Some(outcome), .. }) => Err(match outcome {
                Outcome::Failed(failure) => RunError::Failed(failure),
                Outcome::NotBegun(why) => RunError::NotBegun(why),
                Outcome::Unwritable(error) => RunError::Value(error),
                Outcome::Value(_) => unreachable!("matched above"),
            }),
            Reply::Ran(Ran { value: None, recorded, .. }) => Err(RunError::Panicked(recorded)),
            // A policy may count a panic as an answer. A value is always recorded with 200.
            Reply::Replayed(replayed) if replayed.saved.status != VALUE => {
                Err(RunError::Panicked(Recorded::Kept))
            }
            Reply::Replayed(replayed) => {
                let value = serde_json::from_slice(&replayed.saved.body)?;
                Ok(Made { value, now: MadeBy::Another })
            }
            Reply::Refused(refused) => Err(RunError::Refused(refused)),
        }
    }

    /// Makes a handler safe to repeat: the key of each input is found by `key`, its fingerprint is
    /// the whole input.
    pub fn wrap<I, T, E, K, H, F>(
        &self,
        key: K,
        handler: H,
    ) -> impl AsyncFn(I) -> Result<Made<T>, RunError<E>> + use<I, T, E, K, H, F>
    where
        I: Serialize + Send + 'static,
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Send + 'static,
        K: Fn(&I) -> Key,
        H: Fn(I, Attempt) -> F + Clone + Send + 'static,
        F: Future<Output = Result<T, Failure<E>>> + Send + 'static,
    {
        let runner = self.clone();
        async move |input: I| {
            let (key, fingerprint) = (key(&input), runner.fingerprint(&input)?);
            let handler = handler.clone();
            runner.run(&key, fingerprint, move |attempt| handler(input, attempt)).await
        }
    }
}

async fn finish<T, E, W, F>(attempt: Attempt, work: W) -> Finish<Outcome<T, E>>
where
    T: Serialize,
    W: FnOnce(Attempt) -> F,
    F: Future<Output = Result<T, Failure<E>>>,
{
    if let Err(why) = attempt.send().await {
        return Finish::never_sent(Outcome::NotBegun(why));
    }
    match work(attempt).await {
        Ok(value) => match serde_json::to_vec(&value) {
            Ok(body) => {
                let (headers, body) = (Headers::new(), Bytes::from(body));
                Finish::answered(Saved { status: VALUE, headers, body }, Outcome::Value(value))
            }
            Err(error) => Finish::no_answer(Outcome::Unwritable(error)),
        },
        Err(failure @ Failure::NothingHappened(_)) => Finish::never_sent(Outcome::Failed(failure)),
        Err(failure @ Failure::MayHaveHappened(_)) => Finish::no_answer(Outcome::Failed(failure)),
    }
}

impl<E> From<E> for Failure<E> {
    fn from(error: E) -> Self {
        Self::MayHaveHappened(error)
    }
}
