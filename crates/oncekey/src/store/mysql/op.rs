//! What callers want done in batches, and how a batch reaches the server.

use oncekey_core::{KeyId, StoreError, Write};

use super::claims::{self, Came, PreparedClaim, Wariness};
use super::ends::{self, End, Writing};
use super::error::Trouble;
use super::life::{Grants, moved};
use super::session::{Server, Session};
use super::sql::Tables;
use crate::store::group::{Answers, Backend, Failure, Operation};

/// What a caller wants done.
#[derive(Debug)]
pub(super) enum Op {
    Claim(Box<PreparedClaim>),
    Write(Writing),
}

/// What it gets.
#[derive(Debug)]
pub(super) enum Reply {
    Claimed(Came),
    Wrote(Write),
}

/// Runs batches on the server.
#[derive(Debug)]
pub(super) struct Batches {
    pub(super) server: Server,
    pub(super) tables: Tables,
    pub(super) wariness: Wariness,
}

impl Operation for Op {
    type Reply = Reply;

    const RANKS: usize = 2;

    fn rank(&self) -> usize {
        match self {
            Self::Write(_) => 0,
            Self::Claim(_) => 1,
        }
    }

    fn ids(&self) -> impl Iterator<Item = KeyId> {
        std::iter::once(match self {
            Self::Claim(prepared) => prepared.claim.id,
            Self::Write(writing) => writing.lease.id,
        })
    }

    fn size(&self) -> usize {
        match self {
            Self::Claim(prepared) => {
                let origin = &prepared.claim.origin;
                let texts = [&origin.key, &origin.scope, &origin.route, &origin.request];
                let texts: usize = texts.iter().map(|text| text.as_bytes().len()).sum();
                texts + prepared.claim.places.as_encoded().len()
            }
            Self::Write(Writing { end: End::Complete(parts), .. }) => parts.inline_size(),
            Self::Write(_) => 0,
        }
    }
}

impl Backend for Batches {
    type Op = Op;
    type Connection = Session;

    async fn connect(&self) -> Result<Session, StoreError> {
        self.server.connect().await
    }

    /// A batch holds either claims or writes, never both.
    async fn run(&self, session: &mut Session, batch: &[Op]) -> Result<Answers<Op>, Failure> {
        if self.server.is_outdated(session) {
            return Err(Failure::NotSent(moved()));
        }
        session.wake().await.map_err(Trouble::of_batch)?;
        let (mut claims, mut writings) = (Vec::new(), Vec::new());
        for op in batch {
            match op {
                Op::Claim(prepared) => claims.push(&**prepared),
                Op::Write(writing) => writings.push(writing),
            }
        }
        if writings.is_empty() {
            match self.server.grants(session) {
                Grants::Allowed => {}
                Grants::Stopped => return Err(Failure::Refused(moved())),
                Grants::Outdated => return Err(Failure::NotSent(moved())),
            }
            let came = claims::run(session, &self.tables, &self.wariness, &claims).await;
            let came = came.map_err(Trouble::of_batch)?;
            return Ok(came.into_iter().map(|came| came.map(Reply::Claimed)).collect());
        }
        debug_assert!(claims.is_empty(), "ranks are kept apart");
        let wrote = ends::run(session, &self.tables, &writings).await;
        let wrote = wrote.map_err(Trouble::of_batch)?;
        Ok(wrote.into_iter().map(|wrote| wrote.map(Reply::Wrote)).collect())
    }
}
