//! Records that come from elsewhere, and which store this is.

use oncekey_core::restore::{self, Lineage, Restored, supersedes};
use oncekey_core::saved::NotKept;
use oncekey_core::seal::{RECORD_FORMAT, Seal};
use oncekey_core::{Answer, ErrorKind, Record, Sent, State, StoreError};

use super::PostgresStore;
use super::error::{contested, unsuitable};
use super::greeting::sight;
use super::pool::Effect;
use super::row;
use super::sql::Statement;
use crate::store::parts::answer_codes;

const LOST_META: &str = "the table oncekey_meta has lost its rows: restore it from a backup, or drop \
    oncekey's schema and begin anew";

/// How often a record is looked at anew because it had changed before it was written over.
const ROUNDS: usize = 16;

impl PostgresStore {
    pub(super) async fn restore_record(&self, record: &Record) -> Result<Restored, StoreError> {
        restore::check(record)?;
        let columns = Columns::of(record);
        for _ in 0..ROUNDS {
            let ids: Vec<&[u8]> = vec![record.id.as_bytes()];
            let rows = self.singles.ask(Effect::Harmless, &self.sql.standing, &[&ids]).await?;
            let found = rows.first().map(row::standing).transpose()?;
            if !supersedes(record, found) {
                return Ok(Restored::Kept);
            }
            let mut values = columns.values();
            let seen = rows.first().map(|row| {
                Ok::<_, StoreError>((row::get(row, 3)?, row::get(row, 2)?, row::get(row, 5)?))
            });
            let seen: Option<(i64, i16, i16)> = seen.transpose()?;
            let written = match &seen {
                None => self.singles.ask(Effect::Writes, &self.sql.restore_new, &values).await?,
                Some((fence, state, sent)) => {
                    let seen: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                        [fence, state, sent];
                    values.extend(seen);
                    self.singles.ask(Effect::Writes, &self.sql.restore_over, &values).await?
                }
            };
            if !written.is_empty() {
                return Ok(Restored::Written);
            }
        }
        Err(contested())
    }

    /// The epoch is drawn when the tables are made; the identifier belongs to the cluster and the
    /// timeline changes when a standby is promoted or a backup is recovered.
    pub(super) async fn read_lineage(&self) -> Result<Lineage, StoreError> {
        let text = format!("SELECT {}", lineage_question(&self.schema));
        let heights = self.guard.heights();
        let rows = self.readers.ask(Effect::Harmless, &Statement::plain(&text, &[]), &[]).await?;
        let Some(seen) = rows.first().map(|row| sight(row, 0)).transpose()?.flatten() else {
            return Err(unsuitable(LOST_META));
        };
        let life = self.guard.name(&seen, &heights);
        self.guard.lives.told(&life);
        Ok(Lineage::new(life))
    }

    /// Nothing is granted by a store that has lost its mark: no fence is known to be high enough.
    pub(super) async fn check_mark(&self) -> Result<(), StoreError> {
        let text = format!("SELECT number FROM {}.oncekey_meta WHERE name = 'high'", self.schema);
        let rows = self.readers.ask(Effect::Harmless, &Statement::plain(&text, &[]), &[]).await?;
        match rows.first() {
            Some(_) => Ok(()),
            None => Err(StoreError::new(ErrorKind::Corrupt, LOST_META)),
        }
    }

    /// Accepts the life that [`read_lineage`](Self::read_lineage) told last.
    pub(super) fn adopt_life(&self) {
        self.guard.lives.adopt();
    }
}

/// What to select for the lineage, and for how far the log has come: how much of it is safe, and where it
/// ends. The lineage is null if the tables have lost their epoch.
pub(super) fn lineage_question(schema: &str) -> String {
    format!(
        "'postgres:' || CASE
                WHEN has_function_privilege('pg_control_system()', 'EXECUTE')
                THEN (SELECT system_identifier::text FROM pg_control_system()) ELSE 'unknown' END
            || ':' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
            || ':' || (SELECT words FROM {schema}.oncekey_meta WHERE name = 'epoch'),
            pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint,
            pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
    )
}

