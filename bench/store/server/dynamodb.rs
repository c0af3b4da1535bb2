//! A server that speaks like DynamoDB: the store, and a plain table beside it.

use std::sync::Arc;

use async_trait::async_trait;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType,
    ScalarAttributeType,
};
use aws_smithy_http_client::tls;
use oncekey::core::{KeyId, Store};
use oncekey::store::dynamodb::{DynamoOptions, MissingTable};

use super::{Server, Step, Width};
use crate::Result;
use crate::work::{Plain, key_text};

const REGION: &str = "us-east-1";

/// A server and what was made on it.
pub(super) struct DynamoDb {
    store: Arc<dyn Store>,
    client: Client,
    /// The table of the store, and the plain one.
    tables: [String; 2],
    plain: Plain,
}

impl DynamoDb {
    pub(super) async fn open(url: &str, name: &str) -> Result<Self> {
        let [ours, theirs] = ["store", "plain"].map(|kind| format!("{name}_{kind}"));
        let credentials = Credentials::new("test", "test", None, None, "test");
        let store = DynamoOptions::new(&ours)
            .endpoint(url)
            .region(REGION)
            .credentials(credentials.clone())
            .missing_table(MissingTable::Create)
            .open()
            .await?;
        let http = aws_smithy_http_client::Builder::new()
            .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::AwsLc))
            .build_https();
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(REGION))
            .credentials_provider(credentials)
            .endpoint_url(url)
            .http_client(http)
            .build();
        let client = Client::from_conf(config);
        create(&client, &theirs).await?;
        Ok(Self { store: Arc::new(store), client, tables: [ours, theirs], plain: Plain::new() })
    }

    async fn get(&self, key: AttributeValue) -> Result<()> {
        let get = self.client.get_item().table_name(&self.tables[1]).key("k", key);
        let found = get.consistent_read(true).send().await?;
        if found.item.is_some() { Ok(()) } else { Err("an item is missing".into()) }
    }

    /// The attributes of a new key, or of a finished one.
    fn item(&self, step: Step, id: &KeyId) -> Vec<(&'static str, AttributeValue)> {
        let Plain { scope, hash, code, headers, body } = &self.plain;
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let bytes = |bytes: &[u8]| AttributeValue::B(Blob::new(bytes));
        let status = if step == Step::Insert { "in_progress" } else { "completed" };
        let mut item = vec![
            ("k", text(&key_text(id))),
            ("scope", text(scope)),
            ("hash", bytes(hash)),
            ("status", text(status)),
            ("expires", AttributeValue::N("1900000000".to_owned())),
        ];
        if step == Step::Update {
            item.push(("code", AttributeValue::N(code.to_string())));
            item.extend([("headers", bytes(headers)), ("body", bytes(body))]);
        }
        item
    }
}

#[async_trait]
impl Server for DynamoDb {
    fn about(&self) -> String {
        "a server that speaks like it; by hand: PutItem without a condition, replays as consistent \
         GetItem; unbatched: a conditional PutItem and an UpdateItem; as many connections as calls"
            .to_owned()
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    async fn naive(&self, _width: Width, step: Step, id: KeyId) -> Result<()> {
        let [_, table] = &self.tables;
        let key = AttributeValue::S(key_text(&id));
        match step {
            Step::Insert => {
                let mut put = self.client.put_item().table_name(table);
                for (name, value) in self.item(step, &id) {
                    put = put.item(name, value);
                }
                put.condition_expression("attribute_not_exists(k)").send().await?;
            }
            Step::Update => {
                let Plain { code, headers, body, .. } = &self.plain;
                self.client
                    .update_item()
                    .table_name(table)
                    .key("k", key)
                    .update_expression("SET #s = :s, code = :c, headers = :h, body = :b")
                    .expression_attribute_names("#s", "status")
                    .expression_attribute_values(":s", AttributeValue::S("completed".to_owned()))
                    .expression_attribute_values(":c", AttributeValue::N(code.to_string()))
                    .expression_attribute_values(
                        ":h",
                        AttributeValue::B(Blob::new(headers.clone())),
                    )
                    .expression_attribute_values(":b", AttributeValue::B(Blob::new(body.clone())))
                    .send()
                    .await?;
            }
            Step::Select => self.get(key).await?,
        }
        Ok(())
    }

    /// Every call has a connection of its own.
    fn lanes(&self) -> usize {
        usize::MAX
    }

    /// It speaks HTTP and is built without optimisation: it does not even take a thousand.
    fn most_completions(&self) -> usize {
        2_000
    }

    async fn many(&self, step: Step, ids: Vec<KeyId>) -> Result<()> {
        let each = ids.into_iter().map(|id| async move {
            let mut put = self.client.put_item().table_name(&self.tables[1]);
            for (name, value) in self.item(step, &id) {
                put = put.item(name, value);
            }
            put.send().await.map(drop)
        });
        Ok(futures_util::future::try_join_all(each).await.map(drop)?)
    }

    async fn row(&self, id: KeyId) -> Result<()> {
        self.get(AttributeValue::S(key_text(&id))).await
    }

    async fn clean(&self) -> Result<()> {
        for table in &self.tables {
            // The table of the store is protected from being deleted by mistake.
            let open = self.client.update_table().table_name(table);
            let _ = open.deletion_protection_enabled(false).send().await;
            self.client.delete_table().table_name(table).send().await?;
        }
        Ok(())
    }
}

async fn create(client: &Client, table: &str) -> Result<()> {
    let key = AttributeDefinition::builder()
        .attribute_name("k")
        .attribute_type(ScalarAttributeType::S)
        .build()?;
    let hash = KeySchemaElement::builder().attribute_name("k").key_type(KeyType::Hash).build()?;
    client
        .create_table()
        .table_name(table)
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(key)
        .key_schema(hash)
        .send()
        .await?;
    Ok(())
}
