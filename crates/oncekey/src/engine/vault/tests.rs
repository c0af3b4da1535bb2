//! Attacks on the vault: everything that is moved, swapped, brought back or flipped must fail.

use std::sync::atomic::{AtomicU8, Ordering};

use oncekey_core::store::MAX_TEXT;
use oncekey_core::{Answer, Class, Fence, Fingerprint, Outcome, Places, State, Timestamp};
use proptest::prelude::*;

use super::*;
use crate::entropy::SystemEntropy;

const NAMESPACE: &str = "payments";
const KEY: &str = "order-7-canary";

/// Bytes that count up: the first draw is 0, 1, 2 …
#[derive(Debug, Default)]
struct Counting(AtomicU8);

impl Entropy for Counting {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.0.fetch_add(1, Ordering::Relaxed));
    }
}

fn master(first: u8) -> [u8; 32] {
    let mut key = [0; 32];
    (0_u8..).zip(&mut key).for_each(|(at, byte)| *byte = at.wrapping_mul(37).wrapping_add(first));
    key
}

fn ring() -> KeyRing {
    KeyRing::new("k1", &master(1)).unwrap()
}

fn vault(ring: KeyRing) -> Vault {
    Vault::new(Some(ring), Arc::new(SystemEntropy::default()))
}

fn plain_vault() -> Vault {
    Vault::new(None, Arc::new(SystemEntropy::default()))
}

fn pepper() -> Pepper {
    Pepper::new([5; 32]).unwrap()
}

fn scope(name: &str) -> Scope {
    Scope::new(name).unwrap()
}

fn saved(status: u16, body: &[u8]) -> Saved {
    let mut headers = Headers::new();
    headers.push(b"content-type", b"application/json").unwrap();
    headers.push(b"x-canary", b"canary").unwrap();
    headers.push(b"X-Canary", b"again").unwrap();
    Saved { status, headers, body: Bytes::copy_from_slice(body) }
}

/// A finished record, encrypted by `vault` the way the engine does it.
fn record(vault: &Vault, scope: &Scope, key: &str, attempt: i64) -> Record {
    let named = Key::new(key.as_bytes()).unwrap();
    let id = KeyId::derive(NAMESPACE, scope, &named, Some(&pepper()));
    let owner = Owner::from_bytes(attempt.to_be_bytes().repeat(2).try_into().unwrap());
    let fence = Fence::from_number(1_000 + attempt).unwrap();
    let origin = Origin {
        key: key.into(),
        scope: Text::from(scope.as_bytes()),
        route: "POST /v1/charges".into(),
        request: "req_1".into(),
    };
    let at = Timestamp::from_micros(1);
    let lease = Lease { id, fence, owner, until: at };
    let answer = vault.seal_answer(&lease, &saved(201, b"{\"card\":\"canary\"}"));
    let answer = Answer::Kept(answer);
    Record {
        id,
        fence,
        owner,
        fingerprint: Fingerprint::from_parts(1, [3; 32]),
        class: Class::Once,
        created: at,
        origin: vault.seal_origin(&id, &owner, origin.clone()),
        places: Places::default(),
        state: State::Done { at, expires: at, forget: at, outcome: answer.outcome(), answer },
    }
}

fn stored(record: &Record) -> Saved {
    match &record.state {
        State::Done { answer: Answer::Kept(saved), .. } => saved.clone(),
        State::Done { .. }
        | State::Running { .. }
        | State::Unknown { .. }
        | State::Parked { .. } => {
            panic!("it has an answer")
        }
    }
}

fn open_origin(vault: &Vault, record: &Record) -> Result<Origin, VaultError> {
    vault.open_origin(NAMESPACE, Some(&pepper()), record)
}

const CHANGED: Result<Saved, VaultError> = Err(VaultError::Changed(Field::Answer));

