//! `[store]`.

use std::time::Duration;

use super::{Setting, Unset, table};
use crate::config::form::{STORE_URL, WORDS};
use crate::config::kind::{Kind, Secrecy};

/// What happens to keyed requests while the store cannot be asked.
pub(super) const ON_UNAVAILABLE: Kind = Kind::Choice(&["reject", "pass"]);

pub(super) static STORE: [Setting; 10] = [
    Setting {
        name: "url",
        kind: Kind::Text(&STORE_URL),
        unset: Unset::Is("\"sqlite://oncekey.db\""),
        about: "The store; [all URLs](cli.md#urls). Take passwords from elsewhere: \
                `postgres://app:${env:PGPASSWORD}@db/app`.",
    },
    Setting {
        name: "namespace",
        kind: Kind::Text(&WORDS),
        unset: Unset::Is("\"default\""),
        about: "Keeps the keys of APIs apart that share a store. Changing it forgets every key.",
    },
    Setting {
        name: "pepper_file",
        kind: Kind::File(Secrecy::Secret),
        unset: Unset::Nothing { example: "\"pepper.key\"" },
        about: "A secret of at least 16 bytes, so that somebody who copied the store cannot check \
                a guess. Changing it forgets every key.",
    },
    Setting {
        name: "encrypt_with_files",
        kind: Kind::List(&Kind::File(Secrecy::Secret)),
        unset: Unset::Is("[]"),
        about: "Keys that encrypt kept answers. The first encrypts, all decrypt: put a new one in \
                front.",
    },
    Setting {
        name: "journal",
        kind: Kind::Text(&WORDS),
        unset: Unset::Nothing { example: "\"/var/lib/oncekey/journal\"" },
        about: "A folder on a local disk for what the store could not be told. It belongs to this \
                process alone.",
    },
    Setting {
        name: "ring",
        kind: Kind::Text(&WORDS),
        unset: Unset::Nothing { example: "\"/var/lib/oncekey/ring\"" },
        about: "A folder on a local disk for recent grants, to notice a store that came back \
                older. It belongs to this process alone.",
    },
    Setting {
        name: "cache",
        kind: Kind::Size { least: 0, most: 1 << 40 },
        unset: Unset::Is("\"32MiB\""),
        about: "Memory for finished answers.",
    },
    Setting {
        name: "on_unavailable",
        kind: ON_UNAVAILABLE,
        unset: Unset::Is("\"reject\""),
        about: "Keyed requests while the store is down: refused with 503, or passed without \
                protection, so that a retry may run twice. Routes may differ.",
    },
    Setting {
        name: "linger",
        kind: Kind::Time { least: Duration::ZERO, most: Duration::from_secs(90 * 86_400) },
        unset: Unset::Is("\"0s\""),
        about: "How long after its retention a key still refuses a late retry, instead of being \
                free.",
    },
    table("sweep", &SWEEP, "How old records are removed."),
];

static SWEEP: [Setting; 2] = [
    Setting {
        name: "every",
        kind: Kind::Time { least: Duration::from_secs(1), most: Duration::from_secs(86_400) },
        unset: Unset::Is("\"1m\""),
        about: "How often records whose time is over are removed. Attempts whose process is gone are \
                looked for every 15 s, whatever this says.",
    },
    Setting {
        name: "batch",
        kind: Kind::Count { least: 1, most: 100_000 },
        unset: Unset::Is("1000"),
        about: "How many are removed at once.",
    },
];
