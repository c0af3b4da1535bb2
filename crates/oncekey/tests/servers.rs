//! One round trip to each real server, with the driver that its store uses.
//!
//! These tests are about the servers and the drivers, not about our code: when one of them fails,
//! look at the environment first. They are ignored by a plain `cargo test`, which has no servers;
//! `cargo xtask test` starts the servers and runs them. Each fact that a store relies on and that
//! is easy to get wrong (how a duplicate key looks, whose clock a script reads) is checked here.

use std::env;
use std::time::Duration;

use aws_sdk_dynamodb::Client as DynamoDb;
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType,
    ReturnValuesOnConditionCheckFailure, ScalarAttributeType,
};
use mysql_async::prelude::Queryable as _;
use tokio::net::TcpStream;
use tokio_postgres::NoTls;

/// Where a server is, or a panic that says how to get one.
fn url_of(variable: &str) -> String {
    env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run `cargo xtask test`, or `cargo xtask servers` and its exports")
    })
}

async fn postgres() -> tokio_postgres::Client {
    let url = url_of("ONCEKEY_TEST_POSTGRES");
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("PostgreSQL");
    tokio::spawn(connection);
    client
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn postgres_is_postgres() {
    let row = postgres().await.query_one("SHOW server_version_num", &[]).await.unwrap();
    let version: u32 = row.get::<_, &str>(0).parse().unwrap();
    assert!(version >= 140_000, "PostgreSQL {version} is too old");
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run cargo xtask test"]
async fn postgres_leaves_the_first_row_alone_on_conflict() {
    let client = postgres().await;
    // A temporary table belongs to this connection, so tests cannot meet in it.
    client
        .batch_execute("CREATE TEMPORARY TABLE smoke (key bytea PRIMARY KEY, value text NOT NULL)")
        .await
        .unwrap();
    let key: &[u8] = b"\x00\xffkey";
    let insert = "INSERT INTO smoke VALUES ($1, $2) ON CONFLICT DO NOTHING";
    assert_eq!(client.execute(insert, &[&key, &"first"]).await.unwrap(), 1);
    assert_eq!(client.execute(insert, &[&key, &"second"]).await.unwrap(), 0);
    let row = client.query_one("SELECT value FROM smoke WHERE key = $1", &[&key]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "first");
}

async fn mariadb() -> mysql_async::Conn {
    let url = url_of("ONCEKEY_TEST_MYSQL");
    let options = mysql_async::Opts::from_url(&url).expect("a mysql:// URL");
    mysql_async::Conn::new(options).await.expect("MariaDB")
}

#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn mariadb_is_mariadb() {
    let mut conn = mariadb().await;
    let version: Option<String> = conn.query_first("SELECT VERSION()").await.unwrap();
    let version = version.unwrap();
    assert!(version.contains("MariaDB"), "{version} is not MariaDB");
    conn.disconnect().await.unwrap();
}

#[tokio::test]
#[ignore = "needs MariaDB: run cargo xtask test"]
async fn mariadb_compares_binary_keys_byte_by_byte() {
    let mut conn = mariadb().await;
    conn.query_drop("CREATE TEMPORARY TABLE smoke (k varbinary(255) PRIMARY KEY, v text NOT NULL)")
        .await
        .unwrap();
    let insert = "INSERT INTO smoke VALUES (?, ?)";
    // As text, all of these are one key; as bytes, they are three.
    let same: Option<bool> =
        conn.query_first("SELECT 'key' = 'KEY' AND 'key' = 'key '").await.unwrap();
    assert_eq!(same, Some(true));
    for key in ["key", "KEY", "key "] {
        conn.exec_drop(insert, (key.as_bytes(), "first")).await.unwrap();
    }
    let error = conn.exec_drop(insert, (&b"key"[..], "second")).await.unwrap_err();
    let mysql_async::Error::Server(error) = error else { panic!("not a server error: {error}") };
    assert_eq!(error.code, 1062, "duplicate entry");
    let count: Option<u64> =
        conn.exec_first("SELECT COUNT(*) FROM smoke WHERE k = ?", (&b"key"[..],)).await.unwrap();
    assert_eq!(count, Some(1));
    conn.disconnect().await.unwrap();
}

async fn redis() -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(url_of("ONCEKEY_TEST_REDIS")).expect("a redis:// URL");
    client.get_multiplexed_async_connection().await.expect("Redis")
}

