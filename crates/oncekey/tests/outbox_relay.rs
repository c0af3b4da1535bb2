//! What the relay promises, on each database.
#![cfg(all(feature = "outbox", feature = "sqlite", feature = "postgres", feature = "mysql"))]
#![expect(clippy::unwrap_used, reason = "what tests share fails as tests do")]

mod outbox_common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncekey::flow::{TxStore, TxTrouble, Value};
use oncekey::outbox::{
    AfterDead, Delivery, Handler, Message, MessageId, Outbox, Relay, Relayed, Replayed, StageError,
    Staged,
};
use tokio::sync::Notify;

use self::outbox_common::{Heard, MOMENT, Place, stage, stage_all};

on_each_database!(
    a_message_goes_if_and_only_if_its_transaction_commits,
    everything_about_a_message_arrives,
    two_relays_deliver_everything_once,
    a_frozen_relay_cannot_settle_what_another_has_taken,
    a_relay_that_was_dropped_loses_nothing,
    messages_of_a_key_keep_their_order_over_failures,
    a_dead_letter_holds_its_key_until_it_is_replayed_under_its_id,
    a_dead_letter_lets_others_pass_if_told_so,
    a_message_that_kills_whoever_takes_it_becomes_a_dead_letter,
    a_sink_that_panics_or_hangs_does_not_stop_the_others,
    a_message_waits_for_its_time,
    a_later_message_replaces_one_that_nobody_has_taken,
    the_same_id_is_staged_once,
    a_relay_that_stops_gives_back_what_it_has_not_begun,
    two_who_stage_under_one_key_come_one_after_the_other,
    a_topic_without_a_sink_waits_and_loses_no_attempt,
    topics_without_a_sink_do_not_hold_up_the_others,
    a_slow_message_does_not_hold_up_the_others,
    what_ends_at_its_limit_is_settled_within_its_lease,
    a_damaged_row_does_not_stop_the_others,
);

fn relay<S: TxStore>(store: &S, heard: &Heard) -> Relay<S> {
    Relay::new(store.clone()).route("*", heard.clone()).backoff(MOMENT, MOMENT)
}

async fn once<S: TxStore>(relay: &Relay<S>) -> Relayed {
    relay.run_once().await.unwrap()
}

