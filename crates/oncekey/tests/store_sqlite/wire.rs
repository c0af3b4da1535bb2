//! Calls and answers as bytes, for two processes that run the same program.
//!
//! Nothing outlives the run, so there is no version, and damage is a bug of the test: it panics.

use std::time::Duration;

use bytes::Bytes;
use oncekey::core::browse::{Count, Cursor, Filter, Listing, Page, Summary};
use oncekey::core::record::Text;
use oncekey::core::saved::NotKept;
use oncekey::core::store::Purged;
use oncekey::core::{
    Answer, Claim, Claimed, Class, Completion, Erased, ErrorKind, Fence, Fingerprint, Grant,
    Headers, KeyId, Lease, Lineage, Origin, Outcome, Owner, Places, Record, Refusal, Renewal,
    Restored, Saved, Sent, State, StateKind, StoreError, Timestamp, Tombstone, Write,
};

/// What can be sent to another process.
pub(crate) trait Wire: Sized {
    fn put(&self, out: &mut Vec<u8>);

    /// Takes a value from the front.
    fn take(from: &mut &[u8]) -> Self;
}

/// A value from all of these bytes.
pub(crate) fn read<T: Wire>(mut from: &[u8]) -> T {
    let value = T::take(&mut from);
    assert!(from.is_empty(), "{} bytes are left over", from.len());
    value
}

pub(crate) fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    bytes.len().put(out);
    out.extend_from_slice(bytes);
}

pub(crate) fn take_bytes<'b>(from: &mut &'b [u8]) -> &'b [u8] {
    let length = usize::take(from);
    from.split_off(..length).expect("as many bytes as were announced")
}

impl<const N: usize> Wire for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn take(from: &mut &[u8]) -> Self {
        let bytes = from.split_off(..N).expect("enough bytes");
        bytes.try_into().expect("as many bytes as were taken")
    }
}

/// Types that are put and taken as another one.
macro_rules! like {
    ($($type:ty as $other:ty: $to:expr, $from:expr;)*) => { $(
        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let to: fn(&$type) -> $other = $to;
                to(self).put(out);
            }

            fn take(from: &mut &[u8]) -> Self {
                let back: fn($other) -> $type = $from;
                back(<$other>::take(from))
            }
        }
    )* };
}

like! {
    u8 as [u8; 1]: |it| [*it], |[it]| it;
    u16 as [u8; 2]: |it| it.to_le_bytes(), u16::from_le_bytes;
    u64 as [u8; 8]: |it| it.to_le_bytes(), u64::from_le_bytes;
    i64 as [u8; 8]: |it| it.to_le_bytes(), i64::from_le_bytes;
    usize as u64: |it| *it as u64, |it| usize::try_from(it).expect("a length");
    Duration as (u64, u64): |it| (it.as_secs(), it.subsec_nanos().into()),
        |(secs, nanos)| Duration::from_secs(secs) + Duration::from_nanos(nanos);
    String as Text: |it| Text::from(it), |it| String::from_utf8(it.as_bytes().to_vec()).expect("text");
    Bytes as Text: |it| Text::from(it), |it| Bytes::copy_from_slice(it.as_bytes());
    Timestamp as i64: |it| it.micros(), Timestamp::from_micros;
    Fence as i64: |it| it.number(), |it| Fence::from_number(it).expect("a fence");
    KeyId as [u8; 32]: |it| *it.as_bytes(), KeyId::from_bytes;
    Owner as [u8; 16]: |it| *it.as_bytes(), Owner::from_bytes;
    Outcome as [u8; 16]: |it| *it.as_bytes(), Outcome::from_bytes;
    Fingerprint as (u8, [u8; 32]): |it| (it.version(), *it.digest()),
        |(version, digest)| Fingerprint::from_parts(version, digest);
    Places as Text: |it| Text::from(it.encode()), |it| Places::decode(it.as_bytes()).expect("places");
    Headers as Text: |it| Text::from(it.encode()), |it| Headers::decode(it.as_bytes()).expect("lines");
    Lineage as String: |it| it.as_str().to_owned(), Lineage::new;
    Cursor as Text: |it| Text::from(&it.0), |it| Cursor(it.as_bytes().to_vec());
    Class as u8: |it| it.code(), |it| Class::from_code(it).expect("a class");
    Sent as u8: |it| it.code(), |it| Sent::from_code(it).expect("a mark");
    NotKept as u8: |it| it.code(), |it| NotKept::from_code(it).expect("a reason");
    StateKind as u8: |it| it.code(), |it| StateKind::from_code(it).expect("a state");
    StoreError as (String, String): |it| (it.kind().label().to_owned(), it.to_string()),
        |(label, message)| StoreError::new(kind(&label), message);
}

