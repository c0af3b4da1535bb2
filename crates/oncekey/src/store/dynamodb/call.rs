//! Asking DynamoDB, and asking again.
//!
//! The library's own retries are off. With them, the last error is all that one hears, and it may
//! be "connection refused" although an earlier try went through. Here every try counts: a call
//! whose outcome is in doubt stays in doubt until an answer settles it. Trying again is safe,
//! because every write is conditional on the fence and the owner that it is made for: the second
//! one finds what the first one did.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::put_item::builders::PutItemFluentBuilder;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValuesOnConditionCheckFailure as OnFailure};
use oncekey_core::{KeyId, StoreError};
use tokio::task::JoinSet;

use super::error::{Effect, Fault, Place, fault_of, stopped};
use super::item::{self, Item};
use crate::entropy::{Entropy, SystemEntropy};

/// How often a call is made before its caller is told that it failed. Four tries with pauses that
/// double outlast the moment that DynamoDB takes to move a partition; more would only pile up
/// behind a real outage.
const TRIES: u32 = 4;
/// The longest first pause.
const PAUSE: Duration = Duration::from_millis(50);

/// The library reads the same code as `fault_of`.
const NO_CONDITION: &str = "a failed condition is the error of that name";

/// A table, and how to talk to it. Cheap to clone.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) client: Client,
    pub(super) place: Place,
}

/// What came of a conditional write.
#[derive(Debug)]
pub(super) enum Written {
    /// It was made; what an update changed, if that was asked for.
    Done(Option<Item>),
    /// Its condition did not hold for this item.
    Failed {
        /// The item that stands there.
        old: Option<Item>,
        /// What earlier tries of the same call may have done.
        earlier: Earlier,
    },
}

/// What the tries before the last one may have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Earlier {
    /// Nothing.
    Nothing,
    /// One of them may have gone through.
    Doubt,
}

/// A call that did not succeed.
struct Trouble<E> {
    error: SdkError<E>,
    fault: Fault,
    earlier: Earlier,
}

impl Caller {
    /// Writes a whole item under a condition.
    pub(super) async fn put(&self, put: PutItemFluentBuilder) -> Result<Written, StoreError> {
        let put = put
            .table_name(&self.place.table)
            .return_values_on_condition_check_failure(OnFailure::AllOld);
        match self.repeat(|| put.clone().send()).await {
            Ok(_) => Ok(Written::Done(None)),
            Err(trouble) if trouble.fault == Fault::Condition => {
                let earlier = trouble.earlier;
                let refused = trouble.error.into_service_error();
                let PutItemError::ConditionalCheckFailedException(failed) = refused else {
                    unreachable!("{NO_CONDITION}")
                };
                let old = failed.item;
                Ok(Written::Failed { old, earlier })
            }
            Err(trouble) => Err(self.give_up(&trouble, Effect::Writes)),
        }
    }

    /// Changes an item under a condition.
    pub(super) async fn update(
        &self,
        update: UpdateItemFluentBuilder,
    ) -> Result<Written, StoreError> {
        let update = update
            .table_name(&self.place.table)
            .return_values_on_condition_check_failure(OnFailure::AllOld);
        match self.repeat(|| update.clone().send()).await {
            Ok(output) => Ok(Written::Done(output.attributes)),
            Err(trouble) if trouble.fault == Fault::Condition => {
                let earlier = trouble.earlier;
                let refused = trouble.error.into_service_error();
                let UpdateItemError::ConditionalCheckFailedException(failed) = refused else {
                    unreachable!("{NO_CONDITION}")
                };
                let old = failed.item;
                Ok(Written::Failed { old, earlier })
            }
            Err(trouble) => Err(self.give_up(&trouble, Effect::Writes)),
        }
    }

    /// Reads an item, never a stale one. `columns` of nothing are all.
    pub(super) async fn get(
        &self,
        id: &KeyId,
        part: &[u8],
        columns: Option<&str>,
    ) -> Result<Option<Item>, StoreError> {
        let get = self
            .client
            .get_item()
            .table_name(&self.place.table)
            .set_key(Some(item::key_of(id, part)))
            .set_projection_expression(columns.map(str::to_owned))
            .consistent_read(true);
        let found = self.read(|| get.clone().send()).await?;
        Ok(found.item)
    }