/// Relays until nothing waits.
async fn drain<S: TxStore>(store: &S, relay: &Relay<S>) {
    let outbox = Outbox::new(store.clone());
    let all = async {
        while outbox.backlog().await.unwrap().waiting > 0 {
            once(relay).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("all of it is delivered");
}

async fn a_message_goes_if_and_only_if_its_transaction_commits<S: TxStore>(store: S) {
    let (outbox, heard) = (Outbox::new(store.clone()), Heard::default());
    let relay = relay(&store, &heard);
    for body in ["rolled back", "dropped"] {
        let mut tx = store.begin().await.unwrap();
        outbox.stage(S::conn(&mut tx), Staged::raw("t", body)).await.unwrap();
        match body {
            "dropped" => drop(tx),
            _ => S::rollback(tx).await.unwrap(),
        }
    }
    assert_eq!(once(&relay).await, Relayed::default());
    stage(&store, Staged::raw("t", "committed")).await;
    let done = Relayed { taken: 1, sent: 1, ..Relayed::default() };
    assert_eq!(once(&relay).await, done);
    assert_eq!(once(&relay).await, Relayed::default());
    assert_eq!(heard.bodies(), ["committed"]);
}

async fn everything_about_a_message_arrives<S: TxStore>(store: S) {
    let seen: Arc<Mutex<Vec<Message>>> = Arc::default();
    let see = Arc::clone(&seen);
    let relay = Relay::new(store.clone()).route(
        "orders.*",
        Handler::new(move |message: Message| {
            see.lock().unwrap().push(message);
            async { Delivery::Sent }
        }),
    );
    let body: Vec<u8> = (0..=255).collect();
    let staged = Staged::raw("orders.päid", body.clone()).order_key("kündin '\"\\; 7");
    let id =
        stage(&store, staged.header("x-trace", "abc").id(MessageId::from_bytes([9; 16]))).await;
    stage(&store, Staged::new("orders.new", &("a", 1)).unwrap()).await;
    assert_eq!(once(&relay).await.sent, 2);
    let seen = seen.lock().unwrap();
    let one = seen.iter().find(|message| message.id() == id).unwrap();
    assert_eq!(id, MessageId::from_bytes([9; 16]));
    assert_eq!((one.topic(), one.order_key()), ("orders.päid", "kündin '\"\\; 7"));
    assert_eq!((one.body()[..].to_vec(), one.attempt()), (body, 1));
    assert_eq!(one.headers(), [("x-trace".to_owned(), "abc".to_owned())]);
    let two = seen.iter().find(|message| message.topic() == "orders.new").unwrap();
    assert_eq!(two.json::<(String, i64)>().unwrap(), ("a".to_owned(), 1));
    assert_eq!(two.headers()[0].1, "application/json");
}

async fn two_relays_deliver_everything_once<S: TxStore>(store: S) {
    let heard = Heard::default();
    let staged = (0..1_000).map(|number| Staged::raw("t", number.to_string())).collect();
    stage_all(&store, staged).await;
    let sent = Arc::new(AtomicUsize::new(0));
    let mut relays = Vec::new();
    for _ in 0..2 {
        let (relay, sent) = (relay(&store, &heard).batch(50), Arc::clone(&sent));
        relays.push(tokio::spawn(async move {
            while sent.load(Ordering::SeqCst) < 1_000 {
                let done = once(&relay).await;
                assert_eq!(done.refused, 0);
                sent.fetch_add(done.sent, Ordering::SeqCst);
            }
        }));
    }
    for relay in relays {
        tokio::time::timeout(Duration::from_secs(60), relay).await.unwrap().unwrap();
    }
    let mut bodies = heard.bodies();
    assert_eq!(bodies.len(), 1_000);
    bodies.sort_unstable();
    bodies.dedup();
    assert_eq!(bodies.len(), 1_000);
}

/// The first relay stands still inside of a delivery until its lease has lapsed and another one has the
/// message. Then it wakes up and wants to settle.
async fn a_frozen_relay_cannot_settle_what_another_has_taken<S: TxStore>(store: S) {
    let id = stage(&store, Staged::raw("t", "one")).await;
    let (taken, taken_too, settled) =
        (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
    let (tell, wait) = (Arc::clone(&taken), Arc::clone(&taken_too));
    let frozen = Handler::new(move |_| {
        tell.notify_one();
        // Not `sleep().await`: a process that stands still runs no timers.
        while !wait.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        async { Delivery::Sent }
    });
    let lease = Duration::from_millis(200);
    let first = Relay::new(store.clone()).route("*", frozen).times(lease, lease);
    let first = tokio::spawn(async move { first.run_once().await.unwrap() });
    taken.notified().await;
    let (tell, wait) = (Arc::clone(&taken_too), Arc::clone(&settled));
    let ids: Arc<Mutex<Vec<(MessageId, i64)>>> = Arc::default();
    let see = Arc::clone(&ids);
    let next = Handler::new(move |message: Message| {
        see.lock().unwrap().push((message.id(), message.attempt()));
        tell.store(true, Ordering::SeqCst);
        let wait = Arc::clone(&wait);
        async move {
            wait.notified().await;
            Delivery::Sent
        }
    });
    let second = Relay::new(store.clone()).route("*", next);
    let second = tokio::spawn(async move {
        loop {
            let done = second.run_once().await.unwrap();
            if done.taken > 0 {
                return done;
            }
            tokio::time::sleep(MOMENT).await;
        }
    });
    let first = first.await.unwrap();
    assert_eq!((first.sent, first.refused), (1, 1));
    // It is still the second one's.
    assert_eq!(Outbox::new(store.clone()).backlog().await.unwrap().waiting, 1);
    settled.notify_one();
    let second = second.await.unwrap();
    assert_eq!((second.sent, second.refused), (1, 0));
    assert_eq!(*ids.lock().unwrap(), [(id, 2)]);
    assert_eq!(Outbox::new(store).backlog().await.unwrap().waiting, 0);
}

async fn a_relay_that_was_dropped_loses_nothing<S: TxStore>(store: S) {
    let staged = (0..20).map(|number| Staged::raw("t", number.to_string())).collect();
    stage_all(&store, staged).await;
    let began = Arc::new(Notify::new());
    let tell = Arc::clone(&began);
    let never = Handler::new(move |_| {
        tell.notify_one();
        std::future::pending()
    });
    let lease = Duration::from_millis(300);
    let hung = Relay::new(store.clone()).route("*", never).times(lease, lease).at_once(3);
    let hung = tokio::spawn(async move { hung.run_once().await });
    began.notified().await;
    hung.abort();
    let heard = Heard::default();
    drain(&store, &relay(&store, &heard)).await;
    let ids = heard.ids();
    assert_eq!(ids.len(), 20);
    // The one that was dropped counts.
    assert!(ids.iter().all(|(_, attempt)| *attempt == 2), "{ids:?}");
}

async fn messages_of_a_key_keep_their_order_over_failures<S: TxStore>(store: S) {
    let heard = Heard::default();
    let after = Some(Duration::from_secs(2));
    heard.answer("a2", Delivery::Retry { after, why: "not now".to_owned() });
    for number in 1..=4 {
        for key in ["a", "b"] {
            stage(&store, Staged::raw("t", format!("{key}{number}")).order_key(key)).await;
        }
    }
    stage(&store, Staged::raw("t", "free")).await;
    let relay = relay(&store, &heard);
    let done = once(&relay).await;
    let expected = Relayed { taken: 9, sent: 6, later: 1, given_back: 2, ..Relayed::default() };
    assert_eq!(done, expected);
    // New ones stand behind it, too, and are put off.
    stage(&store, Staged::raw("t", "a5").order_key("a")).await;
    assert_eq!(once(&relay).await, Relayed { put_off: 1, ..Relayed::default() });
    heard.answer("a2", Delivery::Sent);
    drain(&store, &relay).await;
    let all = heard.bodies();
    let of = |key: &str| {
        let mut found: Vec<_> = all.iter().filter(|body| body.starts_with(key)).collect();
        found.dedup();
        found
    };
    assert_eq!(of("a"), ["a1", "a2", "a3", "a4", "a5"], "{all:?}");
    assert_eq!(of("b"), ["b1", "b2", "b3", "b4"]);
    // What was given back did not count as an attempt.
    let ids = heard.ids();
    assert!(all.iter().zip(&ids).all(|(body, (_, attempt))| body == "a2" || *attempt == 1));
}

async fn a_dead_letter_holds_its_key_until_it_is_replayed_under_its_id<S: TxStore>(store: S) {
    let (outbox, heard) = (Outbox::new(store.clone()), Heard::default());
    heard.answer("one", Delivery::Dead("410\0 gone".to_owned()));
    let id = stage(&store, Staged::raw("t", "one").order_key("k")).await;
    stage(&store, Staged::raw("t", "two").order_key("k")).await;
    let relay = relay(&store, &heard);
    let done = once(&relay).await;
    assert_eq!((done.dead, done.given_back), (1, 1));
    let done = once(&relay).await;
    assert_eq!((done.taken, done.put_off), (0, 1));
    let dead = outbox.dead_letters(10).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].id, &*dead[0].reason, dead[0].attempts), (id, "410  gone", 1));
    let backlog = outbox.backlog().await.unwrap();
    assert_eq!((backlog.waiting, backlog.dead), (1, 1));
    heard.answer("one", Delivery::Sent);
    assert_eq!(outbox.replay(id).await.unwrap(), Replayed::Yes);
    assert_eq!(outbox.replay(id).await.unwrap(), Replayed::NotFound);
    assert_eq!(once(&relay).await.sent, 1);
    assert_eq!(heard.ids(), [(id, 1), (id, 1)]);
    assert_eq!(heard.bodies(), ["one", "one"]);
    // The second one was put off for some seconds, and comes by itself.
    drain(&store, &relay).await;
    assert_eq!(heard.bodies(), ["one", "one", "two"]);
    assert_eq!(outbox.discard(id).await.unwrap(), Replayed::NotFound);
}

