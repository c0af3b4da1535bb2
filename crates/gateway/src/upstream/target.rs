//! Where the upstream is.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use http::Uri;
use http::uri::Authority;

/// The address of an upstream, as a person writes it: `http://127.0.0.1:3000`,
/// `https://api.example.com`, `h2c://127.0.0.1:50051`, `unix:/run/app.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) place: Place,
    pub(crate) tls: Tls,
    pub(crate) speaks: Speaks,
}

/// What to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// Whether the connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tls {
    Plain,
    Encrypted,
}

/// Which HTTP is spoken there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    /// HTTP/1.1; over TLS HTTP/2 if the upstream prefers it.
    Http1,
    /// HTTP/2 without asking, as gRPC servers want it.
    Http2,
}

/// Why a text is no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TargetError {
    /// Without the text: a password may stand in it.
    #[error("this is not an address: write http://127.0.0.1:3000 or unix:/run/app.sock")]
    Syntax,
    /// With what was probably meant; whoever wrote it wrote no user and no password.
    #[error("this is not an address: did you mean {0}?")]
    Meant(String),
    #[error("`{0}` is not a scheme for upstreams: use http, https, h2c or unix")]
    Scheme(String),
    #[error("the address of an upstream has no path: requests keep their own")]
    Path,
    #[error("the address of an upstream has no user and no password")]
    User,
    #[error(transparent)]
    Port(#[from] PortError),
}

/// Without the text, too: whoever forgets the host writes a password in the place of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a port is a number from 1 to 65535")]
pub(crate) struct PortError;

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') || path.len() == 1 {
                return Err(TargetError::Syntax);
            }
            let place = Place::Unix(PathBuf::from(path));
            return Ok(Self { place, tls: Tls::Plain, speaks: Speaks::Http1 });
        }
        let whole =
            if text.starts_with(':') { format!("http://127.0.0.1{text}") } else { text.to_owned() };
        let scheme = whole.split_once("://").map_or("", |(scheme, _)| scheme);
        let (tls, speaks) = match scheme {
            "http" => (Tls::Plain, Speaks::Http1),
            "https" => (Tls::Encrypted, Speaks::Http1),
            "h2c" => (Tls::Plain, Speaks::Http2),
            other
                if !other.is_empty() && other.bytes().all(|byte| byte.is_ascii_alphanumeric()) =>
            {
                return Err(TargetError::Scheme(other.to_owned()));
            }
            _ => return Err(meant(text).map_or(TargetError::Syntax, TargetError::Meant)),
        };
        let uri = Uri::from_str(&whole).map_err(|_| TargetError::Syntax)?;
        let authority = uri.authority().ok_or(TargetError::Syntax)?;
        if has_user(authority) {
            return Err(TargetError::User);
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(TargetError::Path);
        }
        let port = port_of(authority)?.unwrap_or(match tls {
            Tls::Plain => 80,
            Tls::Encrypted => 443,
        });
        // Without the brackets that an IPv6 address has in a URL.
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(TargetError::Syntax);
        }
        Ok(Self { place: Place::Tcp { host, port }, tls, speaks })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.place, self.tls, self.speaks) {
            (Place::Unix(path), _, _) => write!(out, "unix:{}", path.display()),
            (Place::Tcp { host, port }, tls, speaks) => {
                let scheme = match (tls, speaks) {
                    (Tls::Encrypted, _) => "https",
                    (Tls::Plain, Speaks::Http1) => "http",
                    (Tls::Plain, Speaks::Http2) => "h2c",
                };
                match host.contains(':') {
                    true => write!(out, "{scheme}://[{host}]:{port}"),
                    false => write!(out, "{scheme}://{host}:{port}"),
                }
            }
        }
    }
}

/// What somebody meant who left out the colon or the scheme.
fn meant(text: &str) -> Option<String> {
    if port(text).is_some() {
        return Some(format!(":{text}"));
    }
    let (host, number) = text.split_once(':')?;
    let named = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    let is_host = !host.is_empty() && host.bytes().all(named);
    (is_host && port(number).is_some()).then(|| format!("http://{text}"))
}

/// The port that is written in an authority, if there is one.
///
/// `Authority::port_u16` has none for `:99999` and `:abc`, and the default would take its place: what
/// was meant for one program would go to another. An empty port is most likely a variable that was
/// not set.
pub(crate) fn port_of(authority: &Authority) -> Result<Option<u16>, PortError> {
    let place = authority.as_str().rsplit('@').next().unwrap_or_default();
    match place.strip_prefix(authority.host()) {
        Some("") => Ok(None),
        Some(rest) => rest.strip_prefix(':').and_then(port).map(Some).ok_or(PortError),
        None => Err(PortError),
    }
}

/// Digits only: a sign is no part of a port.
fn port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port > 0)
}

fn has_user(authority: &Authority) -> bool {
    authority.as_str().contains('@')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_shown_alike() {
        for (text, shown) in [
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("http://app", "http://app:80"),
            ("https://api.example.com/", "https://api.example.com:443"),
            ("h2c://[::1]:50051", "h2c://[::1]:50051"),
            ("unix:/run/app.sock", "unix:/run/app.sock"),
            ("unix:///run/app.sock", "unix:/run/app.sock"),
            (":3000", "http://127.0.0.1:3000"),
        ] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_advice() {
        for (text, advice) in [
            ("", "not an address"),
            ("127.0.0.1:3000", "did you mean http://127.0.0.1:3000?"),
            ("localhost:3000", "did you mean http://localhost:3000?"),
            ("3000", "did you mean :3000?"),
            ("0", "not an address: write"),
            ("me@host:3000", "not an address: write"),
            ("http://", "not an address"),
            ("file:///etc/passwd", "use http, https, h2c or unix"),
            ("ftp://host", "use http, https, h2c or unix"),
            ("http://host/v1", "no path"),
            ("http://host?a", "no path"),
            ("http://me:secret@host", "no user"),
            ("unix:app.sock", "not an address"),
            ("unix:/", "not an address"),
            ("me:secret@host", "not an address"),
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(advice), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    /// The default port would be another program's.
    #[test]
    fn a_port_that_is_none_is_refused_and_never_replaced() {
        for text in [
            ":99999",
            ":65536",
            ":0",
            ":00",
            ":abc",
            ":",
            ":/",
            ":+80",
            ":-1",
            ":80a",
            "http://127.0.0.1:80800",
            "http://host:/",
            "http://host:",
            "https://host:443443/",
            "http://[::1]:99999",
            "http://[::1]:",
            "h2c://host:abc",
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            let advice = "a port is a number from 1 to 65535";
            assert!(error.contains(advice) || error.contains("not an address"), "{text}: {error}");
        }
        for text in [":99999", ":0", ":abc", ":", "http://127.0.0.1:80800", "http://host:/"] {
            assert_eq!(text.parse::<Target>(), Err(TargetError::Port(PortError)), "{text}");
        }
        for text in [":1", ":65535", "http://[::1]:08080"] {
            assert!(text.parse::<Target>().is_ok(), "{text}");
        }
    }
}
