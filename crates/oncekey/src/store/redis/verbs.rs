//! The verbs of the store as calls of scripts: one round trip each.
//!
//! A script decides who may run and what may be written, because that must be one step with the
//! write. Why somebody may *not* run is said by [`decide`] on the record that the script found, so
//! that the table of refusals exists once.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use oncekey_core::saved::Outcome;
use oncekey_core::{
    Answer, Claim, Claimed, Class, Completion, Decision, Fence, Grant, KeyId, Lease, Record,
    Refusal, Renewal, Sent, State, Timestamp, Write, decide,
};
use redis::{RedisError, Value};
use tokio::time::timeout;

use super::error::{Failure, Loss};
use super::layout;
use super::life::Witness;
use super::place::{shard_of, shards};
use super::reach::{Reach, Reply};
use super::script::{CLAIM, COMPLETE, GET, PIECE, RELEASE, RENEW, SEND, UNKNOWN};
use crate::store::parts::{Assembled, CompletionParts, Damage, is_forgotten};

/// Bodies above this size are written in pieces of this size before their completion. A piece holds
/// up what comes behind it on its connection by two milliseconds on a gigabit network; a body of 16
/// MiB in one go would take a hundred.
pub(super) const PIECE_SIZE: usize = 256 * 1024;

/// How many pieces are read at once.
const PIECES_AT_ONCE: usize = 4;

/// The most leases that one script extends: below a millisecond of the server's time.
const RENEWALS: usize = 250;

/// A server that does not answer must not hide what the others did from whoever renews, who gives everything
/// up after a third of the span, or after ten seconds. So each is waited for until a quarter of the span,
/// but not less than a healthy server takes on a bad day.
const SHORTEST_ROUND: Duration = Duration::from_millis(500);
const LONGEST_ROUND: Duration = Duration::from_secs(7);

/// How often a record whose pieces vanish is looked at anew. A record loses its answer once, and a
/// new generation of it needs longer than a look: what is missing for the third time is damage.
const LOOKS: u32 = 3;

const PIECE_MISSING: Failure = Failure::Record(Damage::Damaged("a piece of its body is missing"));

/// What came of a completion.
#[derive(Clone, Debug)]
pub(super) enum Completed {
    /// It was applied or fenced.
    Wrote(Write, Witness),
    /// The record was erased meanwhile, and the pieces of its body with it. They must be written
    /// again.
    PiecesGone,
}

impl Reach {
    pub(super) async fn claim(&self, claim: &Claim) -> Result<(Claimed, Witness), Failure> {
        // If the answer was stripped or erased between two looks, it is decided anew.
        for _ in 0..LOOKS {
            if let Some(claimed) = self.claim_once(claim).await? {
                return Ok(claimed);
            }
        }
        Err(PIECE_MISSING)
    }

    async fn claim_once(&self, claim: &Claim) -> Result<Option<(Claimed, Witness)>, Failure> {
        let shard = shard_of(&claim.id);
        let keys = self.names.all(&claim.id);
        let call = self
            .call(&CLAIM, shard, &keys)
            .arg(&layout::head(claim)[..])
            .arg(layout::tail(claim))
            .arg(&[claim.sent.code()][..])
            .arg(layout::span(claim.lease))
            .arg(layout::span(claim.grace))
            .arg(may_send_again(claim.class))
            .arg(&claim.id.as_bytes()[..]);
        let mut reply = self.ask(shard, &call).await?;
        let now = Timestamp::from_micros(reply.number()?);
        if reply.code == 0 {
            let refused = self.refuse(claim, &mut reply, now).await?;
            return Ok(refused.map(|refused| (refused, reply.witness)));
        }
        let fence = Fence::from_number(reply.number()?).ok_or(Damage::Damaged("fence"))?;
        self.saw(shard, fence.number());
        let until = Timestamp::from_micros(reply.number()?);
        let grant = match reply.number()? {
            0 => Grant::Fresh,
            1 => Grant::Again,
            2 => Grant::Reused,
            3 => Grant::TakenOver,
            _ => return Err(Failure::Odd("a claim")),
        };
        let earlier = if reply.number()? == 0 { Sent::No } else { Sent::Yes };
        let lease = Lease { id: claim.id, fence, owner: claim.owner, until };
        Ok(Some((Claimed::Won { lease, grant, earlier }, reply.witness)))
    }

