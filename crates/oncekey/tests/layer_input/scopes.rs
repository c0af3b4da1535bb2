//! Whom a key belongs to. T1, T2, I21.

use axum::body::Body;
use http::{HeaderName, Request};
use oncekey::core::Scope;
use oncekey::layer::{IdempotencyLayer, NoScope, ScopeFrom};

use crate::rig::{KEY, Rig, engine, post, required};

fn rig(scope: ScopeFrom) -> Rig {
    Rig::counting(IdempotencyLayer::builder(engine()).scope(scope).rule(required()))
}

fn from(name: &'static str, value: &'static str) -> Request<Body> {
    let mut request = post(KEY, "{}");
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

/// I21: the same key of two tenants is two keys, and neither sees the other's answer.
#[tokio::test]
async fn equal_keys_of_two_tenants_have_nothing_to_do_with_each_other() {
    let rig = rig(ScopeFrom::header(HeaderName::from_static("x-tenant")));
    let ann = rig.send(from("x-tenant", "ann")).await;
    let bob = rig.send(from("x-tenant", "bob")).await;
    assert_eq!((ann.text(), bob.text()), ("run 1", "run 2"));
    assert!(!bob.is_replay());
    assert_ne!(bob.header("original-request"), ann.header("original-request"));
    assert_eq!(rig.send(from("x-tenant", "ann")).await.text(), "run 1");
    assert_eq!(rig.send(from("x-tenant", "bob")).await.text(), "run 2");
    assert_eq!(rig.runs(), 2);
}

/// A request whose scope cannot be told is refused, never run in a scope that everybody shares.
#[tokio::test]
async fn a_request_without_its_scope_is_refused() {
    let tenant = || ScopeFrom::header(HeaderName::from_static("x-tenant"));
    let extension = || ScopeFrom::extension(|name: &&'static str| Ok(Scope::new(name)?));
    let failing = || ScopeFrom::parts(|_| Err(NoScope));
    for scope in [tenant(), extension(), failing()] {
        let rig = rig(scope);
        let seen = rig.send(post(KEY, "{}")).await;
        seen.assert_refused(403, "idempotency_scope_missing", "no");
        assert!(seen.text().contains(r#""hint":"Send the credentials"#), "{}", seen.text());
        assert_eq!(rig.runs(), 0);
    }
    let rig = rig(tenant());
    let mut twice = from("x-tenant", "ann");
    twice.headers_mut().append("x-tenant", "bob".parse().unwrap());
    rig.send(twice).await.assert_refused(403, "idempotency_scope_missing", "no");
}

#[tokio::test]
async fn a_scope_may_come_from_an_extension() {
    #[derive(Clone)]
    struct Principal(&'static str);
    let rig = rig(ScopeFrom::extension(|who: &Principal| {
        Ok(Scope::of_parts(&[b"https://issuer.example", who.0.as_bytes()])?)
    }));
    for (who, expected) in [("ann", "run 1"), ("bob", "run 2"), ("ann", "run 1")] {
        let mut request = post(KEY, "{}");
        request.extensions_mut().insert(Principal(who));
        assert_eq!(rig.send(request).await.text(), expected, "{who}");
    }
}

/// T1: a layer that was told nothing still keeps the holders of different credentials apart.
#[tokio::test]
async fn without_a_scope_the_credential_stands_in() {
    let rig = Rig::counting(IdempotencyLayer::builder(engine()).rule(required()));
    for (credential, expected) in
        [("Bearer a", "run 1"), ("Bearer b", "run 2"), ("Bearer a", "run 1")]
    {
        assert_eq!(rig.send(from("authorization", credential)).await.text(), expected);
    }
    assert_eq!(rig.send(post(KEY, "{}")).await.text(), "run 3", "without any, it is shared");
    assert_eq!(rig.send(from("cookie", "session=1")).await.text(), "run 3", "cookies do not count");
}