/// A record as the columns of its row.
struct Columns<'r> {
    id: &'r [u8],
    state: i16,
    fence: i64,
    owner: &'r [u8],
    class: i16,
    sent: i16,
    at: i64,
    created: i64,
    version: i16,
    fingerprint: &'r [u8],
    seal: Vec<u8>,
    places: &'r [u8],
    origin: [&'r [u8]; 4],
    answer: AnswerColumns<'r>,
    format: i16,
}

#[derive(Default)]
struct AnswerColumns<'r> {
    expires: Option<i64>,
    forget: Option<i64>,
    due: Option<i64>,
    status: Option<i32>,
    not_kept: Option<i16>,
    outcome: Option<&'r [u8]>,
    seal: Option<Vec<u8>>,
    headers: Option<Vec<u8>>,
    body: Option<&'r [u8]>,
}

impl<'r> Columns<'r> {
    fn of(record: &'r Record) -> Self {
        let (at, sent) = match &record.state {
            State::Running { until, sent } => (*until, *sent),
            State::Done { at, .. } => (*at, Sent::Yes),
            State::Unknown { since } | State::Parked { since } => (*since, Sent::Yes),
        };
        let origin = &record.origin;
        Self {
            id: record.id.as_bytes(),
            state: i16::from(record.state.kind().code()),
            fence: record.fence.number(),
            owner: record.owner.as_bytes(),
            class: i16::from(record.class.code()),
            sent: i16::from(sent.code()),
            at: at.micros(),
            created: record.created.micros(),
            version: i16::from(record.fingerprint.version()),
            fingerprint: record.fingerprint.digest(),
            seal: Seal::expected_of_claim(record).as_bytes().to_vec(),
            places: record.places.as_encoded(),
            origin: [&origin.key, &origin.scope, &origin.route, &origin.request]
                .map(|text| text.as_bytes()),
            answer: AnswerColumns::of(record),
            format: i16::from(RECORD_FORMAT),
        }
    }

    fn values(&self) -> Vec<&(dyn tokio_postgres::types::ToSql + Sync)> {
        let Self { answer, origin: [key, scope, route, request], .. } = self;
        vec![
            &self.id,
            &self.state,
            &self.fence,
            &self.owner,
            &self.class,
            &self.sent,
            &self.at,
            &self.created,
            &self.version,
            &self.fingerprint,
            &self.seal,
            &self.places,
            key,
            scope,
            route,
            request,
            &answer.expires,
            &answer.forget,
            &answer.due,
            &answer.status,
            &answer.not_kept,
            &answer.outcome,
            &answer.seal,
            &answer.headers,
            &answer.body,
            &self.format,
        ]
    }
}

impl<'r> AnswerColumns<'r> {
    fn of(record: &'r Record) -> Self {
        let State::Done { expires, forget, outcome, answer, .. } = &record.state else {
            return Self::default();
        };
        let (status, not_kept) = answer_codes(answer);
        let (headers, body): (Vec<u8>, &[u8]) = match answer {
            Answer::Kept(saved) => (saved.headers.encode(), &saved.body),
            Answer::Tombstone(_) => (Vec::new(), &[]),
        };
        Self {
            expires: Some(expires.micros()),
            forget: Some(forget.micros()),
            // What has expired for good waits for nothing but being forgotten.
            due: Some(if not_kept == NotKept::Expired.code() { forget } else { expires }.micros()),
            status: status.map(i32::from),
            not_kept: Some(i16::from(not_kept)),
            outcome: Some(outcome.as_bytes()),
            seal: Seal::expected_of_answer(record).map(|seal| seal.as_bytes().to_vec()),
            headers: Some(headers),
            body: Some(body),
        }
    }
}
