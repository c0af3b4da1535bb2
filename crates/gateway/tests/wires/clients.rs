//! Every way in.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::net::TcpStream;

use crate::certificates;
use crate::client::{Line, Way, pay};
use crate::common::gateway::{Gateway, Home};
use crate::common::{until, within};
use crate::upstream::{Speaks, Upstream};

/// More than any window of HTTP/2 has room for at first.
const LARGE: usize = 3 << 20;

pub(crate) const ROUTES: &str = r#"
[defaults]
scope = ["shared"]
mode = "required"
limits = { max_request_body = "8MiB" }
[[route]]
match = "POST /payments"
[[route]]
match = "POST /held"
"#;

pub(crate) struct Scene {
    pub(crate) home: Home,
    pub(crate) upstream: Upstream,
    pub(crate) gateway: Gateway,
}

impl Scene {
    /// A gateway that clients reach in this way.
    async fn open(way: Way) -> Self {
        let home = Home::on_sqlite();
        let upstream = Upstream::start(Speaks::Plain, home.path()).await;
        let tls = matches!(way, Way::Tls | Way::TlsHttp2);
        let more = if tls { with_tls(&home, "server", "") } else { String::new() };
        if way == Way::Unix {
            let listen = format!("unix:{}", home.path().join("in.sock").display());
            home.configure_at(&listen, &upstream.url, ROUTES);
        } else {
            home.configure(&upstream.url, &format!("{more}{ROUTES}"));
        }
        let gateway = home.run();
        Self { home, upstream, gateway }
    }

    pub(crate) async fn line(&self, way: Way) -> Line {
        way.open(&self.gateway, self.home.path()).await
    }
}

/// The lines of a configuration with this certificate.
pub(crate) fn with_tls(home: &Home, name: &str, more: &str) -> String {
    certificates::install(name, &home.path().join("server.pem"));
    format!("[server.tls]\ncert_file = \"server.pem\"\nkey_file = \"server.pem\"\n{more}\n")
}

/// What holds whatever is spoken.
async fn keeps_its_promises(way: Way) {
    let scene = Scene::open(way).await;
    let mut line = scene.line(way).await;
    let first = line.ask(pay("/payments", "key-1", "{\"amount\":1}")).await;
    assert_eq!((first.status.as_u16(), first.is_replay()), (200, false), "{first:?}");
    let again = line.ask(pay("/payments", "key-1", "{\"amount\":1}")).await;
    assert!(again.is_replay() && again.body == first.body, "{again:?}");
    let other = line.ask(pay("/payments", "key-1", "{\"amount\":2}")).await;
    assert_eq!(other.status, 422, "{other:?}");
    assert_eq!(other.json()["code"], "idempotency_key_reused");
    let large = || pay("/payments", "key-2", Bytes::from(vec![b'x'; LARGE]));
    let sent = line.ask(large()).await;
    assert_eq!(sent.json()["length"], LARGE, "{sent:?}");
    assert!(line.ask(large()).await.is_replay());
    assert_eq!(scene.upstream.count("/payments"), 2);
    duplicates_run_once(&scene, way, line).await;
    who_leaves_loses_no_work(way).await;
}

/// Twenty at once; over one connection, where that is possible.
async fn duplicates_run_once(scene: &Scene, way: Way, line: Line) {
    let mut asked = Vec::new();
    for _ in 0..20 {
        let mut line = match line.again() {
            Some(line) => line,
            None => scene.line(way).await,
        };
        asked.push(tokio::spawn(async move { line.ask(pay("/held", "key-3", "1")).await }));
    }
    until("nineteen that wait", async || scene.gateway.waiters().await == 19).await;
    scene.upstream.release();
    let mut replays = 0;
    for one in asked {
        let answer = one.await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        replays += usize::from(answer.is_replay());
    }
    assert_eq!((scene.upstream.count("/held"), replays), (1, 19));
}

