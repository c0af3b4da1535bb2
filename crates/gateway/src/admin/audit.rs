//! Who changed or saw what, when, why, and what came of it.
//!
//! A change is written down twice: before it is made, and when it has ended. So after a crash there
//! is either no entry and no change, or an entry that says `asked`, and somebody has to look. What
//! cannot be written down is not done.
//!
//! The newest entries are in memory. With a file they survive a restart; the file is only ever
//! appended to, and whoever ships it elsewhere keeps them for ever.

mod book;
mod entry;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::Uri;
use oncekey::core::KeyId;
use serde::Deserialize;
use serde_json::json;

use self::book::Book;
use self::entry::{Entry, Outcome};
use super::body::Reason;
use super::guard::Caller;
use super::page::{self, Answer};
use super::problem::{Code, Problem};
use super::state::Admin;

/// The audit of one gateway.
#[derive(Clone, Debug)]
pub(crate) struct Audit(Arc<Mutex<Book>>);

/// Something that an operator wants done.
#[derive(Debug)]
pub(super) struct Deed {
    caller: Caller,
    action: &'static str,
    target: Option<KeyId>,
    reason: Option<Reason>,
}

/// A change that did not get as far as to be a deed.
#[derive(Debug)]
pub(super) struct Refusal<'r> {
    pub(super) caller: &'r Caller,
    pub(super) path: &'r str,
    pub(super) code: Option<Code>,
    pub(super) whose: Whose,
}

/// Who was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Somebody who did not get past the door. They must not be able to fill a disk.
    Stranger,
    /// Somebody who may ask.
    Operator,
}

/// Marks a response whose request is in the audit already.
#[derive(Clone, Copy, Debug)]
pub(super) struct Audited;

impl Audit {
    /// An audit that ends with the process.
    pub(crate) fn in_memory() -> Self {
        Self(Arc::new(Mutex::new(Book::default())))
    }

    /// An audit that is kept in a file of JSON lines, which is made if it is not there. Only its
    /// owner can read it.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(Book::open(path)?))))
    }

    /// Notes a change that was refused before anybody knew why it was wanted.
    pub(super) async fn refused(&self, refusal: Refusal<'_>) {
        let mut entry = Entry::refused(refusal.caller, refusal.path, refusal.code);
        let whose = refusal.whose;
        let written = self.with(move |book| match whose {
            Whose::Stranger => book.note_stranger(entry),
            Whose::Operator => {
                entry.seq = book.number();
                book.write(entry)
            }
        });
        if let Err(error) = written.await {
            tracing::error!(%error, "a refusal could not be audited");
        }
    }

    /// Writes on a thread where waiting for a disk holds up nobody.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Book) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let book = Arc::clone(&self.0);
        let written = tokio::task::spawn_blocking(move || {
            work(&mut book.lock().unwrap_or_else(PoisonError::into_inner))
        });
        written.await.map_err(io::Error::other)?
    }
}

impl Deed {
    pub(super) const fn new(caller: Caller, action: &'static str, reason: Option<Reason>) -> Self {
        Self { caller, action, target: None, reason }
    }

    pub(super) const fn to(mut self, target: KeyId) -> Self {
        self.target = Some(target);
        self
    }
}

/// Does `work` between its two entries.
///
/// In a task of its own: a client that hangs up must not leave a change half done, or done and
/// never ended in the audit.
pub(super) async fn audited<W, F>(admin: &Arc<Admin>, deed: Deed, work: W) -> Answer
where
    W: FnOnce(Arc<Admin>) -> F + Send + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let admin = Arc::clone(admin);
    let story = tokio::spawn(async move {
        let entry = Entry::asked(&deed);
        let asked = admin.audit.with(move |book| book.begin(entry)).await;
        let entry = asked.map_err(|error| {
            tracing::error!(%error, "nothing can be changed, because it could not be audited");
            let detail = "nothing was done: the audit cannot be written, see the log";
            Problem::new(Code::AuditUnavailable, detail)
        })?;
        let ended = work(Arc::clone(&admin)).await;
        let (outcome, code) = match &ended {
            Ok(_) => (Outcome::Done, None),
            Err(problem) => (Outcome::Refused, Some(problem.code)),
        };
        tracing::info!(action = entry.action, outcome = outcome.label(), "an operator asked");
        if let Err(error) = admin.audit.with(move |book| book.end(entry, outcome, code)).await {
            tracing::error!(%error, "the end of a change could not be audited");
        }
        ended
    });
    let lost = |_| Problem::new(Code::StoreUnavailable, "it broke off: look at the record");
    let ended = story.await.map_err(lost).flatten();
    let mut response: Response = ended.into_response();
    response.extensions_mut().insert(Audited);
    Ok(response)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    before: Option<u64>,
    limit: Option<usize>,
}

pub(super) async fn list(State(admin): State<Arc<Admin>>, uri: Uri) -> Answer {
    let AuditQuery { before, limit } = page::query(&uri)?;
    let before = before.unwrap_or(u64::MAX);
    let limit = limit.unwrap_or(100).clamp(1, 1_000);
    let entries = admin.audit.with(move |book| Ok(book.page(before, limit))).await;
    let entries = entries.map_err(|_| Problem::new(Code::AuditUnavailable, "it broke off"))?;
    page::json(&json!({ "entries": entries }))
}
