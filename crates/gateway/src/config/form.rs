//! The forms that a string may have to have.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use http::uri::Authority;
use http::{HeaderName, Uri};
use oncekey::core::fingerprint::JsonPath;

use super::statuses::read_statuses;
use crate::route::{Exempt, Pattern, ScopePart, key_source, method};
use crate::upstream::{Place, Target, port_of};

/// What a string has to look like.
#[derive(Debug)]
pub(crate) struct Form {
    /// For people: `an address such as "127.0.0.1:8787"`.
    pub(crate) what: &'static str,
    /// For the JSON Schema: whatever passes the check matches it.
    pub(crate) pattern: Option<&'static str>,
    pub(crate) check: fn(&str) -> Result<(), Complaint>,
}

/// What a string lacks.
#[derive(Debug)]
pub(crate) struct Complaint {
    pub(crate) message: String,
    /// Which bytes of it are wrong, if not all.
    pub(crate) at: Option<Range<usize>>,
}

pub(crate) static WORDS: Form = Form {
    what: "a string that is not empty",
    pattern: Some("^[^\\x00-\\x1f]+$"),
    check: |text| match text {
        "" => complain("the string is empty"),
        text if text.contains(char::is_control) => complain("the string has control characters"),
        _ => Ok(()),
    },
};

pub(crate) static LISTEN: Form = Form {
    what: "an IP address and a port such as \"127.0.0.1:8787\"",
    pattern: Some("^.+:[0-9]+$"),
    check: |text| match text.parse::<SocketAddr>() {
        Ok(_) => Ok(()),
        Err(_) if text.starts_with(':') => {
            complain(&format!("`{text}` has no address: 127.0.0.1{text} is for this machine only"))
        }
        Err(_) => {
            let ip = text.rsplit_once(':').is_some_and(|(ip, _)| {
                ip.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok()
            });
            let port = if ip { ": a port is a number from 0 to 65535" } else { "" };
            complain(&format!("`{text}` is not an IP address and a port{port}"))
        }
    },
};

pub(crate) static LISTEN_ANYWHERE: Form = Form {
    what: "an IP address and a port such as \"127.0.0.1:8787\", or \"unix:/run/oncekey.sock\"",
    pattern: Some("^(.+:[0-9]+|unix:/.+)$"),
    check: |text| match text.strip_prefix("unix:") {
        Some(path) if path.len() > 1 && path.starts_with('/') => Ok(()),
        Some(_) => complain("the path of a socket begins with a slash"),
        None => (LISTEN.check)(text),
    },
};

pub(crate) static HOST_NAME: Form = Form {
    what: "the name of a host such as \"ops.internal\", without a port",
    pattern: Some("^[A-Za-z0-9._-]+$"),
    check: |text| {
        let named = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        match !text.is_empty() && text.bytes().all(named) {
            true => Ok(()),
            false => complain(&format!("`{text}` is not the name of a host")),
        }
    },
};

pub(crate) static UPSTREAM: Form = Form {
    what: "an address such as \"http://127.0.0.1:3000\" or \"unix:/run/app.sock\"",
    pattern: Some("^(https?://.+|h2c://.+|unix:.*/.+|:[0-9]+)$"),
    check: check_upstream,
};

pub(crate) static STORE_URL: Form = Form {
    what: "the URL of a store such as \"sqlite://oncekey.db\"",
    pattern: Some("^[a-z+]+:"),
    check: |text| {
        const STORES: [&str; 15] = [
            "dynamodb",
            "mariadb",
            "memory",
            "mysql",
            "postgres",
            "postgresql",
            "redis",
            "rediss",
            "redis+cluster",
            "rediss+cluster",
            "sqlite",
            "valkey",
            "valkeys",
            "valkey+cluster",
            "valkeys+cluster",
        ];
        match text.split_once(':') {
            Some((scheme, _)) if STORES.contains(&scheme) => Ok(()),
            Some(_) | None => complain(
                "this is not the URL of a store: it begins with sqlite:, postgres:, mysql:, \
                 redis:, dynamodb: or memory:",
            ),
        }
    },
};

pub(crate) static URL: Form = Form {
    what: "a URL such as \"https://api.example.com/docs\"",
    pattern: Some("^https?://"),
    check: |text| match (text.parse::<Uri>(), text.contains('#')) {
        (Ok(uri), false) if matches!(uri.scheme_str(), Some("http" | "https")) => {
            match uri.authority().map(port_of) {
                Some(Err(error)) => complain(&error.to_string()),
                Some(Ok(_)) | None => Ok(()),
            }
        }
        _ => complain("this is not a URL that begins with http:// or https:// and has no `#`"),
    },
};