/// Over HTTP/2 the client resets the stream and keeps the connection; otherwise it hangs up.
async fn who_leaves_loses_no_work(way: Way) {
    let scene = Scene::open(way).await;
    let mut line = scene.line(way).await;
    let other = line.again();
    let asked = tokio::spawn(async move { line.ask(pay("/held", "key-4", "1")).await });
    scene.upstream.until_count("/held", 1).await;
    asked.abort();
    drop(asked.await);
    scene.upstream.release();
    let mut line = match other {
        Some(line) => line,
        None => scene.line(way).await,
    };
    let answer = line.ask(pay("/held", "key-4", "1")).await;
    assert!(answer.is_replay(), "{answer:?}");
    assert_eq!(scene.upstream.count("/held"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_1_keeps_its_promises() {
    keeps_its_promises(Way::Plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_2_with_prior_knowledge_keeps_its_promises() {
    keeps_its_promises(Way::PriorKnowledge).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_1_over_tls_keeps_its_promises() {
    keeps_its_promises(Way::Tls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_2_over_tls_keeps_its_promises() {
    keeps_its_promises(Way::TlsHttp2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unix_sockets_keep_its_promises() {
    keeps_its_promises(Way::Unix).await;
}

/// The name in a certificate is whose keys they are, over HTTP/2 too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_belong_to_whom_a_certificate_names() {
    let home = Home::on_sqlite();
    let upstream = Upstream::start(Speaks::Plain, home.path()).await;
    let ca = format!("client_ca_file = \"{}\"", certificates::path("ca").display());
    let routes = ROUTES.replace("\"shared\"", "\"mtls\"");
    home.configure(&upstream.url, &format!("{}{routes}", with_tls(&home, "server", &ca)));
    let gateway = home.run();
    let ask = async |name: &str, protocol: &'static [u8]| {
        let config = certificates::client(Some(name), &[protocol]);
        Line::tls(&gateway, config).await.ask(pay("/payments", "key-1", "1")).await
    };
    assert!(!ask("acme", b"h2").await.is_replay());
    assert!(ask("acme2", b"h2").await.is_replay(), "the same subject");
    assert!(ask("acme", b"http/1.1").await.is_replay(), "the same certificate");
    assert!(!ask("robot", b"h2").await.is_replay(), "somebody else");
    assert_eq!(upstream.count("/payments"), 2);
}

/// What HTTP/2 lets through and HTTP/1 cannot carry, or not without two meanings, goes no further.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_with_two_meanings_is_refused() {
    let scene = Scene::open(Way::PriorKnowledge).await;
    let mut line = scene.line(Way::PriorKnowledge).await;
    let with = |name: &str, value: &str| {
        let request = Request::post("http://api.example/payments").header(name, value);
        request.header("idempotency-key", "key-1").body(Full::from("1")).unwrap()
    };
    for (name, value, code) in [
        ("host", "other.example", "host_differs"),
        ("idempotency_key", "key-2", "twin"),
        ("expect", "a-miracle", "expectation"),
    ] {
        let answer = line.ask(with(name, value)).await;
        assert_eq!(answer.json()["code"], code, "{answer:?}");
        assert!(answer.status.is_client_error(), "{answer:?}");
    }
    assert_eq!(scene.upstream.runs().len(), 0);
    // The connection goes on, and crumbs of cookies arrive as one.
    let mut crumbs = with("cookie", "a=1");
    crumbs.headers_mut().append("cookie", "b=2".parse().unwrap());
    assert_eq!(line.ask(crumbs).await.status, 200);
    let run = &scene.upstream.runs()[0];
    assert_eq!((run.host.as_str(), run.cookie.as_str()), ("api.example", "a=1; b=2"));
}

/// A TCP connection that says the first word of HTTP/2 in two pieces is still understood.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_word_may_come_in_pieces() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let scene = Scene::open(Way::PriorKnowledge).await;
    let mut socket = TcpStream::connect(scene.gateway.address).await.unwrap();
    for piece in [&b"PR"[..], b"I * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\x04\0\0\0\0\0"] {
        socket.write_all(piece).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let mut frame = [0; 9];
    within("settings", socket.read_exact(&mut frame)).await.unwrap();
    assert_eq!(frame[3], 4, "the first frame of a server says its settings");
}
