//! Who may ask the admin API.
//!
//! Being on the same machine proves nothing: a web page that an operator opens is there, too. So
//! the names in `Host` are known, and other sites are refused (DNS rebinding, CSRF). On any other
//! address a token is needed as well.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// Who may ask, and for what.
#[derive(Debug)]
pub(crate) struct Access {
    /// A reload swaps it.
    token: ArcSwapOption<Token>,
    listen: SocketAddr,
    /// In lower case, without ports.
    names: Vec<String>,
    pub(super) payload: Payload,
}

/// Whether keys and answers may be shown at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Payload {
    /// To whoever asks for them by name, and the audit says so.
    #[default]
    OnRequest,
    /// To nobody.
    Never,
}

/// A secret that operators send. Only its digest is kept.
#[derive(Clone)]
pub(crate) struct Token([u8; 32]);

/// Why something is not taken for a token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    /// Anybody could guess it.
    #[error(
        "the admin token has {0} characters: use at least {MIN_TOKEN}, such as `openssl rand -hex 32` prints"
    )]
    Short(usize),
    /// It could not be sent.
    #[error("the admin token has a character that no header can carry: use printable ASCII")]
    NotPrintable,
    /// It could not be read.
    #[error("cannot read the admin token")]
    File(#[from] std::io::Error),
}

/// Why the listener does not start.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the admin API on {0} could be reached by others and has no token: set one, or listen on 127.0.0.1"
)]
pub(crate) struct Exposed(SocketAddr);

/// What became of the token of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// None is needed: the listener is on loopback and has no token.
    NotNeeded,
    /// The right one.
    Right,
    /// None, or another one.
    Wrong,
}

/// 128 bits in hexadecimal have 32 characters, in base 64 they have 22. Nobody guesses 16 of
/// either through HTTP.
const MIN_TOKEN: usize = 16;

/// Refuses an address that others can reach, unless there is a token.
pub(crate) fn refuse_exposed(address: SocketAddr, token: Option<&Token>) -> Result<(), Exposed> {
    let ip = address.ip().to_canonical();
    if ip.is_loopback() || token.is_some() { Ok(()) } else { Err(Exposed(address)) }
}

impl Access {
    /// Access to a listener on `listen`. `names` are those under which it is reached besides the
    /// address itself and the names of loopback.
    pub(crate) fn new(
        listen: SocketAddr,
        token: Option<Token>,
        names: &[String],
    ) -> Result<Self, Exposed> {
        refuse_exposed(listen, token.as_ref())?;
        let names = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let token = ArcSwapOption::from_pointee(token);
        Ok(Self { token, listen, names, payload: Payload::default() })
    }

    /// Asks for another token from now on.
    ///
    /// # Errors
    /// If there is none and others could reach the listener. The old one stays.
    pub(crate) fn renew(&self, token: Option<Token>) -> Result<(), Exposed> {
        refuse_exposed(self.listen, token.as_ref())?;
        self.token.store(token.map(Arc::new));
        Ok(())
    }

    /// Whether keys and answers may be shown.
    pub(crate) fn payload(mut self, payload: Payload) -> Self {
        self.payload = payload;
        self
    }

    /// Returns true if and only if `host`, as in a `Host` header, means this listener.
    ///
    /// A page that has its own name point to us sends its own name. It cannot send an address that
    /// it does not have, so where we listen on every address any address will do: probes of a
    /// cluster use them.
    pub(super) fn knows_host(&self, host: &str) -> bool {
        let Some(name) = without_port(host) else { return false };
        let name = name.to_ascii_lowercase();
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
        if self.names.contains(&name) {
            return true;
        }
        if let Ok(ip) = bare.parse::<IpAddr>() {
            let ip = ip.to_canonical();
            let listen = self.listen.ip().to_canonical();
            return ip.is_loopback() || ip == listen || listen.is_unspecified();
        }
        name == "localhost"
    }

    /// Looks at the value of an `Authorization` header.
    pub(super) fn check(&self, authorization: Option<&[u8]>) -> Shown {
        let token = self.token.load();
        let Some(token) = &*token else { return Shown::NotNeeded };
        let sent = authorization.and_then(bearer).unwrap_or_default();
        if token.is(sent) { Shown::Right } else { Shown::Wrong }
    }
}

/// The token of an `Authorization: Bearer` header. The scheme is the same in any case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(b"bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
}

/// The name or address in an authority; `None` if what follows it is not a port.
fn without_port(host: &str) -> Option<&str> {
    let end = host.rfind(']').map_or(0, |at| at + 1);
    match host[end..].find(':') {
        None => Some(host),
        Some(at) => {
            let (name, port) = host.split_at(end + at);
            port[1..].parse::<u16>().ok().map(|_| name)
        }
    }
}

