//! One record.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use http::Uri;
use oncekey::core::browse::{Browse as _, Filter, Page};
use oncekey::core::{KeyId, Record, Timestamp};
use serde::Deserialize;

use super::super::access::Payload;
use super::super::audit::{Deed, audited};
use super::super::guard::Caller;
use super::super::page::{self, Answer};
use super::super::problem::{Code, Problem};
use super::super::state::Admin;
use super::{RecordId, view};
use crate::shelf::KEPT_ROUTE;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShowQuery {
    show: Option<Show>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Show {
    Payload,
}

pub(in super::super) async fn show(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    RecordId(id): RecordId,
    uri: Uri,
) -> Answer {
    let ShowQuery { show } = page::query(&uri)?;
    if show.is_none() {
        let (record, now) = look(&admin, &id).await?;
        return page::json(&view::record(&record, now));
    }
    let deed = Deed::new(caller, "show_payload", None).to(id);
    audited(&admin, deed, async move |admin| {
        if admin.access.payload == Payload::Never {
            let detail = "the configuration of this gateway does not allow it";
            return Err(Problem::new(Code::PayloadRefused, detail));
        }
        let (record, now) = look(&admin, &id).await?;
        if record.origin.route.as_bytes() == KEPT_ROUTE.as_bytes() {
            // Whoever may see answers may not act in a client's name.
            let detail = "a kept request has the credentials of its client in it";
            return Err(Problem::new(Code::PayloadRefused, detail));
        }
        let mut document = view::record(&record, now);
        document["payload"] = view::payload(&record);
        page::json(&document)
    })
    .await
}

/// A record, decrypted, and the time by the clock that judges its lease.
pub(super) async fn look(admin: &Admin, id: &KeyId) -> Result<(Record, Timestamp), Problem> {
    let record = admin.ask(admin.engine.inspect(id)).await?;
    let missing =
        || Problem::new(Code::RecordNotFound, "nobody has used this key, or it is free again");
    Ok((record.ok_or_else(missing)?, store_now(admin).await?))
}

/// What the store's clock shows. Only it judges leases, and every list says it.
pub(super) async fn store_now(admin: &Admin) -> Result<Timestamp, Problem> {
    let page = Page { after: None, limit: 1 };
    let listing = admin.ask(admin.store.list(&Filter::default(), &page)).await?;
    Ok(listing.now)
}
