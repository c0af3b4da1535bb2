//! What can go wrong on the way to a MySQL server and back, and what the caller can do about it.

use std::time::Duration;

use mysql_async::{DriverError, Error, IoError, ServerError};
use oncekey_core::{ErrorKind, StoreError};

use crate::store::group::Failure;
use crate::store::parts::Damage;

/// What went wrong, before it is known whether it was a read or a write.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The server refused a statement. Its transaction was rolled back.
    Refused(ServerError),
    /// The server answered a commit with an error. It may have come after the fact: a binary log that
    /// could not be written, for example, or a disk that was full when the logs were rotated.
    Commit(ServerError),
    /// The connection broke midway.
    Lost(Error),
    /// No answer came in time.
    Silent(Duration),
    /// Nothing was sent: there is no connection.
    NotSent(StoreError),
    /// A row is not what was written.
    Row(Damage),
    /// The row of the high-water mark is gone.
    NoMark,
}

const NO_MARK: &str = "the table of the clock has lost its row, and fences may not rise without it: restore \
                       a backup, or insert the row with a fence above every other";

/// A duplicate key.
pub(super) const DUPLICATE: u16 = 1062;
/// A number is out of range: how a claim notices that the high-water mark rose under it.
pub(super) const OUT_OF_RANGE: u16 = 1690;
/// A column that takes no NULL was given one: how a batch of completions notices that one of its records
/// is not there to be completed.
pub(super) const NULL: u16 = 1048;
/// The user may not do this.
pub(super) const DENIED: [u16; 5] = [1044, 1142, 1143, 1227, 1370];
/// A lock was waited for too long, or a deadlock was broken. The transaction is gone; asking again
/// is the cure.
const CONTENDED: [u16; 2] = [1205, 1213];
/// The server takes no writes: it is a replica, or was made one. Nothing has changed, but where it was
/// is another primary, or will be: a new connection may lead there.
const READ_ONLY: [u16; 4] = [1290, 1792, 1836, 3100];
/// Refusals that may come although the commit took effect, also that of a statement which is a
/// transaction by itself: an error during the commit, a log that could not be written, a server that
/// shuts down, a statement or a connection that an operator killed.
const PERHAPS_COMMITTED: [u16; 7] = [1026, 1053, 1105, 1180, 1317, 1598, 1927];

impl Trouble {
    /// A row is not what was written, in this respect.
    pub(super) const fn damaged(what: &'static str) -> Self {
        Self::Row(Damage::Damaged(what))
    }

    /// An error in answer to a commit. After a deadlock, which a cluster notices that late, the
    /// transaction is gone for certain.
    pub(super) fn of_commit(error: Error) -> Self {
        match error {
            Error::Server(error) if !CONTENDED.contains(&error.code) => Self::Commit(error),
            Error::Server(_)
            | Error::Driver(_)
            | Error::Io(_)
            | Error::Other(_)
            | Error::Url(_) => Self::from(error),
        }
    }

    /// What it means for somebody whose call went along with others that were committed: whatever went
    /// wrong then, nobody knows what became of this one.
    pub(super) fn after_commit(&self) -> StoreError {
        let text = match self {
            Self::Refused(error) | Self::Commit(error) => {
                format!("the server refused to say more (error {})", error.code)
            }
            Self::Lost(_) => "the connection to the server was lost".to_owned(),
            Self::Silent(span) => format!("the server did not answer within {span:?}"),
            Self::NotSent(error) => error.to_string(),
            Self::Row(damage) => damage.to_string(),
            Self::NoMark => NO_MARK.to_owned(),
        };
        StoreError::new(
            ErrorKind::Ambiguous,
            format!("a part of the batch was committed, and then {text}"),
        )
    }

