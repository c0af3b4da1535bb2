//! Contradictions between settings of the gateway as a whole.

use std::net::{IpAddr, SocketAddr};

use crate::config::flat::Flat;
use crate::config::problem::ConfigProblem;
use crate::config::source::SourceKind;
use crate::config::{Config, Listen};
use crate::upstream::{Place, Target};

pub(super) fn find(config: &Config, flat: &Flat) -> Vec<ConfigProblem> {
    let checks = [
        admin_without_token,
        same_address_twice,
        upstream_is_the_gateway,
        half_a_certificate,
        tls_on_a_socket_file,
        half_a_template,
        half_a_jwt,
        half_of_cors,
        password_in_a_file,
    ];
    checks.iter().filter_map(|check| check(config, flat)).collect()
}

fn contradiction(flat: &Flat, path: &str, message: &str) -> ConfigProblem {
    ConfigProblem::error("contradiction", message).maybe_at(flat.place(path)).about(path)
}

fn admin_without_token(config: &Config, flat: &Flat) -> Option<ConfigProblem> {
    let open = !config.admin.listen.ip().is_loopback() && flat.place("admin.token_file").is_none();
    open.then(|| {
        let message = "the admin listener can release keys, so it needs a token where others can \
                       reach it";
        ConfigProblem::error("admin-open", message)
            .maybe_at(flat.place("admin.listen"))
            .note("set admin.token_file, or listen on 127.0.0.1")
            .about("admin.token_file")
    })
}

fn same_address_twice(config: &Config, flat: &Flat) -> Option<ConfigProblem> {
    let (server, admin) = (config.server.listen.address()?, config.admin.listen);
    let same = server.port() == admin.port()
        && server.port() != 0
        && (server.ip() == admin.ip()
            || server.ip().is_unspecified()
            || admin.ip().is_unspecified());
    same.then(|| {
        let message = "server and admin cannot listen at the same address";
        let place = flat.place("admin.listen").or_else(|| flat.place("server.listen"));
        ConfigProblem::error("contradiction", message).maybe_at(place).about("admin.listen")
    })
}

/// Every request would come back until connections run out.
fn upstream_is_the_gateway(config: &Config, flat: &Flat) -> Option<ConfigProblem> {
    let upstream = flat.text("server.upstream")?;
    let is = |listen: SocketAddr| leads_to(upstream, listen);
    let server = config.server.listen.address();
    (server.is_some_and(is) || is(config.admin.listen))
        .then(|| contradiction(flat, "server.upstream", "the upstream is the gateway itself"))
}

fn leads_to(upstream: &str, listen: SocketAddr) -> bool {
    let Ok(Target { place: Place::Tcp { host, port }, .. }) = upstream.parse() else {
        return false;
    };
    let here = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
    port == listen.port()
        && match host.parse::<IpAddr>() {
            Ok(ip) => ip == listen.ip() || here(ip) && here(listen.ip()),
            Err(_) => host == "localhost" && here(listen.ip()),
        }
}

fn half_a_certificate(_: &Config, flat: &Flat) -> Option<ConfigProblem> {
    let set = |name: &str| flat.place(&format!("server.tls.{name}")).is_some();
    let (path, message) = match (set("cert_file"), set("key_file"), set("client_ca_file")) {
        (true, false, _) => ("server.tls.cert_file", "a certificate needs its key: set `key_file`"),
        (false, true, _) => ("server.tls.key_file", "a key needs its certificate: set `cert_file`"),
        (false, false, true) => (
            "server.tls.client_ca_file",
            "clients show certificates only over TLS: set `cert_file` and `key_file`",
        ),
        (true, true, _) | (false, false, false) => return None,
    };
    Some(contradiction(flat, path, message))
}

