//! What can go wrong between here and DynamoDB, and what the caller can do about it.

use std::error::Error;
use std::io;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use oncekey_core::{ErrorKind, StoreError};
use url::Url;

/// Where the table is, for texts. Holds no credential.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) table: String,
    region: String,
    /// Host and port of an endpoint that was given, without whatever else its URL says.
    endpoint: Option<String>,
}

/// What a failed call may have done, and whether it is worth another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A condition did not hold: a decision, not an error.
    Condition,
    /// Provably nothing happened, and it may work a moment later.
    Nothing,
    /// It may have happened.
    Doubt,
    /// Nothing happened, and trying again will not help.
    Final,
}

/// Whether a call changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Reads,
    Writes,
}

impl Place {
    pub(super) fn new(table: &str, region: Option<&str>, endpoint: Option<&str>) -> Self {
        let endpoint = endpoint.map(|text| {
            let url = Url::parse(text).ok();
            let host = url.as_ref().and_then(Url::host_str).unwrap_or("(not a URL)");
            match url.as_ref().and_then(Url::port_or_known_default) {
                Some(port) => format!("{host}:{port}"),
                None => host.to_owned(),
            }
        });
        let region = region.unwrap_or("(none)").to_owned();
        Self { table: table.to_owned(), region, endpoint }
    }

    fn text(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => format!("at {endpoint} (region {})", self.region),
            None => format!("in region {}", self.region),
        }
    }

    /// The table does not exist where we looked.
    pub(super) fn no_table(&self) -> StoreError {
        unsuitable(format!(
            "there is no table {:?} {}: check the name, the region and the account, or have it \
             made (`missing=create` in the URL, or `table_json`)",
            self.table,
            self.text()
        ))
    }

    /// Says what to do about a call that did not succeed.
    pub(super) fn explain<E: ProvideErrorMetadata>(
        &self,
        error: &SdkError<E>,
        fault: Fault,
        effect: Effect,
    ) -> StoreError {
        let found = self.complaint(error);
        let kind = match (&found, fault, effect) {
            (_, Fault::Doubt, Effect::Writes) => ErrorKind::Ambiguous,
            (_, Fault::Doubt, Effect::Reads) | (_, Fault::Nothing, _) => ErrorKind::Unavailable,
            ((kind, _), Fault::Final | Fault::Condition, _) => *kind,
        };
        StoreError::new(kind, found.1).with_source(Cause::of(error))
    }

    /// What is wrong, if the service or the way to it says so.
    fn complaint<E: ProvideErrorMetadata>(&self, error: &SdkError<E>) -> (ErrorKind, String) {
        use ErrorKind::{Rejected, Unavailable, Unsuitable};
        let (table, place) = (&self.table, self.text());
        let Some(code) = error.code() else { return (Unavailable, self.unreached(error)) };
        match code {
            "ResourceNotFoundException" => (Unsuitable, self.no_table().to_string()),
            "AccessDeniedException" | "AccessDenied" | "NotAuthorized" => (
                Unsuitable,
                format!(
                    "these credentials may not use table {table:?} {place}: allow the actions \
                     that the documentation of the store lists"
                ),
            ),
            "ExpiredTokenException" | "ExpiredToken" | "RequestExpired" => (
                Unavailable,
                "the session token of the AWS credentials has expired: refresh them".to_owned(),
            ),
            "UnrecognizedClientException"
            | "InvalidSignatureException"
            | "IncompleteSignatureException"
            | "IncompleteSignature"
            | "MissingAuthenticationTokenException"
            | "MissingAuthenticationToken"
            | "InvalidClientTokenId" => (
                Unsuitable,
                format!(
                    "DynamoDB {place} does not accept the AWS credentials ({code}): check the \
                     keys, the region and this machine's clock"
                ),
            ),
            "ValidationException" if is_too_large(error) => {
                (Rejected, "the record is larger than an item of DynamoDB may be".to_owned())
            }
            "ValidationException" => (
                Unsuitable,
                format!(
                    "table {table:?} {place} does not take what this store writes: was it made \
                     from `table_json`?"
                ),
            ),
            "ItemCollectionSizeLimitExceededException" => (
                Unsuitable,
                format!("table {table:?} has a local index, which limits a key: remove it"),
            ),
            "ProvisionedThroughputExceededException"
            | "ThrottlingException"
            | "RequestLimitExceeded"
            | "LimitExceededException" => (
                Unavailable,
                format!("DynamoDB throttles table {table:?} ({code}): raise its capacity"),
            ),
            _ => (Unavailable, format!("DynamoDB {place} answered {code}")),
        }
    }

    fn unreached<E>(&self, error: &SdkError<E>) -> String {
        let place = self.text();
        match error {
            SdkError::TimeoutError(_) => format!("DynamoDB {place} did not answer in time"),
            SdkError::ConstructionFailure(_) | SdkError::DispatchFailure(_)
                if mentions(error, "credentials") =>
            {
                "there are no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, \
                 a profile, or a role for this machine"
                    .to_owned()
            }
            SdkError::DispatchFailure(_) => {
                format!("DynamoDB {place} cannot be reached: check the endpoint and the network")
            }
            SdkError::ResponseError(_) | SdkError::ServiceError(_) => {
                format!("what answers {place} does not speak like DynamoDB: check the endpoint")
            }
            SdkError::ConstructionFailure(_) | _ => format!("DynamoDB {place} could not be asked"),
        }
    }
}

