//! `[[route]]`, and `[defaults]` with the same members.

use std::time::Duration;

use super::store::ON_UNAVAILABLE;
use super::{Setting, Unset, table};
use crate::config::form::{
    EXEMPT, HEADER, JSON_PATH, KEY_SOURCE, METHOD, PATTERN, REDACT, SCOPE_PART, STATUSES, URL,
    WORDS,
};
use crate::config::kind::Kind;

/// What only a route has: what it is called and which requests it is for.
pub(crate) static ROUTE: [Setting; 21] = [
    Setting {
        name: "name",
        kind: Kind::Text(&WORDS),
        unset: Unset::Nothing { example: "\"create-charge\"" },
        about: "What logs, metrics and records call the route. If it is not set, `match` is.",
    },
    Setting {
        name: "match",
        kind: Kind::Text(&PATTERN),
        unset: Unset::Refused { example: "\"POST /v1/charges/{id}/capture\"" },
        about: "Which requests: methods (`POST`, `POST,PATCH`, `*` for all, or none for those of \
                `methods`) and a path. [How paths are matched](#routes).",
    },
    PRESET,
    MODE,
    METHODS,
    TTL,
    CLASS,
    SCOPE,
    RECORD,
    RETAIN,
    FORWARD_KEY,
    PROBE,
    COMPLETE,
    COMPLETE_FOR,
    UNAVAILABLE,
    KEY,
    FINGERPRINT,
    IN_FLIGHT,
    LIMITS,
    ROLLOUT,
    MARK,
];

/// What both have.
pub(crate) static MEMBERS: [Setting; 19] = [
    PRESET,
    MODE,
    METHODS,
    TTL,
    CLASS,
    SCOPE,
    RECORD,
    RETAIN,
    FORWARD_KEY,
    PROBE,
    COMPLETE,
    COMPLETE_FOR,
    UNAVAILABLE,
    KEY,
    FINGERPRINT,
    IN_FLIGHT,
    LIMITS,
    ROLLOUT,
    MARK,
];

const PRESET: Setting = Setting {
    name: "preset",
    kind: Kind::Choice(&["stripe-v1", "oasis", "paypal", "square"]),
    unset: Unset::Nothing { example: "\"stripe-v1\"" },
    about: "Begins with the settings of a known API; the route's own go first. \
            [What each sets](#presets).",
};

const MODE: Setting = Setting {
    name: "mode",
    kind: Kind::Choice(&["off", "observe", "optional", "required"]),
    unset: Unset::Is("\"observe\""),
    about: "`off` passes requests on; `observe` too, and notes what would have happened; \
            `optional` protects those with a key; `required` refuses the others.",
};

const METHODS: Setting = Setting {
    name: "methods",
    kind: Kind::List(&Kind::Text(&METHOD)),
    unset: Unset::Is("[\"POST\", \"PATCH\"]"),
    about: "The methods of routes whose `match` names none.",
};

const TTL: Setting = Setting {
    name: "ttl",
    kind: Kind::Time { least: Duration::from_secs(60), most: Duration::from_secs(90 * 86_400) },
    unset: Unset::Is("\"24h\""),
    about: "Retention: how long a finished request answers its retries.",
};

const CLASS: Setting = Setting {
    name: "class",
    kind: Kind::Choice(&["once", "keyed", "retry"]),
    unset: Unset::Is("\"once\""),
    about: "What may be done when nobody knows whether the upstream acted: `once` never sends \
            again, `keyed` does with the same derived key, `retry` does because the work is \
            idempotent.",
};

const SCOPE: Setting = Setting {
    name: "scope",
    kind: Kind::List(&Kind::Text(&SCOPE_PART)),
    unset: Unset::Is("[\"credential\"]"),
    about: "Whom a key belongs to; all parts together. `header:` must be set by something trusted, \
            `api-key:` is hashed, `jwt:` is a verified claim, `mtls` the subject of a certificate, \
            `credential` a hash of `Authorization`, `shared` everybody. With `credential`, callers \
            without an `Authorization` header share one scope: cookies and headers such as \
            `X-Api-Key` do not count.",
};