async fn a_dead_letter_lets_others_pass_if_told_so<S: TxStore>(store: S) {
    let (outbox, heard) = (Outbox::new(store.clone()), Heard::default());
    heard.answer("one", Delivery::Dead("no".to_owned()));
    let id = stage(&store, Staged::raw("t", "one").order_key("k")).await;
    stage(&store, Staged::raw("t", "two").order_key("k")).await;
    let relay = relay(&store, &heard).after_dead(AfterDead::GoOn);
    assert_eq!(once(&relay).await.sent, 1);
    stage(&store, Staged::raw("t", "three").order_key("k")).await;
    assert_eq!(once(&relay).await.sent, 1);
    assert_eq!(heard.bodies(), ["one", "two", "three"]);
    assert_eq!(outbox.discard(id).await.unwrap(), Replayed::Yes);
    assert_eq!(outbox.backlog().await.unwrap().dead, 0);
}

async fn a_message_that_kills_whoever_takes_it_becomes_a_dead_letter<S: TxStore>(store: S) {
    stage(&store, Staged::raw("t", "poison")).await;
    let lease = Duration::from_millis(100);
    let deliveries = Arc::new(AtomicUsize::new(0));
    for _ in 0..3 {
        let (began, count) = (Arc::new(Notify::new()), Arc::clone(&deliveries));
        let tell = Arc::clone(&began);
        let never = Handler::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            tell.notify_one();
            std::future::pending()
        });
        let relay = Relay::new(store.clone()).route("*", never).times(lease, lease).attempts(2);
        let task = tokio::spawn(async move {
            loop {
                let _ = relay.run_once().await;
            }
        });
        let is_dead = async {
            while Outbox::new(store.clone()).dead_letters(1).await.unwrap().is_empty() {
                tokio::time::sleep(lease / 5).await;
            }
        };
        // A process that dies in the middle, as far as the database can tell.
        tokio::select! {
            () = began.notified() => {}
            () = is_dead => {}
            () = tokio::time::sleep(lease * 100) => panic!("neither delivered nor given up"),
        }
        task.abort();
    }
    assert_eq!(deliveries.load(Ordering::SeqCst), 2);
    let dead = Outbox::new(store).dead_letters(10).await.unwrap();
    assert_eq!(&*dead[0].reason, "every attempt ended without a word");
}

