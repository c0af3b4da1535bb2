//! What is wrong with settings that are each right.

mod fields;
mod gateway;
mod route;

use super::problem::ConfigProblem;
use super::{Config, Values};

/// All contradictions, and what will hurt later.
pub(super) fn find(config: &Config, values: &Values) -> Vec<ConfigProblem> {
    let mut problems = gateway::find(config, &values.globals);
    problems.extend(route::find(config, values));
    problems
}
