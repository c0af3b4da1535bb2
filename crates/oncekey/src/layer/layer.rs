//! How a layer is put together.

use std::fmt;
use std::sync::{Arc, Once};

use http::request::Parts;
use http::{Extensions, HeaderName, Request, Uri};
use oncekey_core::policy::InFlight;
use tower_layer::Layer;

use super::exact::Exactly;
use super::outcome::{Outcome, Outcomes};
use super::rule::{Mode, Presence, Rule};
use super::scope::ScopeFrom;
use super::service::Idempotency;
use super::status::StatusPath;
use crate::engine::{Engine, RequestId};
use crate::problem;

/// Makes the services behind it safe to retry. Cheap to clone; all clones are one layer.
#[derive(Clone, Debug)]
pub struct IdempotencyLayer(Arc<Config>);

/// Puts a layer together. Everything but the engine has a default; set a [scope](Self::scope).
#[derive(Debug)]
#[must_use]
pub struct LayerBuilder {
    config: Config,
    scope: Option<ScopeFrom>,
}

/// A setting that no layer can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// The prefix of status URLs is not a path.
    #[error("a status path begins and ends with a slash and holds only what a path may hold")]
    StatusPath,
    /// The page that explains the problems has an address that no header can hold.
    #[error("the base of problem types is a URI without a fragment")]
    Problems,
}

/// What the layer does with a request.
pub(super) enum Admission {
    /// Nothing.
    Pass,
    /// It is protected by this rule, or refused by it.
    Keyed(Arc<Rule>),
    /// It asks what became of a key.
    Status,
}

/// Everything that the services of a layer share.
pub(super) struct Config {
    pub(super) engine: Engine,
    pub(super) scope: ScopeFrom,
    pub(super) problems: Box<str>,
    pub(super) status: Option<StatusPath>,
    /// Where a status URL looks besides `scope`.
    pub(super) status_scopes: Vec<ScopeFrom>,
    /// The scope of a rule by its name. If somebody said so, status URLs are held to it.
    pub(super) rule_scopes: Option<Box<FindScope>>,
    pub(super) exactly: Exactly,
    pub(super) key_hash: KeyHash,
    pub(super) outcomes: Outcomes,
    rules: Rules,
    request_id: Option<HeaderName>,
    original_uri: Option<Box<FindUri>>,
    no_status_path: Once,
}

/// Whether spans, and so logs, show a digest of each key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeyHash {
    /// Its first eight digits, by which a record can be found.
    #[default]
    Shown,
    /// Nothing of it.
    Hidden,
}

type FindUri = dyn for<'e> Fn(&'e Extensions) -> Option<&'e Uri> + Send + Sync;
type FindScope = dyn Fn(&str) -> Option<ScopeFrom> + Send + Sync;
type Choose = dyn Fn(&Parts) -> Option<Arc<Rule>> + Send + Sync;

/// Where the rule of a request comes from.
enum Rules {
    One(Arc<Rule>),
    Choose(Box<Choose>),
}

impl IdempotencyLayer {
    /// Begins a layer in front of `engine`, with an optional key on every POST and PATCH.
    pub fn builder(engine: Engine) -> LayerBuilder {
        let config = Config {
            exactly: Exactly::new(engine.chance()),
            engine,
            scope: ScopeFrom::credential(),
            status_scopes: Vec::new(),
            rule_scopes: None,
            problems: problem::DEFAULT_BASE.into(),
            status: None,
            key_hash: KeyHash::default(),
            outcomes: Outcomes::default(),
            rules: Rules::One(Arc::new(Rule::new("all"))),
            request_id: None,
            original_uri: None,
            no_status_path: Once::new(),
        };
        LayerBuilder { config, scope: None }
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Idempotency<S> {
        Idempotency::new(inner, Arc::clone(&self.0))
    }
}

impl LayerBuilder {
    /// Sets one rule for every request.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.config.rules = Rules::One(Arc::new(rule));
        self
    }

