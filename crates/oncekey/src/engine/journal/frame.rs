//! The file: a header, then frames, each sealed on its own.
//!
//! ```text
//! header  magic 16 · version 4 · key 32 · digest 16
//! frame   marker 4 · kind 1 · length 4 · number 8 · check 8 · payload · seal 16
//! ```
//!
//! Check and seal are keyed with the random key of the file and include the place of the frame.
//! When a frame is damaged, the next one has to be found, among payloads that strangers wrote: a
//! body that looks like a frame must not become one. The key is no secret to whoever can read the
//! file. It is one to whoever sends a body.

use bytes::Bytes;
use hkdf::hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use super::error::JournalError;
use super::{Entry, entry};

/// The version of everything in this file. Another one is refused, not guessed.
pub(super) const VERSION: u32 = 1;
const MAGIC: [u8; 16] = *b"oncekey journal\n";

const KEY: usize = 32;
const DIGEST: usize = 16;
pub(super) const HEADER: usize = MAGIC.len() + 4 + KEY + DIGEST;

/// Not UTF-8, so that few bodies have it.
const MARKER: [u8; 4] = [0xf7, b'o', b'k', b'j'];
/// Eight bytes of a keyed digest: a body would have to guess 64 bits, and only beside damage.
const CHECK: usize = 8;
const SEAL: usize = 16;
const HEAD: usize = MARKER.len() + 1 + 4 + 8 + CHECK;
/// What a frame needs besides its payload.
pub(super) const AROUND: usize = HEAD + SEAL;

/// What makes a file different from every other one.
#[derive(Clone)]
pub(super) struct Identity {
    key: [u8; KEY],
    keyed: Hmac<Sha256>,
}

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An entry begins to wait for the store.
    Entry,
    /// The entry of this number has reached the store.
    Drained,
}

/// Where a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) at: u64,
    /// From the marker to the end of the seal.
    pub(super) length: u64,
}

/// What is in a file.
pub(super) struct Contents {
    pub(super) identity: Identity,
    /// What is still to be drained, in the order in which it came.
    pub(super) waiting: Vec<(u64, Place, Entry)>,
    /// A number that no frame has.
    pub(super) next: u64,
    /// Stretches in the middle that cannot be read.
    pub(super) damaged: u64,
    /// Bytes at the end that are no frame.
    pub(super) torn: u64,
}

impl Identity {
    /// An identity of bytes that were drawn at random.
    pub(super) fn new(key: [u8; KEY]) -> Self {
        let keyed = Hmac::new_from_slice(&key).expect("HMAC takes keys of every length");
        Self { key, keyed }
    }

    /// A short name for the file.
    pub(super) fn name(&self) -> String {
        let [a, b, c, d] = self.digest(b'n', 0, &[], &[]);
        format!("{:08x}", u32::from_be_bytes([a, b, c, d]))
    }

    pub(super) fn header(&self) -> Vec<u8> {
        let mut header = Vec::with_capacity(HEADER);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&VERSION.to_be_bytes());
        header.extend_from_slice(&self.key);
        let digest = Sha256::digest(&header);
        header.extend_from_slice(&digest[..DIGEST]);
        header
    }

    fn from_header(file: &[u8]) -> Result<Self, JournalError> {
        let mut rest = file.strip_prefix(&MAGIC).ok_or(JournalError::NoJournal)?;
        let version = u32::from_be_bytes(take(&mut rest).ok_or(JournalError::NoJournal)?);
        if version != VERSION {
            return Err(JournalError::Version { version });
        }
        let key = take(&mut rest).ok_or(JournalError::NoJournal)?;
        let digest: [u8; DIGEST] = take(&mut rest).ok_or(JournalError::NoJournal)?;
        if digest != Sha256::digest(&file[..HEADER - DIGEST])[..DIGEST] {
            return Err(JournalError::NoJournal);
        }
        Ok(Self::new(key))
    }

    /// Appends a frame for the place `at` of the file to `out`.
    ///
    /// # Panics
    /// If the payload has 4 GiB or more: whoever takes entries refuses that.
    pub(super) fn frame(
        &self,
        kind: Kind,
        number: u64,
        at: u64,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) {
        let length = u32::try_from(payload.len()).expect("an entry is smaller than 4 GiB");
        let start = out.len();
        out.extend_from_slice(&MARKER);
        out.push(kind.code());
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&number.to_be_bytes());
        let check: [u8; CHECK] = self.digest(b'c', at, &out[start..], &[]);
        out.extend_from_slice(&check);
        let seal: [u8; SEAL] = self.digest(b's', at, &out[start..], payload);
        out.extend_from_slice(payload);
        out.extend_from_slice(&seal);
    }

    /// The payload of the whole frame `bytes` at `at`, if it is the entry of this number.
    pub(super) fn entry_payload<'f>(
        &self,
        number: u64,
        at: u64,
        bytes: &'f [u8],
    ) -> Option<&'f [u8]> {
        match self.read_frame(bytes, at) {
            Found::Whole(Frame { kind: Kind::Entry, number: found, payload, length })
                if found == number && length == bytes.len() =>
            {
                Some(payload)
            }
            Found::Whole(_) | Found::Unsealed { .. } | Found::Nothing => None,
        }
    }

    /// Reads the frame at the start of `rest`, which is the file from `at` on.
    fn read_frame<'f>(&self, rest: &'f [u8], at: u64) -> Found<'f> {
        let Some((head, after)) = self.head(rest, at) else { return Found::Nothing };
        let length = HEAD + head.length + SEAL;
        let Some((payload, after)) = after.split_at_checked(head.length) else {
            return Found::Nothing;
        };
        let Some((seal, _)) = after.split_first_chunk::<SEAL>() else { return Found::Nothing };
        if *seal == self.digest(b's', at, &rest[..HEAD], payload) {
            Found::Whole(Frame { kind: head.kind, number: head.number, payload, length })
        } else {
            Found::Unsealed { length }
        }
    }

    /// Reads the head of a frame, if it is one that was written for this place of this file.
    fn head<'f>(&self, rest: &'f [u8], at: u64) -> Option<(Head, &'f [u8])> {
        let mut read = rest.strip_prefix(&MARKER)?;
        let [kind] = take(&mut read)?;
        let length = u32::from_be_bytes(take(&mut read)?);
        let number = u64::from_be_bytes(take(&mut read)?);
        let check: [u8; CHECK] = take(&mut read)?;
        let is_sound = check == self.digest(b'c', at, &rest[..HEAD - CHECK], &[]);
        let kind = Kind::from_code(kind).filter(|_| is_sound)?;
        Some((Head { kind, length: usize::try_from(length).ok()?, number }, read))
    }

    /// Where the next frame begins after damage, if there is one.
    fn next_frame(&self, file: &[u8], after: usize) -> Option<usize> {
        let starts = file.windows(MARKER.len()).enumerate().skip(after);
        let markers = starts.filter(|(_, window)| *window == MARKER).map(|(at, _)| at);
        markers.into_iter().find(|at| self.head(&file[*at..], offset(*at)).is_some())
    }

    fn digest<const N: usize>(&self, what: u8, at: u64, head: &[u8], payload: &[u8]) -> [u8; N] {
        let mac = self.keyed.clone().chain_update([what]).chain_update(at.to_be_bytes());
        let mac = mac.chain_update(head).chain_update(payload).finalize().into_bytes();
        *mac.first_chunk::<N>().expect("a digest has 32 bytes")
    }
}