const RECORD: Setting = Setting {
    name: "record",
    kind: Kind::Pairs { name: &STATUSES, value: &Kind::Choice(&["replay", "release", "unknown"]) },
    unset: Unset::Nothing { example: "{ \"5xx\" = \"replay\", \"429,503\" = \"release\" }" },
    about: "What becomes of answers by status: kept and replayed, forgotten so that a retry runs, \
            or held as unknown. The narrowest rule wins; \
            [what holds otherwise](../explanation/engine.md).",
};

const RETAIN: Setting = Setting {
    name: "retain",
    kind: Kind::Either(&[
        Kind::Choice(&["whole", "status-only"]),
        Kind::Pairs { name: &REDACT, value: &Kind::List(&Kind::Text(&JSON_PATH)) },
    ]),
    unset: Unset::Is("\"whole\""),
    about: "How much of an answer is kept: all, the status, or all but some members: \
            `{ redact = [\"$.secret\"] }`.",
};

const FORWARD_KEY: Setting = Setting {
    name: "forward_key",
    kind: Kind::Either(&[Kind::Text(&HEADER), Kind::Off]),
    unset: Unset::Is("\"Idempotency-Key\""),
    about: "The header in which the upstream gets the derived key, the same for every attempt; or \
            `false`.",
};

const PROBE: Setting = Setting {
    name: "probe",
    kind: Kind::Text(&URL),
    unset: Unset::Nothing { example: "\"http://127.0.0.1:3000/internal/outcomes\"" },
    about: "A URL that is asked what became of a request whose answer was lost.",
};

const COMPLETE: Setting = Setting {
    name: "complete",
    kind: Kind::Flag,
    unset: Unset::Is("false"),
    about: "Sends requests that lost their owner again until they have an answer, without waiting \
            for a retry. For classes `keyed` and `retry`; requests are kept for it, so the store \
            has to be encrypted. [How to](../how-to/finish-abandoned-requests.md).",
};

const COMPLETE_FOR: Setting = Setting {
    name: "complete_for",
    // A day, because upstreams that honour keys forget them after a day, as a rule: whatever is sent
    // later would be new to them.
    kind: Kind::Time { least: Duration::from_secs(1), most: Duration::from_secs(86_400) },
    unset: Unset::Is("\"1h\""),
    about: "How long after the first attempt `complete` goes on, and how long requests are kept. \
            Shorter than the upstream remembers keys.",
};

const UNAVAILABLE: Setting = Setting {
    name: "on_unavailable",
    kind: ON_UNAVAILABLE,
    unset: Unset::Nothing { example: "\"reject\"" },
    about: "As in `[store]`, for this route.",
};

const MARK: Setting = Setting {
    name: "mark",
    kind: Kind::Choice(&["by-class", "with-claim", "apart"]),
    unset: Unset::Is("\"by-class\""),
    about: "When it is noted that a request may have reached the upstream: with the claim, as \
            every class has it by default, or apart, by a write of its own, before which a crash \
            is known to be harmless.",
};

const KEY: Setting = table("key", &KEY_MEMBERS, "The key of a request.");
const FINGERPRINT: Setting =
    table("fingerprint", &FINGERPRINT_MEMBERS, "Which requests count as the same.");
const IN_FLIGHT: Setting =
    table("in_flight", &IN_FLIGHT_MEMBERS, "While the first request with a key is running.");
const LIMITS: Setting = table("limits", &LIMIT_MEMBERS, "How large things may be.");
const ROLLOUT: Setting =
    table("rollout", &ROLLOUT_MEMBERS, "Protects a part of the callers first.");

