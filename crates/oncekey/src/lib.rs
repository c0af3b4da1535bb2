//! Makes any API safe to retry.
//!
//! [`engine`] does the work: claim, run, complete. [`layer`] puts it in front of a
//! tower service. The stores are in [`store`]; the decisions that all of them share are in
//! [`core`].
//!
//! | feature | what it adds |
//! |---|---|
//! | `flow` | [`flow`]: requests that resume instead of running again, on a pool of sqlx |
//! | `flow-mysql`, `flow-postgres` | the same, without the key stores `mysql` and `postgres` |
//! | `flow-rusqlite`, `flow-tokio-postgres` | the same, on connections of rusqlite and tokio-postgres |
//! | `outbox` | [`outbox`]: messages that are sent if and only if their rows are committed |
//! | `sqlite` | [`store::sqlite`]: the embedded store, one file, durable |
//! | `tower` | [`layer`]: `Idempotency-Key` for axum, hyper and other tower services |

pub mod clock;
pub mod engine;
pub mod entropy;
#[cfg(feature = "flow")]
pub mod flow;
#[cfg(feature = "tower")]
pub mod layer;
#[cfg(feature = "outbox")]
pub mod outbox;
pub mod problem;
pub mod store;

#[cfg(all(
    feature = "flow",
    any(feature = "mysql", feature = "postgres", feature = "sqlite")
))]
pub use flow::tx;
pub use oncekey_core as core;

/// The code of the how-to about flows.
#[cfg(all(doctest, feature = "flow", feature = "sqlite"))]
#[doc = include_str!("../../../docs/how-to/resume-requests-with-flows.md")]
struct ResumeRequestsWithFlows;

/// The code of the how-to about local writes.
#[cfg(all(doctest, feature = "flow", feature = "sqlite"))]
#[doc = include_str!("../../../docs/how-to/make-local-writes-idempotent.md")]
struct MakeLocalWritesIdempotent;

/// The code of the how-to about the outbox.
#[cfg(all(doctest, feature = "outbox", feature = "sqlite"))]
#[doc = include_str!("../../../docs/how-to/outbox.md")]
struct SendMessagesWithTheOutbox;

/// The code of the how-tos compiles and, where it can, runs.
#[cfg(all(doctest, feature = "sqlite", feature = "tower"))]
mod how_to {
    #[doc = include_str!("../../../docs/how-to/encrypt-records.md")]
    struct EncryptRecords;
    #[doc = include_str!("../../../docs/how-to/protect-an-axum-service.md")]
    struct ProtectAnAxumService;
    #[doc = include_str!("../../../docs/how-to/resolve-unknown-outcomes.md")]
    struct ResolveUnknownOutcomes;
}