fn kind(label: &str) -> ErrorKind {
    use ErrorKind::{Ambiguous, Corrupt, Rejected, Unavailable, Unsuitable};
    let all = [Unavailable, Ambiguous, Corrupt, Rejected, Unsuitable];
    all.into_iter().find(|kind| kind.label() == label).expect("a kind of error")
}

impl Wire for Text {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self.as_bytes(), out);
    }

    fn take(from: &mut &[u8]) -> Self {
        take_bytes(from).into()
    }
}

/// Structs, field by field.
macro_rules! fields {
    ($($type:ident { $($field:ident),* })*) => { $(
        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn take(from: &mut &[u8]) -> Self {
                $(let $field = Wire::take(from);)*
                Self { $($field),* }
            }
        }
    )* };
}

fields! {
    Origin { key, scope, route, request }
    Claim { id, owner, fingerprint, class, lease, grace, sent, origin, places }
    Lease { id, fence, owner, until }
    Saved { status, headers, body }
    Tombstone { status, reason }
    Completion { answer, retention, linger }
    Record { id, fence, owner, fingerprint, class, created, origin, places, state }
    Purged { forgotten, stripped }
    Filter { state, route, scope, older_than }
    Page { after, limit }
    Listing { summaries, next, now }
    Summary { id, fence, class, created, origin, state, at, expires, status }
}

/// Enums: a number for the variant, then its fields.
macro_rules! variants {
    ($($type:ident $(<$($generic:ident),*>)? {
        $($number:literal: $variant:ident $(($($unnamed:ident),*))? $({$($named:ident),*})?),*
    })*) => { $(
        impl $(<$($generic: Wire),*>)? Wire for $type $(<$($generic),*>)? {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $(($($unnamed),*))? $({$($named),*})? => {
                        $number.put(out);
                        $($($unnamed.put(out);)*)?
                        $($($named.put(out);)*)?
                    })*
                }
            }

            fn take(from: &mut &[u8]) -> Self {
                match u8::take(from) {
                    $($number => {
                        $($(let $unnamed = Wire::take(from);)*)?
                        $($(let $named = Wire::take(from);)*)?
                        Self::$variant $(($($unnamed),*))? $({$($named),*})?
                    })*
                    other => panic!("there is no variant {other}"),
                }
            }
        }
    )* };
}

variants! {
    Option<T> { 0_u8: None, 1_u8: Some(it) }
    Result<T, E> { 0_u8: Ok(it), 1_u8: Err(it) }
    Grant { 0_u8: Fresh, 1_u8: Again, 2_u8: Reused, 3_u8: TakenOver }
    Refusal {
        0_u8: Mismatch, 1_u8: Replay, 2_u8: NotRetained, 3_u8: Expired, 4_u8: InProgress(until),
        5_u8: Unknown, 6_u8: Parked
    }
    Claimed { 0_u8: Won { lease, grant, earlier }, 1_u8: Lost { refusal, record, now } }
    Renewal { 0_u8: Until(until), 1_u8: Lost, 2_u8: Failed }
    Write { 0_u8: Applied, 1_u8: Fenced }
    Answer { 0_u8: Kept(saved), 1_u8: Tombstone(tombstone) }
    State {
        0_u8: Running { until, sent }, 1_u8: Done { at, expires, forget, outcome, answer },
        2_u8: Unknown { since }, 3_u8: Parked { since }
    }
    Erased { 0_u8: Blank, 1_u8: Unfinished, 2_u8: Absent }
    Restored { 0_u8: Written, 1_u8: Kept }
    Count { 0_u8: Exactly(count), 1_u8: AtLeast(count) }
}

impl<T: Wire> Wire for Box<T> {
    fn put(&self, out: &mut Vec<u8>) {
        T::put(self, out);
    }

    fn take(from: &mut &[u8]) -> Self {
        Box::new(T::take(from))
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        self.iter().for_each(|item| item.put(out));
    }

    fn take(from: &mut &[u8]) -> Self {
        (0..usize::take(from)).map(|_| T::take(from)).collect()
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut &[u8]) -> Self {
        (A::take(from), B::take(from))
    }
}

impl Wire for () {
    fn put(&self, _: &mut Vec<u8>) {}

    fn take(_: &mut &[u8]) -> Self {}
}
