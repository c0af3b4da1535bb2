//! The tables of a file as typed data.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use oncekey::problem::Code;

use super::flat::Flat;
use crate::admin::{Payload, Written};
use crate::observe::Terms;

/// `[server]`
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) listen: Listen,
    /// What this process is called among its like.
    pub(crate) instance: String,
    /// As it was written; `upstream::Target` reads it.
    pub(crate) upstream: String,
    pub(crate) host: HostHeader,
    pub(crate) timeouts: Timeouts,
    pub(crate) max_connections: usize,
    pub(crate) max_head: usize,
    pub(crate) tls: Option<ServerTls>,
    pub(crate) upstream_ca_file: Option<PathBuf>,
    pub(crate) drain: Drain,
}

/// Where clients come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Which `Host` the upstream gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostHeader {
    /// The client's.
    Keep,
    /// The upstream's own.
    Upstream,
}

/// How long to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) answer: Duration,
    pub(crate) header: Duration,
    pub(crate) body: Duration,
    pub(crate) idle: Duration,
}

/// Encryption for clients.
#[derive(Clone, Debug)]
pub(crate) struct ServerTls {
    pub(crate) cert_file: PathBuf,
    pub(crate) key_file: PathBuf,
    /// Clients need a certificate of one of these.
    pub(crate) client_ca_file: Option<PathBuf>,
}

/// How the program stops.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    pub(crate) delay: Duration,
    pub(crate) timeout: Duration,
}

/// `[admin]`
#[derive(Clone, Debug)]
pub(crate) struct Admin {
    pub(crate) listen: SocketAddr,
    /// What else `Host` may say.
    pub(crate) names: Vec<String>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) audit_file: Option<PathBuf>,
    pub(crate) payload: Payload,
}

/// `[store]`; what concerns single routes is in their policies.
#[derive(Clone, Debug)]
pub(crate) struct StoreSection {
    /// May hold a password: never print it, see `oncekey::store::shown`.
    pub(crate) url: Secret,
    pub(crate) namespace: String,
    pub(crate) pepper_file: Option<PathBuf>,
    /// The first encrypts, all decrypt.
    pub(crate) encrypt_with_files: Vec<PathBuf>,
    pub(crate) journal: Option<PathBuf>,
    pub(crate) ring: Option<PathBuf>,
    pub(crate) cache: u64,
    pub(crate) sweep_every: Duration,
    pub(crate) sweep_batch: usize,
}

/// A string that is not printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

/// `[errors]`
#[derive(Clone, Debug)]
pub(crate) struct Errors {
    pub(crate) format: ErrorFormat,
    pub(crate) docs: Option<String>,
    /// The status of each refusal that can have another.
    pub(crate) statuses: [(Code, u16); 6],
}

/// How refusals are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ErrorFormat {
    Problem,
    Stripe,
    Template { file: PathBuf, content_type: Option<String> },
}

/// `[cors]`
#[derive(Clone, Debug, Default)]
pub(crate) struct CorsSection {
    /// Whether answers of the upstream are amended.
    pub(crate) amend: bool,
    /// Whose pages may read what the gateway itself says.
    pub(crate) origins: Vec<String>,
    /// Whether they may send cookies along.
    pub(crate) credentials: bool,
    /// Which headers of replays they see besides ours.
    pub(crate) expose: Vec<String>,
}

/// `[telemetry]`
#[derive(Clone, Debug)]
pub(crate) struct Telemetry {
    pub(crate) format: LogFormat,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub(crate) level: String,
    pub(crate) keys: LogKeys,
    pub(crate) otlp: Option<String>,
    /// How the numbers of observe mode are kept.
    pub(crate) observed: Terms,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Pretty on a terminal, JSON elsewhere.
    Auto,
    Json,
    Pretty,
}

/// How keys are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogKeys {
    Hash,
    None,
}

/// `[jwt]`
#[derive(Clone, Debug)]
pub(crate) struct Jwt {
    /// `HS256`, `RS256` or `ES256`.
    pub(crate) algorithm: String,
    pub(crate) keys: JwtKeys,
    pub(crate) issuer: Option<String>,
    pub(crate) audience: Option<String>,
    /// How far clocks may differ.
    pub(crate) leeway: Duration,
}

/// What tokens are verified with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JwtKeys {
    One(PathBuf),
    Set(PathBuf),
}

/// Reads tables from checked values. Paths of files begin in `folder`.
pub(crate) struct Reader<'f> {
    pub(crate) flat: &'f Flat,
    pub(crate) folder: &'f Path,
}

