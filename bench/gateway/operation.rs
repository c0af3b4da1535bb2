//! What is measured, and in front of what.

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    /// A GET: passes through.
    Get,
    /// A POST without a key: passes through.
    Post,
    /// A POST with a new key.
    New,
    /// A POST with one of a thousand finished keys.
    Replay,
    /// A POST with the one key that everybody has.
    Hot,
}

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// The service itself.
    Direct,
    /// nginx as a plain proxy.
    Nginx,
    /// The gateway on SQLite, as it comes: WAL, `synchronous=FULL`.
    Sqlite,
    /// The gateway on PostgreSQL.
    Postgres,
}

impl Operation {
    pub(crate) const ALL: [Self; 5] = [Self::Get, Self::Post, Self::New, Self::Replay, Self::Hot];

    /// The word for the script.
    pub(crate) const fn kind(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::New => "new",
            Self::Replay => "again",
            Self::Hot => "hot",
        }
    }

    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST without a key",
            Self::New => "POST, new key",
            Self::Replay => "POST, replay",
            Self::Hot => "POST, hot key",
        }
    }

    /// Whether the gateway answers it itself once it has been done.
    pub(crate) const fn is_repeated(self) -> bool {
        matches!(self, Self::Replay | Self::Hot)
    }
}

impl Side {
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Direct => "(no proxy)",
            Self::Nginx => "nginx",
            Self::Sqlite => "oncekey, sqlite",
            Self::Postgres => "oncekey, postgres",
        }
    }

    pub(crate) const fn is_gateway(self) -> bool {
        matches!(self, Self::Sqlite | Self::Postgres)
    }
}