pub(crate) static ORIGIN: Form = Form {
    what: "an origin such as \"https://shop.example.com\", or \"*\"",
    pattern: Some("^(\\*|[a-z][a-z0-9+.-]*://[^/]+)$"),
    check: |text| {
        let origin = text.split_once("://");
        let plain = |host: &str| {
            !host.is_empty()
                && host.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@*\"\\".contains(&byte))
                && !host.bytes().any(|byte| byte.is_ascii_uppercase())
        };
        let ported = |host: &str| {
            host.parse::<Authority>().map_or(true, |authority| port_of(&authority).is_ok())
        };
        let scheme = |scheme: &str| {
            scheme.starts_with(|first: char| first.is_ascii_lowercase())
                && scheme.bytes().all(|byte| {
                    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+.-".contains(&byte)
                })
        };
        match origin {
            _ if text == "*" => Ok(()),
            Some((first, host)) if scheme(first) && plain(host) && ported(host) => Ok(()),
            // As browsers write it, because it is compared byte by byte.
            _ => complain(&format!(
                "`{text}` is not an origin: scheme, host and port as browsers send them, in lower \
                 case and without a slash behind"
            )),
        }
    },
};

pub(crate) static STATUS_PATH: Form = Form {
    what: "a path such as \"/.idempotency/keys/\"",
    pattern: Some("^/.*/$"),
    check: |text| {
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#<>\"".contains(&byte));
        match plain && text.len() > 1 && text.starts_with('/') && text.ends_with('/') {
            true => Ok(()),
            false => complain("a path begins and ends with a slash"),
        }
    },
};

pub(crate) static HEADER: Form = Form {
    what: "the name of a header such as \"Idempotency-Key\"",
    pattern: Some("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"),
    check: |text| match text.parse::<HeaderName>() {
        Ok(_) => Ok(()),
        Err(_) => complain(&format!("`{text}` is not the name of a header")),
    },
};

pub(crate) static METHOD: Form = Form {
    what: "a method such as \"POST\"",
    pattern: Some("^[A-Z0-9!#$%&'*+.^_`|~-]+$"),
    check: |text| match method(text) {
        Ok(method) if method.is_safe() => {
            complain(&format!("{method} is safe to repeat by definition and never protected"))
        }
        Ok(_) => Ok(()),
        Err(message) => complain(&message),
    },
};

pub(crate) static PATTERN: Form = Form {
    what: "methods and a path such as \"POST /v1/charges/{id}\"",
    pattern: Some("^([A-Z0-9,*-]+ +)?/"),
    check: |text| match Pattern::parse(text) {
        Ok(_) => Ok(()),
        Err(error) => Err(Complaint { message: error.to_string(), at: Some(error.at) }),
    },
};

pub(crate) static KEY_SOURCE: Form = Form {
    what: "\"header:NAME\", \"json:$.path\" or \"query:NAME\"",
    pattern: Some("^(header|json|query):.+$"),
    check: |text| key_source(text).map(drop).or_else(|error| complain(&error.to_string())),
};

pub(crate) static SCOPE_PART: Form = Form {
    what: "\"header:NAME\", \"api-key:NAME\", \"jwt:CLAIM\", \"mtls\", \"credential\" or \"shared\"",
    pattern: Some("^((header|api-key|jwt):.+|mtls|credential|shared)$"),
    check: |text| text.parse::<ScopePart>().map(drop).or_else(|error| complain(&error.to_string())),
};

pub(crate) static EXEMPT: Form = Form {
    what: "\"scope:NAME\" or \"header:NAME=VALUE\"",
    pattern: Some("^(scope:.+|header:.+=.*)$"),
    check: |text| text.parse::<Exempt>().map(drop).or_else(|error| complain(&error.to_string())),
};

pub(crate) static JSON_PATH: Form = Form {
    what: "a path such as \"$.client_timestamp\"",
    pattern: Some("^\\$."),
    check: |text| JsonPath::parse(text).map(drop).or_else(|error| complain(&error.to_string())),
};

pub(crate) static STATUSES: Form = Form {
    what: "statuses such as \"2xx\", \"429,503\" or \"500-599\"",
    pattern: Some("^[0-9x, -]+$"),
    check: |text| read_statuses(text).map(drop).or_else(|message| complain(&message)),
};

