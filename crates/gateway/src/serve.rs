//! The gateway, put together from a configuration and running.

mod bind;
mod reload;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use oncekey::clock::{SystemUptime, Uptime as _};
use oncekey::core::Policy;
use oncekey::engine::Drained;
use oncekey::entropy::SystemEntropy;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

pub(crate) use self::bind::Ports;
use self::bind::{bind, bind_admin, local};
use crate::admin::{self, Access, Admin, Audit, Events, Gateway, Reload, RouteView, Token};
use crate::completer::Completer;
use crate::config::{Config, Drain, Env, Options};
use crate::exit::{self, Exit};
use crate::keeping::Keeping;
use crate::notify::Notify as Systemd;
use crate::observe::{Ledger, Observer};
use crate::plan::Plan;
use crate::proxy::{Deadlines, Front, Terms, tls_for_clients};
use crate::route::Route;
use crate::stop::{Stop, Stopper, stop};
use crate::telemetry::prometheus::Prometheus;
use crate::telemetry::trace::Tracer;
use crate::vigil::Vigil;

/// A gateway that serves clients.
pub(crate) struct Running {
    gate: Arc<Gate>,
    pub(crate) listen: String,
    pub(crate) admin: SocketAddr,
    clients: JoinHandle<()>,
    operators: JoinHandle<()>,
    loops: Vec<JoinHandle<()>>,
    stop_completer: Stopper,
    stop_clients: Stopper,
    stop_operators: Stopper,
}

/// Where the configuration came from, to read it again.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// `None` if everything was said on the command line.
    pub(crate) file: Option<PathBuf>,
    pub(crate) options: Options,
    /// How it ends, whatever the configuration says: for a program that somebody watches.
    pub(crate) drain: Option<Drain>,
    pub(crate) ports: Ports,
}

/// What those need who look at the gateway or change it while it runs.
struct Gate {
    front: Arc<Front>,
    keeping: Keeping,
    ledger: Ledger,
    config: ArcSwap<Config>,
    /// What the last configuration that was read names, also if it was refused.
    tried: ArcSwap<Vec<PathBuf>>,
    terms: Arc<ArcSwap<Terms>>,
    access: Arc<Access>,
    /// What some settings stay at until a restart.
    started: Started,
    origin: Origin,
    /// Where clients come in.
    listen: String,
    manager: Systemd,
    /// One reload at a time.
    reloading: Mutex<()>,
    draining: AtomicBool,
    drain: Notify,
}

/// The configuration at the start, and what stood in files that are read once.
struct Started {
    config: Config,
    files: Vec<(&'static str, Option<[u8; 32]>)>,
}

/// What the listener for operators is made of.
struct Staff {
    listener: TcpListener,
    metrics: Prometheus,
    audit: Audit,
}

/// How long the end waits until what was observed last is in the store, and the last spans are with
/// their collector.
const LAST_NUMBERS: Duration = Duration::from_secs(5);
/// How long it waits until clients whose work was stopped have their answers: they are small.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

impl Origin {
    /// Reads the configuration, with everything that is wrong with it.
    pub(crate) fn load(&self) -> Result<Config, Exit> {
        let env = Env::of_process();
        let config = match &self.file {
            Some(file) => Config::load_with(file, &env, &self.options),
            None => Config::for_upstream(&self.options, &env),
        };
        let mut config = config.map_err(|problems| crate::config::refusal(&problems))?;
        config.server.drain = self.drain.unwrap_or(config.server.drain);
        Ok(config)
    }