    /// Asks `choose` for the rule of each request; a request without one passes through.
    ///
    /// Make the rules once and clone the `Arc`s: a rule keeps its metrics. With axum, look at the
    /// `MatchedPath` in the extensions rather than at the path, which a client can vary.
    pub fn rules(
        mut self,
        choose: impl Fn(&Parts) -> Option<Arc<Rule>> + Send + Sync + 'static,
    ) -> Self {
        self.config.rules = Rules::Choose(Box::new(choose));
        self
    }

    /// Sets where the scope comes from: whom a key belongs to.
    ///
    /// Without it [`build`](Self::build) warns, and takes [`ScopeFrom::credential`].
    pub fn scope(mut self, scope: ScopeFrom) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Answers `GET <prefix><key>` with what became of the key, such as
    /// `/.idempotency/keys/8e03978e`. The key is percent-encoded and belongs to the scope of the
    /// request that asks. Off unless set.
    ///
    /// Needed for routes with [`InFlight::Accepted`]: they say `Location: <prefix><key>`.
    ///
    /// # Errors
    /// If `prefix` does not begin and end with a slash, or holds what no path may hold.
    pub fn status_path(mut self, prefix: &str) -> Result<Self, LayerError> {
        self.config.status = Some(StatusPath::new(prefix).ok_or(LayerError::StatusPath)?);
        Ok(self)
    }

    /// Sets the scopes under which status URLs look for a key besides [`scope`](Self::scope): those of
    /// rules that a closure chooses and that have scopes of their own. A request for a status does not
    /// say which rule its key came under.
    pub fn status_scopes(mut self, scopes: impl IntoIterator<Item = ScopeFrom>) -> Self {
        self.config.status_scopes = scopes.into_iter().collect();
        self
    }

    /// Tells the scope of a rule by its name. A status URL then gives an answer only if the rule that its
    /// record came under puts the caller into that very scope. The records of a rule that is not known,
    /// because it was renamed, are found in each scope that the caller has.
    ///
    /// Needed where rules find their scopes in different ways and one value may mean two principals: user
    /// 42 could otherwise ask what became of the keys of organisation 42.
    pub fn rule_scopes(
        mut self,
        find: impl Fn(&str) -> Option<ScopeFrom> + Send + Sync + 'static,
    ) -> Self {
        self.config.rule_scopes = Some(Box::new(find));
        self
    }

    /// Sets the page that explains the problems; the code of each is an anchor in it. The default
    /// is [`problem::DEFAULT_BASE`].
    ///
    /// # Errors
    /// If `base` is not a URI, or has a fragment.
    pub fn problems(mut self, base: &str) -> Result<Self, LayerError> {
        let plain = base.bytes().all(|byte| byte.is_ascii_graphic() && !b"<>\"#".contains(&byte));
        if !plain || base.parse::<Uri>().is_err() {
            return Err(LayerError::Problems);
        }
        self.config.problems = base.into();
        Ok(self)
    }

    /// Takes the id of a request from a header that something in front of the layer sets, such as
    /// `x-request-id`. Ids are shown to clients and kept in records; without this, or if the
    /// header has no usable id, the layer makes one.
    pub fn request_id_header(mut self, name: HeaderName) -> Self {
        self.config.request_id = Some(name);
        self
    }

    /// Sets whether spans show a digest of each key.
    pub fn key_hash(mut self, key_hash: KeyHash) -> Self {
        self.config.key_hash = key_hash;
        self
    }

    /// Sets whether responses tell the layers outside how their requests ended.
    pub fn outcomes(mut self, outcomes: Outcomes) -> Self {
        self.config.outcomes = outcomes;
        self
    }

    /// Finds the URI that counts for the fingerprint in the request's extensions, for routers
    /// that shorten the one in the request.
    ///
    /// axum does so inside of `nest`: two services nested at `/a` and `/b` would both see `/pay`,
    /// and one key could not tell them apart. Either put the layer outside of the nesting, or pass
    /// `|extensions| extensions.get::<OriginalUri>().map(|uri| &uri.0)`.
    pub fn original_uri(
        mut self,
        find: impl for<'e> Fn(&'e Extensions) -> Option<&'e Uri> + Send + Sync + 'static,
    ) -> Self {
        self.config.original_uri = Some(Box::new(find));
        self
    }

    /// The layer. Warns about what will hurt later.
    #[must_use]
    pub fn build(self) -> IdempotencyLayer {
        let Self { mut config, scope } = self;
        match scope {
            Some(scope) => config.scope = scope,
            None => tracing::warn!(
                "no scope is configured for idempotency keys: the Authorization header stands in \
                 for it, so a retry after a token refresh runs again, and all requests without \
                 the header share their keys; set LayerBuilder::scope"
            ),
        }
        if let Rules::One(rule) = &config.rules {
            config.check_status_path(rule);
            config.status_scopes.extend(rule.own_scope().cloned());
        }
        IdempotencyLayer(Arc::new(config))
    }
}