    /// Says why not, and shows the record that stands in the way.
    async fn refuse(
        &self,
        claim: &Claim,
        reply: &mut Reply,
        now: Timestamp,
    ) -> Result<Option<Claimed>, Failure> {
        let bytes = reply.bytes()?.ok_or(Failure::Odd("a refusal"))?;
        let answer = reply.bytes()?;
        let found = match &answer {
            Some(answer) => layout::read(&claim.id, &bytes, answer)?,
            // Not asked for, because it is not going to be sent.
            None => layout::read_without_answer(&claim.id, &bytes)?,
        };
        let Decision::Refuse(refusal) = decide(Some(&found.record), claim, now) else {
            return Err(Damage::Damaged("the script refused what the table grants").into());
        };
        if refusal == Refusal::Replay && answer.is_none() {
            return Err(Damage::Damaged("its answer is missing").into());
        }
        let record = if refusal == Refusal::Replay && found.pieces > 0 {
            match self.with_pieces(found).await? {
                Some(record) => record,
                None => return Ok(None),
            }
        } else {
            found.record
        };
        Ok(Some(Claimed::Lost { refusal, record: Box::new(record), now }))
    }

    pub(super) async fn renew(
        &self,
        leases: &[Lease],
        span: Duration,
    ) -> Result<Vec<Renewal>, Failure> {
        let mut by_shard: Vec<Vec<usize>> = shards().map(|_| Vec::new()).collect();
        for (place, lease) in leases.iter().enumerate() {
            by_shard[usize::from(shard_of(&lease.id))].push(place);
        }
        let chunks = by_shard.iter().flat_map(|places| places.chunks(RENEWALS));
        let longest = (span / 4).clamp(SHORTEST_ROUND, LONGEST_ROUND);
        let calls = chunks.map(|places| async move {
            // What is wrong with one server costs the leases on the others nothing.
            let renewed = timeout(longest, self.renew_shard(leases, places, span)).await;
            (places, renewed.unwrap_or_else(|_| Err(Failure::Broken(late()))))
        });
        put_together(leases.len(), join_all(calls).await)
    }

    async fn renew_shard(
        &self,
        leases: &[Lease],
        places: &[usize],
        span: Duration,
    ) -> Result<Vec<(usize, Renewal)>, Failure> {
        let Some(first) = places.first() else { return Ok(Vec::new()) };
        let shard = shard_of(&leases[*first].id);
        let mut keys = vec![self.names.mark(shard).as_bytes().to_vec()];
        keys.extend(places.iter().map(|place| self.names.record(&leases[*place].id)));
        let mut call = self.call(&RENEW, shard, &keys).arg(layout::span(span));
        for place in places {
            call = call.arg(&layout::proof(&leases[*place])[..]);
        }
        let mut reply = self.ask(shard, &call).await?;
        let until = Timestamp::from_micros(reply.number()?);
        let mut renewed = Vec::with_capacity(places.len());
        for place in places {
            let is_held = reply.number()? == 1;
            renewed.push((*place, if is_held { Renewal::Until(until) } else { Renewal::Lost }));
        }
        Ok(renewed)
    }

    pub(super) async fn send(&self, lease: &Lease) -> Result<(Write, Witness), Failure> {
        let shard = shard_of(&lease.id);
        let keys = self.names.record_and_mark(&lease.id);
        let call = self.call(&SEND, shard, &keys).arg(&layout::proof(lease)[..]);
        self.write(shard, self.ask(shard, &call).await?)
    }