    /// What the configuration names, right or wrong.
    fn files(&self) -> Vec<PathBuf> {
        let file = self.file.as_deref();
        file.map_or_else(Vec::new, |file| Config::files_of(file, &Env::of_process(), &self.options))
    }
}

impl Running {
    /// Starts to serve. When this returns, clients are answered.
    pub(crate) async fn start(
        config: Config,
        origin: Origin,
        metrics: Prometheus,
        manager: Systemd,
    ) -> Result<Self, Exit> {
        let started = Started { config: config.clone(), files: config.fixed_files() };
        // First of all, because a start that fails here must not leave a new store behind.
        let listener = bind(&config.server.listen, origin.ports).await?;
        let operators = bind_admin(config.admin.listen, origin.ports).await?;
        let keeping = Keeping::open(&config.store).await?;
        let tracer = Tracer::start(&config)?;
        let plan = Plan::new(&config, &keeping, &tracer)?;
        keeping.probes.replace(plan.knowers.clone());
        let front = Arc::new(Front {
            plan: ArcSwap::from_pointee(plan),
            engine: keeping.engine.clone(),
            observer: Arc::new(Observer::new()),
            events: Events::default(),
            tracer,
        });
        let audit = audit(&config)?;
        let terms = Arc::new(ArcSwap::from_pointee(terms(&config)?));
        let access = Arc::new(access(&config)?);
        let (stop_completer, completer_stopped) = stop();
        let mut loops = loops(&config, &keeping, &front);
        loops.push(tokio::spawn(completer(&keeping, &front, completer_stopped).run()));
        let ledger = ledger(&config, &keeping, &front);
        loops.push(tokio::spawn(ledger.clone().run()));
        let (listen, admin) = (listener.address(), local(&operators)?);
        let most = config.server.max_connections;
        let gate = Arc::new(Gate {
            front: Arc::clone(&front),
            keeping,
            ledger,
            config: ArcSwap::from_pointee(config),
            tried: ArcSwap::default(),
            terms: Arc::clone(&terms),
            access,
            started,
            origin,
            listen: listen.clone(),
            manager,
            reloading: Mutex::new(()),
            draining: AtomicBool::new(false),
            drain: Notify::new(),
        });
        let (stop_clients, stopped) = stop();
        let (stop_operators, operators_stopped) = stop();
        let clients = tokio::spawn(listener.serve(front, terms, most, stopped));
        let staff = Staff { listener: operators, metrics, audit };
        let operators = Arc::clone(&gate).serve_operators(staff, operators_stopped);
        let operators = tokio::spawn(operators);
        gate.manager.ready(&gate.status());
        Ok(Self {
            gate,
            listen,
            admin,
            clients,
            operators,
            loops,
            stop_completer,
            stop_clients,
            stop_operators,
        })
    }

    /// Finished requests, as they happen.
    pub(crate) fn events(&self) -> &Events {
        &self.gate.front.events
    }

    /// What the configuration in force was read from, and what one names that was refused since.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut files = self.gate.config.load().files.clone();
        files.extend(self.gate.tried.load().iter().cloned());
        files.sort();
        files.dedup();
        files
    }

    /// Waits until an operator wants it to drain.
    pub(crate) async fn drain_wanted(&self) {
        self.gate.drain.notified().await;
    }

    /// Puts a new configuration in force, or says why not.
    pub(crate) async fn reload(&self) -> Result<Vec<String>, String> {
        self.gate.reload(Reload::Apply).await
    }

    /// Ends it: readiness fails first, then nobody new is taken, then what runs is finished and
    /// what was never sent is handed back.
    pub(crate) async fn finish(mut self) -> Drained {
        self.gate.draining.store(true, Ordering::SeqCst);
        self.gate.manager.stopping("finishes what is under way");
        // What it would begin now, another gateway or the next start begins, too.
        self.stop_completer.raise();
        let drain = self.gate.config.load().server.drain;
        // Whoever sends clients here looks at the readiness now and then.
        sleep(drain.delay).await;
        self.stop_clients.raise();
        // Clients and work share the time: whoever supervises us adds delay and timeout up, and kills
        // what is still there then.
        let began = SystemUptime.elapsed();
        drop(timeout(drain.timeout, &mut self.clients).await);
        self.stop_clients.insist();
        // A store that hangs does not hang the end.
        drop(timeout(LAST_NUMBERS, self.gate.ledger.write()).await);
        let left = drain.timeout.saturating_sub(SystemUptime.elapsed().saturating_sub(began));
        let drained = self.gate.keeping.engine.shutdown(left).await;
        if !self.clients.is_finished() {
            // Those whose work was stopped are told so.
            drop(timeout(LAST_ANSWERS, &mut self.clients).await);
        }
        self.gate.front.tracer.flush(LAST_NUMBERS).await;
        self.loops.iter().for_each(JoinHandle::abort);
        self.stop_operators.raise();
        drop(self.operators.await);
        drained
    }
}

impl Gate {
    async fn serve_operators(self: Arc<Self>, staff: Staff, stop: Stop) {
        let Staff { listener, metrics, audit } = staff;
        let instance = self.config.load().server.instance.clone();
        let (engine, store) = (self.keeping.engine.clone(), self.keeping.store.clone());
        let (events, access) = (self.front.events.clone(), Arc::clone(&self.access));
        let ledger = self.ledger.clone();
        let written = self.started.config.store.written();
        let admin = Admin::new(engine, store, self, metrics, access)
            .events(events)
            .ledger(ledger)
            .audit(audit)
            .instance(instance)
            .written(written);
        admin::serve(listener, Arc::new(admin), async move { stop.raised().await }).await;
    }

    /// One line for people.
    fn status(&self) -> String {
        format!("serves {}, upstream {}", self.listen, self.config.load().server.upstream)
    }
}

#[async_trait]
impl Gateway for Gate {
    fn routes(&self) -> Vec<RouteView> {
        self.front.plan.load().routes.routes().iter().map(|route| view(route)).collect()
    }

