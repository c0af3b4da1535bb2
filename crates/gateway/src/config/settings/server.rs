//! `[server]` and `[admin]`.

use std::time::Duration;

use super::{Setting, Unset, table};
use crate::config::form::{HOST_NAME, LISTEN, LISTEN_ANYWHERE, UPSTREAM, WORDS};
use crate::config::kind::{Kind, Secrecy};

/// Shorter than any network is a mistake, and so is longer than anybody waits.
const TIMEOUT: Kind =
    Kind::Time { least: Duration::from_millis(10), most: Duration::from_secs(3_600) };

pub(super) static SERVER: [Setting; 10] = [
    Setting {
        name: "listen",
        kind: Kind::Text(&LISTEN_ANYWHERE),
        unset: Unset::Is("\"127.0.0.1:8787\""),
        about: "Where clients connect; `unix:` is a socket of this machine, which has no TLS.",
    },
    Setting {
        name: "instance",
        kind: Kind::Text(&WORDS),
        unset: Unset::Nothing { example: "\"gateway-1\"" },
        about: "What logs and the admin API call this process. If it is not set, `listen` is.",
    },
    Setting {
        name: "upstream",
        kind: Kind::Text(&UPSTREAM),
        unset: Unset::Refused { example: "\"http://127.0.0.1:3000\"" },
        about: "The API behind the gateway. `https` encrypts, `h2c` speaks HTTP/2 without asking, \
                `unix:` is a socket of this machine.",
    },
    Setting {
        name: "host",
        kind: Kind::Choice(&["keep", "upstream"]),
        unset: Unset::Is("\"keep\""),
        about: "The `Host` that the upstream gets: the client's, or its own.",
    },
    Setting {
        name: "max_connections",
        kind: Kind::Count { least: 1, most: 1_000_000 },
        unset: Unset::Is("10000"),
        about: "Connections of clients at the same time; more wait to be accepted.",
    },
    Setting {
        name: "max_head",
        kind: Kind::Size { least: 1_024, most: 1 << 20 },
        unset: Unset::Is("\"64KiB\""),
        about: "How large the head of a request may be.",
    },
    Setting {
        name: "upstream_ca_file",
        kind: Kind::File(Secrecy::Public),
        unset: Unset::Nothing { example: "\"internal-ca.pem\"" },
        about: "Certificates (PEM) to trust when the upstream shows its own, besides those of the \
                system.",
    },
    table("timeouts", &TIMEOUTS, "How long to wait, and for what."),
    table("tls", &TLS, "Encryption for clients. Without it they connect in plain text."),
    table("drain", &DRAIN, "What happens between being told to stop and stopping."),
];

pub(super) static ADMIN: [Setting; 5] = [
    Setting {
        name: "listen",
        kind: Kind::Text(&LISTEN),
        unset: Unset::Is("\"127.0.0.1:8788\""),
        about: "Where operators connect. Another address than this machine's own needs a token.",
    },
    Setting {
        name: "names",
        kind: Kind::List(&Kind::Text(&HOST_NAME)),
        unset: Unset::Is("[]"),
        about: "Under which names operators, probes and balancers reach this listener, besides \
                `localhost` and its address: a request with another `Host` is refused, because it \
                may come from a web page.",
    },
    Setting {
        name: "token_file",
        kind: Kind::File(Secrecy::Secret),
        unset: Unset::Nothing { example: "\"admin.token\"" },
        about: "A file with the token that operators send as `Authorization: Bearer`.",
    },
    Setting {
        name: "audit_file",
        kind: Kind::File(Secrecy::Public),
        unset: Unset::Nothing { example: "\"audit.jsonl\"" },
        about: "A file that every change by operators is appended to, as JSON lines. Without it \
                the newest are kept in memory.",
    },
    Setting {
        name: "payload",
        kind: Kind::Choice(&["on-request", "never"]),
        unset: Unset::Is("\"on-request\""),
        about: "Whether operators can see keys and answers: if they ask for them, which is \
                audited, or never.",
    },
];

static TIMEOUTS: [Setting; 5] = [
    Setting {
        name: "connect",
        kind: TIMEOUT,
        unset: Unset::Is("\"5s\""),
        about: "For a connection to the upstream, encryption included.",
    },
    Setting {
        name: "answer",
        kind: TIMEOUT,
        unset: Unset::Is("\"60s\""),
        about: "From the last byte of a request to the head of its answer; before its first byte, for a \
                place among the requests that an upstream of HTTP/2 takes at once; and, if it is \
                protected and no event stream, between two pieces of the answer.",
    },
    Setting {
        name: "header",
        kind: TIMEOUT,
        unset: Unset::Is("\"10s\""),
        about: "From the first byte of a request to the end of its head.",
    },
    Setting {
        name: "body",
        kind: TIMEOUT,
        unset: Unset::Is("\"30s\""),
        about: "For the body of a protected request, which is read as a whole.",
    },
    Setting {
        name: "idle",
        kind: TIMEOUT,
        unset: Unset::Is("\"60s\""),
        about: "How long a connection without a request stays open, and one whose client takes nothing of \
                its answer; over HTTP/2 it loses that answer only, and has up to 16 times as long if it has \
                taken much of it before. Also how long a WebSocket, or what else \
                a connection was upgraded to, may be silent on both sides.",
    },
];

static TLS: [Setting; 3] = [
    Setting {
        name: "cert_file",
        kind: Kind::File(Secrecy::Public),
        unset: Unset::Nothing { example: "\"server.pem\"" },
        about: "The certificate and those that lead to it (PEM).",
    },
    Setting {
        name: "key_file",
        kind: Kind::File(Secrecy::Secret),
        unset: Unset::Nothing { example: "\"server.key\"" },
        about: "The private key of the certificate (PEM).",
    },
    Setting {
        name: "client_ca_file",
        kind: Kind::File(Secrecy::Public),
        unset: Unset::Nothing { example: "\"clients-ca.pem\"" },
        about: "Clients have to show a certificate that one of these has signed (PEM).",
    },
];

static DRAIN: [Setting; 2] = [
    Setting {
        name: "delay",
        kind: Kind::Time { least: Duration::ZERO, most: Duration::from_secs(600) },
        unset: Unset::Is("\"5s\""),
        about: "How long requests are still taken after readiness says no, so that balancers \
                notice.",
    },
    Setting {
        name: "timeout",
        kind: Kind::Time { least: Duration::ZERO, most: Duration::from_secs(3_600) },
        unset: Unset::Is("\"30s\""),
        about: "How long work that has begun may take to end.",
    },
];
