//! Being told that a key is finished, instead of asking again and again.
//!
//! A wake-up is a hint: the waiter reads the record to learn what happened. So a feed may wake
//! too often, and it may lose wake-ups as long as it says so with [`Woken::Lagged`].

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};

use async_trait::async_trait;

use crate::key_id::KeyId;
use crate::store::{Store, StoreError};

/// A store that can tell when keys are finished.
#[async_trait]
pub trait Wake: Store {
    /// Opens a feed of keys that stop running from now on, in this process and in others.
    async fn watch(&self) -> Result<Box<dyn Feed>, StoreError>;
}

/// Wake-ups as they come.
#[async_trait]
pub trait Feed: fmt::Debug + Send {
    /// The next wake-up. Dropping the future loses nothing.
    async fn next(&mut self) -> Woken;
}

/// What a feed says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// This key was completed, released, or marked unknown or parked.
    Finished(KeyId),
    /// Some wake-ups may have been lost: look again at everything that is waited for.
    Lagged,
    /// The store is closed; nothing more will come.
    Closed,
}

/// Hands wake-ups to the feeds of one process. Stores that hear of completions in some way, their
/// own or by a notification of their server, use it to serve [`Wake`].
#[derive(Debug, Default)]
pub struct Hub {
    feeds: Mutex<Vec<Weak<Mailbox>>>,
}

/// Wake-ups that wait for a slow reader. Past this number they are dropped and the reader is told
/// that it lagged: memory stays bounded (32 kB a feed) and nothing is lost but time.
const MAILBOX: usize = 1_024;

#[derive(Debug)]
struct HubFeed(Arc<Mailbox>);

#[derive(Debug, Default)]
struct Mailbox(Mutex<Letters>);

#[derive(Debug, Default)]
struct Letters {
    waiting: VecDeque<KeyId>,
    lagged: bool,
    closed: bool,
    reader: Option<Waker>,
}

impl Hub {
    /// Opens a feed of everything that is announced from now on.
    #[must_use]
    pub fn watch(&self) -> Box<dyn Feed> {
        let mailbox = Arc::new(Mailbox::default());
        let mut feeds = lock(&self.feeds);
        feeds.retain(|feed| feed.strong_count() > 0);
        feeds.push(Arc::downgrade(&mailbox));
        Box::new(HubFeed(mailbox))
    }

    /// Returns true if and only if somebody listens.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        lock(&self.feeds).iter().any(|feed| feed.strong_count() > 0)
    }

    /// Tells every feed that these keys are finished.
    pub fn finished(&self, ids: &[KeyId]) {
        self.tell(|letters| {
            let room = MAILBOX.saturating_sub(letters.waiting.len());
            letters.lagged |= room < ids.len();
            letters.waiting.extend(ids.iter().take(room));
        });
    }

    /// Tells every feed to look again at everything.
    pub fn lagged(&self) {
        self.tell(|letters| letters.lagged = true);
    }

    fn tell(&self, note: impl Fn(&mut Letters)) {
        for feed in lock(&self.feeds).iter().filter_map(Weak::upgrade) {
            let mut letters = lock(&feed.0);
            note(&mut letters);
            if let Some(reader) = letters.reader.take() {
                reader.wake();
            }
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.tell(|letters| letters.closed = true);
    }
}

#[async_trait]
impl Feed for HubFeed {
    async fn next(&mut self) -> Woken {
        poll_fn(|context| {
            let mut letters = lock(&self.0.0);
            // Lagged first: it makes the reader look at everything, so it may hear it early.
            if std::mem::take(&mut letters.lagged) {
                return Poll::Ready(Woken::Lagged);
            }
            if let Some(id) = letters.waiting.pop_front() {
                return Poll::Ready(Woken::Finished(id));
            }
            if letters.closed {
                return Poll::Ready(Woken::Closed);
            }
            letters.reader = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// A panic while holding one of these locks leaves at worst a lost wake-up, and waiters poll too.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> KeyId {
        KeyId::from_bytes([number; 32])
    }

    #[tokio::test]
    async fn a_feed_hears_what_is_announced_after_it_was_opened() {
        let hub = Hub::default();
        hub.finished(&[id(1)]);
        let mut feed = hub.watch();
        hub.finished(&[id(2), id(3)]);
        assert_eq!(feed.next().await, Woken::Finished(id(2)));
        assert_eq!(feed.next().await, Woken::Finished(id(3)));
        drop(hub);
        assert_eq!(feed.next().await, Woken::Closed);
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken() {
        let hub = Arc::new(Hub::default());
        let mut feed = hub.watch();
        let reader = tokio::spawn(async move { feed.next().await });
        tokio::task::yield_now().await;
        hub.finished(&[id(9)]);
        assert_eq!(reader.await.unwrap(), Woken::Finished(id(9)));
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_that_it_lagged() {
        let hub = Hub::default();
        let mut feed = hub.watch();
        for _ in 0..=MAILBOX {
            hub.finished(&[id(4)]);
        }
        assert_eq!(feed.next().await, Woken::Lagged);
        assert_eq!(feed.next().await, Woken::Finished(id(4)));
    }

    #[test]
    fn closed_feeds_are_forgotten() {
        let hub = Hub::default();
        assert!(!hub.is_watched());
        let feed = hub.watch();
        assert!(hub.is_watched());
        drop(feed);
        assert!(!hub.is_watched());
    }
}
