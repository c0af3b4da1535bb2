//! The URL of a store: which kind it is, where it is, and how it is set up.
//!
//! A URL may hold a password. No error and no `Debug` here shows more of it than its scheme and the
//! names of its settings.

use std::fmt;
use std::time::Duration;

use oncekey_core::{ErrorKind, StoreError};

/// A URL, taken apart.
pub(super) struct Address<'u> {
    /// Which kind of store.
    pub(super) scheme: Scheme,
    /// How the URL spells it: a kind may have several names, and say with them how to connect.
    pub(super) name: &'u str,
    /// What follows the scheme and the two slashes, up to the settings.
    pub(super) place: &'u str,
    /// What follows the question mark.
    pub(super) settings: Settings<'u>,
}

/// The kinds of stores that a URL can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    Dynamodb,
    Memory,
    Mysql,
    Postgres,
    Redis,
    Sqlite,
}

/// The settings of a URL, each to be taken once.
pub(super) struct Settings<'u>(Vec<Setting<'u>>);

struct Setting<'u> {
    name: String,
    value: String,
    /// Name and value as they were written.
    raw: &'u str,
}

/// Longer than anybody waits for a server.
const DAY: Duration = Duration::from_secs(86_400);

const FORMS: &str =
    "sqlite://file, postgres://…, mysql://…, redis://…, dynamodb://table or memory:";

impl<'u> Address<'u> {
    pub(super) fn parse(url: &'u str) -> Result<Self, StoreError> {
        let Some((name, rest)) = url.split_once(':') else {
            return Err(rejected(format!(
                "the URL of a store begins with its kind: write {FORMS} (a file is sqlite://file)"
            )));
        };
        let rest_is_path = rest.starts_with("//");
        let Some(scheme) = Scheme::from_name(name) else {
            // Only what is surely a scheme is repeated: it might be a user with a password.
            let what = if rest_is_path { format!(" `{name}`") } else { String::new() };
            return Err(rejected(format!("there is no kind of store{what}: write {FORMS}")));
        };
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        Ok(Self { scheme, name, place, settings: Settings::parse(query)? })
    }

    /// The place as a path in a file system.
    pub(super) fn path(&self) -> Result<std::path::PathBuf, StoreError> {
        let path = decode(self.place)?;
        if path.is_empty() {
            return Err(rejected(
                "the URL names no file: write sqlite://oncekey.db for a file in the working \
                 folder, sqlite:///var/lib/oncekey.db for any other"
                    .to_owned(),
            ));
        }
        Ok(path.into())
    }

    /// The URL as the driver of the store gets it: under the scheme that it knows, without the
    /// settings that are ours, and with all others as they were written.
    ///
    /// A setting that is neither in `ours` nor in `theirs` is refused.
    pub(super) fn for_driver(
        self,
        scheme: &str,
        ours: &[&str],
        theirs: &[&str],
    ) -> Result<String, StoreError> {
        let (place, query) = (self.place, self.settings.rest(ours, theirs)?);
        let mark = if query.is_empty() { "" } else { "?" };
        Ok(format!("{scheme}://{place}{mark}{query}"))
    }
}

impl Scheme {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "dynamodb" => Some(Self::Dynamodb),
            "memory" => Some(Self::Memory),
            "mysql" | "mariadb" => Some(Self::Mysql),
            "postgres" | "postgresql" => Some(Self::Postgres),
            "redis" | "rediss" | "redis+cluster" | "rediss+cluster" | "valkey" | "valkeys"
            | "valkey+cluster" | "valkeys+cluster" => Some(Self::Redis),
            "sqlite" => Some(Self::Sqlite),
            _ => None,
        }
    }

    /// The word for it in metrics, and the Cargo feature that brings it.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Dynamodb => "dynamodb",
            Self::Memory => "memory",
            Self::Mysql => "mysql",
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Sqlite => "sqlite",
        }
    }

    /// The program was built without this store.
    pub(super) fn left_out(self) -> StoreError {
        let feature = self.label();
        StoreError::new(
            ErrorKind::Unsuitable,
            format!(
                "this program was built without the {feature} store: build it with the Cargo \
                 feature `{feature}` of oncekey; the gateway with cargo build --release -p \
                 oncekey-gateway --features {feature}"
            ),
        )
    }
}

