//! What clients and operators get besides the upstream's answers: errors, status, telemetry.

use std::time::Duration;

use super::{Setting, Unset, table};
use crate::config::form::{HEADER, ORIGIN, STATUS_PATH, URL, WORDS};
use crate::config::kind::{Kind, Secrecy};

pub(super) static ERRORS: [Setting; 5] = [
    Setting {
        name: "format",
        kind: Kind::Choice(&["problem+json", "stripe", "template"]),
        unset: Unset::Is("\"problem+json\""),
        about: "How refusals are written: RFC 9457, as Stripe does, or by `template_file`.",
    },
    Setting {
        name: "template_file",
        kind: Kind::File(Secrecy::Public),
        unset: Unset::Nothing { example: "\"error.json\"" },
        about: "A file with the envelope of your API: the whole body, with `{{code}}`, \
                `{{status}}`, `{{title}}`, `{{detail}}`, `{{request_id}}`, `{{executed}}`, \
                `{{retryable}}` and `{{type}}` where they belong.",
    },
    Setting {
        name: "template_type",
        kind: Kind::Text(&WORDS),
        unset: Unset::Nothing { example: "\"application/json\"" },
        about: "The `Content-Type` of the template. If it is not set, its first character tells \
                JSON, XML and plain text apart.",
    },
    Setting {
        name: "docs",
        kind: Kind::Text(&URL),
        unset: Unset::Nothing { example: "\"https://api.example.com/docs/idempotency\"" },
        about: "The page that explains refusals; the code of each is an anchor in it.",
    },
    table("statuses", &STATUSES, "The status of each refusal."),
];

/// Only refusals: success or a redirection would tell a client that its request was done.
const STATUS_CODE: Kind = Kind::Count { least: 400, most: 599 };

static STATUSES: [Setting; 6] = [
    Setting {
        name: "missing_key",
        kind: STATUS_CODE,
        unset: Unset::Is("400"),
        about: "The route needs a key and the request has none.",
    },
    Setting {
        name: "invalid_key",
        kind: STATUS_CODE,
        unset: Unset::Is("400"),
        about: "The key breaks the syntax.",
    },
    Setting {
        name: "mismatch",
        kind: STATUS_CODE,
        unset: Unset::Is("422"),
        about: "The key was first used for a different request.",
    },
    Setting {
        name: "in_progress",
        kind: STATUS_CODE,
        unset: Unset::Is("409"),
        about: "The first request with the key is still running.",
    },
    Setting {
        name: "unknown",
        kind: STATUS_CODE,
        unset: Unset::Is("409"),
        about: "The work may have happened and nobody knows.",
    },
    Setting {
        name: "not_retained",
        kind: STATUS_CODE,
        unset: Unset::Is("409"),
        about: "The work is done, and its answer was not kept.",
    },
];

pub(super) static CORS: [Setting; 4] = [
    Setting {
        name: "amend",
        kind: Kind::Flag,
        unset: Unset::Is("false"),
        about: "Adds the key to the headers that successful preflights allow, and ours to those \
                that browsers show.",
    },
    Setting {
        name: "origins",
        kind: Kind::List(&Kind::Text(&ORIGIN)),
        unset: Unset::Is("[]"),
        about: "Whose pages may read what the gateway itself says: replays, refusals, statuses. \
                `\"*\"` stands for all. What the upstream answers is its own business.",
    },
    Setting {
        name: "credentials",
        kind: Kind::Flag,
        unset: Unset::Is("false"),
        about: "Whether those pages may read it where they sent cookies along.",
    },
    Setting {
        name: "expose",
        kind: Kind::List(&Kind::Text(&HEADER)),
        unset: Unset::Is("[]"),
        about: "Headers of your API that those pages may see on replays, besides ours.",
    },
];

pub(super) static STATUS: [Setting; 1] = [Setting {
    name: "path",
    kind: Kind::Text(&STATUS_PATH),
    unset: Unset::Nothing { example: "\"/.idempotency/keys/\"" },
    about: "Answers `GET <path><key>` with what became of the caller's key.",
}];

pub(super) static WELL_KNOWN: [Setting; 1] = [Setting {
    name: "enabled",
    kind: Kind::Flag,
    unset: Unset::Is("false"),
    about: "Answers `GET /.well-known/idempotency` with routes, modes and retention.",
}];

pub(super) static TELEMETRY: [Setting; 3] = [
    Setting {
        name: "otlp",
        kind: Kind::Text(&URL),
        unset: Unset::Nothing { example: "\"http://otel:4318\"" },
        about: "The collector that traces are sent to, by OTLP over HTTP. Needs a program that was \
                built with the feature `otlp`. [What is in them](metrics.md#traces).",
    },
    table("log", &LOG, "The log, on standard error."),
    table("observed", &OBSERVED, "The numbers of observe mode in the store."),
];

static OBSERVED: [Setting; 2] = [
    Setting {
        name: "every",
        kind: Kind::Time { least: Duration::from_secs(1), most: Duration::from_secs(3_600) },
        unset: Unset::Is("\"5m\""),
        about: "How often each gateway writes what it has observed to the store. The same for all \
                gateways on one store: what was written with another is not shown.",
    },
    Setting {
        name: "ttl",
        kind: Kind::Time {
            least: Duration::from_secs(3_600),
            most: Duration::from_secs(90 * 86_400),
        },
        unset: Unset::Is("\"7d\""),
        about: "How long it is kept.",
    },
];

static LOG: [Setting; 3] = [
    Setting {
        name: "format",
        kind: Kind::Choice(&["auto", "json", "pretty"]),
        unset: Unset::Is("\"auto\""),
        about: "`auto` is pretty on a terminal and JSON elsewhere.",
    },
    Setting {
        name: "level",
        kind: Kind::Choice(&["error", "warn", "info", "debug", "trace"]),
        unset: Unset::Is("\"info\""),
        about: "The least that is logged.",
    },
    Setting {
        name: "keys",
        kind: Kind::Choice(&["hash", "none"]),
        unset: Unset::Is("\"hash\""),
        about: "How keys are logged: as a digest, or not at all.",
    },
];

pub(super) static JWT: [Setting; 6] = [
    Setting {
        name: "algorithm",
        kind: Kind::Choice(&["HS256", "RS256", "ES256"]),
        unset: Unset::Nothing { example: "\"RS256\"" },
        about: "The one algorithm that tokens may be signed with.",
    },
    Setting {
        name: "key_file",
        kind: Kind::File(Secrecy::Public),
        unset: Unset::Nothing { example: "\"jwt.key\"" },
        about: "The shared secret (HS256) or the public key (PEM).",
    },
    Setting {
        name: "jwks_file",
        kind: Kind::File(Secrecy::Public),
        unset: Unset::Nothing { example: "\"jwks.json\"" },
        about: "A JSON Web Key Set, instead of one key.",
    },
    Setting {
        name: "issuer",
        kind: Kind::Text(&WORDS),
        unset: Unset::Nothing { example: "\"https://login.example.com\"" },
        about: "What `iss` has to be.",
    },
    Setting {
        name: "audience",
        kind: Kind::Text(&WORDS),
        unset: Unset::Nothing { example: "\"payments\"" },
        about: "What `aud` has to be or hold.",
    },
    Setting {
        name: "leeway",
        kind: Kind::Time { least: Duration::ZERO, most: Duration::from_secs(600) },
        unset: Unset::Is("\"30s\""),
        about: "How far the clock of whoever signs tokens may differ from ours, for `exp` and \
                `nbf`.",
    },
];
