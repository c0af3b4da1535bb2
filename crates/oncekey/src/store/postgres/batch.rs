//! Batches of one kind of operation as one statement.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use oncekey_core::decide::{Judgement, judge};
use oncekey_core::{ErrorKind, Fence, KeyId, Lease, StoreError, Timestamp, Write};
use tokio_postgres::Row;

use super::connect::Dialler;
use super::error::{Aftermath, aftermath, contested, from_postgres, gone};
use super::life::{Grants, moved};
use super::line::{Asked, Line, Memory, Together, Values};
use super::op::{Op, PreparedClaim, Reply, Tried};
use super::row;
use super::sql::{Sql, Statement};
use super::watch::Herald;
use crate::store::group::{Answers, Backend, Failure};
use crate::store::parts::{CompletionParts, Damage};

/// How batches reach PostgreSQL.
#[derive(Debug)]
pub(super) struct Batches {
    pub(super) dialler: Arc<Dialler>,
    pub(super) sql: Arc<Sql>,
    pub(super) herald: Herald,
}

/// How often a write is tried that was allowed when it was looked at and not when it was made.
const ROUNDS: usize = 4;

impl Backend for Batches {
    type Op = Op;
    type Connection = Line;

    async fn connect(&self) -> Result<Line, StoreError> {
        self.dialler.line().await
    }

    async fn run(&self, line: &mut Line, batch: &[Op]) -> Result<Answers<Op>, Failure> {
        if !self.dialler.is_good(line) {
            return Err(Failure::NotSent(gone()));
        }
        // All of one kind, because each has a rank of its own.
        let ended = match batch {
            [Op::Claim(_), ..] => match self.dialler.guard.lives.grants(&line.life) {
                Grants::Allowed => self.claim(line, batch).await,
                Grants::Stopped => return Err(Failure::Refused(moved())),
                Grants::Outdated => return Err(Failure::NotSent(moved())),
            },
            _ => self.write(line, batch).await,
        };
        ended.map_err(|error| {
            self.dialler.learn_from(&error);
            match aftermath(&error) {
                Aftermath::Refused => Failure::Refused(from_postgres(error)),
                Aftermath::Elsewhere => Failure::NotSent(from_postgres(error)),
                Aftermath::Unknown => Failure::Unknown(from_postgres(error)),
            }
        })
    }
}

impl Batches {
    async fn claim(&self, line: &Line, batch: &[Op]) -> Result<Answers<Op>, tokio_postgres::Error> {
        let claims: Vec<&PreparedClaim> = batch.iter().filter_map(claim_of).collect();
        let columns = ClaimColumns::of(&claims, line.remembers());
        let values = columns.values();
        let (ids, others): (&Values<'_>, &Values<'_>) = (&values[..1], &values[..2]);
        let statements = [(&self.sql.claim, &values[..]), (&self.sql.lift, ids)];
        let together = line.query_together(statements, (&self.sql.beside, others)).await;
        let ([made, lifted], asked) = match together {
            Ok(ended) => ended,
            Err(Together::Statement(error)) => return Err(error),
            Err(Together::Frame(error)) => {
                let lost = from_postgres(error).to_string();
                let each = |_| Err(StoreError::new(ErrorKind::Ambiguous, lost.clone()));
                return Ok(claims.iter().map(each).collect());
            }
        };
        let found = match asked {
            Asked::Answered(found) => found,
            Asked::NotYet if made.len() == claims.len() => Ok(Vec::new()),
            Asked::NotYet => line.query(&self.sql.beside, others).await,
        };
        // What was made is made, whatever became of the question about the rest.
        let (found, lost) = match found {
            Ok(found) => (found, None),
            Err(error) => {
                self.dialler.learn_from(&error);
                (Vec::new(), Some(from_postgres(error)))
            }
        };
        let (made, lifted, found) = (by_id(&made), by_id(&lifted), by_id(&found));
        let tried = claims.into_iter().map(|prepared| {
            let claim = &prepared.claim;
            let id: &[u8] = claim.id.as_bytes();
            Ok(Reply::Tried(match (made.get(id), found.get(id)) {
                (Some(made), _) => {
                    let fence = row::get(lifted.get(id).unwrap_or(made), 1)?;
                    let fence = Fence::from_number(fence).ok_or(Damage::Damaged("fence"))?;
                    let until = Timestamp::from_micros(row::get(made, 2)?);
                    Tried::Won(Lease { id: claim.id, fence, owner: claim.owner, until })
                }
                (None, Some(found)) => Tried::Found(Box::new(row::read(found)?)),
                (None, None) => match &lost {
                    Some(lost) => return Err(StoreError::new(lost.kind(), lost.to_string())),
                    None => Tried::Unseen,
                },
            }))
        });
        Ok(tried.collect())
    }

