//! Writes records that were made elsewhere.

use oncekey_core::{Record, Restored, Sent, State, Timestamp};

use super::error::Failure;
use super::layout;
use super::life::Witness;
use super::place::shard_of;
use super::reach::Reach;
use super::script::{Call, RESTORE};

impl Reach {
    /// Works on a store that has lost its data, too: that is when it is needed. Times after the year
    /// 2255 become the last moment that a script can read.
    pub(super) async fn restore(&self, record: &Record) -> Result<(Restored, Witness), Failure> {
        let shard = shard_of(&record.id);
        let keys = self.names.all(&record.id);
        let (bytes, answer) = layout::whole(record);
        let (due, forget) = match &record.state {
            State::Done { expires, forget, .. } => (*expires, *forget),
            State::Running { .. } | State::Unknown { .. } | State::Parked { .. } => {
                (Timestamp::default(), Timestamp::default())
            }
        };
        // As `supersedes` has it: no record ever goes back.
        let progress = match record.state {
            State::Running { sent: Sent::No, .. } => 0,
            State::Running { sent: Sent::Yes, .. } => 1,
            State::Unknown { .. } | State::Parked { .. } => 2,
            State::Done { .. } => 3,
        };
        let call = Call::new(&RESTORE, &keys)
            .arg(&record.id.as_bytes()[..])
            .arg(bytes)
            .arg(answer)
            .arg(progress)
            .arg(layout::digits(due.micros()))
            .arg(layout::digits(forget.micros()));
        let mut reply = self.ask(shard, &call).await?;
        if reply.code == 0 {
            return Ok((Restored::Kept, reply.witness));
        }
        reply.number()?;
        Ok((Restored::Written, reply.witness))
    }
}