impl<'u> Settings<'u> {
    fn parse(query: &'u str) -> Result<Self, StoreError> {
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|raw| {
            let (name, value) = raw.split_once('=').unwrap_or((raw, ""));
            Ok(Setting { name: decode(name)?, value: decode(value)?, raw })
        });
        pairs.collect::<Result<_, StoreError>>().map(Self)
    }

    /// Takes a setting out. Given twice, the URL is refused: nobody knows which one is meant.
    pub(super) fn take(&mut self, name: &str) -> Result<Option<String>, StoreError> {
        let mut values = self.0.extract_if(.., |given| given.name == name).map(|given| given.value);
        let value = values.next();
        if values.next().is_some() {
            return Err(rejected(format!("the setting `{name}` is given twice")));
        }
        Ok(value)
    }

    /// Takes a number above zero.
    pub(super) fn take_number(&mut self, name: &str) -> Result<Option<usize>, StoreError> {
        let Some(value) = self.take(name)? else { return Ok(None) };
        match value.parse() {
            Ok(number) if number > 0 => Ok(Some(number)),
            _ => Err(rejected(format!("the setting `{name}` is a number above zero"))),
        }
    }

    /// Takes a span of time: `500ms`, `5s`, or a number of seconds.
    pub(super) fn take_span(&mut self, name: &str) -> Result<Option<Duration>, StoreError> {
        let Some(value) = self.take(name)? else { return Ok(None) };
        let span = match value.strip_suffix("ms") {
            Some(number) => number.parse().map(Duration::from_millis),
            None => value.strip_suffix('s').unwrap_or(&value).parse().map(Duration::from_secs),
        };
        match span {
            // Longer ones are mistakes, and overflow when they are multiplied.
            Ok(span) if !span.is_zero() && span <= DAY => Ok(Some(span)),
            _ => Err(rejected(format!(
                "the setting `{name}` is a span of time such as 5s or 500ms, a day at most"
            ))),
        }
    }

    /// Takes one of a few words, for what it stands for.
    pub(super) fn take_word<T: Copy>(
        &mut self,
        name: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, StoreError> {
        let Some(value) = self.take(name)? else { return Ok(None) };
        if let Some((_, meant)) = words.iter().find(|(word, _)| *word == value) {
            return Ok(Some(*meant));
        }
        let words: Vec<_> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
        Err(rejected(format!("the setting `{name}` is {}", words.join(" or "))))
    }

    /// Refuses what nobody has taken.
    pub(super) fn finish(self, known: &[&str]) -> Result<(), StoreError> {
        self.rest(known, &[]).map(drop)
    }

    /// What nobody has taken, as it was written. Refuses what is not in `theirs`; `ours` are those
    /// that were taken, to be named then.
    fn rest(self, ours: &[&str], theirs: &[&str]) -> Result<String, StoreError> {
        let is_strange = |given: &&Setting<'_>| !theirs.contains(&given.name.as_str());
        let Some(Setting { name, .. }) = self.0.iter().find(is_strange) else {
            return Ok(self.0.iter().map(|given| given.raw).collect::<Vec<_>>().join("&"));
        };
        let known = match (ours, theirs) {
            ([], []) => "it has none".to_owned(),
            (ours, []) => format!("it has {}", ours.join(", ")),
            (ours, theirs) => {
                format!("it has {}; its driver has {}", ours.join(", "), theirs.join(", "))
            }
        };
        // A name may be part of a password with an `&` in it.
        let is_word = name.len() <= 32 && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let shown = if is_word { format!(" `{name}`") } else { String::new() };
        Err(rejected(format!("this store has no setting{shown}: {known}")))
    }
}

/// The URL without its password and its settings, to be shown to people.
#[must_use]
pub fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once(':') else { return "a store".to_owned() };
    let Some(kind) = Scheme::from_name(scheme) else { return "a store".to_owned() };
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let place = match kind {
        Scheme::Memory => return "memory:".to_owned(),
        Scheme::Sqlite => rest,
        // The last one: a password that was not encoded may have others in it.
        Scheme::Dynamodb | Scheme::Mysql | Scheme::Postgres | Scheme::Redis => {
            rest.rsplit_once('@').map_or(rest, |(_, place)| place)
        }
    };
    let place = place.split_once('?').map_or(place, |(place, _)| place);
    format!("{scheme}://{place}")
}

pub(super) fn rejected(message: String) -> StoreError {
    StoreError::new(ErrorKind::Rejected, message)
}

/// Decodes percent-encoding (RFC 3986, section 2.1). A sign that begins none is refused: it is
/// more likely a password that was not encoded than meant.
pub(super) fn decode(text: &str) -> Result<String, StoreError> {
    let wrong = || rejected("the URL has a `%` that begins no code: write it as %25".to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        (bytes, rest) = match (byte, after) {
            (b'%', [high, low, after @ ..]) => {
                let digit = |digit: &u8| char::from(*digit).to_digit(16);
                let (high, low) = digit(high).zip(digit(low)).ok_or_else(wrong)?;
                bytes.push(u8::try_from(high * 16 + low).map_err(|_| wrong())?);
                (bytes, after)
            }
            (b'%', _) => return Err(wrong()),
            (byte, after) => {
                bytes.push(*byte);
                (bytes, after)
            }
        };
    }
    String::from_utf8(bytes).map_err(|_| rejected("the URL is not UTF-8".to_owned()))
}

