//! One connection to one server, made again when it breaks.
//!
//! All callers share it: their commands are written one after the other, as they come, and the
//! answers come back in that order. A connection on which an answer failed to come in time is never
//! used again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, Value};
use tokio::sync::Mutex;

use super::error::Failure;
use super::info::{self, Eviction, Info};
use super::life::{Guard, Life, Restart, Witness};

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) connect: Duration,
    pub(super) answer: Duration,
}

/// Who sends over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Users {
    /// Many, each for itself: one that gives up says nothing about the connection.
    Many,
    /// The thread that renews leases. It gives a renewal up long before the answer is late, and one that was
    /// given up in vain round after round would keep a connection that leads nowhere until the leases lapse.
    Heart,
}

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Link {
    client: Client,
    users: Users,
    patience: Patience,
    guard: Arc<Guard>,
    node: Option<Arc<str>>,
    open: RwLock<Option<Open>>,
    /// Held by whoever makes the connection; what is in it is how the last attempt failed.
    dialing: Mutex<Option<Failure>>,
    attempts: AtomicU64,
}

#[derive(Clone)]
struct Open {
    number: u64,
    connection: MultiplexedConnection,
    life: Arc<Life>,
    /// As it was when somebody looked last.
    eviction: Eviction,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Open({})", self.number)
    }
}

impl Link {
    pub(super) fn new(
        (client, users): (Client, Users),
        patience: Patience,
        guard: Arc<Guard>,
        node: Option<Arc<str>>,
    ) -> Self {
        Self {
            client,
            users,
            patience,
            guard,
            node,
            open: RwLock::new(None),
            dialing: Mutex::new(None),
            attempts: AtomicU64::new(0),
        }
    }

    /// What the connection is made with.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Sends a command and waits for its answer. Not connected means that nothing was sent.
    pub(super) async fn send(&self, command: &Cmd) -> Result<(Value, Witness), Failure> {
        let Open { number, mut connection, life, .. } = self.connection().await?;
        let witness = self.guard.witness(life);
        let asked = Asked { link: self, number };
        let answer = command.query_async(&mut connection).await;
        asked.end();
        Ok((answer.map_err(|error| self.failed(number, error))?, witness))
    }

    /// Sends a command that may grant a key, unless something was lost. Asked once the connection
    /// stands: a server that was promoted is noticed when the connection to it is made, and the very
    /// call for which it was made must not slip through.
    pub(super) async fn send_grant(&self, command: &Cmd) -> Result<(Value, Witness), Failure> {
        let Open { number, mut connection, life, eviction } = self.connection().await?;
        if eviction == Eviction::Possible {
            self.look_again(number).await?;
        }
        // Before the loss is looked at: one that comes in between makes the grant doubtful.
        let witness = self.guard.witness(life);
        if let Some(loss) = self.guard.loss() {
            return Err(Failure::Lost(loss));
        }
        let answer = command.query_async(&mut connection).await;
        Ok((answer.map_err(|error| self.failed(number, error))?, witness))
    }

    /// Sends several commands with nobody else's in between.
    pub(super) async fn send_all(
        &self,
        commands: &Pipeline,
    ) -> Result<(Vec<Value>, Witness), Failure> {
        let Open { number, mut connection, life, .. } = self.connection().await?;
        let witness = self.guard.witness(life);
        let answers = commands.query_async(&mut connection).await;
        Ok((answers.map_err(|error| self.failed(number, error))?, witness))
    }

    /// Sends several commands with nobody else's in between, and asks behind them who has answered:
    /// a server that became a replica and a primary again keeps its connections.
    pub(super) async fn send_all_and_ask_who(
        &self,
        mut commands: Pipeline,
    ) -> Result<(Vec<Value>, Witness), Failure> {
        commands.cmd("INFO").arg("server").arg("replication");
        let (mut answers, asked) = self.send_all(&commands).await?;
        let info = Info::of(&answers.pop().ok_or(Failure::Odd("INFO"))?);
        let life = self.guard.meet(asked.life().later(&info)?);
        Ok((answers, self.guard.witness(life)))
    }

