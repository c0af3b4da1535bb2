//! What every new connection is asked, in one round trip: whether it leads straight to the server, how that
//! is set up, and which life it is in.

use oncekey_core::StoreError;
use oncekey_core::health::Verdict;
use tokio_postgres::{Client, Error, Row};

use super::error::{from_postgres, unsuitable};
use super::health::{check_commit, check_isolation};
use super::life::Sight;
use super::row;
use crate::entropy::{Entropy as _, SystemEntropy};
use crate::store::parts::Damage;

/// A word that nobody else knows. A connection is started with it and asked for it.
///
/// Whoever starts connections on behalf of others, and lends them out, either refuses settings that it
/// does not know, or swallows them: then the server that answers has never heard the word. Only a server
/// process that was started for this very connection has.
#[derive(Debug)]
pub(super) struct Nonce(String);

/// Whether there is a server process for this connection alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The word was heard there.
    Direct,
    /// It was not said, or somebody in between kept it.
    Unproven,
}

/// What a server says on a new connection.
#[derive(Debug)]
pub(super) struct Greeting {
    pub(super) way: Way,
    /// `None` if it does not know.
    pub(super) life: Option<Sight>,
}

impl Nonce {
    pub(super) fn new(entropy: &SystemEntropy) -> Self {
        let mut bits = [0; 16];
        entropy.fill(&mut bits);
        Self(bits.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// As one of the settings that a connection is started with.
    pub(super) fn setting(&self) -> String {
        format!("-c oncekey.direct={}", self.0)
    }
}

/// Asks. `life` is what to select for the life of the server.
///
/// A server that cannot say which life it is in, because the tables are gone or may not be read, is asked
/// for the rest alone: it is still good for reads, and says what is missing when it is asked for more.
///
/// One that takes back what it acknowledges is refused, whenever it was set up so: settings of a user hold
/// from its next connection on. That it takes writes is what the driver asks every server for.
pub(super) async fn greet(
    client: &Client,
    nonce: Option<&Nonce>,
    life: Option<&str>,
) -> Result<Greeting, StoreError> {
    let row = match ask(client, life.unwrap_or(NO_LIFE)).await {
        Err(error) if error.as_db_error().is_some() && life.is_some() => ask(client, NO_LIFE).await,
        asked => asked,
    };
    let row = row.map_err(from_postgres)?;
    for finding in [check_isolation(row::get(&row, 1)?), check_commit(row::get(&row, 2)?)] {
        if finding.verdict == Verdict::Refused {
            return Err(unsuitable(finding.text));
        }
    }
    let heard: Option<&str> = row::get(&row, 0)?;
    let way = match (nonce, heard) {
        (Some(Nonce(said)), Some(heard)) if said == heard => Way::Direct,
        (Some(_) | None, _) => Way::Unproven,
    };
    Ok(Greeting { way, life: sight(&row, 3)? })
}

const NO_LIFE: &str = "NULL::text, NULL::bigint, NULL::bigint";

/// Reads what the query for the life of a server answers, from this column on.
pub(super) fn sight(row: &Row, column: usize) -> Result<Option<Sight>, Damage> {
    let Some(name) = row::get::<Option<String>>(row, column)? else { return Ok(None) };
    Ok(Some(Sight { name, written: row::get(row, column + 1)?, end: row::get(row, column + 2)? }))
}

async fn ask(client: &Client, life: &str) -> Result<Row, Error> {
    let text = format!(
        "SELECT current_setting('oncekey.direct', true), current_setting('transaction_isolation'),
            current_setting('synchronous_commit'), {life}"
    );
    client.query_typed_one(&text, &[]).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_connections_have_the_same_word() {
        let entropy = SystemEntropy::default();
        let [one, other] = [Nonce::new(&entropy), Nonce::new(&entropy)];
        assert_ne!(one.setting(), other.setting());
        assert!(one.0.len() == 32 && one.0.bytes().all(|b| b.is_ascii_hexdigit()));
    }
}
