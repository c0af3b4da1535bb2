//! The contract between flows and a database with transactions.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use super::tables::Layout;

/// A database whose transactions can hold the application's rows and ours at the same time.
///
/// An adapter is thin on purpose: it begins and ends transactions and carries statements. What the
/// statements say is written once for all databases, in [`Layout`] and the modules that use it.
/// A store without transactions over several rows of the application's choice cannot implement this:
/// so a phase on Redis or DynamoDB does not compile.
///
/// # Cancellation
///
/// Dropping the future of [`begin`](Self::begin) at any moment leaves no connection with an open
/// transaction behind. Dropping a transaction rolls it back. Dropping [`commit`](Self::commit) leaves
/// it open whether it was committed.
pub trait TxStore: Clone + fmt::Debug + Send + Sync + 'static {
    /// The native connection, inside a transaction.
    type Conn: Send;

    /// A transaction. It rolls back when it is dropped.
    type Tx: Send + 'static;

    /// The names of the tables and the ways of the database.
    fn layout(&self) -> &Layout;

    /// Begins a transaction in which reads see what was committed before, and of which a smuggled end
    /// can be told by [`still_open`](Self::still_open).
    fn begin(&self) -> impl Future<Output = Result<Self::Tx, TxError>> + Send;

    /// The same at isolation level SERIALIZABLE: the transaction is as if no other one of its kind had run
    /// beside it, or one of its statements, maybe its commit, fails with [`TxTrouble::Conflict`].
    fn begin_serializable(&self) -> impl Future<Output = Result<Self::Tx, TxError>> + Send;

    /// The native connection of a transaction.
    fn conn(tx: &mut Self::Tx) -> &mut Self::Conn;

    /// The same, to look at.
    fn conn_ref(tx: &Self::Tx) -> &Self::Conn;

    /// Whether this is still the transaction that [`begin`](Self::begin) began. Somebody who says
    /// `COMMIT` inside a phase would otherwise be found out by nobody.
    fn still_open(conn: &mut Self::Conn) -> impl Future<Output = Result<Open, TxError>> + Send;

    /// Commits. After an error nobody knows whether it did.
    fn commit(tx: Self::Tx) -> impl Future<Output = Result<(), TxError>> + Send;

    /// Rolls back and waits until that is done.
    fn rollback(tx: Self::Tx) -> impl Future<Output = Result<(), TxError>> + Send;

    /// Runs one statement and says how many rows it met.
    fn execute(
        conn: &mut Self::Conn,
        sql: &Arc<str>,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<u64, TxError>> + Send;

    /// Runs one statement and reads its rows.
    fn query(
        conn: &mut Self::Conn,
        sql: &Arc<str>,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<Vec<Row>, TxError>> + Send;

    /// Runs one statement in a transaction of its own.
    fn execute_once(
        &self,
        sql: &Arc<str>,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<u64, TxError>> + Send;

    /// Reads the rows of one statement in a transaction of its own.
    fn query_once(
        &self,
        sql: &Arc<str>,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<Vec<Row>, TxError>> + Send;

    /// Runs several statements without values, one after the other.
    fn script(&self, text: &str) -> impl Future<Output = Result<(), TxError>> + Send;
}

/// Whether a transaction is still the one that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// It is.
    Yes,
    /// Somebody ended it.
    Ended,
    /// The fenced statement will tell.
    AskedLater,
}

/// A value of a statement. Values travel beside the text and are never part of it.
#[derive(Clone, Copy)]
pub enum Value<'v> {
    /// A number.
    Int(i64),
    /// Bytes.
    Bytes(&'v [u8]),
    /// Text.
    Text(&'v str),
    /// No number.
    NoInt,
    /// No bytes.
    NoBytes,
}

/// Says of which kind a value is, and not what it is: it may be personal.
impl fmt::Debug for Value<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(number) => write!(out, "Int({number})"),
            Self::Bytes(bytes) => write!(out, "Bytes({} bytes)", bytes.len()),
            Self::Text(text) => write!(out, "Text({} bytes)", text.len()),
            Self::NoInt => out.write_str("NoInt"),
            Self::NoBytes => out.write_str("NoBytes"),
        }
    }
}

/// A row as it was read.
#[derive(Clone, Default)]
pub struct Row(Vec<Cell>);

