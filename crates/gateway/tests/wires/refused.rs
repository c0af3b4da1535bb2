//! Certificates that are not good, on either side.

use std::io::Read as _;
use std::process::{Command, Stdio};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::certificates;
use crate::client::{Line, Way, pay, tls};
use crate::clients::{ROUTES, with_tls};
use crate::common::gateway::Home;
use crate::common::within;
use crate::upstream::{Speaks, Upstream};

/// An upstream that is not who it should be gets nothing, and the log says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_cannot_be_believed_gets_nothing() {
    for (shown, believed, called, why) in [
        ("server2", "ca", "localhost", "UnknownIssuer"),
        ("stale", "ca2", "localhost", "expired"),
        ("server", "ca", "127.0.0.1", "not valid for name"),
    ] {
        let home = Home::on_sqlite();
        let upstream = Upstream::start(Speaks::TlsHttp2(shown), home.path()).await;
        home.configure(&upstream.url.replace("localhost", called), ROUTES);
        let text = std::fs::read_to_string(home.config()).unwrap();
        let ca = certificates::path(believed);
        let trust = format!("[server]\nupstream_ca_file = \"{}\"\n", ca.display());
        std::fs::write(home.config(), text.replace("[server]\n", &trust)).unwrap();
        let gateway = home.run();
        let mut line = Way::Plain.open(&gateway, home.path()).await;
        let answer = line.ask(pay("/payments", "key-1", "1")).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["executed"]), (502, &"no".into()));
        gateway.says(why).await;
        assert_eq!(upstream.runs().len(), 0);
        let ready = gateway.look("/readyz").await;
        assert!(ready.status == 503 && ready.text().contains(why), "{ready:?}");
    }
}

/// A client that is not known is not served, and the log says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_cannot_be_believed_is_not_served() {
    let home = Home::on_sqlite();
    let upstream = Upstream::start(Speaks::Plain, home.path()).await;
    let ca = format!("client_ca_file = \"{}\"", certificates::path("ca").display());
    home.configure(&upstream.url, &format!("{}{ROUTES}", with_tls(&home, "server", &ca)));
    let gateway = home.run();
    for (name, why) in [(None, "peer sent no certificates"), (Some("stranger"), "UnknownIssuer")] {
        let config = certificates::client(name, &[b"http/1.1"]);
        // In TLS 1.3 the client hears of it only when it waits for an answer.
        if let Ok(mut stream) = tls(&gateway, config).await {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
            assert!(within("the end", stream.read_u8()).await.is_err());
        }
        gateway.says(why).await;
    }
    // Whoever does not speak TLS at all is told nothing and costs nothing.
    let heard =
        crate::common::converse(gateway.address, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(!heard.starts_with(b"HTTP"), "{}", heard.escape_ascii());
    assert_eq!(upstream.runs().len(), 0);
    let config = certificates::client(Some("acme"), &[b"h2"]);
    let answer = Line::tls(&gateway, config).await.ask(pay("/payments", "key-1", "1")).await;
    assert_eq!(answer.status, 200);
    assert!(gateway.metric("oncekey_requests_refused_total", &["reason=\"tls\""]).await > 2.5);
}

/// Files that cannot be used keep the program from starting, and it says which and why.
#[test]
fn a_certificate_that_cannot_be_used_is_named_at_the_start() {
    for (certificate, key, why) in [
        ("ca", "server", "do not fit"),
        ("nothing", "server", "holds no certificate"),
        ("server", "ca", "cannot read"),
    ] {
        let home = Home::on_sqlite();
        for (name, file) in [(certificate, "cert.pem"), (key, "key.pem")] {
            match name {
                "nothing" => std::fs::write(home.path().join(file), "").unwrap(),
                name => certificates::install(name, &home.path().join(file)),
            }
        }
        let tls = "[server.tls]\ncert_file = \"cert.pem\"\nkey_file = \"key.pem\"\n";
        home.configure("http://127.0.0.1:1", tls);
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
        command.args(["run", "-c"]).arg(home.config()).env("ONCEKEY_STORE", "memory:");
        let mut program = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        program.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(program.wait().unwrap().code(), Some(3), "{said}");
        assert!(said.contains(why), "{said}");
    }
}

/// A gateway is no way to somewhere else, and says so as it says everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_is_refused_with_a_document_and_a_line() {
    let home = Home::on_sqlite();
    let upstream = Upstream::start(Speaks::Plain, home.path()).await;
    home.configure(&upstream.url, ROUTES);
    let gateway = home.run();
    let request = b"CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n\
                    GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let heard = crate::common::converse(gateway.address, request).await;
    let heard = String::from_utf8_lossy(&heard).into_owned();
    assert!(heard.starts_with("HTTP/1.1 405"), "{heard}");
    assert!(heard.contains("application/problem+json"), "{heard}");
    assert!(heard.contains("\"code\":\"tunnel\""), "{heard}");
    assert_eq!(heard.matches("HTTP/1.1 ").count(), 2, "the next request is answered: {heard}");
    gateway.says("\"reason\":\"tunnel\"").await;
}

/// As a balancer or a probe of a cluster asks, which knows the listener by a name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_listener_goes_by_the_names_that_it_was_given() {
    let home = Home::on_sqlite();
    let upstream = Upstream::start(Speaks::Plain, home.path()).await;
    home.configure(&upstream.url, &format!("names = [\"Ops.internal\"]\n{ROUTES}"));
    let gateway = home.run();
    for (host, status) in [("ops.internal:8788", "200"), ("evil.example", "403")] {
        let request = format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let mut stream = TcpStream::connect(gateway.admin).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut heard = String::new();
        within("the answer", stream.read_to_string(&mut heard)).await.unwrap();
        assert!(heard.starts_with(&format!("HTTP/1.1 {status}")), "{heard}");
        assert_eq!(heard.contains("admin.names"), status == "403", "{heard}");
    }
}
