//! Browsing and waking, bent by the bug.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use oncekey_core::browse::{Browse, Count, Cursor, Filter, Listing, Page, Summary};
use oncekey_core::record::Text;
use oncekey_core::wake::{Feed, Wake, Woken};
use oncekey_core::{KeyId, Record, StoreError, Timestamp};

use super::{Broken, Bug};

#[async_trait]
impl Browse for Broken {
    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, StoreError> {
        let matching = self.matching(filter);
        let limit = match self.bug {
            Some(Bug::PagesWithoutBound) => page.limit,
            _ => page.bounded_limit(),
        };
        let start = match &page.after {
            None => 0,
            Some(Cursor(place)) if self.has(Bug::PagingByOffset) => {
                place.first().map_or(0, |offset| usize::from(*offset))
            }
            Some(Cursor(place)) => {
                matching.iter().take_while(|record| self.cursor(record) <= *place).count()
            }
        };
        let shown: Vec<&Record> = matching.iter().skip(start).take(limit).collect();
        let end = start + shown.len();
        let next = shown.last().filter(|_| end < matching.len()).map(|last| match self.bug {
            Some(Bug::PagingByOffset) => Cursor(vec![u8::try_from(end).unwrap_or(u8::MAX)]),
            _ => Cursor(self.cursor(last)),
        });
        let summaries = shown.into_iter().map(|record| self.summary(record)).collect();
        let newest = matching.iter().map(|record| record.created).max();
        let now = if self.has(Bug::PagesWithAnOldClock) { newest } else { None };
        Ok(Listing { summaries, next, now: now.unwrap_or_else(|| self.now()) })
    }

    async fn count(&self, filter: &Filter, cap: usize) -> Result<Count, StoreError> {
        match self.matching(filter).len() {
            count if count > cap && !self.has(Bug::CountingWithoutCap) => Ok(Count::AtLeast(cap)),
            count => Ok(Count::Exactly(count)),
        }
    }

    async fn find(&self, key: &Text, limit: usize) -> Result<Vec<Summary>, StoreError> {
        let folds = self.has(Bug::FindIgnoresCase);
        let found = self.matching(&Filter::default()).into_iter().filter(|record| {
            let (known, wanted) = (record.origin.key.as_bytes(), key.as_bytes());
            if folds { known.eq_ignore_ascii_case(wanted) } else { known == wanted }
        });
        Ok(found.take(limit).map(|record| self.summary(&record)).collect())
    }
}

#[async_trait]
impl Wake for Broken {
    async fn watch(&self) -> Result<Box<dyn Feed>, StoreError> {
        if self.has(Bug::OnlyTheFirstWatcherIsWoken) && self.hub.is_watched() {
            return Ok(self.silence.watch());
        }
        if self.has(Bug::DroppedQuestionsLoseWakeUps) {
            return Ok(Box::new(HastyFeed(self.hub.watch())));
        }
        Ok(self.hub.watch())
    }
}

impl Broken {
    pub(super) fn announce(&self, id: &KeyId) {
        let number = self.announced.fetch_add(1, Ordering::SeqCst);
        if !(self.has(Bug::EveryTenthWakeUpIsLost) && number % 10 == 9) {
            self.hub.finished(&[*id]);
        }
    }

    fn matching(&self, filter: &Filter) -> Vec<Record> {
        let now = self.now();
        let mut filter = filter.clone();
        if self.has(Bug::ScopeFilterIgnored) {
            filter.scope = None;
        }
        let shows_all = self.has(Bug::ShowsTheForgotten);
        let hides = self.has(Bug::RestoredRecordsAreNotShown);
        let table = self.table();
        let mut matching: Vec<Record> = table
            .records
            .values()
            .filter(|record| filter.matches(record, now))
            .filter(|record| !hides || !table.restored.contains(&record.id))
            .filter(|record| shows_all || !self.is_forgotten(record, now))
            .cloned()
            .collect();
        matching.sort_by_key(|record| (newest_first(record.created), *record.id.as_bytes()));
        matching
    }

    fn cursor(&self, record: &Record) -> Vec<u8> {
        let mut place = newest_first(record.created).to_be_bytes().to_vec();
        if !self.has(Bug::CursorWithoutTheId) {
            place.extend_from_slice(record.id.as_bytes());
        }
        place
    }

    fn summary(&self, record: &Record) -> Summary {
        let mut summary = Summary::from(record);
        if self.has(Bug::SummariesWithoutStatus) {
            summary.status = None;
        }
        summary
    }
}

fn newest_first(created: Timestamp) -> i64 {
    i64::MAX - created.micros()
}

/// Takes a wake-up out of the mailbox before it is sure to deliver it.
#[derive(Debug)]
struct HastyFeed(Box<dyn Feed>);

#[async_trait]
impl Feed for HastyFeed {
    async fn next(&mut self) -> Woken {
        let woken = self.0.next().await;
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        woken
    }
}