static KEY_MEMBERS: [Setting; 2] = [
    Setting {
        name: "sources",
        kind: Kind::List(&Kind::Text(&KEY_SOURCE)),
        unset: Unset::Is("[\"header:Idempotency-Key\"]"),
        about: "Where a key may stand. A request with several must say the same in all.",
    },
    Setting {
        name: "quality",
        kind: Kind::Choice(&["off", "warn", "reject"]),
        unset: Unset::Is("\"warn\""),
        about: "What happens to keys that are easy to guess or look like an address.",
    },
];

static FINGERPRINT_MEMBERS: [Setting; 3] = [
    Setting {
        name: "json",
        kind: Kind::Choice(&["canonical", "raw"]),
        unset: Unset::Is("\"canonical\""),
        about: "How JSON bodies are compared: by their meaning, or byte by byte.",
    },
    Setting {
        name: "ignore_json",
        kind: Kind::List(&Kind::Text(&JSON_PATH)),
        unset: Unset::Is("[]"),
        about: "Members of JSON bodies that may change between attempts.",
    },
    Setting {
        name: "count_headers",
        kind: Kind::List(&Kind::Text(&HEADER)),
        unset: Unset::Is("[]"),
        about: "Headers that must not change between attempts, besides `Content-Type` and \
                `Content-Encoding`.",
    },
];

static IN_FLIGHT_MEMBERS: [Setting; 5] = [
    Setting {
        name: "on_duplicate",
        kind: Kind::Choice(&["wait", "conflict", "accepted"]),
        unset: Unset::Is("\"wait\""),
        about: "A second request waits for the answer, gets 409 at once, or gets 202 and a place \
                to ask.",
    },
    Setting {
        name: "wait",
        kind: Kind::Time { least: Duration::from_millis(1), most: Duration::from_secs(600) },
        unset: Unset::Is("\"10s\""),
        about: "How long it waits at most.",
    },
    Setting {
        name: "max_waiters",
        kind: Kind::Count { least: 1, most: 100_000 },
        unset: Unset::Is("32"),
        about: "How many may wait for one key; more get 409.",
    },
    Setting {
        name: "lease",
        kind: Kind::Time { least: Duration::from_secs(1), most: Duration::from_secs(3_600) },
        unset: Unset::Is("\"30s\""),
        about: "How long a key belongs to a request whose gateway died. It is renewed at a third \
                while the gateway lives.",
    },
    Setting {
        name: "grace",
        kind: Kind::Time { least: Duration::ZERO, most: Duration::from_secs(600) },
        unset: Unset::Is("\"2s\""),
        about: "How long after its end a lease is still respected, because clocks differ.",
    },
];

static LIMIT_MEMBERS: [Setting; 2] = [
    Setting {
        name: "max_request_body",
        kind: Kind::Size { least: 1, most: 1 << 30 },
        unset: Unset::Is("\"1MiB\""),
        about: "Larger bodies of keyed requests are refused with 413.",
    },
    Setting {
        name: "max_stored_body",
        kind: Kind::Size { least: 1, most: 1 << 30 },
        unset: Unset::Is("\"1MiB\""),
        about: "Of larger answers only the fact is kept: the work never runs again, and a retry \
                is told so.",
    },
];

static ROLLOUT_MEMBERS: [Setting; 3] = [
    Setting {
        name: "percent",
        kind: Kind::Count { least: 0, most: 100 },
        unset: Unset::Is("100"),
        about: "How many of a hundred callers are protected; the others are observed. Who is in \
                stays in when it grows.",
    },
    Setting {
        name: "by",
        kind: Kind::Choice(&["scope", "key"]),
        unset: Unset::Is("\"scope\""),
        about: "Whether callers or keys are drawn.",
    },
    Setting {
        name: "exempt",
        kind: Kind::List(&Kind::Text(&EXEMPT)),
        unset: Unset::Is("[]"),
        about: "Who is observed whatever the percentage.",
    },
];
