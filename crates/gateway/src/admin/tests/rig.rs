//! An admin listener with an engine on a SQLite file, and a client that sends what it is told.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use oncekey::clock::SystemClock;
use oncekey::core::{
    Class, Clock as _, Fence, Fingerprint, Headers, Key, KeyId, Origin, Owner, Places, Policy,
    Record, Restore as _, Saved, Scope, Sent, State,
};
use oncekey::engine::{Call, Engine, Finish, KeyRing, Reply};
use oncekey::store::Opened;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::admin::{
    Access, Admin, Audit, Events, Gateway, Payload, Reload, RouteView, Token, Written, serve,
};
use crate::telemetry::prometheus::Prometheus;

pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A running admin listener and what lies behind it.
pub(crate) struct Rig {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    pub(crate) store: Opened,
    pub(crate) gateway: Arc<Stage>,
    pub(crate) events: Events,
    pub(crate) folder: TempDir,
    pub(crate) token: Option<&'static str>,
    _end: oneshot::Sender<()>,
}

/// How a rig differs from the usual one.
#[derive(Clone, Default)]
pub(crate) struct Plan {
    pub(crate) token: Option<&'static str>,
    pub(crate) payload: Payload,
    pub(crate) audit: Option<PathBuf>,
    pub(crate) store: Option<Opened>,
    pub(crate) written: Written,
}

/// A gateway that does what a test says.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    pub(crate) draining: AtomicBool,
    pub(crate) upstream_down: AtomicBool,
    pub(crate) bad_config: AtomicBool,
    pub(crate) looks: AtomicUsize,
    pub(crate) reloads: AtomicUsize,
    /// How many seconds the leases of its route are respected after their end.
    pub(crate) grace: AtomicU64,
}

#[async_trait]
impl Gateway for Stage {
    fn routes(&self) -> Vec<RouteView> {
        let route = |name: &str, mode| RouteView {
            name: name.to_owned(),
            mode,
            methods: vec!["POST".to_owned()],
            path: "/v1/charges".to_owned(),
            class: "once",
            retention_seconds: 86_400,
        };
        vec![route("create-charge", "required"), route("<script>alert(1)</script>", "observe")]
    }

    fn policy(&self, route: &str) -> Option<Arc<Policy>> {
        let grace = Duration::from_secs(self.grace.load(Ordering::SeqCst));
        let policy = Policy { grace, ..Policy::default() };
        (route == "create-charge").then(|| Arc::new(policy))
    }

    async fn upstream(&self) -> Result<(), String> {
        self.looks.fetch_add(1, Ordering::SeqCst);
        match self.upstream_down.load(Ordering::SeqCst) {
            true => Err("connection refused".to_owned()),
            false => Ok(()),
        }
    }

    async fn reload(&self, reload: Reload) -> Result<Vec<String>, String> {
        if self.bad_config.load(Ordering::SeqCst) {
            return Err("oncekey.toml:3:1: `modee` is not a setting".to_owned());
        }
        if reload == Reload::Apply {
            self.reloads.fetch_add(1, Ordering::SeqCst);
        }
        Ok(vec!["create-charge: observe → required".to_owned()])
    }

    fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }
}

impl Rig {
    pub(crate) async fn new() -> Self {
        Self::with(Plan::default()).await
    }

