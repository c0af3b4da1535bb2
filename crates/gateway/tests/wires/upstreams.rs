//! Every way out.

use bytes::Bytes;
use http::Version;

use crate::certificates;
use crate::client::{Way, pay};
use crate::clients::{ROUTES, Scene};
use crate::common::gateway::Home;
use crate::common::until;
use crate::upstream::{Run, Speaks, Upstream};

const LARGE: usize = 3 << 20;

async fn scene(speaks: Speaks) -> Scene {
    let home = Home::on_sqlite();
    let upstream = Upstream::start(speaks, home.path()).await;
    let ca = certificates::path("ca");
    let trust = format!("[server]\nupstream_ca_file = \"{}\"\n", ca.display());
    home.configure(&upstream.url, ROUTES);
    if matches!(speaks, Speaks::Tls(_) | Speaks::TlsHttp2(_) | Speaks::TlsHttp2Once(_)) {
        let text = std::fs::read_to_string(home.config()).unwrap();
        std::fs::write(home.config(), text.replace("[server]\n", &trust)).unwrap();
    }
    let gateway = home.run();
    Scene { home, upstream, gateway }
}

/// What holds whatever the upstream speaks, and what it saw of the last request.
async fn keeps_its_promises(speaks: Speaks) -> Run {
    let scene = scene(speaks).await;
    let mut line = scene.line(Way::Plain).await;
    let first = line.ask(pay("/payments", "key-1", "1")).await;
    assert_eq!((first.status.as_u16(), first.is_replay()), (200, false), "{first:?}");
    let again = line.ask(pay("/payments", "key-1", "1")).await;
    assert!(again.is_replay() && again.body == first.body, "{again:?}");
    assert_eq!(line.ask(pay("/payments", "key-1", "2")).await.status, 422);
    let large = || pay("/payments", "key-2", Bytes::from(vec![b'x'; LARGE]));
    assert_eq!(line.ask(large()).await.json()["length"], LARGE);
    assert!(line.ask(large()).await.is_replay());
    assert_eq!(scene.upstream.count("/payments"), 2);
    let mut asked = Vec::new();
    for _ in 0..20 {
        let mut line = scene.line(Way::Plain).await;
        asked.push(tokio::spawn(async move { line.ask(pay("/held", "key-3", "1")).await }));
    }
    until("nineteen that wait", async || scene.gateway.waiters().await == 19).await;
    // Others are not in its way.
    assert_eq!(line.ask(pay("/payments", "key-4", "1")).await.status, 200);
    scene.upstream.release();
    for one in asked {
        assert_eq!(one.await.unwrap().status, 200);
    }
    assert_eq!(scene.upstream.count("/held"), 1);
    scene.upstream.runs().pop().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstreams_behind_a_unix_socket_are_served_alike() {
    let run = keeps_its_promises(Speaks::Unix).await;
    assert_eq!((run.version, run.host.as_str()), (Version::HTTP_11, "api.example"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstreams_of_http_2_are_served_alike_and_addressed_as_they_should_be() {
    let run = keeps_its_promises(Speaks::PriorKnowledge).await;
    let (scheme, host) = (run.scheme.as_deref(), run.host.as_str());
    assert_eq!((run.version, scheme, host), (Version::HTTP_2, Some("http"), "api.example"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstreams_over_tls_are_served_alike() {
    let run = keeps_its_promises(Speaks::Tls("server")).await;
    assert_eq!((run.version, run.host.as_str()), (Version::HTTP_11, "api.example"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstreams_of_http_2_over_tls_are_served_alike_and_addressed_as_they_should_be() {
    let run = keeps_its_promises(Speaks::TlsHttp2("server")).await;
    let (scheme, host) = (run.scheme.as_deref(), run.host.as_str());
    assert_eq!((run.version, scheme, host), (Version::HTTP_2, Some("https"), "api.example"));
}

/// HTTP/2 on both sides, and TLS on both: what a service mesh looks like.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_2_may_be_spoken_on_both_sides() {
    let scene = scene(Speaks::TlsHttp2("server")).await;
    let mut line = scene.line(Way::PriorKnowledge).await;
    let first = line.ask(pay("/payments", "key-1", "1")).await;
    assert_eq!(first.status, 200, "{first:?}");
    assert!(line.ask(pay("/payments", "key-1", "1")).await.is_replay());
    assert_eq!(scene.upstream.count("/payments"), 1);
}

/// A request that the connection gave back goes over another one as it would have gone over it at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_goes_over_http1_after_all_names_its_host() {
    let scene = scene(Speaks::TlsHttp2Once("server")).await;
    let mut first = scene.line(Way::Plain).await;
    assert_eq!(first.ask(pay("/payments", "warm-up", "1")).await.status, 200);
    let held = tokio::spawn(async move { first.ask(pay("/held", "key-0", "1")).await });
    scene.upstream.until_count("/held", 1).await;
    let mut asked = Vec::new();
    for key in ["key-1", "key-2"] {
        let mut line = scene.line(Way::Plain).await;
        asked.push(tokio::spawn(async move { line.ask(pay("/payments", key, "1")).await }));
    }
    // They have come to the gateway, and wait there for the one that is held.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    scene.upstream.hang_up();
    assert_eq!(held.await.unwrap().json()["executed"], "unknown");
    for asked in asked {
        let answer = asked.await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let later = scene.upstream.runs().split_off(2);
    assert_eq!(later.len(), 2);
    for run in later {
        assert_eq!((run.version, &*run.host), (Version::HTTP_11, "api.example"), "{run:?}");
    }
}