async fn a_sink_that_panics_or_hangs_does_not_stop_the_others<S: TxStore>(store: S) {
    for body in ["panic", "hang", "fine"] {
        stage(&store, Staged::raw("t", body)).await;
    }
    let sink = Handler::new(|message: Message| async move {
        match &message.body()[..] {
            b"panic" => panic!("a test lets this fail"),
            b"hang" => std::future::pending().await,
            _ => Delivery::Sent,
        }
    });
    let times = (Duration::from_secs(30), Duration::from_millis(100));
    let relay = Relay::new(store.clone()).route("*", sink).times(times.0, times.1).attempts(1);
    let done = once(&relay).await;
    assert_eq!((done.sent, done.dead, done.refused), (1, 2, 0));
    let dead = Outbox::new(store).dead_letters(10).await.unwrap();
    let mut reasons: Vec<_> = dead.iter().map(|letter| &*letter.reason).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["the sink panicked", "the sink took too long"]);
}

async fn a_message_waits_for_its_time<S: TxStore>(store: S) {
    let heard = Heard::default();
    let relay = relay(&store, &heard);
    stage(&store, Staged::raw("t", "later").after(Duration::from_millis(400))).await;
    assert_eq!(once(&relay).await, Relayed::default());
    assert_eq!(Outbox::new(store.clone()).backlog().await.unwrap().waiting, 1);
    drain(&store, &relay).await;
    assert_eq!(heard.bodies(), ["later"]);
}

async fn a_later_message_replaces_one_that_nobody_has_taken<S: TxStore>(store: S) {
    let heard = Heard::default();
    let of = |body: &str| Staged::raw("t", body).collapse("cart:42");
    stage(&store, of("one")).await;
    stage(&store, of("two")).await;
    heard.answer("two", Delivery::retry("not now"));
    let relay = relay(&store, &heard);
    assert_eq!(once(&relay).await.later, 1);
    // The second one has been tried: who knows what it did.
    stage(&store, of("three")).await;
    heard.answer("two", Delivery::Sent);
    drain(&store, &relay).await;
    let mut bodies = heard.bodies();
    bodies.sort_unstable();
    assert_eq!(bodies, ["three", "two", "two"]);
}