/// I36: what is stored can be read by whoever reads this file. The expected bytes were computed
/// with Python's hmac and cryptography from the written layout, not with this code.
#[test]
fn version_one_stays_what_it_is() {
    let vault = |ring| Vault::new(Some(ring), Arc::new(Counting::default()));
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let lease = Lease {
        id: KeyId::from_bytes([7; 32]),
        fence: Fence::from_number(1_763_000_000_000_001).unwrap(),
        owner: Owner::from_bytes([9; 16]),
        until: Timestamp::default(),
    };
    let mut headers = Headers::new();
    headers.push(b"etag", b"\"a\" x").unwrap();
    let answer = Saved { status: 201, headers, body: Bytes::from_static(b"{\"id\":7}") };
    let sealed = vault(ring()).seal_answer(&lease, &answer);
    assert_eq!(
        hex(&sealed.body),
        "01000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f007c93ccee9d73e0b1d34f6c\
         3240e1c4b02903152ead7e6429cc194627fdf2e064c497f22b4bbccefbb140c581"
    );
    assert_eq!(sealed.headers.iter().collect::<Vec<_>>(), [(&b"oncekey-sealed"[..], &b"k1"[..])]);
    let scope = scope("tenant-7");
    let origin =
        Origin { key: "order-7".into(), scope: Text::from(scope.as_bytes()), ..Origin::default() };
    let origin = vault(ring()).seal_origin(&lease.id, &lease.owner, origin.clone());
    assert_eq!(
        hex(origin.key.as_bytes()),
        "8001026b31000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f15d609b9ee6014b9\
         d0aef3110846e453261a324eaf629e"
    );
    assert_eq!(
        hex(origin.scope.as_bytes()),
        "8001026b3184f1813f18f7cd03eb59a3e1452afee7efed5f5a49c486678b7f83c3311637402deb010e632e356a\
         61112727e85c3aa3abee35418513b5ce4e"
    );
}

#[test]
fn what_was_encrypted_is_read_back_and_shows_nothing_before() {
    let vault = vault(ring());
    let record = record(&vault, &scope("tenant-canary"), KEY, 1);
    let sealed = stored(&record);
    assert_eq!(sealed.status, 201);
    let contains = |bytes: &[u8]| bytes.windows(6).any(|window| window == b"canary");
    assert!(!contains(&sealed.body) && !contains(&sealed.headers.encode()));
    assert!(!contains(record.origin.key.as_bytes()) && !contains(record.origin.scope.as_bytes()));

    let opened = vault.open_answer(&record, &sealed).unwrap();
    assert_eq!(opened, saved(201, b"{\"card\":\"canary\"}"));
    let origin = open_origin(&vault, &record).unwrap();
    assert_eq!(origin.key.as_bytes(), KEY.as_bytes());
    assert_eq!(origin.scope.as_bytes(), scope("tenant-canary").as_bytes());
    assert_eq!((origin.route, origin.request), (record.origin.route, record.origin.request));
}

/// I53: an answer opens in its own record, under its own fence, owner and status, and nowhere else.
#[test]
fn an_answer_that_was_moved_does_not_open() {
    let vault = vault(ring());
    let tenant = scope("tenant-7");
    let victim = record(&vault, &tenant, "a", 1);
    let other_key = record(&vault, &tenant, "b", 1);
    let earlier = record(&vault, &tenant, "a", 0);
    assert!(vault.open_answer(&victim, &stored(&victim)).is_ok());
    assert_eq!(vault.open_answer(&victim, &stored(&other_key)), CHANGED, "another row");
    assert_eq!(vault.open_answer(&victim, &stored(&earlier)), CHANGED, "an earlier attempt");

    let fenced = Record { fence: Fence::from_number(999).unwrap(), ..victim.clone() };
    assert_eq!(vault.open_answer(&fenced, &stored(&victim)), CHANGED, "another fence");
    let owned = Record { owner: Owner::from_bytes([1; 16]), ..victim.clone() };
    assert_eq!(vault.open_answer(&owned, &stored(&victim)), CHANGED, "another owner");
    let status = Saved { status: 200, ..stored(&victim) };
    assert_eq!(vault.open_answer(&victim, &status), CHANGED, "another status");
}

/// I53: nothing opens as another field than the one it was encrypted as.
#[test]
fn a_text_that_was_moved_to_another_field_does_not_open() {
    let vault = vault(ring());
    let whole = record(&vault, &scope("tenant-7"), "a", 1);
    let swapped = Origin {
        key: whole.origin.scope.clone(),
        scope: whole.origin.key.clone(),
        ..whole.origin.clone()
    };
    let swapped = Record { origin: swapped, ..whole.clone() };
    assert_eq!(open_origin(&vault, &swapped), Err(VaultError::Changed(Field::Key)));

    // The bytes of a key in the place of an answer, and the other way round.
    let key = whole.origin.key.as_bytes();
    let as_answer = Saved { body: [&[1], &key[5..]].concat().into(), ..stored(&whole) };
    assert_eq!(vault.open_answer(&whole, &as_answer), CHANGED);
    let answer = [&key[..5], &stored(&whole).body[1..]].concat();
    let origin = Origin { key: Text::from(answer), ..whole.origin.clone() };
    let as_key = Record { origin, ..whole };
    assert_eq!(open_origin(&vault, &as_key), Err(VaultError::Changed(Field::Key)));
}