    pub(super) async fn complete(
        &self,
        lease: &Lease,
        completion: &Completion,
        pieces: u32,
    ) -> Result<Completed, Failure> {
        let parts = CompletionParts::new(lease, completion, pieces);
        let shard = shard_of(&lease.id);
        let keys = self.names.all(&lease.id);
        let call = self
            .call(&COMPLETE, shard, &keys)
            .arg(&layout::proof(lease)[..])
            .arg(&lease.id.as_bytes()[..])
            .arg(layout::ending(lease, &parts))
            .arg(layout::answer(&parts.headers, &parts.body))
            .arg(pieces)
            .arg(layout::span(parts.retention))
            .arg(layout::span(parts.linger))
            .arg(self.names.channel());
        let reply = self.ask(shard, &call).await?;
        if reply.code == 2 {
            return Ok(Completed::PiecesGone);
        }
        self.write(shard, reply).map(|(write, by)| Completed::Wrote(write, by))
    }

    /// Writes a large body in pieces, and says in how many, or that the lease was lost.
    pub(super) async fn write_pieces(
        &self,
        lease: &Lease,
        completion: &Completion,
    ) -> Result<Option<u32>, Failure> {
        let body = match &completion.answer {
            Answer::Kept(saved) if saved.body.len() > PIECE_SIZE => &saved.body,
            Answer::Kept(_) | Answer::Tombstone(_) => return Ok(Some(0)),
        };
        let shard = shard_of(&lease.id);
        let outcome = completion.answer.outcome();
        let mut part = 0;
        for bytes in body.chunks(PIECE_SIZE) {
            let keys = self.names.record_and_mark(&lease.id);
            let call = self
                .call(&PIECE, shard, &keys)
                .arg(&layout::proof(lease)[..])
                .arg(&outcome.as_bytes()[..])
                .arg(part)
                .arg(bytes);
            match self.write(shard, self.ask(shard, &call).await?)?.0 {
                Write::Applied => part += 1,
                Write::Fenced => return Ok(None),
            }
        }
        Ok(Some(part))
    }

    pub(super) async fn release(&self, lease: &Lease) -> Result<(Write, Witness), Failure> {
        let shard = shard_of(&lease.id);
        let keys = self.names.all(&lease.id);
        let call = self
            .call(&RELEASE, shard, &keys)
            .arg(&layout::proof(lease)[..])
            .arg(&lease.id.as_bytes()[..])
            .arg(self.names.channel());
        self.write(shard, self.ask(shard, &call).await?)
    }

    pub(super) async fn unknown(&self, lease: &Lease) -> Result<(Write, Witness), Failure> {
        let shard = shard_of(&lease.id);
        let keys = self.names.record_and_mark(&lease.id);
        let call = self
            .call(&UNKNOWN, shard, &keys)
            .arg(&layout::proof(lease)[..])
            .arg(&lease.id.as_bytes()[..])
            .arg(self.names.channel());
        self.write(shard, self.ask(shard, &call).await?)
    }

    pub(super) async fn get(&self, id: &KeyId) -> Result<Option<Record>, Failure> {
        for _ in 0..LOOKS {
            let (now, found) = self.find(id).await?;
            let Some((_, found)) = found else { return Ok(None) };
            if is_forgotten(&found.record, now) {
                return Ok(None);
            }
            // If a piece is gone, the record was stripped, erased or replaced: look again.
            if let Some(record) = self.with_pieces(found).await? {
                return Ok(Some(record));
            }
        }
        Err(PIECE_MISSING)
    }

    /// Reads a record as it is stored and as it is, its pieces left where they are; and the clock.
    pub(super) async fn find(
        &self,
        id: &KeyId,
    ) -> Result<(Timestamp, Option<(Vec<u8>, Assembled)>), Failure> {
        let shard = shard_of(id);
        let keys = self.names.record_and_mark(id);
        let call = self.call(&GET, shard, &keys);
        let mut reply = self.look_at(shard, &call).await?;
        let now = Timestamp::from_micros(reply.number()?);
        let (bytes, answer) = (reply.bytes()?, reply.bytes()?.unwrap_or_default());
        let loss = Loss::of_code(reply.number()?);
        if let Some(loss) = loss {
            self.lost(&call, loss);
        }
        let bytes = match (bytes, loss) {
            (Some(bytes), _) => bytes,
            (None, None) => return Ok((now, None)),
            // It may have been there: a store that has lost something cannot say that it was not.
            (None, Some(loss)) => return Err(Failure::Lost(loss)),
        };
        let found = layout::read(id, &bytes, &answer)?;
        Ok((now, Some((bytes, found))))
    }

