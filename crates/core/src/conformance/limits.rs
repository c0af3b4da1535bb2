//! Sizes: what is allowed works, what is not is rejected and changes nothing.

use bytes::Bytes;

use super::rig::Rig;
use super::scene::{Bits, Probe, completion};
use crate::decide::{Grant, Refusal};
use crate::record::{Origin, State, Text};
use crate::saved::{Answer, Headers, NotKept, Saved, Tombstone};
use crate::store::{Claim, ErrorKind, MAX_BODY, MAX_HEADERS, MAX_TEXT, Store, Write};

/// The longest texts are kept, and they are bytes: a store neither decodes nor trims them: I26.
pub async fn the_longest_texts_are_kept(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let long = |first: u8| -> Text {
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().skip(first.into()).take(MAX_TEXT).collect();
        bytes.into()
    };
    let origins = [
        Origin { key: long(0), scope: long(1), route: long(2), request: long(255) },
        Origin::default(),
        Origin { key: " k ".into(), scope: "\0".into(), route: "".into(), request: [0xff].into() },
    ];
    for origin in origins {
        let claim = Claim { origin: origin.clone(), ..bits.claim() };
        store.win(&claim, Grant::Fresh, "the longest texts are allowed").await;
        let record = store.record(&claim.id, "the claim is on record").await;
        assert_eq!(record.origin, origin, "texts come back byte for byte");
    }
}

/// A text that is too long is rejected, and nothing is written or changed: I43.
pub async fn a_text_that_is_too_long_is_rejected(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let text: Text = vec![b'x'; MAX_TEXT + 1].into();
    for field in 0..4 {
        let mut claim = bits.claim();
        let good = claim.clone();
        match field {
            0 => claim.origin.key = text.clone(),
            1 => claim.origin.scope = text.clone(),
            2 => claim.origin.route = text.clone(),
            _ => claim.origin.request = text.clone(),
        }
        let promise = "a text that is too long is rejected";
        rejected(store.store().claim(&claim).await, promise);
        assert_eq!(store.get(&claim.id).await, None, "a rejected claim writes nothing");
        let lease = store.win(&good, Grant::Fresh, "a rejected claim takes no key").await;
        // Rejected also where it would have been recognised or refused: the answer must not
        // depend on what is stored.
        rejected(store.store().claim(&claim).await, promise);
        let record = store.record(&good.id, "the good claim is on record").await;
        assert!(record.is_held_by(&lease), "a rejected claim changes nothing");
    }
}

/// The largest answer that is allowed is kept and replayed: I12, I43.
pub async fn the_largest_answer_is_kept(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let claim = bits.claim();
    let body: Vec<u8> = (0..=u8::MAX).cycle().take(MAX_BODY).collect();
    let headers = header_block(MAX_HEADERS);
    assert_eq!(headers.encoded_len(), MAX_HEADERS, "the case uses the whole allowance");
    let answer = Answer::Kept(Saved { status: 200, headers, body: Bytes::from(body) });
    store.finish(&claim, &completion(answer.clone())).await;
    let record = store.refused(&bits.rival(&claim), Refusal::Replay, "done work replays").await;
    let State::Done { answer: stands, .. } = record.state else { panic!("done work is done") };
    assert!(stands == answer, "the largest answer comes back byte for byte");
}

/// An answer that is too large is rejected and changes nothing; its owner may leave a tombstone
/// instead: I18, I43.
pub async fn an_answer_that_is_too_large_is_rejected(rig: &impl Rig) {
    let (store, mut bits) = (Probe::of(rig), Bits::here());
    let large = Bytes::from(vec![b'x'; MAX_BODY + 1]);
    let small = Bytes::from_static(b"ok");
    for (headers, body) in [(Headers::new(), large), (header_block(MAX_HEADERS + 1), small)] {
        let claim = bits.claim();
        let lease = store.win(&claim, Grant::Fresh, "a fresh key is granted").await;
        let before = store.record(&claim.id, "the claim is on record").await;
        let answer = Answer::Kept(Saved { status: 200, headers, body });
        let outcome = store.store().complete(&lease, &completion(answer)).await;
        rejected(outcome, "an answer that is too large is rejected");
        let after = store.record(&claim.id, "the claim is on record").await;
        assert_eq!(after, before, "a rejected completion changes nothing");
        let tombstone = Tombstone { status: Some(200), reason: NotKept::TooLarge };
        let write = store.complete(&lease, &completion(Answer::Tombstone(tombstone))).await;
        assert_eq!(write, Write::Applied, "the owner leaves a tombstone instead");
    }
}

fn rejected<T: std::fmt::Debug>(outcome: Result<T, crate::store::StoreError>, promise: &str) {
    match outcome {
        Ok(value) => panic!("{promise}: {value:?}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Rejected, "{promise}: {error}"),
    }
}

/// A header block whose stored form has exactly this many bytes.
fn header_block(size: usize) -> Headers {
    const LINE: usize = 1_024;
    let mut headers = Headers::new();
    while headers.encoded_len() < size {
        let left = size - headers.encoded_len();
        // Each line costs eight bytes for lengths and one for its name. The last line takes what
        // is left, so that no rest remains that is too small for a line.
        let line = if left < 2 * LINE { left } else { LINE };
        headers.push(b"x", &vec![b'v'; line - 9]).expect("letters may stand in a header");
    }
    headers
}
