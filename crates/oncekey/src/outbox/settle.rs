//! Writing down what came of deliveries: by row, attempt and taking, never by how far one has come.

use std::time::Duration;

use super::claim::list;
use super::sql::state;
use super::stage::micros;
use crate::flow::{TxError, TxStore, Value};

/// What came of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Sent,
    /// Once more, after this time.
    Later {
        after: Duration,
        why: String,
    },
    Dead {
        why: String,
    },
    /// Nobody tried: the attempt does not count.
    GivenBack {
        after: Duration,
    },
}

/// One message and what came of it.
#[derive(Clone, Debug)]
pub(super) struct Settlement {
    pub(super) seq: i64,
    pub(super) attempt: i64,
    pub(super) ended: Ended,
}

/// The longest reason that is kept: what the columns of all databases hold, in the longest letters.
const LONGEST: usize = 1_000;

/// A reason as it is stored. PostgreSQL keeps no NUL, and a line is enough for people.
fn reason(why: &str) -> String {
    why.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(LONGEST).collect()
}

/// Settles a batch and says how many settlements met their row. The others were refused: their lease
/// has lapsed and somebody else has the message. May be repeated: a settlement is met once.
pub(super) async fn settle<S: TxStore>(
    store: &S,
    owner: &[u8; 16],
    settlements: &[Settlement],
) -> Result<usize, TxError> {
    let sql = &store.layout().outbox().sql;
    let (mut sent, mut not_sent) = (Vec::new(), Vec::new());
    for Settlement { seq, attempt, ended } in settlements {
        match ended {
            Ended::Sent => sent.push((*seq, *attempt)),
            Ended::Later { after, why } => {
                let why = Some(reason(why));
                not_sent.push((*seq, *attempt, state::WAITING, micros(*after), *attempt, why));
            }
            Ended::Dead { why } => {
                not_sent.push((*seq, *attempt, state::DEAD, 0, *attempt, Some(reason(why))));
            }
            Ended::GivenBack { after } => {
                let (after, before) = (micros(*after), attempt - 1);
                not_sent.push((*seq, *attempt, state::WAITING, after, before, None));
            }
        }
    }
    let owner = Value::Bytes(owner);
    let mut met = 0;
    // Locks are taken in one order.
    sent.sort_unstable();
    not_sent.sort_unstable();
    if !sent.is_empty() {
        met += store.execute_once(&sql.sent, &[Value::Text(&list(&sent)), owner]).await?;
    }
    if !not_sent.is_empty() {
        met += store.execute_once(&sql.not_sent, &[Value::Text(&list(&not_sent)), owner]).await?;
    }
    Ok(usize::try_from(met).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_short_line() {
        assert_eq!(reason("a\0b\nc"), "a b c");
        assert_eq!(reason(&"é".repeat(2_000)).chars().count(), LONGEST);
    }
}