/// The one member of a table.
pub(crate) static REDACT: Form = Form {
    what: "`redact`",
    pattern: Some("^redact$"),
    check: |text| match text {
        "redact" => Ok(()),
        other => complain(&format!("`{other}` is not known here: write `redact`")),
    },
};

fn check_upstream(text: &str) -> Result<(), Complaint> {
    let target: Target = match text.parse() {
        Ok(target) => target,
        Err(error) => return complain(&error.to_string()),
    };
    // Where clouds give credentials to whoever asks from inside.
    const CREDENTIALS: [&str; 3] = ["169.254.169.254", "fd00:ec2::254", "metadata.google.internal"];
    match target.place {
        Place::Tcp { host, .. } if CREDENTIALS.contains(&host.as_str()) => {
            complain("this is where the cloud keeps credentials, not an upstream")
        }
        Place::Tcp { .. } | Place::Unix(_) => Ok(()),
    }
}

fn complain(message: &str) -> Result<(), Complaint> {
    Err(Complaint { message: message.to_owned(), at: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(form: &Form, text: &str) -> bool {
        (form.check)(text).is_ok()
    }

    #[test]
    fn addresses_that_no_upstream_can_have_are_refused() {
        for good in ["http://app:3000", "https://api.example.com/", "h2c://[::1]:1", ":3000"] {
            assert!(takes(&UPSTREAM, good), "{good}");
        }
        assert!(takes(&UPSTREAM, "unix:/run/app.sock"));
        for bad in [
            "",
            "app:3000",
            "file:///etc/passwd",
            "ftp://app",
            "http://app/v1",
            "http://u:p@app",
            "http://169.254.169.254",
            "http://[fd00:ec2::254]",
            "http://app:0",
            "http://app:99999",
            "http://app:abc",
            "http://app:/",
            ":99999",
            "unix:app.sock",
        ] {
            assert!(!takes(&UPSTREAM, bad), "{bad}");
        }
    }

    #[test]
    fn forms_refuse_what_they_should() {
        assert!(
            takes(&LISTEN, "[::]:80") && !takes(&LISTEN, "localhost:80") && !takes(&LISTEN, ":80")
        );
        assert!(takes(&LISTEN_ANYWHERE, "unix:/run/a.sock") && takes(&LISTEN_ANYWHERE, "[::]:80"));
        assert!(!takes(&LISTEN_ANYWHERE, "unix:a.sock") && !takes(&LISTEN_ANYWHERE, "unix:/"));
        assert!(takes(&HOST_NAME, "ops.internal") && takes(&HOST_NAME, "gateway_1"));
        for bad in ["", "*", "*.internal", "ops:8788", "http://ops", "a b", "[::1]"] {
            assert!(!takes(&HOST_NAME, bad), "{bad}");
        }
        assert!(takes(&METHOD, "PUT") && !takes(&METHOD, "GET") && !takes(&METHOD, "put"));
        assert!(takes(&STORE_URL, "memory:") && !takes(&STORE_URL, "mongodb://x"));
        assert!(takes(&URL, "https://a/b") && !takes(&URL, "https://a/b#c") && !takes(&URL, "/b"));
        assert!(
            takes(&STATUS_PATH, "/k/") && !takes(&STATUS_PATH, "/") && !takes(&STATUS_PATH, "/k")
        );
        assert!(takes(&WORDS, "a b") && !takes(&WORDS, "") && !takes(&WORDS, "a\nb"));
    }
    #[test]
    fn a_port_that_is_none_is_refused_wherever_an_address_is_written() {
        for port in ["99999", "0", "abc", "", "+80"] {
            for form in [&UPSTREAM, &URL, &ORIGIN] {
                assert!(!takes(form, &format!("https://a.example:{port}")), "{port}");
            }
            assert!(!takes(&URL, &format!("https://a.example:{port}/docs")), "{port}");
        }
        for port in ["99999", "abc", ""] {
            assert!(!takes(&LISTEN, &format!("127.0.0.1:{port}")), "{port}");
            assert!(!takes(&LISTEN_ANYWHERE, &format!("[::1]:{port}")), "{port}");
        }
        assert!(takes(&LISTEN, "127.0.0.1:0"), "any free port");
        for form in [&UPSTREAM, &URL, &ORIGIN] {
            assert!(takes(form, "https://a.example:8443") && takes(form, "https://[::1]"));
        }
    }
}
