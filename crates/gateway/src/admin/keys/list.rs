//! Records, a page at a time.

use std::sync::Arc;

use axum::extract::State;
use http::Uri;
use oncekey::core::browse::{Browse as _, Cursor, Filter, MAX_PAGE, Page, Summary};
use oncekey::core::record::Text;
use oncekey::core::{Key, Scope, StateKind, Store as _};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::page::{self, Answer};
use super::super::problem::Problem;
use super::super::span::span;
use super::super::state::{Admin, Written};
use super::{from_hex, to_hex, view};
use crate::shelf::is_ours;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    state: Option<String>,
    route: Option<String>,
    scope: Option<String>,
    key: Option<String>,
    id: Option<String>,
    older_than: Option<String>,
    cursor: Option<String>,
    limit: Option<usize>,
}

/// The longest text of a filter: longer than any scope that a store takes.
const MAX_TEXT: usize = 4 * 1024;
/// How often a store is asked to fill a page from which something is left out. There is at most one kept
/// request for each record, and what was observed is rare among them, so two are enough as a rule; a
/// page may be short nevertheless.
const ROUNDS: usize = 8;
/// The digits of an id that log lines and traces show: fewer are the beginning of too many records.
const SHORTEST_ID: usize = 8;
/// How many pages are searched for the beginning of an id, newest first, because no store has an index for
/// it: twenty thousand records, which a store reads in well under the time that an operator is given. Log
/// lines that are looked into are recent, and `next` goes on.
const SEARCHED: usize = 20;

pub(in super::super) async fn list(State(admin): State<Arc<Admin>>, uri: Uri) -> Answer {
    let query: ListQuery = page::query(&uri)?;
    query.check()?;
    if admin.written == Written::Encrypted && query.key.is_some() != query.scope.is_some() {
        // The answer would be that there is none, whatever there is.
        return Err(Problem::invalid(
            "this store is encrypted, so a key or a scope alone cannot be searched for: give `key` \
             and `scope` together, or `id` with the digits that log lines show as key_hash",
        ));
    }
    let page = query.page()?;
    let limit = page.bounded_limit();
    let Some(key) = &query.key else {
        let filter = query.filter()?;
        let (found, next) = match &query.id {
            Some(id) => searched(&admin, &filter, page, &id.to_ascii_lowercase()).await?,
            None => listed(&admin, &filter, page).await?,
        };
        let next = next.map(|Cursor(bytes)| to_hex(&bytes));
        return answer(&found, limit, next.as_deref());
    };
    let key = Key::new(key.as_bytes()).map_err(|error| Problem::invalid(error.to_string()))?;
    let found = match query.scope()? {
        // Both are known, so the id is: no store has to search, and encryption does not matter.
        Some(scope) => {
            let id = admin.engine.key_id(&scope, &key);
            let record = admin.ask(admin.store.get(&id)).await?;
            record.iter().map(Summary::from).collect()
        }
        None => admin.ask(admin.store.find(&Text::from(key.as_bytes()), limit)).await?,
    };
    let found: Vec<Summary> = found.into_iter().filter(is_shown).collect();
    answer(&found, limit, None)
}

/// A page of records, without the gateway's own unless their route is asked for.
async fn listed(
    admin: &Admin,
    filter: &Filter,
    mut page: Page,
) -> Result<(Vec<Summary>, Option<Cursor>), Problem> {
    let limit = page.bounded_limit();
    let mut found = Vec::new();
    for _ in 0..ROUNDS {
        page.limit = limit - found.len();
        let listing = admin.ask(admin.store.list(filter, &page)).await?;
        let shown = |summary: &Summary| filter.route.is_some() || is_shown(summary);
        found.extend(listing.summaries.into_iter().filter(shown));
        page.after = listing.next;
        if page.after.is_none() || found.len() >= limit {
            break;
        }
    }
    Ok((found, page.after))
}

/// The newest records whose ids begin so.
async fn searched(
    admin: &Admin,
    filter: &Filter,
    mut page: Page,
    id: &str,
) -> Result<(Vec<Summary>, Option<Cursor>), Problem> {
    let limit = page.bounded_limit();
    page.limit = MAX_PAGE;
    let mut found = Vec::new();
    for _ in 0..SEARCHED {
        let (some, next) = listed(admin, filter, page.clone()).await?;
        found.extend(some.into_iter().filter(|summary| summary.id.to_string().starts_with(id)));
        page.after = next;
        if page.after.is_none() || found.len() >= limit {
            break;
        }
    }
    // Perhaps a few more than were asked for: the cursor is behind all of them, so none may be left out.
    Ok((found, page.after))
}

/// What the gateway keeps for itself are no keys of clients.
fn is_shown(summary: &Summary) -> bool {
    !is_ours(summary.origin.route.as_bytes())
}

fn answer(found: &[Summary], limit: usize, next: Option<&str>) -> Answer {
    let records: Vec<Value> = found.iter().map(view::summary).collect();
    page::json(&json!({ "records": records, "limit": limit, "next": next }))
}

impl ListQuery {
    fn check(&self) -> Result<(), Problem> {
        let texts = [&self.route, &self.scope, &self.key, &self.cursor];
        if texts.into_iter().flatten().any(|text| text.len() > MAX_TEXT) {
            return Err(Problem::invalid(format!("a filter has at most {MAX_TEXT} bytes")));
        }
        let others = [&self.state, &self.route, &self.id, &self.older_than, &self.cursor];
        if self.key.is_some() && others.into_iter().any(Option::is_some) {
            // Quietly leaving a condition out would show what was not asked for.
            return Err(Problem::invalid("`key` goes together with `scope` and `limit` only"));
        }
        let digits = |id: &String| {
            (SHORTEST_ID..=64).contains(&id.len())
                && id.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        if !self.id.as_ref().is_none_or(digits) {
            return Err(Problem::invalid(
                "`id` is 8 to 64 hexadecimal digits: how a key id begins",
            ));
        }
        Ok(())
    }

    fn filter(&self) -> Result<Filter, Problem> {
        Ok(Filter {
            state: self.state.as_deref().map(state).transpose()?,
            route: self.route.as_deref().map(Text::from),
            scope: self.scope()?.map(|scope| Text::from(scope.as_bytes())),
            older_than: self.older_than.as_deref().map(span).transpose()?,
        })
    }

    /// The empty text is the scope that everybody shares.
    fn scope(&self) -> Result<Option<Scope>, Problem> {
        match self.scope.as_deref() {
            None => Ok(None),
            Some("") => Ok(Some(Scope::shared())),
            Some(text) => {
                Scope::new(text).map(Some).map_err(|error| Problem::invalid(error.to_string()))
            }
        }
    }

    fn page(&self) -> Result<Page, Problem> {
        let wrong = || Problem::invalid("`cursor` is not the `next` of a page");
        let after = self.cursor.as_deref().map(|text| {
            from_hex(text).filter(|bytes| !bytes.is_empty()).map(Cursor).ok_or_else(wrong)
        });
        let limit = self.limit.unwrap_or(Page::default().limit);
        Ok(Page { after: after.transpose()?, limit })
    }
}

fn state(label: &str) -> Result<StateKind, Problem> {
    let found = StateKind::ALL.into_iter().find(|kind| kind.label() == label);
    found.ok_or_else(|| Problem::invalid("a state is running, done, unknown or parked"))
}