    /// The server could throw records away when this connection was made. Grants go on when it cannot
    /// any more.
    async fn look_again(&self, number: u64) -> Result<(), Failure> {
        if self.info().await?.eviction() == Eviction::Possible {
            return Err(Failure::Evicts);
        }
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = open.as_mut().filter(|open| open.number == number) {
            open.eviction = Eviction::Never;
        }
        Ok(())
    }

    /// What the server says about itself, on this connection.
    pub(super) async fn info(&self) -> Result<Info, Failure> {
        Ok(Info::of(&self.send(&redis::cmd("INFO")).await?.0))
    }

    async fn connection(&self) -> Result<Open, Failure> {
        // Read before the connection is looked at: an attempt that began later is news.
        let seen = self.attempts.load(Ordering::Acquire);
        if let Some(open) = self.opened() {
            return Ok(open);
        }
        let mut failure = self.dialing.lock().await;
        if let Some(open) = self.opened() {
            return Ok(open);
        }
        // A thousand callers that wait for one attempt share its failure. Each trying in turn would
        // make the last one wait a thousand times as long as it takes to find nobody there.
        if self.attempts.load(Ordering::Acquire) > seen
            && let Some(failure) = &*failure
        {
            return Err(failure.clone());
        }
        let dialed = self.dial().await;
        let number = self.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        match dialed {
            Ok((connection, life, eviction)) => {
                let open = Open { number, connection, life, eviction };
                *self.open.write().unwrap_or_else(PoisonError::into_inner) = Some(open.clone());
                *failure = None;
                Ok(open)
            }
            Err(reason) => {
                *failure = Some(reason.clone());
                Err(reason)
            }
        }
    }

    fn opened(&self) -> Option<Open> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn dial(&self) -> Result<(MultiplexedConnection, Arc<Life>, Eviction), Failure> {
        let Patience { connect, answer } = self.patience;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(connect))
            .set_response_timeout(Some(answer));
        let dialing = async {
            let mut connection =
                self.client.get_multiplexed_async_connection_with_config(&config).await?;
            let info: Value = redis::cmd("INFO").query_async(&mut connection).await?;
            let asked = info::ask_fsync().query_async(&mut connection).await;
            // Services that run Redis for others often forbid CONFIG. Then nobody knows.
            let fsync = match asked {
                Ok(value) => info::fsync(&value),
                Err(error) if error.code().is_some() => None,
                Err(error) => return Err(error),
            };
            Ok::<_, RedisError>((connection, Info::of(&info), fsync))
        };
        let dialed = tokio::time::timeout(connect + answer, dialing).await;
        let late = || RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let (connection, info, fsync) =
            dialed.map_err(|_| late()).and_then(|dialed| dialed).map_err(Failure::Unreachable)?;
        let restart = Restart::of(info.tier(fsync.as_deref()));
        let life = Life::of(&info, self.node.clone(), restart)?;
        Ok((connection, self.guard.meet(life), info.eviction()))
    }

    /// Tells apart what the server said from what came of the connection. One that leads to a replica,
    /// which was the primary when it was made, is not used again: the address may lead to the primary.
    fn failed(&self, number: u64, error: RedisError) -> Failure {
        let failure = match error.code() {
            None => Failure::Broken(error),
            Some("READONLY") => Failure::Refused(error),
            Some(_) => return Failure::Refused(error),
        };
        self.leave(number);
        failure
    }

    /// Whether a connection stands, as far as anybody knows.
    pub(super) fn is_open(&self) -> bool {
        self.opened().is_some()
    }

    /// Uses a connection no more.
    fn leave(&self, number: u64) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        // Not the next one, which somebody may have made meanwhile.
        if open.as_ref().is_some_and(|open| open.number == number) {
            *open = None;
        }
    }
}

/// A question that is under way. If it is dropped before it is over, somebody has given it up.
struct Asked<'l> {
    link: &'l Link,
    number: u64,
}

impl Asked<'_> {
    fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        match self.link.users {
            Users::Many => {}
            Users::Heart => self.link.leave(self.number),
        }
    }
}
