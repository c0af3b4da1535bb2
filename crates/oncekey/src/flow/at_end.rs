//! Messages that are staged when the body of a phase has returned.
//!
//! The end of a flow writes the last of them in the statement that stores the reply: a round trip less than
//! a message that is staged at once. Elsewhere they are the last thing that is written before the recovery
//! point.

use std::fmt;

use super::halt::Halt;
use super::point::PhaseTx;
use super::store::{TxError, TxStore, Value};

/// A plain message, without an order or a name of its own.
pub(crate) struct AtEnd {
    pub(crate) id: [u8; 16],
    pub(crate) topic: String,
    pub(crate) headers: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

impl AtEnd {
    /// The columns of the message, without its flow.
    pub(super) fn row(&self) -> [Value<'_>; 5] {
        /// No owner: nobody has taken it.
        const NOBODY: [u8; 16] = [0; 16];
        let Self { id, topic, headers, body } = self;
        [
            Value::Bytes(id),
            Value::Text(topic),
            Value::Bytes(headers),
            Value::Bytes(body),
            Value::Bytes(&NOBODY),
        ]
    }
}

impl<S: TxStore> PhaseTx<S> {
    /// Runs a body, and writes what it left for the end.
    pub(super) async fn run<T>(
        &mut self,
        body: impl AsyncFnOnce(&mut Self) -> Result<T, Halt>,
    ) -> Result<T, Halt> {
        let value = body(self).await?;
        let flow = self.flow.as_ref().map(|id| id.as_bytes().as_slice());
        let messages = std::mem::take(&mut self.at_end);
        stage_plain(&self.store, S::conn(&mut self.tx), flow, &messages).await?;
        Ok(value)
    }
}

/// Stages messages one by one.
pub(super) async fn stage_plain<S: TxStore>(
    store: &S,
    conn: &mut S::Conn,
    flow: Option<&[u8]>,
    messages: &[AtEnd],
) -> Result<(), TxError> {
    let flow = flow.map_or(Value::NoBytes, Value::Bytes);
    for message in messages {
        let values = [&[flow][..], &message.row()].concat();
        S::execute(conn, &store.layout().sql().stage_plain, &values).await?;
    }
    Ok(())
}

/// Says how much there is, and not what: it may be personal.
impl fmt::Debug for AtEnd {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "AtEnd({}, {} bytes)", self.topic, self.body.len())
    }
}