    async fn write(&self, line: &Line, batch: &[Op]) -> Result<Answers<Op>, tokio_postgres::Error> {
        let mut answers: Vec<Option<Result<Reply, StoreError>>> =
            batch.iter().map(|_| None).collect();
        for round in 0..ROUNDS {
            let open: Vec<(usize, &Op)> =
                batch.iter().enumerate().filter(|(place, _)| answers[*place].is_none()).collect();
            if open.is_empty() {
                break;
            }
            let ops: Vec<&Op> = open.iter().map(|(_, op)| *op).collect();
            let applied = match (self.apply(line, &ops).await, round) {
                // Nothing has changed if the first statement fails; later that is not so.
                (Err(error), 0) => return Err(error),
                (Err(error), _) => {
                    let text = from_postgres(error).to_string();
                    let lost = || Err(StoreError::new(ErrorKind::Ambiguous, text.clone()));
                    return Ok(answers.into_iter().map(|a| a.unwrap_or_else(lost)).collect());
                }
                (Ok(applied), _) => applied,
            };
            let mut missing = Vec::new();
            for (place, op) in open {
                let Some((lease, act)) = op.act() else { continue };
                if applied.contains(&lease.id) {
                    answers[place] = Some(Ok(Reply::Wrote(Write::Applied)));
                } else {
                    missing.push((place, lease, act));
                }
            }
            if missing.is_empty() {
                break;
            }
            // Refused, done before, or changed by somebody else meanwhile: a look tells.
            let ids: Vec<&[u8]> =
                missing.iter().map(|(_, lease, _)| lease.id.as_bytes().as_slice()).collect();
            let stands = line.query(&self.sql.standing, &[&ids]).await;
            let stands = match stands {
                Ok(stands) => stands,
                Err(error) => {
                    let text = from_postgres(error).to_string();
                    let lost = || Err(StoreError::new(ErrorKind::Ambiguous, text.clone()));
                    return Ok(answers.into_iter().map(|a| a.unwrap_or_else(lost)).collect());
                }
            };
            for (place, lease, act) in missing {
                let row = stands.iter().find(|row| row::id(row, 0) == Ok(lease.id));
                answers[place] = match row.map(row::standing).transpose() {
                    Err(damage) => Some(Err(damage.into())),
                    Ok(standing) => match judge(standing, lease, act) {
                        Judgement::Already => Some(Ok(Reply::Wrote(Write::Applied))),
                        Judgement::Fenced => Some(Ok(Reply::Wrote(Write::Fenced))),
                        Judgement::Apply => None,
                    },
                };
            }
        }
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(contested()))).collect())
    }

    /// Makes the change where it may be made, and says where that was.
    async fn apply(&self, line: &Line, ops: &[&Op]) -> Result<Vec<KeyId>, tokio_postgres::Error> {
        let rows = match ops.first() {
            Some(Op::Complete(..)) => {
                let columns = CompletionColumns::of(ops);
                line.query(&self.sql.complete, &columns.values()).await?
            }
            Some(Op::Release(_)) => self.apply_to(line, &self.sql.release, ops).await?,
            Some(Op::Unknown(_)) => self.apply_to(line, &self.sql.unknown, ops).await?,
            Some(Op::Send(_)) => self.apply_to(line, &self.sql.send, ops).await?,
            Some(Op::Claim(_)) | None => Vec::new(),
        };
        let applied: Vec<KeyId> = rows.iter().filter_map(|row| row::id(row, 0).ok()).collect();
        if !matches!(ops.first(), Some(Op::Send(_))) {
            let is_watched = rows.iter().any(|row| row::get(row, 1).unwrap_or(true));
            self.herald.finished(&applied, is_watched);
        }
        Ok(applied)
    }

    async fn apply_to(
        &self,
        line: &Line,
        statement: &Statement,
        ops: &[&Op],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let leases = LeaseColumns::of(ops.iter().filter_map(|op| op.act().map(|(lease, _)| lease)));
        line.query(statement, &leases.values()).await
    }
}

/// Rows by the key id that they begin with.
pub(super) fn by_id(rows: &[Row]) -> HashMap<&[u8], &Row> {
    rows.iter().filter_map(|row| Some((row::get(row, 0).ok()?, row))).collect()
}

fn claim_of(op: &Op) -> Option<&PreparedClaim> {
    match op {
        Op::Claim(prepared) => Some(prepared),
        Op::Complete(..) | Op::Release(_) | Op::Unknown(_) | Op::Send(_) => None,
    }
}

/// Leases as columns, sorted by key id.
#[derive(Debug)]
pub(super) struct LeaseColumns<'l> {
    ids: Vec<&'l [u8]>,
    fences: Vec<i64>,
    owners: Vec<&'l [u8]>,
}

impl<'l> LeaseColumns<'l> {
    pub(super) fn of(leases: impl Iterator<Item = &'l Lease>) -> Self {
        let mut leases: Vec<&Lease> = leases.collect();
        leases.sort_unstable_by_key(|lease| *lease.id.as_bytes());
        Self {
            ids: leases.iter().map(|lease| lease.id.as_bytes().as_slice()).collect(),
            fences: leases.iter().map(|lease| lease.fence.number()).collect(),
            owners: leases.iter().map(|lease| lease.owner.as_bytes().as_slice()).collect(),
        }
    }

