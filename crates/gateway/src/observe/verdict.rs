//! What would have happened to a request, had its route been protected. Pure: what was seen and
//! what comes now go in, a verdict comes out.

use std::time::Duration;

use oncekey::core::{Fingerprint, KeyId};

/// What a request is recognised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sighting {
    pub(super) key: Presented,
    /// `None` if the body was too long or never came to its end.
    pub(super) fingerprint: Option<Fingerprint>,
}

/// The key of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presented {
    Key(KeyId),
    None,
    /// There is something, and it is no key.
    Invalid,
}

/// What a request with a key left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) fingerprint: Option<Fingerprint>,
}

/// What a request with this content left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) key: Option<KeyId>,
}

/// What would have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Would {
    /// It would have run, as it did.
    Run,
    /// It would have got the first answer; instead it ran again.
    Replay { after: Duration },
    /// It would have been refused: its key was used for something else.
    Mismatch { after: Duration },
    /// It has no key: `required` would have refused it.
    MissingKey,
    /// Its key is none.
    InvalidKey,
    /// It could not have been compared.
    Unprotected,
}

/// What a retry looks like that no key protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suspicion {
    /// The same content under another key: a client that makes a new key for every attempt.
    Hollow { after: Duration },
    /// The same content without a key.
    Keyless { after: Duration },
}

/// A second request with the same content within this time is rather an attempt than an intent:
/// clients retry within seconds, and people do not order the same thing twice that fast.
pub(super) const SUSPICIOUS: Duration = Duration::from_secs(60);

impl Would {
    /// Judges a request, given what was seen under its key, and how long ago.
    pub(super) fn of(sighting: Sighting, used: Option<(Duration, Used)>) -> Self {
        match (sighting.key, used) {
            (Presented::None, _) => Self::MissingKey,
            (Presented::Invalid, _) => Self::InvalidKey,
            (Presented::Key(_), None) => match sighting.fingerprint {
                Some(_) => Self::Run,
                None => Self::Unprotected,
            },
            (Presented::Key(_), Some((after, used))) => {
                match (sighting.fingerprint, used.fingerprint) {
                    (Some(now), Some(then)) if now == then => Self::Replay { after },
                    (Some(_), Some(_)) => Self::Mismatch { after },
                    (None, _) | (_, None) => Self::Unprotected,
                }
            }
        }
    }

    /// The word for it in metrics and logs.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Run => "would_executed",
            Self::Replay { .. } => "would_replayed",
            Self::Mismatch { .. } => "would_mismatch",
            Self::MissingKey => "would_missing_key",
            Self::InvalidKey => "would_invalid_key",
            Self::Unprotected => "would_unprotected",
        }
    }
}

impl Suspicion {
    /// Looks at what the same content left behind, and how long ago.
    pub(super) fn of(sighting: Sighting, content: Option<(Duration, Content)>) -> Option<Self> {
        let (after, content) = content.filter(|(after, _)| *after <= SUSPICIOUS)?;
        match (sighting.key, content.key) {
            (Presented::Key(now), Some(then)) if now != then => Some(Self::Hollow { after }),
            (Presented::None, None) => Some(Self::Keyless { after }),
            (Presented::Key(_) | Presented::None | Presented::Invalid, _) => None,
        }
    }

    /// The word for it in metrics.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Hollow { .. } => "hollow",
            Self::Keyless { .. } => "keyless_suspected",
        }
    }
}

#[cfg(test)]
mod tests {
    use oncekey::core::fingerprint::{FingerprintRules, Subject};

    use super::*;

    const SOON: Duration = Duration::from_secs(2);

    fn fingerprint(body: &[u8]) -> Fingerprint {
        let subject = Subject {
            method: "POST",
            path: b"/pay",
            query: None,
            content_type: None,
            headers: &[],
            body,
        };
        Fingerprint::v1(&subject, &FingerprintRules::default()).0
    }

    fn key(number: u8) -> Presented {
        Presented::Key(KeyId::from_bytes([number; 32]))
    }

    fn id(number: u8) -> Option<KeyId> {
        Some(KeyId::from_bytes([number; 32]))
    }

    #[test]
    fn every_pair_of_requests_has_its_verdict() {
        let (one, two) = (Some(fingerprint(b"1")), Some(fingerprint(b"2")));
        let seen = |fingerprint| Some((SOON, Used { fingerprint }));
        for (presented, now, before, expected) in [
            (key(1), one, None, Would::Run),
            (key(1), one, seen(one), Would::Replay { after: SOON }),
            (key(1), two, seen(one), Would::Mismatch { after: SOON }),
            (key(1), None, None, Would::Unprotected),
            (key(1), one, seen(None), Would::Unprotected),
            (key(1), None, seen(one), Would::Unprotected),
            (Presented::None, one, None, Would::MissingKey),
            (Presented::Invalid, one, None, Would::InvalidKey),
        ] {
            let sighting = Sighting { key: presented, fingerprint: now };
            assert_eq!(Would::of(sighting, before), expected, "{sighting:?} after {before:?}");
        }
    }

    #[test]
    fn the_same_content_is_suspicious_under_a_new_key_or_twice_without_one() {
        let late = SUSPICIOUS + SOON;
        for (presented, before, expected) in [
            (key(1), Some((SOON, id(2))), Some(Suspicion::Hollow { after: SOON })),
            (key(1), Some((SOON, id(1))), None),
            (key(1), Some((SOON, None)), None),
            (key(1), Some((late, id(2))), None),
            (Presented::None, Some((SOON, None)), Some(Suspicion::Keyless { after: SOON })),
            (Presented::None, Some((SOON, id(2))), None),
            (Presented::None, None, None),
            (Presented::Invalid, Some((SOON, id(2))), None),
        ] {
            let sighting = Sighting { key: presented, fingerprint: Some(fingerprint(b"1")) };
            let before = before.map(|(after, key)| (after, Content { key }));
            assert_eq!(Suspicion::of(sighting, before), expected, "{presented:?} {before:?}");
        }
    }
}