/// I53: key and scope of one record are not taken for those of another.
#[test]
fn a_key_or_scope_of_another_record_is_noticed() {
    let vault = vault(ring());
    let victim = record(&vault, &scope("tenant-7"), "a", 1);
    let other_scope = record(&vault, &scope("tenant-8"), "a", 1);
    let other_key = record(&vault, &scope("tenant-7"), "b", 1);
    let earlier = record(&vault, &scope("tenant-7"), "a", 0);
    let with = |key: &Record, scope: &Record| {
        let (key, scope) = (key.origin.key.clone(), scope.origin.scope.clone());
        Record { origin: Origin { key, scope, ..victim.origin.clone() }, ..victim.clone() }
    };
    let changed = |field| Err(VaultError::Changed(field));
    assert!(open_origin(&vault, &with(&victim, &victim)).is_ok());
    // A scope opens anywhere, but it does not give the key id.
    assert_eq!(open_origin(&vault, &with(&victim, &other_scope)), changed(Field::Origin));
    assert_eq!(open_origin(&vault, &with(&other_key, &victim)), changed(Field::Key));
    assert_eq!(open_origin(&vault, &with(&earlier, &victim)), changed(Field::Key), "owner");
    assert!(open_origin(&vault, &with(&victim, &other_key)).is_ok(), "the same scope");

    let plain = Origin { scope: Text::from(scope("tenant-8").as_bytes()), ..victim.origin.clone() };
    let half = Record { origin: plain, ..victim.clone() };
    assert_eq!(open_origin(&vault, &half), changed(Field::Origin), "a forged plain scope");
    let plain = Origin { key: "b".into(), ..victim.origin.clone() };
    let half = Record { origin: plain, ..victim.clone() };
    assert_eq!(open_origin(&vault, &half), changed(Field::Origin), "a forged plain key");
    let elsewhere = vault.open_origin("another namespace", Some(&pepper()), &victim);
    assert_eq!(elsewhere, changed(Field::Origin));
}

/// F55: no flipped bit and no cut gives another answer, key or scope.
#[test]
fn a_flipped_bit_or_a_cut_is_always_noticed() {
    let vault = vault(ring());
    let whole = record(&vault, &scope("tenant-7"), "a", 1);
    let answer = stored(&whole);
    for at in 0..answer.body.len() {
        let cut = Saved { body: answer.body.slice(..at), ..answer.clone() };
        assert!(vault.open_answer(&whole, &cut).is_err(), "cut at {at}");
        for bit in 0..8 {
            let mut body = answer.body.to_vec();
            body[at] ^= 1 << bit;
            let flipped = Saved { body: body.into(), ..answer.clone() };
            assert!(vault.open_answer(&whole, &flipped).is_err(), "byte {at}, bit {bit}");
        }
    }
    let origin = |key: Text, scope: Text| Record {
        origin: Origin { key, scope, ..whole.origin.clone() },
        ..whole.clone()
    };
    for (name, text) in [("key", &whole.origin.key), ("scope", &whole.origin.scope)] {
        let with = |text: Text| match name {
            "key" => origin(text, whole.origin.scope.clone()),
            _ => origin(whole.origin.key.clone(), text),
        };
        for at in 0..text.as_bytes().len() {
            let cut = with(Text::from(&text.as_bytes()[..at]));
            assert!(open_origin(&vault, &cut).is_err(), "{name} cut at {at}");
            for bit in 0..8 {
                let mut bytes = text.as_bytes().to_vec();
                bytes[at] ^= 1 << bit;
                let flipped = with(Text::from(bytes));
                assert!(open_origin(&vault, &flipped).is_err(), "{name}, byte {at}, bit {bit}");
            }
        }
    }
}