    /// Removes an item, whatever it is.
    pub(super) async fn delete(&self, key: Item) -> Result<(), StoreError> {
        let delete = self.client.delete_item().table_name(&self.place.table).set_key(Some(key));
        self.change(|| delete.clone().send()).await?;
        Ok(())
    }

    /// Makes a call that changes nothing.
    pub(super) async fn read<T, E, F>(&self, once: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, SdkError<E>>>,
        E: ProvideErrorMetadata,
    {
        self.repeat(once).await.map_err(|trouble| self.give_up(&trouble, Effect::Reads))
    }

    /// Makes a call that changes something and may be repeated as it is.
    pub(super) async fn change<T, E, F>(&self, once: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, SdkError<E>>>,
        E: ProvideErrorMetadata,
    {
        self.repeat(once).await.map_err(|trouble| self.give_up(&trouble, Effect::Writes))
    }

    async fn repeat<T, E, F>(&self, once: impl Fn() -> F) -> Result<T, Trouble<E>>
    where
        F: Future<Output = Result<T, SdkError<E>>>,
        E: ProvideErrorMetadata,
    {
        let mut earlier = Earlier::Nothing;
        for attempt in 1.. {
            let error = match once().await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let fault = fault_of(&error);
            if attempt == TRIES || matches!(fault, Fault::Condition | Fault::Final) {
                return Err(Trouble { error, fault, earlier });
            }
            if fault == Fault::Doubt {
                earlier = Earlier::Doubt;
            }
            tokio::time::sleep(pause(attempt)).await;
        }
        unreachable!("the last try returns")
    }

    fn give_up<E: ProvideErrorMetadata>(&self, trouble: &Trouble<E>, effect: Effect) -> StoreError {
        // What an earlier try may have done is not undone by a later one that was refused.
        let fault = match trouble.earlier {
            Earlier::Doubt => Fault::Doubt,
            Earlier::Nothing => trouble.fault,
        };
        self.place.explain(&trouble.error, fault, effect)
    }
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The client's own output is pages long and shows who signs.
        self.place.fmt(out)
    }
}

/// Runs calls side by side, at most `width` at a time, and gives back what came of them, in order.
/// The first error ends it; what is under way then is dropped, as if the caller had crashed.
pub(super) async fn side_by_side<T, F>(
    calls: impl IntoIterator<Item = F>,
    width: usize,
) -> Result<Vec<T>, StoreError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    let mut waiting = calls.into_iter().enumerate();
    let mut running = JoinSet::new();
    let mut finished = HashMap::new();
    let numbered = |(place, call): (usize, F)| async move { (place, call.await) };
    for call in waiting.by_ref().take(width) {
        running.spawn(numbered(call));
    }
    while let Some(ended) = running.join_next().await {
        let (place, result) = ended.map_err(|_| stopped())?;
        finished.insert(place, result?);
        if let Some(call) = waiting.next() {
            running.spawn(numbered(call));
        }
    }
    let mut ordered: Vec<(usize, T)> = finished.into_iter().collect();
    ordered.sort_by_key(|(place, _)| *place);
    Ok(ordered.into_iter().map(|(_, result)| result).collect())
}

/// A pause before the next try: anything up to twice the longest one before, so that callers who
/// were thrown out together do not come back together.
fn pause(attempt: u32) -> Duration {
    static CHANCE: std::sync::LazyLock<SystemEntropy> =
        std::sync::LazyLock::new(SystemEntropy::default);
    let mut byte = [0; 1];
    CHANCE.fill(&mut byte);
    PAUSE * 2_u32.pow(attempt - 1) * u32::from(byte[0]) / 256
}

/// The values of an expression.
pub(super) type Values<'v> = Vec<(&'v str, AttributeValue)>;

/// As the library wants them. DynamoDB refuses an empty map.
pub(super) fn values_of(values: Values<'_>) -> Option<HashMap<String, AttributeValue>> {
    let values: HashMap<_, _> =
        values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    (!values.is_empty()).then_some(values)
}
