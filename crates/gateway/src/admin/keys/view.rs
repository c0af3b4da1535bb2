//! Records as JSON.
//!
//! Keys, scopes and answers are apart: they are shown only to whoever asks for them by name.

use oncekey::core::browse::Summary;
use oncekey::core::record::Text;
use oncekey::core::{Answer, Record, Saved, Scope, Sent, State, Timestamp};
use oncekey::problem::moment::rfc3339_millis;
use serde_json::{Value, json};

use super::to_hex;

/// A record without anything personal.
pub(super) fn summary(summary: &Summary) -> Value {
    json!({
        "id": summary.id.to_string(),
        "state": summary.state.label(),
        "class": summary.class.label(),
        "route": text(&summary.origin.route),
        "request_id": text(&summary.origin.request),
        "fence": summary.fence.number(),
        "created": rfc3339_millis(summary.created),
        // For running records, when the lease lapses; for others, since when they are as they are.
        "at": rfc3339_millis(summary.at),
        "expires": summary.expires.map(rfc3339_millis),
        "status": summary.status,
    })
}

/// One record without anything personal: its summary, and what else is known at `now`, by the
/// store's clock.
pub(super) fn record(record: &Record, now: Timestamp) -> Value {
    let mut view = summary(&Summary::from(record));
    let more = match &record.state {
        State::Running { until, sent } => json!({
            "lease_alive": *until > now,
            "lease_seconds": until.since(now).as_secs_f64(),
            "sent": *sent == Sent::Yes,
        }),
        State::Done { forget, answer, .. } => json!({
            "forget": rfc3339_millis(*forget),
            "answer": kept(answer),
        }),
        State::Unknown { .. } | State::Parked { .. } => json!({}),
    };
    if let (Value::Object(view), Value::Object(more)) = (&mut view, more) {
        view.extend(more);
        view.insert("age_seconds".into(), now.since(record.created).as_secs_f64().into());
    }
    view
}

/// How much of an answer there is.
fn kept(answer: &Answer) -> Value {
    match answer {
        Answer::Kept(saved) => json!({
            "kept": true,
            "header_lines": saved.headers.len(),
            "body_bytes": saved.body.len(),
        }),
        Answer::Tombstone(tombstone) => {
            json!({ "kept": false, "reason": tombstone.reason.label() })
        }
    }
}

/// What is personal in a record.
pub(super) fn payload(record: &Record) -> Value {
    let answer = match &record.state {
        State::Done { answer: Answer::Kept(saved), .. } => answer(saved),
        State::Done { .. }
        | State::Running { .. }
        | State::Unknown { .. }
        | State::Parked { .. } => Value::Null,
    };
    json!({
        "key": text(&record.origin.key),
        "scope": scope(&record.origin.scope),
        "answer": answer,
    })
}

fn answer(saved: &Saved) -> Value {
    let lines = saved.headers.iter().map(|(name, value)| {
        json!([String::from_utf8_lossy(name), String::from_utf8_lossy(value)])
    });
    let headers: Vec<Value> = lines.collect();
    match std::str::from_utf8(&saved.body) {
        Ok(body) => json!({ "status": saved.status, "headers": headers, "body": body }),
        Err(_) => {
            json!({ "status": saved.status, "headers": headers, "body_hex": to_hex(&saved.body) })
        }
    }
}

/// A scope of one value is that value, the shared one is empty; what else there is has no text.
fn scope(stored: &Text) -> Value {
    let Some(scope) = Scope::from_encoded(stored.as_bytes()) else {
        return json!({ "hex": to_hex(stored.as_bytes()) });
    };
    let value = scope.as_bytes().get(1..).unwrap_or_default();
    match std::str::from_utf8(value) {
        Ok(value) if Scope::new(value).is_ok_and(|whole| whole == scope) => value.into(),
        Ok("") => "".into(),
        _ => json!({ "hex": to_hex(scope.as_bytes()) }),
    }
}

fn text(text: &Text) -> String {
    String::from_utf8_lossy(text.as_bytes()).into_owned()
}
