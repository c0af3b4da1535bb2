//! What the layer does with every odd input: keys, bodies, answers, framing.
//!
//! Each row says what the client gets (status, code, `executed`) and how often the service ran.
//! Most rows are driven in-process; where framing matters, over a real socket.

#![cfg(feature = "tower")]
#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]

mod answers;
mod bodies;
mod framing;
mod handlers;
mod hanging_up;
mod in_a_row;
mod json;
mod keys;
mod meetings;
mod rig;
mod routers;
mod scopes;
mod statuses;
mod stores;