/// One column of a row.
#[derive(Clone)]
pub enum Cell {
    /// Nothing.
    Null,
    /// A number.
    Int(i64),
    /// Bytes, or text as bytes.
    Bytes(Vec<u8>),
}

impl fmt::Debug for Row {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Row({} columns)", self.0.len())
    }
}

impl fmt::Debug for Cell {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => out.write_str("Null"),
            Self::Int(number) => write!(out, "Int({number})"),
            Self::Bytes(bytes) => write!(out, "Bytes({} bytes)", bytes.len()),
        }
    }
}

impl From<Vec<Cell>> for Row {
    fn from(cells: Vec<Cell>) -> Self {
        Self(cells)
    }
}

impl Row {
    /// The number in a column.
    ///
    /// # Errors
    /// If there is none.
    pub fn int(&self, column: usize) -> Result<i64, TxError> {
        self.maybe_int(column)?.ok_or_else(TxError::damaged)
    }

    /// The number in a column that may be empty.
    ///
    /// # Errors
    /// If there is something else.
    pub fn maybe_int(&self, column: usize) -> Result<Option<i64>, TxError> {
        match self.0.get(column) {
            Some(Cell::Int(number)) => Ok(Some(*number)),
            Some(Cell::Null) => Ok(None),
            Some(Cell::Bytes(_)) | None => Err(TxError::damaged()),
        }
    }

    /// The bytes in a column.
    ///
    /// # Errors
    /// If there are none.
    pub fn bytes(&self, column: usize) -> Result<&[u8], TxError> {
        self.maybe_bytes(column)?.ok_or_else(TxError::damaged)
    }

    /// The bytes in a column that may be empty.
    ///
    /// # Errors
    /// If there is something else.
    pub fn maybe_bytes(&self, column: usize) -> Result<Option<&[u8]>, TxError> {
        match self.0.get(column) {
            Some(Cell::Bytes(bytes)) => Ok(Some(bytes)),
            Some(Cell::Null) => Ok(None),
            Some(Cell::Int(_)) | None => Err(TxError::damaged()),
        }
    }

    /// The text in a column.
    ///
    /// # Errors
    /// If there is none.
    pub fn text(&self, column: usize) -> Result<&str, TxError> {
        std::str::from_utf8(self.bytes(column)?).map_err(|_| TxError::damaged())
    }

    /// Bytes of a known length.
    ///
    /// # Errors
    /// If there are none, or more, or fewer.
    pub fn array<const N: usize>(&self, column: usize) -> Result<[u8; N], TxError> {
        self.bytes(column)?.try_into().map_err(|_| TxError::damaged())
    }
}

/// Why the database did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[error("{}", .kind.message())]
pub struct TxError {
    kind: TxTrouble,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What can be done about a [`TxError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TxTrouble {
    /// Another transaction was in the way: a deadlock, a serialization failure, a busy file. Nothing
    /// changed; the whole transaction may be tried again.
    Conflict,
    /// The database cannot be reached, or the connection broke. What was not committed did not happen.
    Unavailable,
    /// A row with the same unique columns is there already.
    Duplicate,
    /// The database refuses the statement. Asking again does not help.
    Refused,
    /// What is stored is not what was written.
    Damaged,
}

impl TxError {
    /// An error of a kind with its cause.
    pub fn new(
        kind: TxTrouble,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, source: Some(source.into()) }
    }

    pub(crate) const fn damaged() -> Self {
        Self { kind: TxTrouble::Damaged, source: None }
    }

    /// What can be done.
    #[must_use]
    pub const fn kind(&self) -> TxTrouble {
        self.kind
    }
}

impl TxTrouble {
    /// What can be done about an error with this SQLSTATE.
    pub(crate) fn of_state(code: &str) -> Self {
        match code {
            "23505" => Self::Duplicate,
            "40001" | "40P01" | "55P03" => Self::Conflict,
            code if ["08", "53", "57"].iter().any(|class| code.starts_with(class)) => {
                Self::Unavailable
            }
            _ => Self::Refused,
        }
    }

    const fn message(self) -> &'static str {
        match self {
            Self::Conflict => "another transaction was in the way: try the whole of it again",
            Self::Unavailable => "the database cannot be reached",
            Self::Duplicate => "a row with the same unique columns is there already",
            Self::Refused => "the database refused a statement",
            Self::Damaged => "a row of oncekey's tables is not what was written",
        }
    }
}