    pub(super) fn values(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 3] {
        [&self.ids, &self.fences, &self.owners]
    }
}

struct ClaimColumns<'c> {
    ids: Vec<&'c [u8]>,
    owners: Vec<&'c [u8]>,
    classes: Vec<i16>,
    sent: Vec<i16>,
    leases: Vec<i64>,
    versions: Vec<i16>,
    fingerprints: Vec<&'c [u8]>,
    seals: Vec<&'c [u8]>,
    places: Vec<&'c [u8]>,
    keys: Vec<&'c [u8]>,
    scopes: Vec<&'c [u8]>,
    routes: Vec<&'c [u8]>,
    requests: Vec<&'c [u8]>,
    is_forgotten_at_commit: bool,
}

impl<'c> ClaimColumns<'c> {
    /// The statement itself sorts them.
    fn of(claims: &[&'c PreparedClaim], memory: Memory) -> Self {
        fn column<'c, T>(
            claims: &[&'c PreparedClaim],
            value: impl Fn(&'c PreparedClaim) -> T,
        ) -> Vec<T> {
            claims.iter().map(|prepared| value(prepared)).collect()
        }
        Self {
            ids: column(claims, |p| p.claim.id.as_bytes().as_slice()),
            owners: column(claims, |p| p.claim.owner.as_bytes().as_slice()),
            classes: column(claims, |p| i16::from(p.claim.class.code())),
            sent: column(claims, |p| i16::from(p.claim.sent.code())),
            leases: column(claims, |p| micros(p.claim.lease)),
            versions: column(claims, |p| i16::from(p.claim.fingerprint.version())),
            fingerprints: column(claims, |p| p.claim.fingerprint.digest().as_slice()),
            seals: column(claims, |p| p.seal.as_bytes().as_slice()),
            places: column(claims, |p| p.claim.places.as_encoded()),
            keys: column(claims, |p| p.claim.origin.key.as_bytes()),
            scopes: column(claims, |p| p.claim.origin.scope.as_bytes()),
            routes: column(claims, |p| p.claim.origin.route.as_bytes()),
            requests: column(claims, |p| p.claim.origin.request.as_bytes()),
            is_forgotten_at_commit: memory == Memory::OfTransaction,
        }
    }

    fn values(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 14] {
        [
            &self.ids,
            &self.owners,
            &self.classes,
            &self.sent,
            &self.leases,
            &self.versions,
            &self.fingerprints,
            &self.seals,
            &self.places,
            &self.keys,
            &self.scopes,
            &self.routes,
            &self.requests,
            &self.is_forgotten_at_commit,
        ]
    }
}

struct CompletionColumns<'c> {
    leases: LeaseColumns<'c>,
    retentions: Vec<i64>,
    lingers: Vec<i64>,
    statuses: Vec<Option<i32>>,
    not_kept: Vec<i16>,
    outcomes: Vec<&'c [u8]>,
    seals: Vec<&'c [u8]>,
    headers: Vec<&'c [u8]>,
    bodies: Vec<&'c [u8]>,
}

impl<'c> CompletionColumns<'c> {
    fn of(ops: &[&'c Op]) -> Self {
        let mut completions: Vec<(&Lease, &CompletionParts)> = ops
            .iter()
            .filter_map(|op| match op {
                Op::Complete(lease, completion) => Some((lease, &**completion)),
                Op::Release(_) | Op::Unknown(_) | Op::Send(_) | Op::Claim(_) => None,
            })
            .collect();
        completions.sort_unstable_by_key(|(lease, _)| *lease.id.as_bytes());
        let of = |(_, completion): &(&'c Lease, &'c CompletionParts)| *completion;
        let all = || completions.iter().map(of);
        Self {
            leases: LeaseColumns::of(completions.iter().map(|(lease, _)| *lease)),
            retentions: all().map(|c| micros(c.retention)).collect(),
            lingers: all().map(|c| micros(c.linger)).collect(),
            statuses: all().map(|c| c.status.map(i32::from)).collect(),
            not_kept: all().map(|c| i16::from(c.not_kept)).collect(),
            outcomes: all().map(|c| c.outcome.as_bytes().as_slice()).collect(),
            seals: all().map(|c| c.seal.as_bytes().as_slice()).collect(),
            headers: all().map(|c| c.headers.as_slice()).collect(),
            bodies: all().map(|c| &*c.body).collect(),
        }
    }

    fn values(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 11] {
        let [ids, fences, owners] = self.leases.values();
        [
            ids,
            fences,
            owners,
            &self.retentions,
            &self.lingers,
            &self.statuses,
            &self.not_kept,
            &self.outcomes,
            &self.seals,
            &self.headers,
            &self.bodies,
        ]
    }
}

/// A span in microseconds. At most about seventy thousand years, so that no sum of a time and two
/// spans overflows in SQL, where it would be an error and not "for ever".
pub(super) fn micros(span: Duration) -> i64 {
    const LONGEST: i64 = i64::MAX / 4;
    i64::try_from(span.as_micros()).map_or(LONGEST, |micros| micros.min(LONGEST))
}
