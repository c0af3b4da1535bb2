//! Which requests are protected, and how.
//!
//! [`RouteTable::find`] is asked for every request and gives the most specific [`Route`]. A route
//! says in plain data what the proxy does with the request; where it protects, it carries the
//! [`Rule`](oncekey::layer::Rule) of the layer. A table never changes: a new configuration is a
//! new table.

mod path;
mod pattern;
mod rollout;
mod sample;
mod scope;
mod spec;
mod table;
mod treatment;
mod tree;

pub(crate) use self::path::is_odd;
pub(crate) use self::pattern::{Methods, Pattern, method};
pub(crate) use self::rollout::{Exempt, Rollout, RolloutBy};
pub(crate) use self::sample::common_path;
pub(crate) use self::scope::{ClientName, KeptScope, scope_of};
pub(crate) use self::spec::{Completer, RouteMode, RouteSpec, ScopePart, key_source};
pub(crate) use self::table::{Route, RouteTable, Secrets};
pub(crate) use self::treatment::{Assigned, Treatment};
pub(crate) use self::tree::Tree;