/// T16: an old key decrypts, the new one encrypts, and a scope is found under both.
#[test]
fn keys_can_be_rotated() {
    let tenant = scope("tenant-7");
    let old = vault(ring());
    let written = record(&old, &tenant, "a", 1);
    let rotated = KeyRing::new("k2", &master(2)).unwrap().with_old("k1", &master(1)).unwrap();
    let rotated = vault(rotated);
    assert!(rotated.open_answer(&written, &stored(&written)).is_ok());
    assert!(open_origin(&rotated, &written).is_ok());

    let anew = record(&rotated, &tenant, "a", 2);
    let missing = VaultError::MissingKey { id: "k2".to_owned() };
    assert_eq!(old.open_answer(&anew, &stored(&anew)), Err(missing.clone()));
    assert_eq!(open_origin(&old, &anew), Err(missing.clone()));
    assert!(missing.to_string().contains("k2"));
    assert_eq!(plain_vault().open_answer(&anew, &stored(&anew)), Err(missing));

    let forms = rotated.scope_forms(&tenant);
    assert_eq!(forms.len(), 3);
    assert_eq!(forms[0], anew.origin.scope);
    assert_eq!(forms[1], written.origin.scope);
    assert_eq!(forms[2].as_bytes(), tenant.as_bytes());
}

/// A key under the id of another one opens nothing.
#[test]
fn the_id_of_a_key_is_not_the_key() {
    let written = record(&vault(ring()), &scope("tenant-7"), "a", 1);
    let wrong = vault(KeyRing::new("k1", &master(2)).unwrap());
    assert_eq!(wrong.open_answer(&written, &stored(&written)), CHANGED);
    assert_eq!(open_origin(&wrong, &written), Err(VaultError::Changed(Field::Key)));

    // The same key under another id: the id is part of what is bound.
    let renamed = vault(KeyRing::new("k9", &master(1)).unwrap());
    let mut headers = Headers::new();
    headers.push(SEALED.as_bytes(), b"k9").unwrap();
    let moved = Saved { headers, ..stored(&written) };
    assert_eq!(renamed.open_answer(&written, &moved), CHANGED);
}

#[test]
fn records_from_before_encryption_are_read_until_that_is_refused() {
    let tenant = scope("tenant-7");
    let before = record(&plain_vault(), &tenant, "a", 1);
    assert_eq!(stored(&before), saved(201, b"{\"card\":\"canary\"}"));
    assert_eq!(before.origin.key.as_bytes(), b"a");
    let later = vault(ring());
    assert_eq!(later.open_answer(&before, &stored(&before)), Ok(stored(&before)));
    assert_eq!(open_origin(&later, &before).as_ref(), Ok(&before.origin));

    let strict = vault(ring().refuse_plain());
    let refused = |field| VaultError::Plain(field);
    assert_eq!(strict.open_answer(&before, &stored(&before)), Err(refused(Field::Answer)));
    assert_eq!(open_origin(&strict, &before), Err(refused(Field::Key)));
    let sealed = record(&strict, &tenant, "a", 1);
    assert!(strict.open_answer(&sealed, &stored(&sealed)).is_ok());
    assert!(open_origin(&strict, &sealed).is_ok());
}

#[test]
fn an_upstream_cannot_use_the_reserved_line() {
    let lease = record(&plain_vault(), &scope("tenant-7"), "a", 1).lease();
    let mut forged = saved(200, b"x");
    forged.headers.push(b"Oncekey-Sealed", b"k1").unwrap();
    for vault in [plain_vault(), vault(ring())] {
        let kept = vault.seal_answer(&lease, &forged);
        let record = record(&vault, &scope("tenant-7"), "a", 1);
        assert_eq!(vault.open_answer(&record, &kept), Ok(saved(200, b"x")));
    }
    // In a row it is a mark, and beside other lines it is damage.
    let whole = record(&vault(ring()), &scope("tenant-7"), "a", 1);
    assert_eq!(vault(ring()).open_answer(&whole, &forged), CHANGED);
}

/// I36: what a later version wrote is refused, not guessed.
#[test]
fn unknown_formats_are_refused() {
    let vault = vault(ring());
    let whole = record(&vault, &scope("tenant-7"), "a", 1);
    let mut body = stored(&whole).body.to_vec();
    body[0] = 2;
    let newer = Saved { body: body.into(), ..stored(&whole) };
    assert_eq!(vault.open_answer(&whole, &newer), Err(VaultError::NewerFormat(Field::Answer)));
    let mut key = whole.origin.key.as_bytes().to_vec();
    key[1] = 2;
    let origin = Origin { key: Text::from(key), ..whole.origin.clone() };
    let newer = Record { origin, ..whole };
    assert_eq!(open_origin(&vault, &newer), Err(VaultError::NewerFormat(Field::Key)));
}