    /// The server's code, if it refused.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(error) => Some(error.code),
            Self::Commit(_)
            | Self::Lost(_)
            | Self::Silent(_)
            | Self::NotSent(_)
            | Self::Row(_)
            | Self::NoMark => None,
        }
    }

    /// Whether asking again at once is likely to help.
    pub(super) fn is_contention(&self) -> bool {
        self.code().is_some_and(|code| CONTENDED.contains(&code))
    }

    /// Whether the server takes no writes, so that another one may have to be asked.
    pub(super) fn is_read_only(&self) -> bool {
        self.code().is_some_and(|code| READ_ONLY.contains(&code))
    }

    /// What it means for somebody who only reads: nothing has changed.
    pub(super) fn of_read(self) -> StoreError {
        self.told(ErrorKind::Unavailable)
    }

    /// What it means for somebody who writes: if no answer came, nobody knows.
    pub(super) fn of_write(self) -> StoreError {
        self.told(ErrorKind::Ambiguous)
    }

    /// What it means for a batch.
    pub(super) fn of_batch(self) -> Failure {
        match self {
            // Another connection may lead to a server that takes it.
            Self::Refused(error) if READ_ONLY.contains(&error.code) => {
                Failure::NotSent(from_server(error))
            }
            Self::Refused(error) if !PERHAPS_COMMITTED.contains(&error.code) => {
                Failure::Refused(from_server(error))
            }
            Self::NotSent(error) => Failure::NotSent(error),
            Self::Row(damage) => Failure::Refused(damage.into()),
            Self::NoMark => Failure::Refused(StoreError::new(ErrorKind::Corrupt, NO_MARK)),
            unknown @ (Self::Refused(_) | Self::Commit(_) | Self::Lost(_) | Self::Silent(_)) => {
                Failure::Unknown(unknown.of_write())
            }
        }
    }

    fn told(self, unheard: ErrorKind) -> StoreError {
        match self {
            Self::Refused(error) if PERHAPS_COMMITTED.contains(&error.code) => {
                let kind = unheard;
                StoreError::new(kind, "the server broke a statement off").with_source(error)
            }
            Self::Refused(error) => from_server(error),
            Self::Commit(error) => {
                let text = "the server answered a commit with an error, and may have made it";
                StoreError::new(unheard, text).with_source(error)
            }
            Self::Lost(error) => {
                StoreError::new(unheard, "the connection to the server was lost").with_source(error)
            }
            Self::Silent(span) => {
                StoreError::new(unheard, format!("the server did not answer within {span:?}"))
            }
            Self::NotSent(error) => error,
            Self::Row(damage) => damage.into(),
            Self::NoMark => StoreError::new(ErrorKind::Corrupt, NO_MARK),
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        match error {
            Error::Server(error) => Self::Refused(error),
            lost @ (Error::Driver(_) | Error::Io(_) | Error::Other(_) | Error::Url(_)) => {
                Self::Lost(lost)
            }
        }
    }
}

impl From<Damage> for Trouble {
    fn from(damage: Damage) -> Self {
        Self::Row(damage)
    }
}

/// Maps why no connection could be opened. Nothing has been sent.
pub(super) fn from_connect(error: Error, address: &str) -> StoreError {
    match error {
        Error::Server(error) => from_server(error),
        // What the TLS library has to say about a certificate comes as invalid data.
        Error::Io(error) if is_about_tls(&error) => StoreError::new(
            ErrorKind::Unsuitable,
            format!(
                "no secure connection to {address}: its certificate is not trusted; name the root \
                 certificate (`root_certificate`)"
            ),
        )
        .with_source(Error::Io(error)),
        Error::Driver(
            error @ (DriverError::UnknownAuthPlugin { .. }
            | DriverError::CleartextPluginDisabled
            | DriverError::MysqlOldPasswordDisabled),
        ) => StoreError::new(
            ErrorKind::Unsuitable,
            "the server wants a way to log in that is not supported: give the user a password with \
             mysql_native_password, caching_sha2_password or ed25519",
        )
        .with_source(Error::Driver(error)),
        error @ (Error::Driver(_) | Error::Io(_) | Error::Other(_) | Error::Url(_)) => {
            StoreError::new(
                ErrorKind::Unavailable,
                format!(
                    "no connection to {address}: check that the server runs and may be reached"
                ),
            )
            .with_source(error)
        }
    }
}

fn is_about_tls(error: &IoError) -> bool {
    match error {
        IoError::Tls(_) => true,
        IoError::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
    }
}

