//! A schema of the benchmark's own on somebody's PostgreSQL.

use oncekey_bench::Result;

/// Where the gateway keeps its records.
#[derive(Debug)]
pub(crate) struct Schema {
    server: String,
    name: String,
    url: String,
}

impl Schema {
    /// On the server that `ONCEKEY_TEST_POSTGRES` names; `None` if it names none.
    pub(crate) fn of_environment() -> Result<Option<Self>> {
        let Ok(server) = std::env::var("ONCEKEY_TEST_POSTGRES") else { return Ok(None) };
        let name = format!("oncekey_bench_{}", std::process::id());
        let sign = if server.contains('?') { '&' } else { '?' };
        let url = format!("{server}{sign}schema={name}");
        Ok(Some(Self { server, name, url }))
    }

    /// The URL of a store in it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Removes it and everything in it.
    pub(crate) fn remove(self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(&self.server, tokio_postgres::NoTls).await?;
            let working = tokio::spawn(connection);
            client.batch_execute(&format!("DROP SCHEMA IF EXISTS {} CASCADE", self.name)).await?;
            drop(client);
            drop(working.await);
            Ok(())
        })
    }
}
