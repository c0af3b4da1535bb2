//! Connections that wait for their next request.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::{Instant, interval};

use super::line::Line;

/// Idle connections to one upstream. Cheap to clone; all clones are one pool.
#[derive(Clone)]
pub(super) struct Pool(Arc<Mutex<Lines>>);

/// In boxes: they go from hand to hand as they are.
type Lines = Vec<Box<Line>>;

/// How careful the next request has to be with a connection that was used before.
///
/// An upstream may hang up at the very moment in which a request is written; nobody can tell then
/// whether it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Care {
    /// It may be sent again, or nobody protects it.
    Usual,
    /// It must not be sent twice, and its outcome would be unknown.
    Great,
}

/// How many connections wait at most. More were needed at the same time only in a burst.
const MOST: usize = 512;
/// How long a connection is used after its last request. Node closes after 5 seconds, and it is the
/// most impatient of the servers that are used for APIs.
const IDLE: Duration = Duration::from_secs(4);
/// The same for requests that must not be sent twice: no common server closes so soon, gunicorn
/// with its 2 seconds included.
const IDLE_WITH_CARE: Duration = Duration::from_secs(1);

impl Pool {
    pub(super) fn new() -> Self {
        let pool = Self(Arc::default());
        tokio::spawn(tidy(Arc::downgrade(&pool.0)));
        pool
    }

    /// A connection that is open as far as anybody can tell: the one that was used last, so that the
    /// others may grow old.
    pub(super) fn take(&self, care: Care) -> Option<Box<Line>> {
        let most = match care {
            Care::Usual => IDLE,
            Care::Great => IDLE_WITH_CARE,
        };
        loop {
            let mut line = {
                let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                // The last one is the youngest.
                if lines.last()?.idle_since.elapsed() > most {
                    return None;
                }
                lines.pop()?
            };
            // Whoever takes it drives it, so nobody has to be woken here.
            if line.is_open(&mut Context::from_waker(Waker::noop())) {
                return Some(line);
            }
        }
    }

    /// Keeps a connection if the next request can be put on it, and closes it if not.
    pub(super) fn give(&self, mut line: Box<Line>) {
        if !line.is_free() {
            return;
        }
        line.rest();
        line.idle_since = Instant::now();
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() < MOST {
            lines.push(line);
        }
    }
}

/// Closes what nobody used for a while, until the pool is gone.
async fn tidy(pool: Weak<Mutex<Lines>>) {
    let mut ticks = interval(IDLE / 2);
    loop {
        ticks.tick().await;
        let Some(lines) = pool.upgrade() else { return };
        let mut old: Lines = Vec::new();
        {
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            let young = lines.partition_point(|line| line.idle_since.elapsed() > IDLE);
            old.extend(lines.drain(..young));
        }
        // Outside of the lock, because closing is a system call.
        drop(old);
    }
}
