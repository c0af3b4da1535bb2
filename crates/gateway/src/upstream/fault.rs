//! What can go wrong between a request and the end of its answer.

use std::io;

use crate::proxy::BodyError;

/// Why an exchange with an upstream did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// The client's doing.
    #[error("the body of the request broke off")]
    Body(#[source] BodyError),
    /// The client's doing, too.
    #[error("the body of the request has another length than its head says")]
    BodyLength,
    #[error("the connection failed")]
    Io(#[source] io::Error),
    #[error("no answer came in time")]
    Late,
    #[error("the connection ended before the answer did")]
    Ended,
    #[error("the head of the answer is not HTTP: {0}")]
    Head(#[source] httparse::Error),
    #[error("the answer has a status that no answer has")]
    Status,
    #[error("the head of the answer is too large")]
    HeadTooLarge,
    /// Nobody can tell where the answer ends.
    #[error("the answer has framing that contradicts itself or is not known")]
    Framing,
    #[error("a chunk of the answer is not framed as it should be")]
    Chunk,
    #[error("the connection was switched to another protocol before the request had ended")]
    SwitchedEarly,
    /// Of a connection that many requests share.
    #[error(transparent)]
    Http2(hyper::Error),
}

impl Fault {
    /// Whether it was the client who broke off.
    pub(crate) fn is_of_client(&self) -> bool {
        match self {
            Self::Body(_) | Self::BodyLength => true,
            Self::Io(_)
            | Self::Late
            | Self::Ended
            | Self::Head(_)
            | Self::Status
            | Self::HeadTooLarge
            | Self::Framing
            | Self::Chunk
            | Self::SwitchedEarly
            | Self::Http2(_) => false,
        }
    }
}
