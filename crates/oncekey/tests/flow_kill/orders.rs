//! What a child process does: the seed's order flow, a saga, a flow that is frozen.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use oncekey::core::{Key, Scope};
use oncekey::flow::testing::{Fault, Plan, Shaky};
use oncekey::flow::{
    Compensation, Completer, Definition, Did, Failed, Flow, FlowKey, Flows, Halt, Options, Outcome,
    PhaseTx, Reply, Safety, TxStore, Value,
};

use super::child::{tell, wait_for_parent};

/// Where the provider is.
pub(crate) const PROVIDER: &str = "ONCEKEY_TEST_PROVIDER";

/// What a child is there for.
#[derive(Debug)]
pub(crate) struct Role {
    flow: String,
    finishes: bool,
    number: u64,
}

impl Role {
    pub(crate) fn of(role: &str, number: u64) -> Self {
        let (flow, finishes) = match role.strip_suffix("-finish") {
            Some(flow) => (flow, true),
            None => (role, false),
        };
        Self { flow: flow.to_owned(), finishes, number }
    }
}

/// The application's tables, named after oncekey's so that every test has its own.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    rides: Arc<str>,
    receipts: Arc<str>,
    pub(crate) count_rides: Arc<str>,
    pub(crate) count_receipts: Arc<str>,
    make: String,
}

impl Tables {
    pub(crate) fn new<S: TxStore>(store: &S) -> Self {
        // `{flows}` with something behind it is a name in the same schema or with the same prefix.
        let of = |sql: &str| store.layout().statement(sql);
        let text = match store.layout().dialect() {
            oncekey::flow::Dialect::Mysql => "VARBINARY(99)",
            _ => "TEXT",
        };
        let make = format!(
            "CREATE TABLE {{flows}}_rides (flow {text} NOT NULL); \
             CREATE TABLE {{flows}}_receipts (flow {text} NOT NULL);"
        );
        Self {
            rides: of("INSERT INTO {flows}_rides (flow) VALUES (?)"),
            receipts: of("INSERT INTO {flows}_receipts (flow) VALUES (?)"),
            count_rides: of("SELECT count(*) FROM {flows}_rides WHERE flow = ?"),
            count_receipts: of("SELECT count(*) FROM {flows}_receipts WHERE flow = ?"),
            make: of(&make).to_string(),
        }
    }

    pub(crate) async fn make<S: TxStore>(&self, store: &S) {
        store.script(&self.make).await.unwrap();
    }
}

/// What a flow of a child works with.
#[derive(Clone)]
struct Kit {
    plan: Plan,
    tables: Tables,
    name: String,
}

impl Kit {
    async fn insert<S: TxStore>(
        &self,
        tx: &mut PhaseTx<Shaky<S>>,
        sql: &Arc<str>,
    ) -> Result<(), Halt> {
        self.plan.point().await?;
        S::execute(&mut **tx, sql, &[Value::Text(&self.name)]).await?;
        self.plan.point().await?;
        Ok(())
    }

    /// A call over the wire, with points before it, between request and answer, and after it.
    async fn call(&self, key: &str, what: &str) -> Result<String, Failed> {
        let broken = |why: &dyn std::fmt::Display| Failed::Unknown(why.to_string());
        self.plan.point().await.map_err(|error| broken(&error))?;
        let mut stream = TcpStream::connect(std::env::var(PROVIDER).unwrap()).unwrap();
        writeln!(stream, "{key} {what}@{}", self.name).map_err(|error| broken(&error))?;
        // Received and booked, because the line is on its way and the provider is not killed; whether
        // its answer is read is another matter.
        self.plan.point().await.map_err(|error| broken(&error))?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).map_err(|error| broken(&error))?;
        self.plan.point().await.map_err(|error| broken(&error))?;
        Ok(what.to_owned())
    }
}

const DAY: Duration = Duration::from_secs(86_400);

fn rides<S: TxStore>(kit: &Kit) -> Definition<Shaky<S>> {
    let kit = kit.clone();
    Definition::new("rides", move |flow: Flow<Shaky<S>>, (): ()| {
        let kit = kit.clone();
        async move {
            flow.phase("order_created", async |tx| kit.insert(tx, &kit.tables.rides).await).await?;
            flow.effect::<String>("charge_created", Safety::Keyed { window: DAY })
                .bind(&kit.name)
                .call(async |key| kit.call(key, "charge").await)
                .await?;
            flow.finish(async |tx| {
                kit.insert(tx, &kit.tables.receipts).await?;
                Reply::json(201, &"ride")
            })
            .await
        }
    })
}

