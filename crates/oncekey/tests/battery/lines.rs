//! Header lines of replays.

use axum::body::Body;
use http::{HeaderValue, Response};
use oncekey::core::Policy;

use crate::scene::{Keeper, Server, at_once};
use crate::wire::{KEY, Seen, pay};

const BODY: &str = r#"{"amount": 500}"#;

async fn answering(keeper: Keeper, lines: &'static [(&'static str, &'static str)]) -> Server {
    Server::start(keeper, Policy::default(), move |_, _| {
        Box::pin(async move {
            let mut response = Response::new(Body::from("paid"));
            for (name, value) in lines {
                response.headers_mut().append(*name, HeaderValue::from_static(value));
            }
            response
        })
    })
    .await
}

fn values<'s>(seen: &'s Seen, names: &[&str]) -> Vec<(&'s str, &'s [u8])> {
    let lines = seen.lines.iter().filter(|(name, _)| names.contains(&name.as_str()));
    lines.map(|(name, value)| (name.as_str(), &value[..])).collect()
}

/// Row 12: as often as they came, in their order, with their commas.
pub(crate) async fn location_and_repeated_lines_are_replayed_in_order(keeper: Keeper) {
    let lines: &[(&str, &str)] = &[
        ("location", "/payments/pay_1"),
        ("link", "</a>; rel=\"x,y\", </b>"),
        ("link", "</c>"),
        ("x-warning", "second"),
        ("x-warning", "first"),
        ("etag", "W/\"1\""),
        ("cache-control", "no-store"),
        ("x-empty", ""),
    ];
    let server = answering(keeper, lines).await;
    let names: Vec<&str> = lines.iter().map(|(name, _)| *name).collect();
    let expected: Vec<_> = lines.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    let first = server.send(&pay(BODY)).await;
    assert_eq!(values(&first, &names), expected);
    let again = server.send(&pay(BODY)).await;
    again.assert_replays(&first);
    assert_eq!(values(&again, &names), expected);
    assert_eq!(server.runs(), 1);
}

/// Row 12: what was for the first client, and for that moment, is not replayed.
pub(crate) async fn cookies_and_lines_of_one_exchange_are_not_replayed(keeper: Keeper) {
    const THEN: &str = "Tue, 15 Nov 1994 08:12:31 GMT";
    let lines: &[(&str, &str)] = &[
        ("set-cookie", "session=1; HttpOnly"),
        ("set-cookie", "csrf=2"),
        ("www-authenticate", "Bearer"),
        ("date", THEN),
        ("age", "3"),
        ("x-ratelimit-remaining", "7"),
        ("x-request-id", "theirs"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("access-control-allow-origin", "https://example.com"),
        ("x-kept", "yes"),
    ];
    let server = answering(keeper, lines).await;
    let first = server.send(&pay(BODY)).await;
    for (name, _) in lines {
        assert!(first.has(name), "the first client gets {name}");
    }
    let again = server.send(&pay(BODY)).await;
    again.assert_replays(&first);
    for (name, _) in &lines[..lines.len() - 1] {
        // The server dates every answer; what it must not do is date one back.
        assert!(!again.has(name) || *name == "date", "{name} is replayed");
    }
    assert_eq!(again.line("x-kept"), "yes");
    assert_ne!(again.line("date"), THEN);
    assert_eq!(server.runs(), 1);
}

pub(crate) async fn every_answer_says_what_it_is(keeper: Keeper) {
    let server = Server::start(keeper, Policy::default(), at_once).await;
    let first = server.send(&pay(BODY)).await;
    let again = server.send(&pay(BODY)).await;
    let refused = server.send(&pay("{}")).await;
    for seen in [&first, &again, &refused] {
        assert_eq!(seen.line("idempotency-key"), format!("\"{KEY}\""));
        assert_eq!(seen.line("idempotency-policy"), "required; ttl=86400");
        assert_eq!(seen.line("original-request"), first.line("request-id"));
        assert!(seen.line("request-id").starts_with("req_"));
    }
    assert_eq!(first.line("idempotency-status"), "oncekey; executed; ttl=86400");
    assert!(again.line("idempotency-status").starts_with("oncekey; replayed; age="));
    assert_eq!(refused.line("idempotency-status"), "oncekey; mismatch; executed=no; retry=?0");
    assert!(again.is_replay() && !first.has("idempotent-replayed"));
    assert!(!refused.has("idempotent-replayed"));
}