/// Maps a refusal after which nothing has changed. The server's own words are the source and not
/// part of the message: they may quote values.
pub(super) fn from_server(error: ServerError) -> StoreError {
    let (kind, message) = match error.code {
        1205 | 1213 => (
            ErrorKind::Unavailable,
            "another transaction holds the locks of this record for too long",
        ),
        1040 | 1203 | 1226 => (
            ErrorKind::Unavailable,
            "the server takes no more connections: raise max_connections, or lower the writers and \
             readers of this store",
        ),
        code if DENIED.contains(&code) => (
            ErrorKind::Unsuitable,
            "the user lacks rights: grant it SELECT, INSERT, UPDATE and DELETE on the tables of \
             oncekey, and CREATE for migrations",
        ),
        1045 | 1698 => {
            (ErrorKind::Unsuitable, "the server refused the user or the password: check the URL")
        }
        NULL => (ErrorKind::Corrupt, NO_MARK),
        1049 => (ErrorKind::Unsuitable, "the database of the URL does not exist: create it first"),
        1146 => (
            ErrorKind::Unsuitable,
            "a table of oncekey is missing: run `oncekey store migrate`, or apply `migration_sql()` \
             by hand",
        ),
        1054 => (
            ErrorKind::Unsuitable,
            "the tables of oncekey have another shape than this version knows: apply \
             `migration_sql()`, or upgrade oncekey",
        ),
        code if READ_ONLY.contains(&code) => {
            (ErrorKind::Unavailable, "the server is read-only: point the URL at the primary")
        }
        3 | 28 | 1020 | 1021 | 1026 | 1114 => {
            (ErrorKind::Unavailable, "the disk of the server is full: free some space")
        }
        1153 => (
            ErrorKind::Unsuitable,
            "a statement is larger than the server takes: raise max_allowed_packet to 4 MiB or more",
        ),
        1158..=1161 => (ErrorKind::Unavailable, "the server lost the connection"),
        1264 | 1292 | 1366 | 1406 => {
            (ErrorKind::Rejected, "a value does not fit the tables of oncekey")
        }
        _ => (ErrorKind::Unavailable, "the server refused a statement"),
    };
    StoreError::new(kind, message).with_source(Error::Server(error))
}

/// The store cannot work like this.
pub(super) fn unsuitable(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Unsuitable, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16) -> Trouble {
        let (message, state) = ("Access denied: s3cret".to_owned(), "HY000".to_owned());
        Trouble::Refused(ServerError { code, message, state })
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        use ErrorKind::{Rejected, Unavailable, Unsuitable};
        let table = [
            (1040, Unavailable, "max_connections"),
            (1045, Unsuitable, "password"),
            (1049, Unsuitable, "create it"),
            (1114, Unavailable, "disk"),
            (1142, Unsuitable, "grant"),
            (1146, Unsuitable, "migration_sql"),
            (1153, Unsuitable, "max_allowed_packet"),
            (1205, Unavailable, "locks"),
            (1213, Unavailable, "locks"),
            (1290, Unavailable, "primary"),
            (1406, Rejected, "fit"),
            (1836, Unavailable, "primary"),
        ];
        for (code, kind, word) in table {
            let error = refused(code).of_write();
            assert_eq!(error.kind(), kind, "{code}: {error}");
            assert!(error.to_string().contains(word), "{code}: {error}");
            assert!(!error.to_string().contains("s3cret"), "the server's words: {error}");
        }
    }

    /// Whoever writes and hears nothing, or an error that may come after the commit, knows nothing.
    #[test]
    fn what_may_have_happened_is_ambiguous_for_writers_alone() {
        let lost = || Trouble::Lost(Error::Driver(DriverError::ConnectionClosed));
        let silent = || Trouble::Silent(Duration::from_secs(1));
        for trouble in [lost, silent, || refused(1180), || refused(1317)] as [fn() -> Trouble; 4] {
            assert_eq!(trouble().of_write().kind(), ErrorKind::Ambiguous);
            assert_eq!(trouble().of_read().kind(), ErrorKind::Unavailable);
            assert!(matches!(trouble().of_batch(), Failure::Unknown(_)));
        }
        assert!(matches!(refused(1213).of_batch(), Failure::Refused(_)));
    }

    /// A full disk that is told in answer to a statement has changed nothing; in answer to a commit it
    /// may have come after the fact. A deadlock never does.
    #[test]
    fn an_error_in_answer_to_a_commit_is_ambiguous() {
        for code in [1021, 1026, 1290, 1598, 3_100] {
            let answered = |code| {
                let (message, state) = (String::new(), "HY000".to_owned());
                Trouble::of_commit(Error::Server(ServerError { code, message, state }))
            };
            assert_eq!(answered(code).of_write().kind(), ErrorKind::Ambiguous, "{code}");
            assert!(matches!(answered(code).of_batch(), Failure::Unknown(_)), "{code}");
            assert_eq!(answered(code).code(), None, "nothing is tried again because of it");
            assert!(answered(1213).is_contention());
        }
        assert!(matches!(refused(1021).of_batch(), Failure::Refused(_)));
        assert!(matches!(refused(1026).of_batch(), Failure::Unknown(_)), "it commits by itself");
    }
}