    pub(crate) async fn with(plan: Plan) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = match plan.store {
            Some(store) => store,
            None => {
                let url = format!("sqlite://{}", folder.path().join("keys.db").display());
                oncekey::store::open(&url).await.unwrap()
            }
        };
        let mut engine = Engine::builder(Arc::new(store.clone()));
        if plan.written == Written::Encrypted {
            let digits = "9f3c17e86d204ab55be1d07c42f8936ac1704edb8a35f69210be57d34c98a26f";
            engine = engine.encryption(KeyRing::parse(&format!("a:{digits}")).unwrap());
        }
        let engine = engine.build().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let token = plan.token.map(|token| Token::new(token).unwrap());
        let access = Access::new(address, token, &["ops.example".to_owned()]).unwrap();
        let (gateway, events) = (Arc::new(Stage::default()), Events::default());
        let access = access.payload(plan.payload);
        let metrics = Prometheus::apart();
        let mut admin =
            Admin::new(engine.clone(), store.clone(), Arc::clone(&gateway) as _, metrics, access)
                .events(events.clone())
                .instance("node-1")
                .written(plan.written);
        if let Some(path) = &plan.audit {
            admin = admin.audit(Audit::open(path).unwrap());
        }
        let (end, ended) = oneshot::channel::<()>();
        tokio::spawn(serve(listener, Arc::new(admin), async { drop(ended.await) }));
        let token = plan.token;
        Self { address, engine, store, gateway, events, folder, token, _end: end }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(&self.head("GET", path, "")).await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        let extra = format!(
            "Content-Type: application/json\r\nContent-Length: {}\r\nOncekey-Actor: ada\r\n",
            body.len()
        );
        self.send(&format!("{}{body}", self.head("POST", path, &extra))).await
    }

    /// The head of a request that a good client would send, with more lines.
    pub(crate) fn head(&self, method: &str, path: &str, extra: &str) -> String {
        let token = self.token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let token = token.unwrap_or_default();
        let host = self.address;
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{token}{extra}\r\n"
        )
    }

    /// Sends bytes as they are, and reads until the end.
    pub(crate) async fn send(&self, request: &str) -> Answer {
        let (address, request) = (self.address, request.to_owned());
        let talk = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            // The other side may answer and hang up before it has read everything.
            drop(stream.write_all(request.as_bytes()));
            let mut bytes = Vec::new();
            drop(stream.read_to_end(&mut bytes));
            Answer::read(&bytes)
        });
        talk.await.unwrap()
    }

    /// Work that was done once, with an answer that is kept.
    pub(crate) async fn done(&self, key: &str) -> KeyId {
        let call = self.call(key);
        let id = call.id;
        let work = async |attempt: oncekey::engine::Attempt| {
            attempt.send().await.expect("may send");
            Finish::answered(saved("<script>alert(1)</script>"), ())
        };
        assert!(matches!(self.engine.answer(call, work).await, Reply::Ran(_)));
        id
    }

    /// Asks again for what was done, and says whether the work ran.
    pub(crate) async fn retry(&self, key: &str) -> Reply<()> {
        self.engine.answer(self.call(key), async |_| Finish::answered(saved("again"), ())).await
    }

    pub(crate) fn call(&self, key: &str) -> Call {
        let (key, scope) = (Key::new(key.as_bytes()).unwrap(), Scope::new("tenant-7").unwrap());
        Call {
            exact: None,
            id: self.engine.key_id(&scope, &key),
            key,
            scope,
            fingerprint: Fingerprint::from_parts(1, [7; 32]),
            places: Places::default(),
            route: "create-charge".into(),
            request: self.engine.request_id(),
            policy: Arc::default(),
        }
    }

    /// A record in a state that would take time or a crash to get into.
    pub(crate) async fn put(&self, key: &str, state: State) -> KeyId {
        let call = self.call(key);
        let now = SystemClock.now();
        let record = Record {
            id: call.id,
            fence: Fence::next(None, now),
            owner: Owner::from_bytes([3; 16]),
            fingerprint: call.fingerprint,
            class: Class::Once,
            created: now.before(Duration::from_secs(600)),
            origin: Origin {
                key: call.key.as_bytes().into(),
                scope: call.scope.as_bytes().into(),
                route: "create-charge".into(),
                request: "req_1".into(),
            },
            places: Places::default(),
            state,
        };
        self.store.restore(&record).await.unwrap();
        record.id
    }

    pub(crate) async fn unknown(&self, key: &str) -> KeyId {
        self.put(key, State::Unknown { since: SystemClock.now() }).await
    }

    /// Work whose owner is alive for a minute, or was a minute ago.
    pub(crate) async fn running(&self, key: &str, alive: bool) -> KeyId {
        let (now, minute) = (SystemClock.now(), Duration::from_secs(60));
        let until = if alive { now.after(minute) } else { now.before(minute) };
        self.put(key, State::Running { until, sent: Sent::Yes }).await
    }
}

pub(crate) fn saved(body: &'static str) -> Saved {
    let mut headers = Headers::new();
    headers.push(b"content-type", b"text/html").unwrap();
    Saved { status: 201, headers, body: Bytes::from_static(body.as_bytes()) }
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    fn read(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The code of a problem; anything else is a failure of the test.
    pub(crate) fn code(&self) -> String {
        assert!(self.head.contains("content-type: application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status);
        problem["code"].as_str().unwrap().to_owned()
    }
}