impl Token {
    /// A token as an operator wrote it, without the white space around it.
    pub(crate) fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::NotPrintable);
        }
        if text.len() < MIN_TOKEN {
            return Err(TokenError::Short(text.len()));
        }
        Ok(Self(Sha256::digest(text.as_bytes()).into()))
    }

    /// A token from a file that holds nothing else.
    pub(crate) fn from_file(path: &Path) -> Result<Self, TokenError> {
        Self::new(&std::fs::read_to_string(path)?)
    }

    /// Digests of both sides are compared, each in full: how long it takes says nothing about how
    /// much of a guess was right, nor how long the token is.
    fn is(&self, sent: &[u8]) -> bool {
        let sent: [u8; 32] = Sha256::digest(sent).into();
        self.0.ct_eq(&sent).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token([REDACTED])")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn access(listen: &str, names: &[&str]) -> Access {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Access::new(listen.parse().unwrap(), Some(Token::new(TOKEN).unwrap()), &names).unwrap()
    }

    /// T21: only loopback does without a token.
    #[test]
    fn an_address_that_others_reach_needs_a_token() {
        let token = Token::new(TOKEN).unwrap();
        for exposed in ["0.0.0.0:8788", "[::]:8788", "10.0.0.7:8788", "[::ffff:10.0.0.7]:1"] {
            let address = exposed.parse().unwrap();
            assert_eq!(refuse_exposed(address, None), Err(Exposed(address)), "{exposed}");
            assert_eq!(refuse_exposed(address, Some(&token)), Ok(()), "{exposed}");
        }
        for own in ["127.0.0.1:8788", "[::1]:8788", "127.8.8.8:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(refuse_exposed(own.parse().unwrap(), None), Ok(()), "{own}");
        }
    }

    #[test]
    fn names_of_others_are_not_ours() {
        let access = access("10.0.0.7:8788", &["Ops.example", "10.0.0.9"]);
        for host in [
            "localhost",
            "LOCALHOST:8788",
            "127.0.0.1:1",
            "[::1]:8788",
            "10.0.0.7",
            "ops.EXAMPLE:80",
            // A balancer's.
            "10.0.0.9:80",
        ] {
            assert!(access.knows_host(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "evil.example:8788",
            "10.0.0.8",
            "localhost:x",
            "localhost:8788@evil",
            "[::2]",
            "localhost.",
            "127.0.0.1.nip.io",
            "2130706433",
        ] {
            assert!(!access.knows_host(host), "{host}");
        }
    }

    /// Probes of a cluster ask by the address of the day; a rebound page has a name.
    #[test]
    fn a_listener_on_every_address_knows_every_address_and_no_name() {
        let access = access("0.0.0.0:8788", &[]);
        assert!(access.knows_host("10.42.0.9:8788"));
        assert!(!access.knows_host("evil.example:8788"));
    }

    #[test]
    fn only_the_whole_token_is_the_token() {
        let access = access("127.0.0.1:1", &[]);
        let sent = |value: &str| access.check(Some(value.as_bytes()));
        assert_eq!(sent(&format!("Bearer {TOKEN}")), Shown::Right);
        assert_eq!(sent(&format!("bEARER {TOKEN} ")), Shown::Right);
        let longer = format!("{TOKEN}0");
        for wrong in ["", "x", &TOKEN[1..], &TOKEN[..31], &longer, "\u{0}"] {
            assert_eq!(sent(&format!("Bearer {wrong}")), Shown::Wrong, "{wrong}");
        }
        assert_eq!(sent(TOKEN), Shown::Wrong);
        assert_eq!(sent(&format!("Basic {TOKEN}")), Shown::Wrong);
        assert_eq!(access.check(None), Shown::Wrong);
        let open = Access::new("127.0.0.1:1".parse().unwrap(), None, &[]).unwrap();
        assert_eq!(open.check(None), Shown::NotNeeded);
    }

    #[test]
    fn a_token_that_can_be_guessed_or_not_be_sent_is_refused() {
        assert!(matches!(Token::new(" short "), Err(TokenError::Short(5))));
        assert!(matches!(Token::new(""), Err(TokenError::Short(0))));
        assert!(matches!(Token::new("0123456789 abcdef"), Err(TokenError::NotPrintable)));
        let shown = format!("{:?}", Token::new(&format!("{TOKEN}\n")).unwrap());
        assert!(!shown.contains(TOKEN), "{shown}");
    }
}
