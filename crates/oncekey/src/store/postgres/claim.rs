//! How a claim is decided.

use oncekey_core::decide::{Decision, Grant, decide};
use oncekey_core::{
    Claim, Claimed, Fence, Lease, Record, Refusal, Sent, State, StoreError, Timestamp,
};

use super::PostgresStore;
use super::batch::micros;
use super::error::contested;
use super::op::{Op, PreparedClaim, Reply, Tried};
use super::pool::Effect;
use super::row::{self, Found};
use crate::store::parts::{Assembled, Damage};

/// How often a claim is tried anew because the record that was found had changed when it was to be
/// written. Each time somebody else has won, so even a stampede of a hundred ends sooner: after the
/// first has taken over, the others are refused.
const ROUNDS: usize = 16;

/// What a look at a key that is likely known came to.
enum Look {
    Refused(Claimed),
    Undecided,
}

impl PostgresStore {
    pub(super) async fn decide_claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        // A refusal that was true at the moment of a read is an answer. So a key that this process
        // has seen before is read first, beside the writers and without waiting for a batch.
        if self.seen.get(&claim.id).is_some()
            && let Look::Refused(claimed) = self.look(claim).await?
        {
            return Ok(claimed);
        }
        // Those that wait for nothing need not wait in line.
        self.guard.lives.stopped()?;
        for round in 0..ROUNDS {
            let op = Op::Claim(Box::new(PreparedClaim::new(claim)));
            let Reply::Tried(tried) = self.group.ask(op).await? else { unreachable!("{WRONG}") };
            self.seen.insert(claim.id, ());
            match tried {
                Tried::Won(lease) => {
                    let (grant, earlier) = (Grant::Fresh, Sent::No);
                    return Ok(Claimed::Won { lease, grant, earlier });
                }
                Tried::Found(found) => {
                    if let Some(claimed) = self.settle(claim, *found).await? {
                        return Ok(claimed);
                    }
                }
                Tried::Unseen => match self.looks.look(claim.id).await? {
                    Some(found) => {
                        if let Some(claimed) = self.settle(claim, found).await? {
                            return Ok(claimed);
                        }
                    }
                    // Twice in a row is odd enough to ask whether anything can be granted at all.
                    None if round > 0 => self.check_mark().await?,
                    None => {}
                },
            }
        }
        Err(contested())
    }

    async fn look(&self, claim: &Claim) -> Result<Look, StoreError> {
        let Some(Found { found, now }) = self.looks.look(claim.id).await? else {
            return Ok(Look::Undecided);
        };
        match decide(Some(&found.record), claim, now) {
            Decision::Refuse(refusal) => match self.refuse(claim, found, (refusal, now)).await? {
                Some(claimed) => Ok(Look::Refused(claimed)),
                None => Ok(Look::Undecided),
            },
            Decision::Run(_) => Ok(Look::Undecided),
        }
    }

    /// Acts on the record that stands. `None` if it had changed by then.
    async fn settle(&self, claim: &Claim, found: Found) -> Result<Option<Claimed>, StoreError> {
        let Found { found, now } = found;
        match decide(Some(&found.record), claim, now) {
            Decision::Refuse(refusal) => self.refuse(claim, found, (refusal, now)).await,
            Decision::Run(Grant::Again) => self.claim_again(claim, &found.record).await,
            Decision::Run(grant) => self.take_over(claim, &found.record, grant).await,
        }
    }

    /// Fetches the body that a replay needs, if it did not come along.
    async fn refuse(
        &self,
        claim: &Claim,
        found: Assembled,
        (refusal, now): (Refusal, Timestamp),
    ) -> Result<Option<Claimed>, StoreError> {
        if refusal != Refusal::Replay || found.pieces == 0 {
            found.check_outcome()?;
            let record = Box::new(found.record);
            return Ok(Some(Claimed::Lost { refusal, record, now }));
        }
        let Some(Found { found, now }) = self.read(&claim.id).await? else { return Ok(None) };
        // Decided anew, because it may have been stripped or replaced in between.
        match decide(Some(&found.record), claim, now) {
            Decision::Refuse(refusal) => {
                let record = Box::new(found.record);
                Ok(Some(Claimed::Lost { refusal, record, now }))
            }
            Decision::Run(_) => Ok(None),
        }
    }

    /// The caller owns the key already: its acknowledgement was lost.
    async fn claim_again(
        &self,
        claim: &Claim,
        record: &Record,
    ) -> Result<Option<Claimed>, StoreError> {
        let (id, fence) = (claim.id.as_bytes().as_slice(), record.fence.number());
        let (owner, span) = (claim.owner.as_bytes().as_slice(), micros(claim.lease));
        let rows = self
            .singles
            .ask(Effect::Grants, &self.sql.again, &[&id, &fence, &owner, &span])
            .await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let until = Timestamp::from_micros(row::get(row, 0)?);
        let sent = u8::try_from(row::small(row, 1)?).ok().and_then(Sent::from_code);
        let earlier = sent.ok_or(Damage::Damaged("send mark"))?;
        let lease = Lease { until, ..record.lease() };
        Ok(Some(Claimed::Won { lease, grant: Grant::Again, earlier }))
    }

    /// Writes a new attempt over the record, if that is still as it was found.
    async fn take_over(
        &self,
        claim: &Claim,
        record: &Record,
        grant: Grant,
    ) -> Result<Option<Claimed>, StoreError> {
        let earlier = grant.earlier(Some(record));
        let seen = Seen::of(record);
        // Only a takeover goes on with the generation that it found.
        let created = match grant {
            Grant::TakenOver => Some(record.created.micros()),
            Grant::Fresh | Grant::Reused | Grant::Again => None,
        };
        let prepared = PreparedClaim::new(claim);
        let class = i16::from(claim.class.code());
        let sent = i16::from(claim.sent.or(earlier).code());
        let (span, version) = (micros(claim.lease), i16::from(claim.fingerprint.version()));
        let rows = self
            .singles
            .ask(
                Effect::Grants,
                &self.sql.take_over,
                &[
                    &claim.id.as_bytes().as_slice(),
                    &seen.fence,
                    &seen.owner,
                    &seen.state,
                    &seen.at,
                    &seen.sent,
                    &claim.owner.as_bytes().as_slice(),
                    &class,
                    &sent,
                    &span,
                    &created,
                    &version,
                    &claim.fingerprint.digest().as_slice(),
                    &prepared.seal.as_bytes().as_slice(),
                    &claim.places.as_encoded(),
                    &claim.origin.key.as_bytes(),
                    &claim.origin.scope.as_bytes(),
                    &claim.origin.route.as_bytes(),
                    &claim.origin.request.as_bytes(),
                ],
            )
            .await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let fence = Fence::from_number(row::get(row, 0)?).ok_or(Damage::Damaged("fence"))?;
        let until = Timestamp::from_micros(row::get(row, 1)?);
        let lease = Lease { id: claim.id, fence, owner: claim.owner, until };
        Ok(Some(Claimed::Won { lease, grant, earlier }))
    }
}

/// What can change about a record between a look and a write.
struct Seen<'r> {
    fence: i64,
    owner: &'r [u8],
    state: i16,
    at: i64,
    /// Only while it runs: after that nobody looks at it.
    sent: Option<i16>,
}

impl<'r> Seen<'r> {
    fn of(record: &'r Record) -> Self {
        let (at, sent) = match &record.state {
            State::Running { until, sent } => (*until, Some(*sent)),
            State::Done { at, .. } => (*at, None),
            State::Unknown { since } | State::Parked { since } => (*since, None),
        };
        Self {
            fence: record.fence.number(),
            owner: record.owner.as_bytes(),
            state: i16::from(record.state.kind().code()),
            at: at.micros(),
            sent: sent.map(|sent| i16::from(sent.code())),
        }
    }
}

/// Another reply would be a bug in this module.
const WRONG: &str = "a claim is answered as a claim";
