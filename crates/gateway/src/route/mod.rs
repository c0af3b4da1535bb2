//! Which requests are protected, and how.
//!
//! [`RouteTable::find`] is asked for every request and gives the most specific [`Route`]. A route
//! says in plain data what the proxy does with the request; where it protects, it carries the
//! [`Rule`](oncekey::layer::Rule) of the layer. A table never changes: a new configuration is a
//! new table.

mod path;
mod pattern;
mod rollout;
mod scope;
mod spec;
mod table;
mod tree;

pub(crate) use self::path::is_odd;
pub(crate) use self::pattern::{Methods, Pattern, PatternError, method};
pub(crate) use self::rollout::{Exempt, Rollout, RolloutBy};
pub(crate) use self::spec::{
    Completer, KeySource, Quality, RouteMode, RouteSpec, ScopePart, SpecError,
};
pub(crate) use self::table::{Route, RouteTable};
pub(crate) use self::tree::Tree;