impl Reader<'_> {
    pub(crate) fn server(&self) -> Server {
        let flat = self.flat;
        let time = |name: &str| flat.time(&format!("server.timeouts.{name}"));
        let tls = self.file("server.tls.cert_file").zip(self.file("server.tls.key_file"));
        Server {
            listen: self.listen(),
            instance: flat.text("server.instance").unwrap_or(flat.word("server.listen")).to_owned(),
            upstream: flat.word("server.upstream").to_owned(),
            host: match flat.word("server.host") {
                "upstream" => HostHeader::Upstream,
                _ => HostHeader::Keep,
            },
            timeouts: Timeouts {
                connect: time("connect"),
                answer: time("answer"),
                header: time("header"),
                body: time("body"),
                idle: time("idle"),
            },
            max_connections: flat.count("server.max_connections"),
            max_head: bytes(flat.size("server.max_head")),
            tls: tls.map(|(cert_file, key_file)| ServerTls {
                cert_file,
                key_file,
                client_ca_file: self.file("server.tls.client_ca_file"),
            }),
            upstream_ca_file: self.file("server.upstream_ca_file"),
            drain: Drain {
                delay: flat.time("server.drain.delay"),
                timeout: flat.time("server.drain.timeout"),
            },
        }
    }

    pub(crate) fn admin(&self) -> Admin {
        Admin {
            listen: self.address("admin.listen"),
            names: self.flat.texts("admin.names").into_iter().map(str::to_owned).collect(),
            token_file: self.file("admin.token_file"),
            audit_file: self.file("admin.audit_file"),
            payload: match self.flat.word("admin.payload") {
                "never" => Payload::Never,
                _ => Payload::OnRequest,
            },
        }
    }

    pub(crate) fn store(&self) -> StoreSection {
        let flat = self.flat;
        let files = flat.texts("store.encrypt_with_files");
        StoreSection {
            url: Secret(flat.word("store.url").to_owned()),
            namespace: flat.word("store.namespace").to_owned(),
            pepper_file: self.file("store.pepper_file"),
            encrypt_with_files: files.into_iter().map(|file| self.folder.join(file)).collect(),
            journal: self.file("store.journal"),
            ring: self.file("store.ring"),
            cache: flat.size("store.cache"),
            sweep_every: flat.time("store.sweep.every"),
            sweep_batch: flat.count("store.sweep.batch"),
        }
    }

    pub(crate) fn errors(&self) -> Errors {
        let status = |name: &str| self.flat.count(&format!("errors.statuses.{name}"));
        Errors {
            format: match (self.flat.word("errors.format"), self.file("errors.template_file")) {
                ("stripe", _) => ErrorFormat::Stripe,
                ("template", Some(file)) => {
                    ErrorFormat::Template { file, content_type: self.owned("errors.template_type") }
                }
                (_, _) => ErrorFormat::Problem,
            },
            docs: self.owned("errors.docs"),
            statuses: [
                (Code::KeyMissing, status("missing_key")),
                (Code::KeyInvalid, status("invalid_key")),
                (Code::KeyReused, status("mismatch")),
                (Code::InProgress, status("in_progress")),
                (Code::OutcomeUnknown, status("unknown")),
                (Code::ResponseNotRetained, status("not_retained")),
            ],
        }
    }

    pub(crate) fn cors(&self) -> CorsSection {
        let owned = |path: &str| self.flat.texts(path).into_iter().map(str::to_owned).collect();
        CorsSection {
            amend: self.flat.flag("cors.amend"),
            origins: owned("cors.origins"),
            credentials: self.flat.flag("cors.credentials"),
            expose: owned("cors.expose"),
        }
    }

    pub(crate) fn telemetry(&self) -> Telemetry {
        Telemetry {
            format: match self.flat.word("telemetry.log.format") {
                "json" => LogFormat::Json,
                "pretty" => LogFormat::Pretty,
                _ => LogFormat::Auto,
            },
            level: self.flat.word("telemetry.log.level").to_owned(),
            keys: match self.flat.word("telemetry.log.keys") {
                "none" => LogKeys::None,
                _ => LogKeys::Hash,
            },
            otlp: self.owned("telemetry.otlp"),
            observed: Terms {
                every: self.flat.time("telemetry.observed.every"),
                ttl: self.flat.time("telemetry.observed.ttl"),
            },
        }
    }

    pub(crate) fn jwt(&self) -> Option<Jwt> {
        let keys = match (self.file("jwt.key_file"), self.file("jwt.jwks_file")) {
            (Some(file), _) => JwtKeys::One(file),
            (None, Some(file)) => JwtKeys::Set(file),
            (None, None) => return None,
        };
        Some(Jwt {
            algorithm: self.owned("jwt.algorithm")?,
            keys,
            issuer: self.owned("jwt.issuer"),
            audience: self.owned("jwt.audience"),
            leeway: self.flat.time("jwt.leeway"),
        })
    }

    pub(crate) fn owned(&self, path: &str) -> Option<String> {
        self.flat.text(path).map(str::to_owned)
    }

    fn file(&self, path: &str) -> Option<PathBuf> {
        self.flat.text(path).map(|file| self.folder.join(file))
    }

    fn listen(&self) -> Listen {
        match self.flat.word("server.listen").strip_prefix("unix:") {
            Some(path) => Listen::Unix(PathBuf::from(path)),
            None => Listen::Tcp(self.address("server.listen")),
        }
    }

    fn address(&self, path: &str) -> SocketAddr {
        // Every address was read once when it was checked.
        let nowhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        self.flat.word(path).parse().unwrap_or(nowhere)
    }
}

impl Listen {
    /// The address, if it is one of a network.
    pub(crate) const fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(out),
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

impl StoreSection {
    /// How records lie in the store.
    pub(crate) fn written(&self) -> Written {
        match self.encrypt_with_files.is_empty() {
            true => Written::Clear,
            false => Written::Encrypted,
        }
    }

    /// The word for the kind of store in metrics.
    pub(crate) fn kind(&self) -> &'static str {
        const KINDS: [&str; 6] = ["sqlite", "postgres", "mysql", "redis", "dynamodb", "memory"];
        let known = |kind: &&&str| self.url.0.starts_with(**kind);
        KINDS.iter().find(known).copied().unwrap_or("store")
    }
}

impl Secret {
    /// What must not be printed.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("[REDACTED]")
    }
}

/// A size in memory. No setting allows one that this machine could not address.
pub(crate) fn bytes(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}
