//! Transactions that stage, some of which commit late and some never.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncekey::flow::{TxStore, TxTrouble};
use oncekey::outbox::{Outbox, StageError, Staged};

/// Numbers that are good enough for a test.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new() -> Self {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).unwrap();
        Self(u64::from_le_bytes(bytes) | 1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// What was staged, per key in the order of staging: whoever stages under a key has it to the end of the
/// transaction, so what is noted before the commit is noted in that order.
#[derive(Default)]
pub(crate) struct Committed {
    staged: Mutex<Vec<(String, String)>>,
    gone: Mutex<HashSet<String>>,
}

impl Committed {
    pub(crate) fn rolled_back(&self) -> usize {
        self.gone.lock().unwrap().len()
    }

    /// Those without a key, and those of each key in their order.
    pub(crate) fn taken_apart(&self) -> (Vec<String>, HashMap<String, Vec<String>>) {
        let gone = self.gone.lock().unwrap();
        let mut keys: HashMap<String, Vec<String>> = HashMap::new();
        for (key, id) in self.staged.lock().unwrap().iter() {
            if !gone.contains(id) {
                keys.entry(key.clone()).or_default().push(id.clone());
            }
        }
        (keys.remove("").unwrap_or_default(), keys)
    }
}

/// Messages in a transaction.
const EACH: usize = 50;
/// Few enough that transactions meet.
const KEYS: u64 = 300;
/// Transactions at the same time.
const WRITERS: usize = 8;

fn messages(chance: &mut Chance) -> Vec<(String, Staged)> {
    let keys: Vec<_> = (0..3).map(|_| format!("key-{}", chance.below(KEYS))).collect();
    let key = |number: usize| keys.get(number % 5).cloned().unwrap_or_default();
    let message = |key: String| (key.clone(), Staged::raw("storm", "body").order_key(key));
    (0..EACH).map(|number| message(key(number))).collect()
}

/// Commits this many messages, from several transactions at once.
pub(crate) async fn commit_all<S: TxStore>(store: &S, messages: usize) -> Arc<Committed> {
    let committed: Arc<Committed> = Arc::default();
    let left = Arc::new(AtomicUsize::new(messages / EACH));
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        let (store, committed) = (store.clone(), Arc::clone(&committed));
        let left = Arc::clone(&left);
        writers.push(tokio::spawn(async move {
            let mut chance = Chance::new();
            let one_less = |left: usize| left.checked_sub(1);
            while left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
                while !transaction(&store, &committed, &mut chance).await {}
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    committed
}

/// One transaction. Returns false if it was rolled back.
async fn transaction<S: TxStore>(store: &S, committed: &Committed, chance: &mut Chance) -> bool {
    let outbox = Outbox::new(store.clone());
    let messages = messages(chance);
    let keys: Vec<_> = messages.iter().map(|(key, _)| key.clone()).collect();
    let staged = messages.into_iter().map(|(_, staged)| staged).collect();
    let mut tx = match store.begin().await {
        Ok(tx) => tx,
        Err(error) if error.kind() == TxTrouble::Conflict => return false,
        Err(error) => panic!("{error:?}"),
    };
    let ids = match outbox.stage_all(S::conn(&mut tx), staged).await {
        Ok(ids) => ids,
        Err(StageError::Store(error)) if error.kind() == TxTrouble::Conflict => return false,
        Err(error) => panic!("{error:?}"),
    };
    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    committed.staged.lock().unwrap().extend(keys.into_iter().zip(ids.iter().cloned()));
    // Most commit soon, some late, some never.
    let pause = if chance.below(40) == 0 { 300 } else { chance.below(15) };
    tokio::time::sleep(Duration::from_millis(pause)).await;
    if chance.below(50) == 0 {
        committed.gone.lock().unwrap().extend(ids);
        S::rollback(tx).await.unwrap();
        return false;
    }
    S::commit(tx).await.unwrap();
    true
}
