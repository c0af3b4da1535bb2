//! What is written beside the store: in large statements by hand, and in small ones unbatched.

use std::sync::Arc;

use oncekey_bench::stats::Sample;

use super::{REPLAYED, Server, Step, Width};
use crate::Result;
use crate::calls::pick;
use crate::cells::{Setting, Verb};
use crate::drive::{Next, drive};
use crate::work::Work;

/// Rows beside the store, and what is done to them.
pub(super) struct Rows {
    server: Arc<dyn Server>,
    verb: Verb,
    work: Work,
    /// How many rows wait for their answer.
    prepared: usize,
}

/// Rows that one statement inserts when rows are prepared.
const PREPARED_AT_ONCE: usize = 500;

impl Rows {
    /// Inserts `prepared` rows without an answer.
    pub(super) async fn new(
        server: Arc<dyn Server>,
        verb: Verb,
        work: Work,
        prepared: usize,
    ) -> Result<Self> {
        let rows = Self { server, verb, work, prepared };
        for first in (0..prepared).step_by(PREPARED_AT_ONCE) {
            let numbers = first..prepared.min(first + PREPARED_AT_ONCE);
            let ids = numbers.map(|number| rows.work.key(number)).collect();
            rows.server.many(Step::Insert, ids).await?;
        }
        Ok(rows)
    }

    /// As many rows under way as there are callers, in as few statements as there are lanes.
    pub(super) async fn by_hand(self, setting: &Setting) -> Result<Sample> {
        // Reads are not batched: nobody waits for a disk.
        let lanes = match self.verb {
            Verb::Replay => setting.callers,
            Verb::Claim | Verb::Complete | Verb::Pair | Verb::Contended => {
                self.server.lanes().min(setting.callers)
            }
        };
        let batch = setting.callers / lanes;
        let rows = Arc::new(self);
        let call = move |ticket: usize| {
            let rows = Arc::clone(&rows);
            async move { rows.statement(ticket, batch).await }
        };
        let sample = drive(lanes, setting.span, call).await;
        Ok(Sample { rate: sample.rate * batch as f64, ..sample })
    }

    async fn statement(&self, ticket: usize, batch: usize) -> Next {
        let numbers = ticket * batch..(ticket + 1) * batch;
        if self.verb == Verb::Complete && numbers.end > self.prepared {
            return Next::Dry;
        }
        if self.verb == Verb::Replay {
            let id = self.work.key(pick(ticket, REPLAYED));
            self.server.row(id).await.expect("the server answers");
            return Next::More;
        }
        let ids: Vec<_> = numbers.map(|number| self.work.key(number)).collect();
        if self.verb != Verb::Complete {
            self.server.many(Step::Insert, ids.clone()).await.expect("the server answers");
        }
        if self.verb != Verb::Claim {
            self.server.many(Step::Update, ids).await.expect("the server answers");
        }
        Next::More
    }

    /// One transaction for each insertion, and one for each answer.
    pub(super) async fn unbatched(self, width: Width, setting: &Setting) -> Result<Sample> {
        let rows = Arc::new(self);
        let call = move |ticket: usize| {
            let rows = Arc::clone(&rows);
            async move { rows.transactions(width, ticket).await }
        };
        Ok(drive(setting.callers, setting.span, call).await)
    }

    async fn transactions(&self, width: Width, ticket: usize) -> Next {
        let steps: &[Step] = match self.verb {
            Verb::Claim | Verb::Contended => &[Step::Insert],
            Verb::Complete if ticket >= self.prepared => return Next::Dry,
            Verb::Complete => &[Step::Update],
            Verb::Pair => &[Step::Insert, Step::Update],
            Verb::Replay => &[Step::Select],
        };
        let number = if self.verb == Verb::Replay { pick(ticket, REPLAYED) } else { ticket };
        let id = self.work.key(number);
        for step in steps {
            self.server.naive(width, *step, id).await.expect("the server answers");
        }
        Next::More
    }
}
