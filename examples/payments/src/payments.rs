//! The service's own table.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, Row};
use serde::Serialize;

/// Payments that were made. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Payments(Arc<Mutex<Connection>>);

/// One of them.
#[derive(Serialize)]
pub(crate) struct Payment {
    pub(crate) id: String,
    amount: i64,
    currency: String,
    charge: String,
}

/// The key of the charge is unique: an attempt that takes over from one that died after it had
/// written its row finds that row, instead of writing a second one.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS payments (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    charge_key TEXT NOT NULL UNIQUE,
    amount INTEGER NOT NULL,
    currency TEXT NOT NULL,
    charge TEXT NOT NULL
) STRICT";

impl Payments {
    pub(crate) fn open(path: &str) -> rusqlite::Result<Self> {
        let connection = Connection::open(path)?;
        // oncekey writes to the same file; each waits for the other.
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.execute(TABLE, [])?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    pub(crate) fn insert(
        &self,
        tenant: &str,
        charge_key: &str,
        amount: i64,
        currency: &str,
        charge: &str,
    ) -> rusqlite::Result<Payment> {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        connection.execute(
            "INSERT INTO payments (tenant, charge_key, amount, currency, charge)
             VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (charge_key) DO NOTHING",
            (tenant, charge_key, amount, currency, charge),
        )?;
        let select = "SELECT id, amount, currency, charge FROM payments WHERE charge_key = ?1";
        connection.query_row(select, [charge_key], read)
    }

    pub(crate) fn find(&self, tenant: &str, id: &str) -> rusqlite::Result<Option<Payment>> {
        let Some(number) = id.strip_prefix("pay_").and_then(|text| text.parse::<i64>().ok()) else {
            return Ok(None);
        };
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let select =
            "SELECT id, amount, currency, charge FROM payments WHERE id = ?1 AND tenant = ?2";
        connection.query_row(select, (number, tenant), read).optional()
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<Payment> {
    let id = format!("pay_{}", row.get::<_, i64>(0)?);
    Ok(Payment { id, amount: row.get(1)?, currency: row.get(2)?, charge: row.get(3)? })
}