/// It would be ignored, and whoever relies on it would not notice.
fn tls_on_a_socket_file(config: &Config, flat: &Flat) -> Option<ConfigProblem> {
    match config.server.listen {
        Listen::Tcp(_) => return None,
        Listen::Unix(_) => {}
    }
    let members =
        ["cert_file", "key_file", "client_ca_file"].map(|name| format!("server.tls.{name}"));
    let set = members.iter().find(|path| flat.place(path).is_some())?;
    let message =
        "clients of a unix socket speak no TLS: remove [server.tls], or listen on an address";
    Some(contradiction(flat, set, message))
}

fn half_a_template(_: &Config, flat: &Flat) -> Option<ConfigProblem> {
    let file = flat.place("errors.template_file").is_some();
    match (flat.word("errors.format") == "template", file) {
        (true, false) => {
            let message = "the format is a template and there is none: set `template_file`";
            Some(contradiction(flat, "errors.format", message))
        }
        (false, true) => {
            let message = "the template is not used: set `format = \"template\"`";
            Some(contradiction(flat, "errors.template_file", message))
        }
        (true, true) | (false, false) => None,
    }
}

fn half_a_jwt(_: &Config, flat: &Flat) -> Option<ConfigProblem> {
    let set = |name: &str| flat.place(&format!("jwt.{name}")).is_some();
    let (path, message) = match (set("algorithm"), set("key_file"), set("jwks_file")) {
        (_, true, true) => ("jwt.jwks_file", "one of `key_file` and `jwks_file` is enough"),
        (true, false, false) => {
            ("jwt.algorithm", "tokens need a key: set `key_file` or `jwks_file`")
        }
        // A token says itself how it was signed; whoever believes it can be lied to.
        (false, true, false) => ("jwt.key_file", "say which `algorithm` tokens are signed with"),
        (false, false, true) => ("jwt.jwks_file", "say which `algorithm` tokens are signed with"),
        (true, true, false) | (true, false, true) | (false, false, false) => return None,
    };
    Some(contradiction(flat, path, message))
}

fn half_of_cors(config: &Config, flat: &Flat) -> Option<ConfigProblem> {
    let cors = &config.cors;
    if cors.credentials && cors.origins.iter().any(|origin| origin == "*") {
        let message = "browsers refuse `*` for pages that send cookies along: name the origins";
        return Some(contradiction(flat, "cors.credentials", message));
    }
    let alone = if cors.credentials {
        "cors.credentials"
    } else if !cors.expose.is_empty() {
        "cors.expose"
    } else {
        return None;
    };
    cors.origins.is_empty().then(|| {
        contradiction(flat, alone, "it means nothing without `origins`: say whose pages may read")
    })
}

fn password_in_a_file(_: &Config, flat: &Flat) -> Option<ConfigProblem> {
    let place = flat.place("store.url").filter(|place| place.source.kind == SourceKind::File)?;
    let written = place.source.text.get(place.span.clone())?;
    let (user, _) = written.split_once("://")?.1.rsplit_once('@')?;
    let (_, password) = user.split_once(':')?;
    (!password.is_empty() && !password.contains("${")).then(|| {
        ConfigProblem::warning("secret-in-file", "the password of the store stands in the file")
            .at(place)
            .note("take it from elsewhere: ${env:NAME} or ${file:path}")
            .about("store.url")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_that_is_the_gateway_is_seen_through() {
        let any: SocketAddr = "0.0.0.0:8787".parse().unwrap();
        let local: SocketAddr = "127.0.0.1:8787".parse().unwrap();
        let inner: SocketAddr = "10.0.0.7:80".parse().unwrap();
        for (upstream, listen, expected) in [
            ("http://127.0.0.1:8787", local, true),
            ("http://localhost:8787", any, true),
            ("http://[::1]:8787", any, true),
            (":8787", local, true),
            ("http://10.0.0.7", inner, true),
            ("http://127.0.0.1:3000", local, false),
            ("http://app:8787", any, false),
            ("http://127.0.0.1", inner, false),
            ("unix:/run/app.sock", local, false),
        ] {
            assert_eq!(leads_to(upstream, listen), expected, "{upstream}");
        }
    }
}
