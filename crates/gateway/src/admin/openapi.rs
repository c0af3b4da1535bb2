//! The API as an OpenAPI 3.1 document, made from the table of endpoints.

use axum::response::Response;
use http::Method;
use serde_json::{Map, Value, json};

use super::endpoint::{Body, Door, ENDPOINTS, Endpoint, Name, Param, Shape};
use super::page::{self, Answer};

pub(super) async fn document() -> Answer {
    let response: Response = page::json(&describe())?;
    Ok(response)
}

/// The whole document.
pub(super) fn describe() -> Value {
    let mut paths = Map::new();
    for endpoint in ENDPOINTS {
        let method = endpoint.verb.method().as_str().to_ascii_lowercase();
        paths.insert(endpoint.path.to_owned(), json!({ method: operation(endpoint) }));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "oncekey admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Health, metrics and records of one oncekey gateway.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": { "Problem": problem(), "Record": record(), "Observed": observed() },
        },
    })
}

fn operation(endpoint: &Endpoint) -> Value {
    let mut operation = json!({
        "operationId": format!("{:?}", endpoint.name).to_lowercase(),
        "summary": endpoint.summary,
        "responses": {
            "2XX": { "description": "done", "content": content(endpoint.name) },
            "default": {
                "description": "what went wrong",
                "content": {
                    "application/problem+json": {
                        "schema": { "$ref": "#/components/schemas/Problem" },
                    },
                },
            },
        },
    });
    let path = endpoint.path.contains("{id}").then(|| {
        json!({
            "name": "id", "in": "path", "required": true, "description": "a key id",
            "schema": { "type": "string", "pattern": "^[0-9a-fA-F]{64}$" },
        })
    });
    let parameters: Vec<Value> =
        path.into_iter().chain(endpoint.query.iter().map(parameter)).collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if endpoint.door == Door::Closed {
        // The empty one: on loopback a token is not needed unless there is one.
        operation["security"] = json!([{ "token": [] }, {}]);
    }
    if endpoint.verb.method() == Method::POST {
        let schema = body(endpoint.body);
        operation["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    operation
}

fn parameter(param: &Param) -> Value {
    let schema = match param.shape {
        Shape::Text => json!({ "type": "string" }),
        Shape::Number => json!({ "type": "integer", "minimum": 1 }),
        Shape::Flag => json!({ "type": "boolean" }),
        Shape::OneOf(words) => json!({ "type": "string", "enum": words }),
    };
    json!({ "name": param.name, "in": "query", "description": param.about, "schema": schema })
}

fn content(name: Name) -> Value {
    let schema = match name {
        Name::Metrics => return json!({ "text/plain": { "schema": { "type": "string" } } }),
        Name::Events => return json!({ "text/event-stream": { "schema": { "type": "string" } } }),
        Name::Key => json!({ "$ref": "#/components/schemas/Record" }),
        Name::Observed => json!({ "$ref": "#/components/schemas/Observed" }),
        Name::Keys => json!({
            "type": "object",
            "properties": {
                "records": {
                    "type": "array",
                    "items": { "$ref": "#/components/schemas/Record" },
                },
                "limit": { "type": "integer" },
                "next": { "type": ["string", "null"] },
            },
        }),
        Name::Live
        | Name::Ready
        | Name::Status
        | Name::Routes
        | Name::Resolve
        | Name::Release
        | Name::Expire
        | Name::Erase
        | Name::Reload
        | Name::Drain
        | Name::Audit
        | Name::OpenApi => json!({ "type": "object" }),
    };
    json!({ "application/json": { "schema": schema } })
}

/// What a change has to bring.
fn body(body: Body) -> Value {
    let reason = json!({ "type": "string", "minLength": 1, "maxLength": 500 });
    let confirm = json!({ "type": "string", "description": "the first 8 digits of the id" });
    let (properties, required) = match body {
        Body::None => (json!({}), json!([])),
        Body::Optional => (json!({ "reason": reason }), json!([])),
        Body::Reason => (json!({ "reason": reason }), json!(["reason"])),
        Body::Confirmed => {
            (json!({ "reason": reason, "confirm": confirm }), json!(["reason", "confirm"]))
        }
        Body::Resolution => (
            json!({
                "reason": reason,
                "outcome": { "enum": ["succeeded", "failed", "not_executed"] },
                "confirm": confirm,
                "answer": {
                    "type": "object",
                    "required": ["status"],
                    "properties": {
                        "status": { "type": "integer", "minimum": 200, "maximum": 599 },
                        "headers": {
                            "type": "array",
                            "items": { "type": "array", "items": { "type": "string" } },
                        },
                        "body": { "type": "string" },
                    },
                },
            }),
            json!(["reason", "outcome"]),
        ),
    };
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn problem() -> Value {
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail", "code"],
        "properties": {
            "type": { "type": "string" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string" },
            "code": { "type": "string" },
        },
    })
}

fn record() -> Value {
    json!({
        "type": "object",
        "required": ["id", "state", "class", "route", "fence", "created", "at"],
        "properties": {
            "id": { "type": "string" },
            "state": { "enum": ["running", "done", "unknown", "parked"] },
            "class": { "enum": ["once", "keyed", "retry", "tx"] },
            "route": { "type": "string" },
            "request_id": { "type": "string" },
            "fence": { "type": "integer" },
            "created": { "type": "string", "format": "date-time" },
            "at": { "type": "string", "format": "date-time" },
            "expires": { "type": ["string", "null"], "format": "date-time" },
            "status": { "type": ["integer", "null"] },
        },
    })
}

fn observed() -> Value {
    let counts = || {
        let number = || json!({ "type": "integer" });
        json!({
            "requests": number(),
            "keyed": number(),
            "keyed_share": { "type": ["number", "null"] },
            "invalid_keys": number(),
            "duplicates": number(),
            "mismatches": number(),
            "hollow_keys": number(),
            "keyless_repeats": number(),
            "client_aborts": number(),
        })
    };
    let text = || json!({ "type": "string" });
    let moment = || json!({ "type": ["string", "null"], "format": "date-time" });
    let object = |properties: Value| json!({ "type": "object", "properties": properties });
    let list = |items: Value| json!({ "type": "array", "items": items });
    let with = |name: &str, schema: Value, mut properties: Value| {
        properties[name] = schema;
        properties
    };
    let caller = with("caller", text(), counts());
    let of_route = with("route", text(), counts());
    let route = with("callers", list(object(caller)), of_route.clone());
    let interval = json!({
        "from": moment(),
        "to": moment(),
        "node": text(),
        "routes": list(object(of_route)),
    });
    object(json!({
        "from": moment(),
        "to": moment(),
        "interval_seconds": { "type": "number" },
        "nodes": list(text()),
        "total": object(counts()),
        "routes": list(object(route)),
        "intervals": list(object(interval)),
    }))
}
