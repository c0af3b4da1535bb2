//! Whom the keys of a route belong to, found in the head of a request.

use http::request::Parts;
use oncekey::layer::{NoScope, ScopeFrom};

use super::spec::ScopePart;

/// Everything that the parts name, together. Nothing named means the credential, with the warning
/// that the configuration gives.
pub(super) fn scope_of(parts: &[ScopePart]) -> ScopeFrom {
    match parts {
        [] => ScopeFrom::credential(),
        [only] => part(only),
        several => ScopeFrom::all(several.iter().map(part).collect()),
    }
}

fn part(part: &ScopePart) -> ScopeFrom {
    match part {
        ScopePart::Header(name) => ScopeFrom::header(name.clone()),
        ScopePart::ApiKey(name) => ScopeFrom::hashed_header(name.clone()),
        ScopePart::Credential => ScopeFrom::credential(),
        ScopePart::Shared => ScopeFrom::shared(),
        // Refused when the plan is made, see `Plan::new`; whoever comes here anyway is nobody.
        ScopePart::Jwt(_) | ScopePart::Mtls => ScopeFrom::parts(nobody),
    }
}

fn nobody(_: &Parts) -> Result<oncekey::core::Scope, NoScope> {
    Err(NoScope)
}