#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn redis_is_redis() {
    let info: String =
        redis::cmd("INFO").arg("server").query_async(&mut redis().await).await.unwrap();
    assert!(info.contains("redis_version:"), "{info}");
}

#[tokio::test]
#[ignore = "needs Redis: run cargo xtask test"]
async fn redis_scripts_read_the_clock_and_write_in_one_step() {
    let mut conn = redis().await;
    // A write after TIME was refused before Redis replicated the effects of scripts.
    let script = "local time = redis.call('TIME')
        local fresh = redis.call('SET', KEYS[1], time[1], 'NX', 'PX', ARGV[1])
        return {fresh and 1 or 0, tonumber(time[1]), redis.call('GET', KEYS[1])}";
    let key = format!("smoke:{}", std::process::id());
    let mut run = redis::cmd("EVAL");
    run.arg(script).arg(1).arg(&key).arg(60_000);
    let (fresh, first, kept): (i64, u64, String) = run.query_async(&mut conn).await.unwrap();
    assert_eq!((fresh, kept.parse()), (1, Ok(first)));
    let (fresh, second, kept): (i64, u64, String) = run.query_async(&mut conn).await.unwrap();
    assert_eq!((fresh, kept.parse()), (0, Ok(first)));
    assert!(second >= first);
    let _: () = redis::cmd("DEL").arg(&key).query_async(&mut conn).await.unwrap();
}

fn dynamodb() -> DynamoDb {
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "test"))
        .endpoint_url(url_of("ONCEKEY_TEST_DYNAMODB"))
        // Plain HTTP: the test build needs no TLS library for a server on the same machine.
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .build();
    DynamoDb::from_conf(config)
}

#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn dynamodb_is_dynamodb() {
    let url = url_of("ONCEKEY_TEST_DYNAMODB");
    let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let connect = TcpStream::connect(&address);
    tokio::time::timeout(Duration::from_secs(5), connect).await.expect("an answer").expect(&url);
    dynamodb().list_tables().send().await.expect("a list of tables");
}

#[tokio::test]
#[ignore = "needs DynamoDB: run cargo xtask test"]
async fn dynamodb_returns_the_old_item_when_a_condition_fails() {
    let client = dynamodb();
    let table = format!("smoke-{}", std::process::id());
    client
        .create_table()
        .table_name(&table)
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(
            AttributeDefinition::builder()
                .attribute_name("k")
                .attribute_type(ScalarAttributeType::B)
                .build()
                .unwrap(),
        )
        .key_schema(
            KeySchemaElement::builder()
                .attribute_name("k")
                .key_type(KeyType::Hash)
                .build()
                .unwrap(),
        )
        .send()
        .await
        .unwrap();
    let put = |value: &str| {
        client
            .put_item()
            .table_name(&table)
            .item("k", AttributeValue::B(b"\x00\xffkey".to_vec().into()))
            .item("v", AttributeValue::S(value.to_owned()))
            .condition_expression("attribute_not_exists(k)")
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
    };
    put("first").await.unwrap();
    let error = put("second").await.unwrap_err();
    client.delete_table().table_name(&table).send().await.unwrap();

    let SdkError::ServiceError(error) = error else { panic!("not a service error: {error:?}") };
    let PutItemError::ConditionalCheckFailedException(failed) = error.into_err() else {
        panic!("another error than a failed condition");
    };
    let old = failed.item().expect("the old item");
    assert_eq!(old["v"], AttributeValue::S("first".to_owned()));
}