/// Sorts a failed call.
///
/// A service error other than those named here is final: the service has looked at the call and
/// refused it. Its own failures (500, 503) say nothing about what happened. A connection that was
/// refused, a name that does not resolve and credentials that are missing prove that nothing was
/// sent; any other broken connection may have carried the call.
pub(super) fn fault_of<E: ProvideErrorMetadata>(error: &SdkError<E>) -> Fault {
    match error {
        SdkError::ServiceError(context) => match context.err().code() {
            Some("ConditionalCheckFailedException") => Fault::Condition,
            Some(
                "ProvisionedThroughputExceededException"
                | "ThrottlingException"
                | "RequestLimitExceeded"
                // Another transaction is at the same item, or another region at the same key.
                | "TransactionConflictException"
                | "ReplicatedWriteConflictException",
            ) => Fault::Nothing,
            Some("InternalServerError" | "InternalFailure" | "ServiceUnavailable") => Fault::Doubt,
            Some(_) if context.raw().status().is_server_error() => Fault::Doubt,
            Some(_) => Fault::Final,
            // Not an answer of DynamoDB: something stands in between, or in its place.
            None => Fault::Doubt,
        },
        SdkError::ConstructionFailure(_) => Fault::Final,
        SdkError::DispatchFailure(failure) if failure.is_user() => Fault::Final,
        SdkError::DispatchFailure(_) if mentions(error, "credentials") => Fault::Final,
        SdkError::DispatchFailure(_) if is_unsent(error) => Fault::Nothing,
        SdkError::TimeoutError(_)
        | SdkError::DispatchFailure(_)
        | SdkError::ResponseError(_)
        | _ => Fault::Doubt,
    }
}

pub(super) fn unsuitable(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Unsuitable, message)
}

/// Others were faster again and again.
pub(super) fn contended() -> StoreError {
    StoreError::new(
        ErrorKind::Unavailable,
        "too many callers change the same record at the same time: ask again",
    )
}

/// A task of ours was ended with the runtime.
pub(super) fn stopped() -> StoreError {
    StoreError::new(ErrorKind::Ambiguous, "the runtime stopped while a call was under way")
}

/// The texts of an error and what caused it, without the request or the response: their debug
/// output may hold keys and bodies.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Cause(String);

impl Cause {
    fn of<E: ProvideErrorMetadata>(error: &SdkError<E>) -> Self {
        if let Some(code) = error.code() {
            // A message of the service may quote what it was sent.
            return Self(code.to_owned());
        }
        let mut texts = vec![kind_of(error).to_owned()];
        let mut next = inner(error);
        while let Some(cause) = next {
            texts.push(cause.to_string());
            next = cause.source();
        }
        Self(texts.join(": "))
    }
}

const fn kind_of<E>(error: &SdkError<E>) -> &'static str {
    match error {
        SdkError::ConstructionFailure(_) => "the request could not be made",
        SdkError::TimeoutError(_) => "time-out",
        SdkError::DispatchFailure(_) => "the request could not be sent",
        SdkError::ResponseError(_) => "the answer could not be read",
        SdkError::ServiceError(_) => "refused",
        _ => "unknown",
    }
}

/// What is behind a failure of the way to the service.
fn inner<E>(error: &SdkError<E>) -> Option<&(dyn Error + 'static)> {
    let SdkError::DispatchFailure(failure) = error else { return None };
    failure.as_connector_error().map(|error| error as &(dyn Error + 'static))
}

/// Whether the connection was never made.
fn is_unsent<E>(error: &SdkError<E>) -> bool {
    let mut next = inner(error);
    while let Some(cause) = next {
        if let Some(broken) = cause.downcast_ref::<io::Error>()
            && matches!(
                broken.kind(),
                io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable
                    | io::ErrorKind::AddrNotAvailable
            )
        {
            return true;
        }
        // The name did not resolve. The library has no type for it that could be named here.
        if cause.to_string().contains("dns error") {
            return true;
        }
        next = cause.source();
    }
    false
}

/// Whether a cause of the failure says `word`.
fn mentions<E>(error: &SdkError<E>, word: &str) -> bool {
    let mut next = inner(error);
    while let Some(cause) = next {
        if cause.to_string().contains(word) {
            return true;
        }
        next = cause.source();
    }
    false
}

fn is_too_large<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    error.message().is_some_and(|text| text.contains("size"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I52: what an endpoint's URL says beyond its host is nobody's business.
    #[test]
    fn a_place_shows_no_secret() {
        let place = Place::new("t", Some("eu-west-1"), Some("http://me:secret@host:81/x?y=secret"));
        let shown = format!("{} {place:?}", place.no_table());
        assert!(shown.contains("host:81") && !shown.contains("secret"), "{shown}");
        let odd = Place::new("t", None, Some("secret"));
        assert!(!format!("{odd:?} {}", odd.text()).contains("secret"));
    }
}
