//! Traces: a span for each request and one for each call of the upstream, sent to a collector by
//! OTLP. The feature `otlp` brings them; without it nothing of this costs anything.
//!
//! ```text
//!  traceparent of the client ──► request span ──► traceparent that the layer keeps with the answer
//!                                     │                                     │
//!                                upstream span ──► traceparent          a replay's span links to it
//! ```
//!
//! Only the few messages that are needed are encoded, by hand: the usual crates bring a second HTTP
//! client, and break with each other every few months.

#[cfg(feature = "otlp")]
mod context;
#[cfg(feature = "otlp")]
mod exporter;
#[cfg(not(feature = "otlp"))]
mod off;
#[cfg(feature = "otlp")]
mod proto;
#[cfg(feature = "otlp")]
mod tracer;

#[cfg(not(feature = "otlp"))]
pub(crate) use self::off::{Serving, Tracer};
#[cfg(feature = "otlp")]
pub(crate) use self::tracer::{Serving, Tracer};