/// What is at a place of a file.
enum Found<'f> {
    Whole(Frame<'f>),
    /// The head is sound, so this is where the next frame begins, but the rest is not.
    Unsealed {
        length: usize,
    },
    /// No head, or a frame that goes on after the end.
    Nothing,
}

struct Frame<'f> {
    kind: Kind,
    number: u64,
    payload: &'f [u8],
    length: usize,
}

struct Head {
    kind: Kind,
    length: usize,
    number: u64,
}

/// Reads a whole file.
///
/// What cannot be read in the middle is counted and left out. What cannot be read at the end is
/// taken for an append that was cut off: nobody was told that it succeeded.
///
/// # Errors
/// If the file is not a journal, has a damaged header or was written by another version.
pub(super) fn read(file: &Bytes) -> Result<Contents, JournalError> {
    let identity = Identity::from_header(file)?;
    let mut contents = Contents { identity, waiting: Vec::new(), next: 1, damaged: 0, torn: 0 };
    let mut drained = std::collections::HashSet::new();
    let mut seen = std::collections::HashSet::new();
    let mut at = HEADER;
    while at < file.len() {
        let end = match contents.identity.read_frame(&file[at..], offset(at)) {
            Found::Whole(Frame { kind, number, payload, length }) => {
                contents.next = contents.next.max(number.saturating_add(1));
                let place = Place { at: offset(at), length: offset(length) };
                match kind {
                    Kind::Drained => drop(drained.insert(number)),
                    Kind::Entry => match entry::decode(&file.slice_ref(payload)) {
                        Some(entry) if seen.insert(number) => {
                            contents.waiting.push((number, place, entry));
                        }
                        // Sealed, and still not what this version writes.
                        Some(_) | None => contents.damaged += 1,
                    },
                }
                Some(at + length)
            }
            // A sound head says where to look, so nothing inside of the frame is taken for one.
            Found::Unsealed { length } => contents.resume(file, at + length),
            Found::Nothing => contents.resume(file, at + 1),
        };
        let Some(end) = end else {
            contents.torn = offset(file.len() - at);
            break;
        };
        at = end;
    }
    contents.waiting.retain(|(number, _, _)| !drained.contains(number));
    Ok(contents)
}

impl Contents {
    /// Where to go on after damage. If there is nothing to go on with, it is the end that is torn.
    fn resume(&mut self, file: &[u8], from: usize) -> Option<usize> {
        let next = self.identity.next_frame(file, from);
        self.damaged += u64::from(next.is_some());
        next
    }
}

impl Kind {
    /// The two codes differ in seven bits.
    const fn code(self) -> u8 {
        match self {
            Self::Entry => 0x0f,
            Self::Drained => 0x70,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        match code {
            0x0f => Some(Self::Entry),
            0x70 => Some(Self::Drained),
            _ => None,
        }
    }
}

/// A length in memory as a length in a file.
pub(super) fn offset(length: usize) -> u64 {
    u64::try_from(length).expect("lengths have at most 64 bits")
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (array, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*array)
}
