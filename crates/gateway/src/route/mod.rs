use std::sync::Arc;
use http::{HeaderName, Method};
use oncekey::layer::Rule;
pub(crate) struct Route { pub(crate) name: Box<str>, pub(crate) rule: Option<Arc<Rule>>, pub(crate) forward_key: Option<HeaderName> }
pub(crate) struct RouteTable(Arc<Route>);
impl RouteTable {
    pub(crate) fn all() -> Self { Self(Arc::new(Route { name: "all".into(), rule: Some(Arc::new(Rule::new("all"))), forward_key: None })) }
    pub(crate) fn find(&self, method: &Method, _path: &str) -> Option<&Arc<Route>> { matches!(*method, Method::POST | Method::PATCH).then_some(&self.0) }
    pub(crate) fn own_headers(&self) -> Vec<HeaderName> { vec![HeaderName::from_static("idempotency-key")] }
}