/// The same with as few commits as possible: the flow is written with the phase, which announces the call, and
/// the end stages a message.
fn swift<S: TxStore>(kit: &Kit) -> Definition<Shaky<S>> {
    let kit = kit.clone();
    let swift = Definition::new("swift", move |flow: Flow<Shaky<S>>, (): ()| {
        let kit = kit.clone();
        async move {
            let safety = Safety::Keyed { window: DAY };
            flow.phase("order_created", async |tx| {
                tx.intend("charge_created", safety, &kit.name)?;
                kit.insert(tx, &kit.tables.rides).await
            })
            .await?;
            flow.effect::<String>("charge_created", safety)
                .bind(&kit.name)
                .call(async |key| kit.call(key, "charge").await)
                .await?;
            flow.finish(async |tx| {
                kit.insert(tx, &kit.tables.receipts).await?;
                tx.stage_at_end(kit.name.clone(), &"ride")?;
                Reply::json(201, &"ride")
            })
            .await
        }
    });
    swift.start_with_first_step()
}

fn saga<S: TxStore>(kit: &Kit) -> Definition<Shaky<S>> {
    let kit = kit.clone();
    Definition::new("saga", move |flow: Flow<Shaky<S>>, (): ()| {
        let kit = kit.clone();
        async move {
            flow.phase("order_created", async |tx| kit.insert(tx, &kit.tables.rides).await).await?;
            for (what, back) in [("reserve", "release"), ("charge", "refund")] {
                flow.effect::<String>(what, Safety::Keyed { window: DAY })
                    .undo("take back", &back)
                    .call(async |key| kit.call(key, what).await)
                    .await?;
            }
            flow.effect::<()>("ship", Safety::Keyed { window: DAY })
                .call(async |_| match Reply::json(409, &"sold out") {
                    Ok(reply) => Err(Failed::Final(reply)),
                    Err(halt) => Err(Failed::NotDone(halt.to_string())),
                })
                .await?;
            flow.finish(async |_| Ok(Reply::empty(201))).await
        }
    })
}

/// Stops itself inside of a phase, so that its lease lapses while its rows are written but not
/// committed; on SQLite before it writes, because there an open transaction keeps everybody out.
fn frozen<S: TxStore>(kit: &Kit, is_first: bool) -> Definition<Shaky<S>> {
    let kit = kit.clone();
    Definition::new("frozen", move |flow: Flow<Shaky<S>>, (): ()| {
        let kit = kit.clone();
        async move {
            let lite = kit.is_lite();
            if is_first && lite {
                stop_here();
            }
            flow.phase("order_created", async |tx| match is_first {
                true => {
                    kit.insert(tx, &kit.tables.rides).await?;
                    if !lite {
                        stop_here();
                    }
                    Ok(())
                }
                false => Ok(()),
            })
            .await?;
            flow.finish(async |tx| {
                kit.insert(tx, &kit.tables.receipts).await?;
                Reply::json(201, &if is_first { "first" } else { "second" })
            })
            .await
        }
    })
}

impl Kit {
    fn is_lite(&self) -> bool {
        self.tables.rides.contains("oncekey_flows_rides") && self.tables.rides.contains('?')
    }
}

/// SIGSTOP to the whole process, heart included.
fn stop_here() {
    tell("about to stop");
    let me = rustix::process::getpid();
    rustix::process::kill_process(me, rustix::process::Signal::STOP).unwrap();
    // Another thread may be the one to hear the signal, a moment later: not a step further until then.
    assert!(wait_for_parent(), "the parent says when to go on");
}

pub(crate) async fn run<S: TxStore>(store: S, role: Role) {
    let plan = Plan::new();
    plan.watch_every_statement();
    let name = format!("{}-{}", role.flow, role.number);
    let kit = Kit { plan: plan.clone(), tables: Tables::new(&store), name: name.clone() };
    let undo = kit.clone();
    let options = Options {
        lease: Duration::from_millis(if role.number == 0 { 30_000 } else { 400 }),
        grace: Duration::ZERO,
        pause: Duration::ZERO,
        ..Options::default()
    };
    let flows = Flows::builder(Shaky::new(store, plan.clone()), "kill")
        .options(options)
        .flow(match role.flow.as_str() {
            "rides" => rides(&kit),
            "swift" => swift(&kit),
            "saga" => saga(&kit),
            _ => frozen(&kit, !role.finishes),
        })
        .compensation(
            "take back",
            Compensation::new(move |what: String, _: Did<String>, key: String| {
                let kit = undo.clone();
                async move { kit.call(&key, &what).await.map(drop) }
            }),
        )
        .build()
        .unwrap();
    let key = FlowKey::new(Scope::shared(), Key::new(name.as_bytes()).unwrap());
    if role.number > 0 && !role.finishes && role.flow != "frozen" {
        let kill = || {
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
        };
        plan.arm(role.number, Fault::Do(Arc::new(kill)));
    }
    let completer = Completer::new(flows.clone());
    for _ in 0..400 {
        match flows.run(&role.flow, &key, &()).await {
            Ok(Outcome::Replied { reply, .. }) => {
                let points = plan.count();
                match role.number {
                    0 => tell(&format!("points {points}")),
                    _ => {
                        let body = String::from_utf8_lossy(reply.body()).into_owned();
                        tell(&format!("reply {} {body}", reply.status()))
                    }
                };
                return;
            }
            Ok(Outcome::InProgress { .. } | Outcome::Later { .. }) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                completer.run_once().await.unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("the flow did not end");
}
