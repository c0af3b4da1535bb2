//! Records in every state, as a store elsewhere would have made them, to be copied and compared.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use oncekey::core::browse::{Browse, Filter, Page};
use oncekey::core::erase::blank;
use oncekey::core::saved::{Headers, NotKept, Saved};
use oncekey::core::{
    Answer, Class, Clock, Fence, Fingerprint, KeyId, Origin, Owner, Places, Record, Restore,
    Restored, Sent, State, Timestamp, Tombstone,
};

use crate::common::{Bits, LARGE, LONG, hex};

/// The time of this machine.
pub(crate) fn now() -> Timestamp {
    oncekey::clock::SystemClock.now()
}

/// The record with this number, as if it had been made elsewhere. Every state is among any 12 of
/// them, and every 500th has a body in pieces.
pub(crate) fn record(number: u64, now: Timestamp) -> Record {
    let mut bits = Bits::seeded(number);
    let mut headers = Headers::new();
    headers.push(b"x-number", number.to_string().as_bytes()).expect("digits are a value");
    headers.push(b"x-number", b"again").expect("a value");
    let size = if number.is_multiple_of(500) { LARGE } else { bits.index(300) };
    let mut body = vec![0; size];
    bits.fill(&mut body);
    let kept = Answer::Kept(Saved { status: 201, headers, body: Bytes::from(body) });
    let (at, expires) = (now.before(LONG), now.after(LONG));
    let forget = expires.after(LONG);
    let done = |given: &Answer, answer| State::Done {
        at,
        expires,
        forget,
        outcome: given.outcome(),
        answer,
    };
    let tombstone = |reason| Answer::Tombstone(Tombstone { status: Some(500), reason });
    // Nobody holds a lease any more: a store in use is another test.
    let until = now.before(LONG);
    let state = match number % 12 {
        1 => State::Running { until, sent: Sent::No },
        2 => State::Running { until, sent: Sent::Yes },
        3 => State::Running { until: now, sent: Sent::Yes },
        4 => State::Unknown { since: at },
        5 => State::Parked { since: at },
        6 => done(&tombstone(NotKept::Streamed), tombstone(NotKept::Streamed)),
        7 => done(&kept, tombstone(NotKept::Expired)),
        _ => done(&kept, kept.clone()),
    };
    let classes = Class::ALL;
    let mut record = Record {
        id: KeyId::from_bytes(bits.bytes()),
        fence: Fence::next(None, Timestamp::from_micros(at.micros() + number.cast_signed())),
        owner: Owner::from_bytes(bits.bytes()),
        fingerprint: Fingerprint::from_parts(1, bits.bytes()),
        class: classes[bits.index(classes.len())],
        created: at,
        origin: Origin {
            key: format!("key-{number}").into(),
            scope: vec![0, 255, b'\'', b'"'].into(),
            route: "POST /v1/charges".into(),
            request: format!("req-{number}").into(),
        },
        places: Places::default(),
        state,
    };
    if number % 12 == 8 {
        let _ = blank(&mut record);
    }
    record
}

/// Writes the records with these numbers.
pub(crate) async fn fill(store: &Arc<impl Restore>, numbers: std::ops::Range<u64>, now: Timestamp) {
    let mut tasks = tokio::task::JoinSet::new();
    for number in numbers {
        let store = Arc::clone(store);
        tasks.spawn(async move { store.restore(&record(number, now)).await });
        if tasks.len() >= 64 {
            assert!(matches!(tasks.join_next().await, Some(Ok(Ok(Restored::Written)))));
        }
    }
    while let Some(restored) = tasks.join_next().await {
        assert!(matches!(restored, Ok(Ok(Restored::Written))), "{restored:?}");
    }
}

/// Every record of a store, by its key id.
pub(crate) async fn records(store: &impl Browse) -> BTreeMap<String, Record> {
    let (mut all, mut after) = (BTreeMap::new(), None);
    loop {
        let page = Page { after, limit: 1_000 };
        let listing = store.list(&Filter::default(), &page).await.expect("a list");
        for summary in listing.summaries {
            let record = store.get(&summary.id).await.expect("a record").expect("it is there");
            all.insert(hex(summary.id.as_bytes()), record);
        }
        match listing.next {
            Some(next) => after = Some(next),
            None => return all,
        }
    }
}

/// Equal to the byte, without printing megabytes if not.
pub(crate) fn assert_equal(from: &BTreeMap<String, Record>, to: &BTreeMap<String, Record>) {
    assert_eq!(from.len(), to.len());
    for (id, record) in from {
        assert!(to.get(id) == Some(record), "{id}: {record:?} was copied as {:?}", to.get(id));
    }
}