async fn the_same_id_is_staged_once<S: TxStore>(store: S) {
    let outbox = Outbox::new(store.clone());
    let staged = Staged::raw("t", "one").id(MessageId::from_bytes([7; 16]));
    stage(&store, staged.clone()).await;
    let mut tx = store.begin().await.unwrap();
    let refused = outbox.stage(S::conn(&mut tx), staged).await;
    let Err(StageError::Store(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.kind(), TxTrouble::Duplicate);
}

async fn a_relay_that_stops_gives_back_what_it_has_not_begun<S: TxStore>(store: S) {
    let staged = (0..30).map(|number| Staged::raw("t", number.to_string())).collect();
    stage_all(&store, staged).await;
    let (began, go_on) = (Arc::new(Notify::new()), Arc::new(tokio::sync::Semaphore::new(0)));
    let (tell, wait) = (Arc::clone(&began), Arc::clone(&go_on));
    let slow = Handler::new(move |_| {
        tell.notify_one();
        let wait = Arc::clone(&wait);
        async move {
            wait.acquire().await.unwrap().forget();
            Delivery::Sent
        }
    });
    let relay = Relay::new(store.clone()).route("*", slow).at_once(4);
    let stop = Arc::new(Notify::new());
    let told = Arc::clone(&stop);
    let running = tokio::spawn(async move { relay.run(told.notified()).await });
    began.notified().await;
    tokio::time::sleep(MOMENT).await;
    stop.notify_one();
    tokio::time::sleep(MOMENT).await;
    go_on.add_permits(1_000);
    tokio::time::timeout(Duration::from_secs(20), running).await.unwrap().unwrap();
    // Those that were under way were settled; the rest is free at once and has lost no attempt.
    assert_eq!(Outbox::new(store.clone()).backlog().await.unwrap().waiting, 26);
    let heard = Heard::default();
    assert_eq!(once(&self::relay(&store, &heard)).await.sent, 26);
    assert!(heard.ids().iter().all(|(_, attempt)| *attempt == 1));
}

/// Otherwise the one with the lower number could become visible after the other was delivered.
async fn two_who_stage_under_one_key_come_one_after_the_other<S: TxStore>(store: S) {
    let outbox = Outbox::new(store.clone());
    let of = |body: &str| Staged::raw("t", body).order_key("k");
    let mut first = store.begin().await.unwrap();
    outbox.stage(S::conn(&mut first), of("one")).await.unwrap();
    let (store_too, outbox_too) = (store.clone(), outbox.clone());
    let second = of("two");
    let second = tokio::spawn(async move {
        let mut tx = store_too.begin().await.unwrap();
        outbox_too.stage(S::conn(&mut tx), second).await.unwrap();
        S::commit(tx).await.unwrap();
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!second.is_finished());
    let heard = Heard::default();
    let relay = relay(&store, &heard);
    S::commit(first).await.unwrap();
    second.await.unwrap();
    drain(&store, &relay).await;
    assert_eq!(heard.bodies(), ["one", "two"]);
}

async fn a_topic_without_a_sink_waits_and_loses_no_attempt<S: TxStore>(store: S) {
    let heard = Heard::default();
    let of = |topic: &str, body: &str| Staged::raw(topic, body);
    stage(&store, of("elsewhere", "a1").order_key("a")).await;
    stage(&store, of("here", "a2").order_key("a")).await;
    stage(&store, of("here", "b1").order_key("b")).await;
    let here = Relay::new(store.clone()).route("here", heard.clone()).attempts(1);
    let done = once(&here).await;
    let expected = Relayed { taken: 1, sent: 1, put_off: 1, unrouted: 1, ..Relayed::default() };
    assert_eq!(done, expected);
    // Not at once again, and whatever is due later stands behind it, too.
    assert_eq!(once(&here).await, Relayed::default());
    tokio::time::sleep(Duration::from_millis(300)).await;
    let done = once(&here).await;
    assert_eq!((done.taken, done.put_off, done.unrouted, done.dead), (0, 1, 1, 0));
    drain(&store, &relay(&store, &heard)).await;
    assert_eq!(heard.bodies(), ["b1", "a1", "a2"]);
    assert!(heard.ids().iter().all(|(_, attempt)| *attempt == 1), "{:?}", heard.ids());
}

async fn topics_without_a_sink_do_not_hold_up_the_others<S: TxStore>(store: S) {
    let heard = Heard::default();
    let staged = (0..600).map(|number| Staged::raw("elsewhere", number.to_string())).collect();
    stage_all(&store, staged).await;
    stage(&store, Staged::raw("here", "one")).await;
    // Whoever paused after a batch without anything to deliver would pause for an hour.
    let relay = Relay::new(store.clone()).route("here", heard.clone()).batch(50);
    let relay = relay.every(Duration::from_secs(3_600));
    let relay = tokio::spawn(async move { relay.run(std::future::pending()).await });
    let came = async {
        while heard.bodies().is_empty() {
            tokio::time::sleep(MOMENT).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), came).await.expect("it is found");
    relay.abort();
    assert_eq!(Outbox::new(store).backlog().await.unwrap().dead, 0);
}

/// One message of a batch hangs. The others are settled meanwhile, and later ones are delivered.
async fn a_slow_message_does_not_hold_up_the_others<S: TxStore>(store: S) {
    let staged = (0..20).map(|number| Staged::raw("t", number.to_string())).collect();
    stage_all(&store, staged).await;
    stage(&store, Staged::raw("t", "slow").order_key("k")).await;
    stage(&store, Staged::raw("t", "behind").order_key("k")).await;
    let (go_on, heard) = (Arc::new(tokio::sync::Semaphore::new(0)), Heard::default());
    let (wait, told) = (Arc::clone(&go_on), heard.clone());
    let sink = Handler::new(move |message: Message| {
        let (wait, told) = (Arc::clone(&wait), told.clone());
        async move {
            if message.body() == "slow" {
                wait.acquire().await.unwrap().forget();
            }
            oncekey::outbox::Sink::deliver(&told, &message).await
        }
    });
    let relay = Relay::new(store.clone()).route("*", sink).every(MOMENT);
    let relay = tokio::spawn(async move { relay.run(std::future::pending()).await });
    let outbox = Outbox::new(store.clone());
    let until = async |waiting: u64| {
        let all = async {
            while outbox.backlog().await.unwrap().waiting != waiting {
                tokio::time::sleep(MOMENT).await;
            }
        };
        let all = tokio::time::timeout(Duration::from_secs(20), all).await;
        all.unwrap_or_else(|_| panic!("not {waiting} wait: {:?}", heard.bodies()));
    };
    until(2).await;
    stage(&store, Staged::raw("t", "later")).await;
    stage(&store, Staged::raw("t", "last").order_key("k")).await;
    until(3).await;
    assert_eq!(heard.bodies().len(), 21);
    go_on.add_permits(1);
    until(0).await;
    relay.abort();
    let bodies = heard.bodies();
    assert_eq!(bodies[20..], ["later", "slow", "behind", "last"], "{bodies:?}");
    assert!(heard.ids().iter().all(|(_, attempt)| *attempt == 1), "{:?}", heard.ids());
}

async fn what_ends_at_its_limit_is_settled_within_its_lease<S: TxStore>(store: S) {
    let sink = Handler::new(|message: Message| async move {
        match &message.body()[..] {
            // The next one is begun late, and this long is what is left of the lease.
            b"first" => tokio::time::sleep(Duration::from_millis(1_000)).await,
            _ => std::future::pending().await,
        }
        Delivery::Sent
    });
    for body in ["first", "hangs", "too late"] {
        stage(&store, Staged::raw("t", body)).await;
    }
    let (lease, limit) = (Duration::from_secs(4), Duration::from_secs(3));
    let relay = Relay::new(store.clone()).route("*", sink).times(lease, limit).at_once(1);
    let relay = tokio::spawn(async move { once(&relay).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Somebody else looks all the time, and must not see any of it before it is settled.
    let heard = Heard::default();
    let other = self::relay(&store, &heard);
    while !relay.is_finished() {
        let done = once(&other).await;
        assert!(relay.is_finished() || done.taken <= 1, "{done:?}");
        tokio::time::sleep(MOMENT).await;
    }
    let done = relay.await.unwrap();
    let expected = Relayed { taken: 3, sent: 1, later: 1, given_back: 1, ..Relayed::default() };
    assert_eq!(done, expected);
    drain(&store, &other).await;
    let mut came: Vec<_> = heard.bodies().into_iter().zip(heard.ids()).collect();
    came.sort_unstable_by(|one, two| one.0.cmp(&two.0));
    let came: Vec<_> = came.iter().map(|(body, (_, attempt))| (&**body, *attempt)).collect();
    assert_eq!(came, [("hangs", 2), ("too late", 1)]);
}

async fn a_damaged_row_does_not_stop_the_others<S: TxStore>(store: S) {
    let (outbox, heard) = (Outbox::new(store.clone()), Heard::default());
    let id = stage(&store, Staged::raw("t", "one").order_key("k")).await;
    stage(&store, Staged::raw("t", "two")).await;
    stage(&store, Staged::raw("t", "behind it").order_key("k")).await;
    let damage = store.layout().statement("UPDATE {staged} SET headers = ? WHERE id = ?");
    let write = async |headers: &[u8]| {
        let values = [Value::Bytes(headers), Value::Bytes(id.as_bytes())];
        assert_eq!(store.execute_once(&damage, &values).await.unwrap(), 1);
    };
    write(b"{").await;
    let relay = relay(&store, &heard);
    let done = once(&relay).await;
    assert_eq!((done.sent, done.dead), (1, 1));
    assert_eq!(heard.bodies(), ["two"], "what is behind it in its order waits for it");
    let dead = outbox.dead_letters(10).await.unwrap();
    assert_eq!((dead[0].id, &*dead[0].reason), (id, "its row cannot be read"));
    // It can be repaired.
    write(b"[]").await;
    outbox.replay(id).await.unwrap();
    drain(&store, &relay).await;
    assert_eq!(heard.bodies(), ["two", "one", "behind it"]);
}

/// What everybody writes first: read what is there, deliver it, delete up to the highest number. A
/// transaction that drew a lower number and commits in between is deleted undelivered.
async fn naive<S: TxStore>(store: &S, between: impl Future<Output = ()>) -> Vec<Vec<u8>> {
    let read = store.layout().statement("SELECT seq, body FROM {staged} ORDER BY seq");
    let rows = store.query_once(&read, &[]).await.unwrap();
    let bodies = rows.iter().map(|row| row.bytes(1).unwrap().to_vec()).collect();
    between.await;
    let highest = rows.last().unwrap().int(0).unwrap();
    let delete = store.layout().statement("DELETE FROM {staged} WHERE seq <= ?");
    store.execute_once(&delete, &[Value::Int(highest)]).await.unwrap();
    bodies
}

/// One transaction that began first and is still open, and one that is committed.
async fn early_and_late<S: TxStore>(store: &S) -> S::Tx {
    let outbox = Outbox::new(store.clone());
    let mut late = store.begin().await.unwrap();
    outbox.stage(S::conn(&mut late), Staged::raw("t", "late")).await.unwrap();
    stage(store, Staged::raw("t", "early")).await;
    late
}

async fn a_late_commit_is_lost_by_a_watermark_and_not_by_us<S: TxStore>(store: S) {
    let late = early_and_late(&store).await;
    let delivered = naive(&store, async { S::commit(late).await.unwrap() }).await;
    assert_eq!(delivered, [b"early"]);
    let left = Outbox::new(store.clone()).backlog().await.unwrap().waiting;
    assert_eq!(left, 0, "the naive drain has deleted what it has not delivered");

    let late = Arc::new(Mutex::new(Some(early_and_late(&store).await)));
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let see = Arc::clone(&heard);
    let sink = Handler::new(move |message: Message| {
        see.lock().unwrap().push(String::from_utf8(message.body().to_vec()).unwrap());
        // Commits between the delivery and the settlement.
        let late = late.lock().unwrap().take();
        async move {
            if let Some(late) = late {
                S::commit(late).await.unwrap();
            }
            Delivery::Sent
        }
    });
    let relay = Relay::new(store.clone()).route("*", sink);
    assert_eq!(once(&relay).await.sent, 1);
    assert_eq!(once(&relay).await.sent, 1);
    assert_eq!(*heard.lock().unwrap(), ["early", "late"]);
}

/// SQLite has one writer, so nobody there commits late.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn a_late_commit_is_lost_by_a_watermark_and_not_by_us_on_postgres() {
    let Place::Postgres(name) = Place::fresh("postgres", &tempfile::tempdir().unwrap()) else {
        return;
    };
    let store = outbox_common::made(outbox_common::postgres(&name, 4).await).await;
    a_late_commit_is_lost_by_a_watermark_and_not_by_us(store).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL: run cargo xtask test"]
async fn a_late_commit_is_lost_by_a_watermark_and_not_by_us_on_mysql() {
    let Place::Mysql(name) = Place::fresh("mysql", &tempfile::tempdir().unwrap()) else { return };
    let store = outbox_common::made(outbox_common::mysql(&name, 4).await).await;
    a_late_commit_is_lost_by_a_watermark_and_not_by_us(store).await;
}