impl fmt::Debug for Settings<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.0.iter().map(|given| &given.name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let mut address =
            Address::parse("sqlite://data/my%20keys.db?placement=shared&x=1").unwrap();
        assert_eq!(address.scheme, Scheme::Sqlite);
        assert_eq!(address.path().unwrap().to_str(), Some("data/my keys.db"));
        assert_eq!(address.settings.take("placement").unwrap().as_deref(), Some("shared"));
        assert_eq!(address.settings.take("placement").unwrap(), None);
        let error = address.settings.finish(&["placement"]).unwrap_err().to_string();
        assert!(error.contains("`x`") && error.contains("it has placement"), "{error}");
        for (url, path) in [
            ("sqlite:oncekey.db", "oncekey.db"),
            ("sqlite:///var/lib/o.db", "/var/lib/o.db"),
            ("sqlite://./a:b@c.db", "./a:b@c.db"),
        ] {
            let address = Address::parse(url).unwrap();
            assert_eq!(address.path().unwrap().to_str(), Some(path));
        }
    }

    #[test]
    fn a_driver_gets_its_settings_as_they_were_written() {
        let url = "mariadb://u:p%40@h:1,i/d?a=1&verify=%2fx%26y&b=2&raw";
        let mut address = Address::parse(url).unwrap();
        for (name, value) in [("a", "1"), ("b", "2")] {
            assert_eq!(address.settings.take(name).unwrap().as_deref(), Some(value));
        }
        let passed = address.for_driver("mysql", &["a", "b"], &["verify", "raw"]).unwrap();
        assert_eq!(passed, "mysql://u:p%40@h:1,i/d?verify=%2fx%26y&raw");
        let bare = Address::parse("redis://h").unwrap().for_driver("redis", &[], &[]).unwrap();
        assert_eq!(bare, "redis://h");
        let error = Address::parse(url).unwrap().for_driver("mysql", &["a"], &["raw"]);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("it has a; its driver has raw"), "{error}");
    }

    #[test]
    fn spans_and_words_are_read_or_refused() {
        let span = |text: &str| {
            let url = format!("redis://h?t={text}");
            Address::parse(&url).unwrap().settings.take_span("t").map_err(|error| error.to_string())
        };
        assert_eq!(span("1500ms"), Ok(Some(Duration::from_millis(1_500))));
        assert_eq!(span("2s"), Ok(Some(Duration::from_secs(2))));
        assert_eq!(span("86400"), Ok(Some(DAY)));
        for wrong in
            ["", "s", "ms", "0", "0ms", "-1s", "1.5s", "1m", "86401", "99999999999999999999"]
        {
            assert!(span(wrong).is_err_and(|error| error.contains("`t`")), "{wrong}");
        }
        let mut address = Address::parse("redis://h?w=b&v=c").unwrap();
        assert_eq!(address.settings.take_word("w", &[("a", 1), ("b", 2)]).unwrap(), Some(2));
        assert_eq!(address.settings.take_word("none", &[("a", 1)]).unwrap(), None);
        let error = address.settings.take_word("v", &[("a", 1), ("b", 2)]).unwrap_err();
        assert!(error.to_string().ends_with("`v` is `a` or `b`"), "{error}");
    }

    /// I52: whatever is wrong with a URL, its password is not in the error.
    #[test]
    fn no_error_and_no_display_shows_a_password() {
        let urls = [
            "hunter2:x@host/db",
            "postgres://user:hunter2@host/db?hunter2=1&hunter2=2",
            "postgres://user:hunter2/x@host/db",
            "postgres://user:hunter2?x@host/db",
            "postgres://user:hunter2%zz@host/db?p=%",
            "hunter2",
            "user:hunter2@localhost",
            "mysql://u:p@ss?hunter2&Hunter2@host/db",
        ];
        for url in urls {
            let said = match Address::parse(url) {
                Err(error) => error.to_string(),
                Ok(mut address) => {
                    let taken = address.settings.take("hunter2").map(drop);
                    let finished = Address::parse(url).unwrap().settings.finish(&[]);
                    format!("{taken:?} {:?}", finished.map_err(|error| error.to_string()))
                }
            };
            let named = url.contains("?hunter2=1");
            assert!(named || !said.to_lowercase().contains("hunter2"), "{url}: {said}");
            assert!(!shown(url).to_lowercase().contains("hunter2"), "{url}: {}", shown(url));
        }
        assert_eq!(shown("postgres://u:p@host:5432/db?x=1"), "postgres://host:5432/db");
        assert_eq!(shown("redis+cluster://u:p@a:1,b:2?x=1"), "redis+cluster://a:1,b:2");
        assert_eq!(shown("sqlite:///a@b.db?placement=own"), "sqlite:///a@b.db");
    }
}