impl Config {
    /// What to do with a request, if method and headers say so. If not, [`admit`](Self::admit) decides.
    pub(super) fn admit_by_headers<B>(&self, request: &Request<B>) -> Option<Admission> {
        let method = request.method();
        match (&self.rules, &self.status) {
            (_, None) if method.is_safe() => Some(Admission::Pass),
            (_, Some(_)) if method.is_safe() => None,
            (Rules::Choose(_), _) => None,
            (Rules::One(rule), _) => match rule.looks_into_headers(method, request.headers())? {
                Presence::Absent => {
                    rule.meters().keyless();
                    rule.meters().request(method, Outcome::Bypassed);
                    Some(Admission::Pass)
                }
                Presence::Present => Some(Admission::Keyed(Arc::clone(rule))),
                Presence::Perhaps => None,
            },
        }
    }

    /// What to do with a request. Nothing here allocates: most requests pass.
    pub(super) fn admit(&self, parts: &Parts) -> Admission {
        if parts.method.is_safe() {
            return match &self.status {
                Some(path) if path.is_asked(parts) => Admission::Status,
                Some(_) | None => Admission::Pass,
            };
        }
        match &self.rules {
            Rules::One(rule) => admit_by(rule, parts),
            Rules::Choose(choose) => match choose(parts) {
                Some(rule) => admit_by(&rule, parts),
                None => Admission::Pass,
            },
        }
    }

    /// The id of a request: the one that came with it, or a new one.
    pub(super) fn request_id(&self, parts: &Parts) -> RequestId {
        let brought = self.request_id.as_ref().and_then(|name| parts.headers.get(name));
        let taken = brought.and_then(|id| RequestId::from_outside(id.as_bytes()));
        taken.unwrap_or_else(|| self.engine.request_id())
    }

    /// The URI as the client wrote it.
    pub(super) fn uri<'p>(&self, parts: &'p Parts) -> &'p Uri {
        let find = self.original_uri.as_ref();
        find.and_then(|find| find(&parts.extensions)).unwrap_or(&parts.uri)
    }

    /// The status URLs, for a refusal that wants to point to one.
    pub(super) fn status_path_for(&self, rule: &Rule) -> Option<&StatusPath> {
        self.check_status_path(rule);
        self.status.as_ref()
    }

    fn check_status_path(&self, rule: &Rule) {
        if self.status.is_none() && rule.shared_policy().in_flight == InFlight::Accepted {
            self.no_status_path.call_once(|| {
                tracing::warn!(
                    route = rule.name(),
                    "requests in flight are to be answered with 202 and a status URL, but the \
                     layer has none and answers 409; set LayerBuilder::status_path"
                );
            });
        }
    }
}

fn admit_by(rule: &Arc<Rule>, parts: &Parts) -> Admission {
    if !rule.is_for(&parts.method) {
        return Admission::Pass;
    }
    match (rule.needs(), rule.looks_for_key(parts)) {
        (Mode::Off, _) => Admission::Pass,
        (Mode::Optional, Presence::Absent) => {
            rule.meters().keyless();
            rule.meters().request(&parts.method, Outcome::Bypassed);
            Admission::Pass
        }
        (Mode::Optional | Mode::Required, Presence::Present | Presence::Perhaps)
        | (Mode::Required, Presence::Absent) => Admission::Keyed(Arc::clone(rule)),
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = match &self.rules {
            Rules::One(rule) => rule.name(),
            Rules::Choose(_) => "chosen by request",
        };
        out.debug_struct("Config")
            .field("rules", &rules)
            .field("problems", &self.problems)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}