    /// Reads the pieces that a record may lack and checks the whole. `None` if some are gone.
    async fn with_pieces(&self, found: Assembled) -> Result<Option<Record>, Failure> {
        let State::Done { outcome, .. } = &found.record.state else {
            return Ok(Some(found.record));
        };
        if found.pieces == 0 {
            return Ok(Some(found.record));
        }
        let slot = self.names.slot(shard_of(&found.record.id));
        let mut body = Vec::new();
        let parts: Vec<u32> = (0..found.pieces).collect();
        for parts in parts.chunks(PIECES_AT_ONCE) {
            let mut command = redis::cmd("HMGET");
            command.arg(self.names.record(&found.record.id));
            for part in parts {
                command.arg(piece_name(outcome, *part));
            }
            let Value::Array(pieces) = self.servers.read(slot, &command).await? else {
                return Err(Failure::Odd("HMGET"));
            };
            for piece in pieces {
                let Value::BulkString(bytes) = piece else { return Ok(None) };
                body.extend_from_slice(&bytes);
            }
        }
        Ok(Some(found.with_body(Bytes::from(body))?))
    }

    /// What a script of a write says, and who says it.
    fn write(&self, shard: u8, mut reply: Reply) -> Result<(Write, Witness), Failure> {
        match reply.code {
            0 => Ok((Write::Fenced, reply.witness)),
            1 => {
                self.saw(shard, reply.number()?);
                Ok((Write::Applied, reply.witness))
            }
            _ => Err(Failure::Odd("a write")),
        }
    }
}

/// The classes under which work may be done again that may have happened, if this class allows it.
fn may_send_again(class: Class) -> Vec<u8> {
    let both = |then: &Class| then.may_send_again() && class.may_send_again();
    Class::ALL.into_iter().filter(both).map(Class::code).collect()
}

fn piece_name(outcome: &Outcome, part: u32) -> Vec<u8> {
    let mut name = vec![b'p'];
    name.extend_from_slice(outcome.as_bytes());
    name.extend_from_slice(part.to_string().as_bytes());
    name
}

fn late() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

/// What became of some leases, by their places, or why nobody knows.
type Part<'p> = (&'p [usize], Result<Vec<(usize, Renewal)>, Failure>);

/// What became of all leases. An error only if nothing is known about any of them.
fn put_together(leases: usize, parts: Vec<Part<'_>>) -> Result<Vec<Renewal>, Failure> {
    let mut renewals = vec![Renewal::Lost; leases];
    let mut failure = None;
    for (places, renewed) in parts {
        match renewed {
            Ok(renewed) => {
                for (place, renewal) in renewed {
                    renewals[place] = renewal;
                }
            }
            Err(failed) => {
                for place in places {
                    renewals[*place] = Renewal::Failed;
                }
                failure = Some(failed);
            }
        }
    }
    match failure {
        Some(failure) if renewals.iter().all(|renewal| *renewal == Renewal::Failed) => Err(failure),
        Some(_) | None => Ok(renewals),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L3: a server that does not answer costs no lease on another one.
    #[test]
    fn leases_that_were_reached_are_renewed_whatever_became_of_others() {
        let until = Renewal::Until(Timestamp::from_micros(7));
        let lost =
            || Err(Failure::Broken(std::io::Error::from(std::io::ErrorKind::TimedOut).into()));
        let parts: Vec<Part<'_>> =
            vec![(&[0, 2], Ok(vec![(0, until), (2, Renewal::Lost)])), (&[1, 3], lost())];
        let renewals = put_together(4, parts).unwrap();
        assert_eq!(renewals, [until, Renewal::Failed, Renewal::Lost, Renewal::Failed]);
        assert!(put_together(2, vec![(&[0], lost()), (&[1], lost())]).is_err());
        assert_eq!(put_together(0, Vec::new()).unwrap(), []);
    }
}
