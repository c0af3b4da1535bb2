//! What a table must be like, and what is said if it is not.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
    TimeToLiveSpecification,
};
use oncekey::clock::SystemClock;
use oncekey::core::health::Verdict;
use oncekey::core::{
    Clock, ErrorKind, Inspect as _, ManualClock, Store as _, StoreError, Timestamp,
};
use oncekey::store::dynamodb::{DynamoOptions, Lapse, MissingTable};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::dynamodb::{Table, client, credentials, options};
use super::scene::{claim, win};

/// Everything that is said about an error.
fn told(error: &StoreError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text += &format!(" {cause} {cause:?}");
        source = cause.source();
    }
    text
}

#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_missing_table_is_named_and_not_made() {
    let table = Table::new().await;
    let error = options(table.name()).open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsuitable, "{error}");
    let text = error.to_string();
    assert!(text.contains(table.name()) && text.contains("us-east-1"), "{text}");
    assert!(text.contains("table_json"), "the fix: {text}");
    let made = client().describe_table().table_name(table.name()).send().await;
    assert!(made.is_err(), "nobody said that it should be made");
}

#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_table_of_another_program_is_refused() {
    let table = Table::new().await;
    let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash);
    let id =
        AttributeDefinition::builder().attribute_name("id").attribute_type(ScalarAttributeType::S);
    client()
        .create_table()
        .table_name(table.name())
        .billing_mode(BillingMode::PayPerRequest)
        .key_schema(key.build().unwrap())
        .attribute_definitions(id.build().unwrap())
        .send()
        .await
        .unwrap();
    let error = table.options().open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsuitable, "{error}");
    assert!(error.to_string().contains("keys of the table"), "{error}");
}

/// Nobody listens there, or somebody who speaks another language.
#[tokio::test]
async fn a_wrong_endpoint_is_unavailable_and_shows_no_password() {
    let wrong = |url: String| {
        DynamoOptions::new("t").region("us-east-1").credentials(credentials()).endpoint(url)
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = wrong(format!("http://me:hunter2@{address}")).open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    assert!(!told(&error).contains("hunter2"), "{}", told(&error));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0; 4_096];
            let _ = stream.read(&mut buffer).await;
            let hello = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
            let _ = stream.write_all(hello).await;
        }
    });
    let error = wrong(format!("http://{address}")).open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("check the endpoint"), "{error}");
}

/// A server that takes the question and says nothing: nobody waits for ever.
#[tokio::test]
async fn a_silent_endpoint_ends_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let silent = DynamoOptions::new("t").region("us-east-1").credentials(credentials());
    let silent = silent.endpoint(url).timeout(Duration::from_millis(50)).open();
    let error = tokio::time::timeout(Duration::from_secs(20), silent).await.expect("in time");
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "a read changes nothing: {error}");
    assert!(error.to_string().contains("did not answer in time"), "{error}");
}

/// In a process of its own, whose environment has none.
#[test]
fn without_credentials_it_says_where_they_come_from() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "opening::child_without_credentials", "--ignored", "--nocapture"])
        .env_clear()
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("HOME", "/nonexistent")
        .env("ONCEKEY_TEST_CHILD", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("1 passed"), "{said}");
}

/// Not a test: what the child process does.
#[tokio::test]
#[ignore = "a part of another test"]
async fn child_without_credentials() {
    if std::env::var_os("ONCEKEY_TEST_CHILD").is_none() {
        return;
    }
    let error = DynamoOptions::new("t").region("us-east-1").open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsuitable, "{error}");
    assert!(error.to_string().contains("AWS_ACCESS_KEY_ID"), "{error}");
    let error = DynamoOptions::new("t").open().await.unwrap_err();
    assert!(error.to_string().contains("AWS_REGION"), "{error}");
}

#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn a_table_that_was_made_here_is_found_good() {
    let table = Table::new().await;
    let store = table.options().open().await.unwrap();
    let health = store.inspect().await.unwrap();
    for finding in &health.findings {
        let expected = match finding.check {
            // Whoever makes a table for a test does not want to be kept from deleting it.
            "deletion" => Verdict::Degraded,
            _ => Verdict::Good,
        };
        assert_eq!(finding.verdict, expected, "{finding}");
    }
    assert!(health.skew.is_some(), "the answer has a date");
    assert_eq!(health.findings.len(), 8);
}

/// Two nodes that start at the same moment make one table.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn many_may_make_the_table_at_once() {
    let table = Table::new().await;
    let open = || tokio::spawn(table.options().open());
    let opening: Vec<_> = (0..8).map(|_| open()).collect();
    for (number, store) in (0..).zip(opening) {
        let store = store.await.unwrap().expect("whoever makes it");
        win(&store, &claim(number, 1)).await;
    }
    let late = options(table.name()).missing_table(MissingTable::Refuse).open().await.unwrap();
    assert!(late.get(&claim(3, 1).id).await.unwrap().is_some(), "it is one table");
}

/// Whatever `inspect` refuses is refused when the table is opened, before anything is written.
#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn what_the_checks_refuse_is_not_opened() {
    let table = Table::new().await;
    drop(table.options().open().await.unwrap());
    let hour = Timestamp::from_micros(SystemClock.now().micros() + 3_600_000_000);
    let late = || Arc::new(ManualClock::at(hour)) as Arc<dyn Clock>;
    let error = table.options().lapse(Lapse::Clocked).clock(late()).open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsuitable, "{error}");
    assert!(error.to_string().contains("put it right"), "{error}");
    let watched = table.options().clock(late()).open().await;
    assert!(watched.is_ok(), "leases that are watched need no clock");

    let live = |name: &str, is_on: bool| {
        let live = TimeToLiveSpecification::builder().attribute_name(name).enabled(is_on);
        let update = client().update_time_to_live().table_name(table.name());
        update.time_to_live_specification(live.build().unwrap()).send()
    };
    live("gc", false).await.unwrap();
    live("ttl", true).await.unwrap();
    let error = table.options().open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsuitable, "{error}");
    assert!(error.to_string().contains("time to live"), "{error}");
}
