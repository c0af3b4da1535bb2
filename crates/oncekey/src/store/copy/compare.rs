//! Whether a copy is what it should be.

use oncekey_core::decide::Standing;
use oncekey_core::restore::supersedes;
use oncekey_core::saved::NotKept;
use oncekey_core::{Answer, Record, State, Tombstone};

/// What a comparison says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    /// The target is as good as the source, or newer.
    Same,
    /// It is not, in this respect.
    Differs(&'static str),
}

/// Compares a record with its copy, field by field.
///
/// Two things may differ: when a lease ends, because its owner goes on renewing it in the source, and
/// whether an expired answer is stripped already, because each store does that when it comes to it.
pub(super) fn compare(source: &Record, target: Option<&Record>) -> Compared {
    let Some(target) = target else { return Compared::Differs("it is not there") };
    if supersedes(target, Some(Standing::from(source))) {
        return Compared::Same;
    }
    let rows = [
        ("its fence", source.fence == target.fence),
        ("its owner", source.owner == target.owner),
        ("its fingerprint", source.fingerprint == target.fingerprint),
        ("its class", source.class == target.class),
        ("when it was created", source.created == target.created),
        ("where it came from", source.origin == target.origin),
        ("its places", source.places == target.places),
        ("its state", is_same(&source.state, &target.state)),
    ];
    match rows.into_iter().find(|(_, is_same)| !is_same) {
        Some((what, _)) => Compared::Differs(what),
        None => Compared::Same,
    }
}

fn is_same(source: &State, target: &State) -> bool {
    match (source, target) {
        (State::Running { sent, .. }, State::Running { sent: copied, .. }) => sent == copied,
        (
            State::Done { at, expires, forget, outcome, answer },
            State::Done { at: a, expires: e, forget: f, outcome: o, answer: copied },
        ) => {
            let is_times = (at, expires, forget, outcome) == (a, e, f, o);
            is_times && (answer == copied || is_stripped(answer) || is_stripped(copied))
        }
        (source, target) => source == target,
    }
}

fn is_stripped(answer: &Answer) -> bool {
    matches!(answer, Answer::Tombstone(Tombstone { reason: NotKept::Expired, .. }))
}

#[cfg(test)]
mod tests {
    use oncekey_core::saved::{Headers, Saved};
    use oncekey_core::{Class, Fence, Fingerprint, KeyId, Origin, Owner, Places, Sent, Timestamp};

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);

    fn record(state: State) -> Record {
        Record {
            id: KeyId::from_bytes([7; 32]),
            fence: Fence::next(None, NOW),
            owner: Owner::from_bytes([1; 16]),
            fingerprint: Fingerprint::from_parts(1, [1; 32]),
            class: Class::Once,
            created: NOW,
            origin: Origin { key: "k".into(), ..Origin::default() },
            places: Places::default(),
            state,
        }
    }

    fn done(body: &'static str) -> State {
        let answer = Answer::Kept(Saved {
            status: 201,
            headers: Headers::new(),
            body: bytes::Bytes::from(body),
        });
        let outcome = answer.outcome();
        State::Done { at: NOW, expires: NOW, forget: NOW, outcome, answer }
    }

    fn running(until: i64, sent: Sent) -> State {
        State::Running { until: Timestamp::from_micros(until), sent }
    }

    #[test]
    fn what_is_missing_older_or_other_differs() {
        let source = record(done("a"));
        assert_eq!(compare(&source, Some(&source)), Compared::Same);
        assert_eq!(compare(&source, None), Compared::Differs("it is not there"));
        let other = Record { owner: Owner::from_bytes([2; 16]), ..source.clone() };
        assert_eq!(compare(&source, Some(&other)), Compared::Differs("its owner"));
        let origin = Origin { key: "l".into(), ..Origin::default() };
        let other = Record { origin, ..source.clone() };
        assert_eq!(compare(&source, Some(&other)), Compared::Differs("where it came from"));
        for state in [done("b"), running(1, Sent::Yes), State::Unknown { since: NOW }] {
            let behind = record(state);
            assert_eq!(compare(&source, Some(&behind)), Compared::Differs("its state"));
        }
        let unsent = record(running(9, Sent::No));
        let sent = record(running(9, Sent::Yes));
        assert_eq!(compare(&sent, Some(&unsent)), Compared::Differs("its state"));
    }

    #[test]
    fn what_is_newer_renewed_or_stripped_does_not() {
        let source = record(running(5, Sent::No));
        for state in [running(9, Sent::No), running(5, Sent::Yes), done("a")] {
            assert_eq!(compare(&source, Some(&record(state))), Compared::Same);
        }
        let fence = Fence::next(Some(source.fence), NOW);
        let newer = Record { fence, ..record(running(5, Sent::No)) };
        assert_eq!(compare(&record(done("a")), Some(&newer)), Compared::Same);
        let mut stripped = record(done("a"));
        if let State::Done { answer, .. } = &mut stripped.state {
            let reason = NotKept::Expired;
            *answer = Answer::Tombstone(Tombstone { status: Some(201), reason });
        }
        assert_eq!(compare(&record(done("a")), Some(&stripped)), Compared::Same);
    }
}
