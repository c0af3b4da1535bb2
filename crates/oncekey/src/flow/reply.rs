//! The reply of a flow, stored in the commit that made it true.

use bytes::Bytes;
use oncekey_core::{Headers, Saved};
use serde::Serialize;

use super::halt::Halt;

/// What the client is told, the first time and every time after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply(pub(crate) Saved);

/// A flow that has stored its reply. There is no other way to make one.
#[derive(Debug)]
pub struct Finished(pub(crate) Saved);

impl Reply {
    /// A reply with a JSON body.
    ///
    /// # Errors
    /// If the value has no JSON form.
    pub fn json(status: u16, value: &impl Serialize) -> Result<Self, Halt> {
        let body =
            serde_json::to_vec(value).map_err(|_| Halt::park("the reply has no form in JSON"))?;
        let mut headers = Headers::new();
        headers.push(b"content-type", b"application/json").expect("a sound header line");
        Ok(Self(Saved { status, headers, body: Bytes::from(body) }))
    }

    /// A reply with these header lines and this body.
    #[must_use]
    pub fn new(status: u16, headers: Headers, body: impl Into<Bytes>) -> Self {
        Self(Saved { status, headers, body: body.into() })
    }

    /// A reply without a body.
    #[must_use]
    pub fn empty(status: u16) -> Self {
        Self::new(status, Headers::new(), Bytes::new())
    }

    /// The status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.0.status
    }

    /// The body.
    #[must_use]
    pub const fn body(&self) -> &Bytes {
        &self.0.body
    }

    /// The whole.
    #[must_use]
    pub const fn saved(&self) -> &Saved {
        &self.0
    }
}

impl From<Saved> for Reply {
    fn from(saved: Saved) -> Self {
        Self(saved)
    }
}
