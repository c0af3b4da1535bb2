//! The policy document: what clients can rely on, for `GET /.well-known/idempotency`.

use bytes::Bytes;
use oncekey::layer::{KeySource, Mode};
use serde_json::{Value, json};

use crate::config::Config;
use crate::route::RouteSpec;

/// Where clients find it.
pub(crate) const PATH: &str = "/.well-known/idempotency";

/// The document. Routes that do nothing for clients are not in it: observe mode is our business.
pub(crate) fn document(config: &Config, problems: &str) -> Bytes {
    let protects = |route: &&RouteSpec| route.mode.of_rule() != Mode::Off;
    let routes: Vec<Value> = config.routes.iter().filter(protects).map(route).collect();
    let document = json!({
        "version": 1,
        "problems": problems,
        "status_path": config.status_path,
        "routes": routes,
    });
    Bytes::from(document.to_string())
}

fn route(spec: &RouteSpec) -> Value {
    let methods: Vec<String> =
        spec.protected_methods().iter().map(|method| method.as_str().to_owned()).collect();
    let keys: Vec<String> = spec.keys.iter().map(source).collect();
    json!({
        "methods": methods,
        "path": spec.pattern.path(),
        "mode": spec.mode.label(),
        "keys": keys,
        "retention_seconds": spec.policy.retention.as_secs(),
        "max_request_body_bytes": spec.policy.limits.request_body,
    })
}

fn source(source: &KeySource) -> String {
    match source {
        KeySource::Header(name) => format!("header:{name}"),
        KeySource::Query(name) => format!("query:{name}"),
        KeySource::Json(path) => format!("json:{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Env;

    #[test]
    fn clients_learn_about_routes_that_protect_them_and_about_no_other() {
        let text = "version = 1\n[server]\nupstream = ':3000'\n\
                    [[route]]\nmatch = 'POST /a/{id}'\nmode = 'required'\nttl = '1h'\n\
                    key.sources = ['header:X-Key', 'json:$.key']\n\
                    [[route]]\nmatch = 'POST /secret'\nmode = 'observe'\n";
        let config = Config::from_text("a.toml", text, &Env::default()).unwrap();
        let document: Value = serde_json::from_slice(&document(&config, "https://d")).unwrap();
        let expected = json!({
            "version": 1,
            "problems": "https://d",
            "status_path": null,
            "routes": [{
                "methods": ["POST"], "path": "/a/{id}", "mode": "required",
                "keys": ["header:x-key", "json:$.key"], "retention_seconds": 3600,
                "max_request_body_bytes": 1_048_576,
            }],
        });
        assert_eq!(document, expected);
    }
}
