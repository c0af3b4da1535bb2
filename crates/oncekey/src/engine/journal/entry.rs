//! The end of an attempt as bytes, in version 1 of the journal.

use std::time::Duration;

use bytes::Bytes;
use oncekey_core::saved::{Headers, NotKept, Tombstone};
use oncekey_core::{Answer, Completion, Fence, KeyId, Lease, Owner, Saved, Timestamp};

use crate::engine::end::{End, Entry};

const COMPLETE: u8 = 1;
const RELEASE: u8 = 2;
const UNKNOWN: u8 = 3;

/// Stands where a tombstone has its reason, which is never zero.
const KEPT: u8 = 0;

/// Everything but header lines and body.
const USUAL: usize = 128;

/// Writes an entry.
pub(super) fn encode(entry: &Entry) -> Vec<u8> {
    let Entry { lease, end } = entry;
    let mut out = Vec::with_capacity(USUAL + size(end));
    out.extend_from_slice(lease.id.as_bytes());
    out.extend_from_slice(&lease.fence.number().to_be_bytes());
    out.extend_from_slice(lease.owner.as_bytes());
    out.extend_from_slice(&lease.until.micros().to_be_bytes());
    match end {
        End::Complete(completion) => {
            out.push(COMPLETE);
            encode_completion(completion, &mut out);
        }
        End::Release => out.push(RELEASE),
        End::Unknown => out.push(UNKNOWN),
    }
    out
}

/// Reads an entry; `None` if the bytes are not exactly what [`encode`] writes. The body is not
/// copied: it stays a part of `bytes`.
pub(super) fn decode(bytes: &Bytes) -> Option<Entry> {
    let mut read = Reader { all: bytes, rest: bytes };
    let lease = Lease {
        id: KeyId::from_bytes(read.array()?),
        fence: Fence::from_number(i64::from_be_bytes(read.array()?))?,
        owner: Owner::from_bytes(read.array()?),
        until: Timestamp::from_micros(i64::from_be_bytes(read.array()?)),
    };
    let end = match read.byte()? {
        COMPLETE => End::Complete(read.completion()?),
        RELEASE => End::Release,
        UNKNOWN => End::Unknown,
        _ => return None,
    };
    read.rest.is_empty().then_some(Entry { lease, end })
}

fn size(end: &End) -> usize {
    match end {
        End::Complete(Completion { answer: Answer::Kept(saved), .. }) => {
            saved.headers.encoded_len() + saved.body.len()
        }
        End::Complete(Completion { answer: Answer::Tombstone(_), .. })
        | End::Release
        | End::Unknown => 0,
    }
}

fn encode_completion(completion: &Completion, out: &mut Vec<u8>) {
    for span in [completion.retention, completion.linger] {
        out.extend_from_slice(&span.as_secs().to_be_bytes());
        out.extend_from_slice(&span.subsec_nanos().to_be_bytes());
    }
    match &completion.answer {
        Answer::Tombstone(Tombstone { status, reason }) => {
            out.push(reason.code());
            out.push(u8::from(status.is_some()));
            out.extend_from_slice(&status.unwrap_or(0).to_be_bytes());
        }
        Answer::Kept(Saved { status, headers, body }) => {
            out.push(KEPT);
            out.extend_from_slice(&status.to_be_bytes());
            // A header block of 4 GiB would have been refused long before; and if it was not, the
            // saturated length makes an entry that does not decode rather than another one.
            let length = u32::try_from(headers.encoded_len()).unwrap_or(u32::MAX);
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&headers.encode());
            out.extend_from_slice(body);
        }
    }
}

struct Reader<'a> {
    all: &'a Bytes,
    rest: &'a [u8],
}

impl Reader<'_> {
    fn completion(&mut self) -> Option<Completion> {
        let retention = self.span()?;
        let linger = self.span()?;
        let answer = match self.byte()? {
            KEPT => {
                let status = u16::from_be_bytes(self.array()?);
                let length = u32::from_be_bytes(self.array()?);
                let (lines, body) = self.rest.split_at_checked(usize::try_from(length).ok()?)?;
                self.rest = &[];
                let headers = Headers::decode(lines).ok()?;
                Answer::Kept(Saved { status, headers, body: self.all.slice_ref(body) })
            }
            reason => {
                let reason = NotKept::from_code(reason)?;
                let known = self.byte()?;
                let status = u16::from_be_bytes(self.array()?);
                let status = match (known, status) {
                    (0, 0) => None,
                    (1, status) => Some(status),
                    _ => return None,
                };
                Answer::Tombstone(Tombstone { status, reason })
            }
        };
        Some(Completion { answer, retention, linger })
    }

    fn span(&mut self) -> Option<Duration> {
        let secs = u64::from_be_bytes(self.array()?);
        let nanos = u32::from_be_bytes(self.array()?);
        // More than a second of nanoseconds would be carried over, and panic in the end.
        (nanos < 1_000_000_000).then(|| Duration::new(secs, nanos))
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*array)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry() -> impl Strategy<Value = Entry> {
        let lease = (any::<[u8; 32]>(), 1..i64::MAX, any::<[u8; 16]>(), any::<i64>()).prop_map(
            |(id, fence, owner, until)| Lease {
                id: KeyId::from_bytes(id),
                fence: Fence::from_number(fence).unwrap(),
                owner: Owner::from_bytes(owner),
                until: Timestamp::from_micros(until),
            },
        );
        let lines = proptest::collection::vec(("[a-z-]{1,9}", "[ -~]{0,20}"), 0..4);
        let body = proptest::collection::vec(any::<u8>(), 0..200);
        let kept = (any::<u16>(), lines, body).prop_map(|(status, lines, body)| {
            let mut headers = Headers::new();
            for (name, value) in lines {
                headers.push(name.as_bytes(), value.as_bytes()).unwrap();
            }
            Answer::Kept(Saved { status, headers, body: body.into() })
        });
        let tombstone = (any::<Option<u16>>(), proptest::sample::select(&NotKept::ALL[..]))
            .prop_map(|(status, reason)| Answer::Tombstone(Tombstone { status, reason }));
        let complete = (prop_oneof![kept, tombstone], any::<Duration>(), any::<Duration>())
            .prop_map(|(answer, retention, linger)| {
                End::Complete(Completion { answer, retention, linger })
            });
        let end = prop_oneof![complete, Just(End::Release), Just(End::Unknown)];
        (lease, end).prop_map(|(lease, end)| Entry { lease, end })
    }

    proptest! {
        #[test]
        fn every_entry_comes_back(entry in entry()) {
            let bytes = Bytes::from(encode(&entry));
            prop_assert_eq!(decode(&bytes), Some(entry));
        }

        /// No bytes make the reader panic, and it takes nothing that the writer does not write.
        #[test]
        fn any_bytes_are_an_entry_or_nothing(
            entry in entry(), at in any::<prop::sample::Index>(), value in any::<u8>(), cut in any::<bool>(),
        ) {
            let mut bytes = encode(&entry);
            let at = at.index(bytes.len());
            if cut { bytes.truncate(at) } else { bytes[at] = value }
            let bytes = Bytes::from(bytes);
            if let Some(read) = decode(&bytes) {
                prop_assert_eq!(encode(&read), bytes);
            }
        }
    }
}