    fn policy(&self, route: &str) -> Option<Arc<Policy>> {
        let plan = self.front.plan.load();
        let found = plan.routes.routes().iter().find(|known| known.name() == route);
        found.map(|route| Arc::clone(&route.spec.policy))
    }

    async fn upstream(&self) -> Result<(), String> {
        let upstream = self.front.plan.load().upstream.clone();
        upstream.check().await.map_err(|error| format!("{}: {error}", upstream.target()))
    }

    /// # Cancellation
    /// While it is being read, nothing has changed; then everything changes at once.
    async fn reload(&self, reload: Reload) -> Result<Vec<String>, String> {
        let _one = self.reloading.lock().await;
        if reload == Reload::DryRun {
            return self.replace(self.load().await?, reload);
        }
        self.manager.reloading();
        let replaced = self.load().await.and_then(|new| self.replace(new, reload));
        match &replaced {
            Ok(_) => self.manager.ready(&self.status()),
            Err(why) => {
                self.manager.ready(&format!("the old configuration stays in force: {why}"));
            }
        }
        replaced
    }

    fn drain(&self) {
        if !self.draining.swap(true, Ordering::SeqCst) {
            self.drain.notify_one();
        }
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Gate").finish_non_exhaustive()
    }
}

fn view(route: &Route) -> RouteView {
    let spec = &route.spec;
    RouteView {
        name: route.name().to_owned(),
        mode: route.mode().label(),
        methods: spec.protected_methods().iter().map(|method| method.as_str().to_owned()).collect(),
        path: spec.pattern.path().to_owned(),
        class: spec.policy.class.label(),
        retention_seconds: spec.policy.retention.as_secs(),
    }
}

fn loops(config: &Config, keeping: &Keeping, front: &Arc<Front>) -> Vec<JoinHandle<()>> {
    let (every, batch) = (config.store.sweep_every, config.store.sweep_batch);
    let reaper = keeping.engine.reaper().every(every).batch(batch);
    let front = Arc::clone(front);
    let sweeper = keeping.engine.sweeper(Arc::new(keeping.store.clone())).policies(move |route| {
        let plan = front.plan.load();
        let found = plan.routes.routes().iter().find(|known| known.name() == route);
        found.map(|route| Arc::clone(&route.spec.policy))
    });
    let vigil = Vigil::new(keeping.engine.clone(), keeping.store.clone());
    vec![tokio::spawn(reaper.run()), tokio::spawn(sweeper.run()), tokio::spawn(vigil.run())]
}

fn completer(keeping: &Keeping, front: &Arc<Front>, stop: Stop) -> Completer {
    let entropy = Arc::<SystemEntropy>::default();
    Completer::new(Arc::clone(front), keeping.clone(), entropy, stop)
}

fn ledger(config: &Config, keeping: &Keeping, front: &Arc<Front>) -> Ledger {
    let (observer, instance) = (Arc::clone(&front.observer), config.server.instance.clone());
    Ledger::new(keeping.engine.clone(), observer, instance, config.telemetry.observed)
}

/// What holds for every client.
pub(crate) fn terms(config: &Config) -> Result<Terms, Exit> {
    let server = &config.server;
    let tls = server.tls.as_ref().map(tls_for_clients).transpose();
    let tls = tls.map_err(|error| {
        Exit::chain(exit::INVALID, "clients cannot be served with TLS", Some(&error))
    })?;
    let deadlines = Deadlines {
        head: server.timeouts.header,
        body: server.timeouts.body,
        idle: server.timeouts.idle,
        max_head: server.max_head,
    };
    Ok(Terms { tls, deadlines })
}

fn access(config: &Config) -> Result<Access, Exit> {
    let access = Access::new(config.admin.listen, token(config)?, &config.admin.names);
    let access = access.map_err(|error| unserved(&error))?;
    Ok(access.payload(config.admin.payload))
}

/// What operators have to send, if anything.
pub(crate) fn token(config: &Config) -> Result<Option<Token>, Exit> {
    let token = config.admin.token_file.as_deref().map(Token::from_file).transpose();
    token.map_err(|error| unserved(&error))
}

fn unserved(error: &(dyn std::error::Error + 'static)) -> Exit {
    Exit::chain(exit::INVALID, "operators cannot be served", Some(error))
}

/// What changes are written down in.
fn audit(config: &Config) -> Result<Audit, Exit> {
    let Some(path) = &config.admin.audit_file else { return Ok(Audit::in_memory()) };
    Audit::open(path).map_err(|error| {
        let what = format!("cannot write to admin.audit_file {}", path.display());
        Exit::chain(exit::INVALID, &what, Some(&error))
    })
}