#[test]
fn the_longest_texts_fit_a_store() {
    let ring = KeyRing::new(&"i".repeat(64), &master(1)).unwrap();
    let vault = vault(ring);
    let longest = Scope::new([0xff; 1024]).unwrap();
    let record = record(&vault, &longest, &"k".repeat(255), 1);
    assert!(record.origin.key.as_bytes().len() <= MAX_TEXT);
    assert!(record.origin.scope.as_bytes().len() <= MAX_TEXT);
    assert_eq!(open_origin(&vault, &record).unwrap().scope.as_bytes(), longest.as_bytes());
    let shared = self::record(&vault, &Scope::shared(), "k", 1);
    assert_eq!(open_origin(&vault, &shared).unwrap().scope.as_bytes(), b"");
}

/// I52.
#[test]
fn nothing_shows_its_content() {
    let vault = vault(ring());
    let record = record(&vault, &scope("canary"), "canary", 1);
    let strange = Text::from([&[0x80, 1, 6][..], b"canary", &[0; 48]].concat());
    let origin = Origin { key: strange, ..record.origin.clone() };
    let shown = format!("{vault:?} {record:?}");
    assert!(!shown.contains("canary") && shown.contains("[REDACTED]"), "{shown}");
    let odd_id = Text::from([&[0x80, 1, 6][..], b"ca\x1b[0m", &[0; 48]].concat());
    let odd = Record { origin: Origin { key: odd_id, ..origin }, ..record };
    assert_eq!(open_origin(&vault, &odd), Err(VaultError::Changed(Field::Key)), "no escapes");
}

/// Equal scopes are found by equality; equal keys and answers show nothing.
#[test]
fn only_scopes_look_the_same_twice() {
    let vault = vault(ring());
    let one = record(&vault, &scope("tenant-7"), "a", 1);
    let two = record(&vault, &scope("tenant-7"), "a", 1);
    assert_eq!(one.origin.scope, two.origin.scope);
    assert_ne!(one.origin.key, two.origin.key);
    assert_ne!(stored(&one).body, stored(&two).body);
}

proptest! {
    #[test]
    fn every_answer_comes_back(
        status in any::<u16>(),
        lines in proptest::collection::vec(("[a-z-]{1,12}", "[ -~]{0,40}"), 0..6),
        body in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        let vault = vault(ring());
        let record = record(&vault, &scope("t"), "k", 1);
        let mut headers = Headers::new();
        for (name, value) in &lines {
            headers.push(name.as_bytes(), value.as_bytes()).unwrap();
        }
        let saved = Saved { status, headers, body: body.into() };
        let sealed = vault.seal_answer(&record.lease(), &saved);
        let larger = sealed.body.len() - saved.body.len() - saved.headers.encoded_len();
        prop_assert_eq!(larger, 1 + SALT + 4 + TAG);
        prop_assert_eq!(vault.open_answer(&record, &sealed), Ok(saved));
    }

    #[test]
    fn every_origin_comes_back(
        scope in proptest::collection::vec(any::<u8>(), 1..1024),
        key in "[ -~]{1,255}",
    ) {
        let vault = vault(ring());
        let scope = Scope::new(scope).unwrap();
        let record = record(&vault, &scope, &key, 1);
        let origin = open_origin(&vault, &record).unwrap();
        prop_assert_eq!(origin.key.as_bytes(), key.as_bytes());
        prop_assert_eq!(origin.scope.as_bytes(), scope.as_bytes());
        prop_assert!(vault.scope_forms(&scope).contains(&record.origin.scope));
    }

    /// Whatever bytes a row holds, they are read as plain, or refused: nothing panics.
    #[test]
    fn any_bytes_are_plain_or_refused(
        body in proptest::collection::vec(any::<u8>(), 0..120),
        text in proptest::collection::vec(any::<u8>(), 0..120),
        mark in any::<bool>(),
    ) {
        let vault = vault(ring());
        let whole = record(&vault, &scope("t"), "k", 1);
        let forged = Saved { body: body.into(), ..stored(&whole) };
        prop_assert!(vault.open_answer(&whole, &forged).is_err());
        let text = if mark { [&[0x80, 1, 2, b'k', b'1'][..], &text].concat() } else { text };
        let origin = Origin { key: Text::from(text), ..whole.origin.clone() };
        let forged = Record { origin, ..whole };
        prop_assert!(open_origin(&vault, &forged).is_err());
    }
}

/// The outcome of a completion is that of the encrypted answer, so it is encrypted once.
#[test]
fn encrypting_twice_gives_two_outcomes() {
    let vault = vault(ring());
    let lease = record(&vault, &scope("t"), "k", 1).lease();
    let outcome =
        || -> Outcome { Answer::Kept(vault.seal_answer(&lease, &saved(200, b"x"))).outcome() };
    assert_ne!(outcome(), outcome());
}
