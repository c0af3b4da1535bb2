//! One abandoned request, sent again.

use std::sync::Arc;

use http::Request;
use oncekey::core::{Fence, KeyId, StoreError};
use oncekey::engine::{Engine, Looked, Refused};
use oncekey::layer::Outcome;
use tower_service::Service as _;

use super::keeper::Keeper;
use super::kept::Kept;
use crate::plan::Plan;
use crate::route::{Assigned, Route, Treatment};
use crate::upstream::Outgoing;

/// A record that nobody finishes, and everything that is needed to do so.
pub(super) struct Errand {
    /// The same to the end, whatever is reloaded meanwhile.
    pub(super) plan: Arc<Plan>,
    pub(super) route: Arc<Route>,
    pub(super) id: KeyId,
    pub(super) fence: Fence,
    pub(super) engine: Engine,
    pub(super) keeper: Keeper,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The key has an answer, whoever got it.
    Finished,
    /// Somebody has said that nothing happened: the key is free.
    Released,
    /// It has none yet: the upstream is away, or answered that it cannot.
    Open,
    /// Somebody else is at it.
    Elsewhere,
    /// There is no request to send: it was never kept, or its time is over.
    NoRequest,
    /// Under the configuration of today the request would not be the same one.
    Changed,
    /// The store could not be asked.
    Failed,
}

impl Ended {
    /// The word for it in metrics.
    const fn label(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Released => "released",
            Self::Open => "open",
            Self::Elsewhere => "elsewhere",
            Self::NoRequest => "no_request",
            Self::Changed => "changed",
            Self::Failed => "failed",
        }
    }

    /// Whether looking again does not help, until there is another attempt or configuration.
    pub(super) const fn is_hopeless(self) -> bool {
        match self {
            Self::NoRequest | Self::Changed => true,
            Self::Finished | Self::Released | Self::Open | Self::Elsewhere | Self::Failed => false,
        }
    }
}

impl Errand {
    /// Sends the request, if there is one. In a task of its own, so that not even a panic reaches
    /// the others.
    pub(super) async fn run(self) -> (KeyId, Fence, Ended) {
        let (id, fence, route) = (self.id, self.fence, Arc::clone(&self.route.spec.name));
        let ended = match tokio::spawn(async move { self.complete().await }).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(error)) => {
                tracing::warn!(%error, route = &*route, "an abandoned request was not looked at");
                Ended::Failed
            }
            Err(_) => Ended::Failed,
        };
        if ended == Ended::Finished {
            tracing::info!(route = &*route, "an abandoned request was finished");
        }
        metrics::counter!(
            "oncekey_completer_attempts_total", "route" => route, "result" => ended.label()
        )
        .increment(1);
        (id, fence, ended)
    }

    async fn complete(&self) -> Result<Ended, StoreError> {
        // The look that found it may be minutes old.
        match self.keeper.fence(&self.id).await? {
            None => return Ok(Ended::Released),
            Some(fence) if fence != self.fence => return Ok(Ended::Elsewhere),
            Some(_) => {}
        }
        let Some(kept) = self.keeper.find(&self.id).await? else { return Ok(Ended::NoRequest) };
        let Some(request) = self.as_retry(kept) else { return Ok(Ended::Changed) };
        // The answer is in the store, and nobody waits for it.
        let outcome = match self.plan.service.clone().call(request).await {
            Ok(response) => response.extensions().get::<Outcome>().copied(),
            Err(never) => match never {},
        };
        let ended = match outcome {
            Some(Outcome::InProgress) => Ended::Elsewhere,
            Some(
                Outcome::Mismatch
                | Outcome::MissingKey
                | Outcome::InvalidKey
                | Outcome::InvalidRequest,
            ) => Ended::Changed,
            Some(Outcome::StoreUnavailable) => Ended::Failed,
            Some(_) | None => self.found().await?,
        };
        if ended == Ended::Finished {
            // If this fails, its time ends it.
            if let Err(error) = self.keeper.forget(&self.id).await {
                tracing::debug!(%error, "a kept request stays until its time is over");
            }
        }
        Ok(ended)
    }

    /// What the attempt has left in the store.
    async fn found(&self) -> Result<Ended, StoreError> {
        Ok(match self.engine.look(&self.id).await? {
            Some(Looked::Running(_)) => Ended::Elsewhere,
            Some(Looked::Without(Refused::Unknown { .. })) => Ended::Open,
            Some(Looked::Done(_) | Looked::Without(_)) => Ended::Finished,
            // What is kept may be the next request's by now, so its time ends it.
            None => Ended::Released,
        })
    }

    /// The request as a retry of its client would be; `None` if it would be something else by now.
    ///
    /// A route that finds another key in it, or another route, would claim another record, and the
    /// work would be done twice.
    fn as_retry(&self, kept: Kept) -> Option<Request<Outgoing>> {
        let mut head = kept.head();
        let found = self.plan.routes.find(&head.method, head.uri.path())?;
        let rule = self.route.rule_again.as_ref()?;
        let key = rule.key(&head, &kept.body).ok().flatten()?;
        if !Arc::ptr_eq(found, &self.route) || self.engine.key_id(&kept.scope, &key) != self.id {
            return None;
        }
        let route = Arc::clone(&self.route);
        head.extensions.insert(Assigned { route, treatment: Treatment::Complete });
        Some(Request::from_parts(head, Outgoing::from(kept.body)))
    }
}
