//! Every statement of the hot paths, as text with the types of its parameters.
//!
//! Each is a transaction of its own. What is written is guarded by a condition on what the writer
//! knows, and PostgreSQL checks it again on the newest version of the row after every wait for a
//! lock: so each is one atomic step at READ COMMITTED.
//!
//! Rows are found by their key id and nothing else. `state + 0` keeps the planner from the partial
//! indexes, whose condition a plain `state = 15` would imply: a plan that was made while the table was
//! empty reads every open record for every batch, and is kept while the table grows.
//!
//! Batches come as one array per column, sorted by key id, so that no two of them wait for each
//! other's rows crosswise.

mod rare;

use sha2::{Digest as _, Sha256};
use tokio_postgres::types::Type;

use self::rare::{
    BLANK, DUE, FORGET, RECORD, RECORD_OVER, RESTORE_NEW, RESTORE_OVER, STRIP, STRIPPING,
};

/// The statements of a store. `place` numbers them, for the prepared ones of a connection.
#[derive(Debug)]
pub(super) struct Sql {
    pub(super) claim: Statement,
    pub(super) found: Statement,
    pub(super) beside: Statement,
    pub(super) lift: Statement,
    pub(super) whole: Statement,
    pub(super) again: Statement,
    pub(super) take_over: Statement,
    pub(super) renew: Statement,
    pub(super) standing: Statement,
    pub(super) send: Statement,
    pub(super) complete: Statement,
    pub(super) unknown: Statement,
    pub(super) release: Statement,
    pub(super) due: Statement,
    pub(super) forget: Statement,
    pub(super) strip: Statement,
    pub(super) blank: Statement,
    pub(super) restore_new: Statement,
    pub(super) restore_over: Statement,
}

#[derive(Debug)]
pub(super) struct Statement {
    pub(super) place: usize,
    pub(super) text: String,
    pub(super) types: Vec<Type>,
    /// The last value of a statement that may be prepared: see [`OWN`].
    pub(super) mark: Option<i64>,
}

/// Whether the values were meant for this statement, of this schema; if not, it fails before it has
/// looked at a row, because one cannot be divided by zero.
///
/// Prepared statements go by name, and the driver of every process gives the same names to its own. If
/// somebody in between ever leads us to a connection on which another process has prepared, our values
/// would meet its statement: a send mark was a release once. So every statement has a mark of its own,
/// and whoever runs it must say it. It costs one comparison for a whole batch.
const OWN: &str = "1 / (${place} = {mark})::int = 1";

/// The server's clock at the moment at which this is evaluated, in microseconds. Not `now()`,
/// which is when the transaction began: after a wait for a lock it would grant a stale lease.
pub(super) const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// The states that a record has before it is done: running, unknown, parked.
const OPEN: &str = "(15, 85, 105)";

/// Bodies above this size do not travel with a claim that was refused, but in a read of their own:
/// or else a batch of replays would hold up to a gigabyte.
const FAR: usize = 64 * 1024;

/// A record without its body. `{from}` follows.
const COLUMNS: &str = "r.key_id, r.format, r.state, r.fence, r.owner, r.class, r.sent, r.at, \
    r.created, r.fingerprint_version, r.fingerprint, r.seal, r.places, r.key, r.scope, r.route, \
    r.request, r.expires, r.forget, r.status, r.not_kept, r.outcome, r.answer_seal, r.headers";

/// Whether somebody wants to be told of finished keys. In doubt, they do.
const WATCHED: &str =
    "coalesce((SELECT number FROM {meta} WHERE name = 'watched') > {now}, true) AS watched";

/// What a new attempt writes over the answer of an earlier generation.
const NO_ANSWER: &str = "expires = NULL, forget = NULL, due = NULL, status = NULL, \
    not_kept = NULL, outcome = NULL, answer_seal = NULL, headers = NULL, body = NULL";

impl Sql {
    /// How many there are.
    pub(super) const COUNT: usize = 19;

    pub(super) fn new(schema: &str) -> Self {
        let mut place = 0;
        let mut next = |text: String, types: &[Type]| {
            let text = text
                .replace("{watched}", WATCHED)
                .replace("{records}", &format!("{schema}.oncekey_records"))
                .replace("{meta}", &format!("{schema}.oncekey_meta"))
                .replace("{now}", NOW)
                .replace("{open}", OPEN);
            place += 1;
            Statement::marked(place - 1, &text, types)
        };
        let (bytes, number) = (Type::BYTEA, Type::INT8);
        let small = Type::INT2;
        Self {
            claim: next(claim(), &CLAIM),
            found: next(found("$1", ""), &[Type::BYTEA_ARRAY]),
            beside: next(found(MISSING, BESIDE), &[Type::BYTEA_ARRAY, Type::BYTEA_ARRAY]),
            lift: next(LIFT.to_owned(), &[Type::BYTEA_ARRAY]),
            whole: next(whole(), std::slice::from_ref(&bytes)),
            again: next(
                AGAIN.to_owned(),
                &[bytes.clone(), number.clone(), bytes.clone(), number.clone()],
            ),
            take_over: next(TAKE_OVER.replace("{no_answer}", NO_ANSWER), &TAKING_OVER),
            renew: next(RENEW.to_owned(), &LEASES_AND_SPAN),
            standing: next(STANDING.to_owned(), &[Type::BYTEA_ARRAY]),
            send: next(SEND.to_owned(), &LEASES),
            complete: next(COMPLETE.to_owned(), &COMPLETION),
            unknown: next(UNKNOWN.to_owned(), &LEASES),
            release: next(RELEASE.to_owned(), &LEASES),
            due: next(DUE.to_owned(), &[number.clone(), bytes.clone(), number.clone()]),
            forget: next(FORGET.to_owned(), &LEASES),
            strip: next(STRIP.to_owned(), &STRIPPING),
            blank: next(
                BLANK.to_owned(),
                &[
                    bytes.clone(),
                    number,
                    bytes.clone(),
                    small.clone(),
                    bytes.clone(),
                    bytes.clone(),
                    bytes.clone(),
                    bytes.clone(),
                    small,
                    bytes,
                ],
            ),
            restore_new: next(RESTORE_NEW.to_owned(), &RECORD),
            restore_over: next(RESTORE_OVER.to_owned(), &RECORD_OVER),
        }
    }
}

impl Statement {
    /// A statement that is not worth preparing.
    pub(super) fn plain(text: &str, types: &[Type]) -> Self {
        Self { place: usize::MAX, text: text.to_owned(), types: types.to_vec(), mark: None }
    }

    /// A statement that fails if it gets the values of another.
    fn marked(place: usize, text: &str, types: &[Type]) -> Self {
        let digest = Sha256::digest(text.as_bytes());
        let mark = digest.iter().take(7).fold(0, |mark, byte| mark << 8 | i64::from(*byte));
        let mut types = types.to_vec();
        types.push(Type::INT8);
        let own =
            OWN.replace("{place}", &types.len().to_string()).replace("{mark}", &mark.to_string());
        Self { place, text: text.replace("{own}", &own), types, mark: Some(mark) }
    }
}

const LEASES: [Type; 3] = [Type::BYTEA_ARRAY, Type::INT8_ARRAY, Type::BYTEA_ARRAY];
const LEASES_AND_SPAN: [Type; 4] =
    [Type::BYTEA_ARRAY, Type::INT8_ARRAY, Type::BYTEA_ARRAY, Type::INT8];

const CLAIM: [Type; 14] = [
    Type::BYTEA_ARRAY,
    Type::BYTEA_ARRAY,
    Type::INT2_ARRAY,
    Type::INT2_ARRAY,
    Type::INT8_ARRAY,
    Type::INT2_ARRAY,
    Type::BYTEA_ARRAY,
    Type::BYTEA_ARRAY,
    Type::BYTEA_ARRAY,
    Type::BYTEA_ARRAY,
    Type::BYTEA_ARRAY,
    Type::BYTEA_ARRAY,
    Type::BYTEA_ARRAY,
    Type::BOOL,
];

/// The clock is read for each row when its turn has come, and only once. The mark `high` keeps the
/// fence above those of records that are gone, if the clock has stepped back since. A store without
/// its mark grants nothing. Which mark was read is left for [`LIFT`], until the transaction ends.
///
/// How many records were not made is left for [`MISSING`], for as long as `$14` says: until the
/// transaction ends, or until the next claim on this connection. It is taken back with the mark, because
/// nothing is said after a statement that has made none. All of `made` is there when its rows are
/// counted: a count wants every row, and the one that is told first is told after it.
fn claim() -> String {
    "WITH mark AS (
        SELECT number, set_config('oncekey.high', number::text, true),
            set_config('oncekey.missing', '', $14)
        FROM {meta} WHERE name = 'high'),
    made AS (
        INSERT INTO {records} (key_id, format, state, fence, born, owner, class, sent, at,
            created, fingerprint_version, fingerprint, seal, places, key, scope, route, request)
        SELECT u.key_id, 1, 15, greatest(c.now, m.number + 1), c.now, u.owner, u.class, u.sent,
            c.now + u.lease, c.now, u.fingerprint_version, u.fingerprint, u.seal, u.places, u.key,
            u.scope, u.route, u.request
        FROM (SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
                AS u(key_id, owner, class, sent, lease, fingerprint_version, fingerprint, seal,
                    places, key, scope, route, request) ORDER BY key_id) AS u
        CROSS JOIN LATERAL (SELECT u.key_id, {now} AS now OFFSET 0) AS c
        CROSS JOIN mark AS m
        WHERE {own}
        ON CONFLICT (key_id) DO NOTHING
        RETURNING key_id, fence, at)
    SELECT key_id, fence, at, (
        SELECT set_config('oncekey.missing', (cardinality($1) - count(*))::text, $14) FROM made)
    FROM made"
        .to_owned()
}

/// What stands under the keys `ids`, as far as `but` does not leave it out.
fn found(ids: &str, but: &str) -> String {
    format!(
        "SELECT {COLUMNS}, CASE WHEN octet_length(r.body) > {FAR} THEN 1 ELSE 0 END AS far,
            CASE WHEN octet_length(r.body) > {FAR} THEN NULL ELSE r.body END AS body,
            {{now}} AS now
        FROM {{records}} AS r WHERE r.key_id = ANY({ids}) AND {{own}} {but}"
    )
}

/// No key at all after a claim on this connection that has made every record, which is the usual end
/// of one: to look for all of them, and leave them out one by one, took a tenth of the time of a claim
/// and its completion. Whoever is left out by mistake looks once more.
const MISSING: &str = "(SELECT CASE WHEN current_setting('oncekey.missing', true) = '0' THEN NULL ELSE $1 END)::bytea[]";

/// Leaves out what the callers themselves run: what their batch has just made would be sent back whole,
/// and thrown away. It is asked after the commit, when only the owner tells. Whoever has claimed before,
/// and does not know that, looks once more.
const BESIDE: &str = "AND NOT (r.state + 0 = 15 AND r.owner = ANY($2))";

fn whole() -> String {
    format!(
        "SELECT {COLUMNS}, 0 AS far, r.body, {{now}} AS now
        FROM {{records}} AS r WHERE r.key_id = $1 AND {{own}}"
    )
}

/// Lifts the fences of records that this transaction has made above a mark that was raised meanwhile.
///
/// A fence is computed before its record stands. If an earlier record of the key went in between, its
/// fence may be as high: but then the mark was raised in the same step, and whoever reads the mark
/// after the insertion sees it. That is needed for one claim in a hundred if keys are released all
/// the time, else never. It must be the same transaction: a fence that others can see, or that an owner
/// who asks again is told, is not changed any more.
///
/// A mark that is still the one that the insertion read has nothing below it to lift, and then no
/// record is looked at: to find that out record by record took a fifth of the time of a claim.
const LIFT: &str = "
    UPDATE {records} AS r SET fence = greatest(r.fence + 1, {now}, m.number + 1)
    FROM {meta} AS m
    WHERE m.name = 'high' AND r.key_id = ANY ((
            SELECT CASE WHEN number > coalesce(
                nullif(current_setting('oncekey.high', true), ''), '-1')::bigint THEN $1 END
            FROM {meta} WHERE name = 'high')::bytea[])
        AND r.fence <= m.number AND r.state + 0 = 15
        AND r.xmin = pg_current_xact_id_if_assigned()::xid AND {own}
    RETURNING r.key_id, r.fence";

const AGAIN: &str = "
    UPDATE {records} SET at = {now} + $4
    WHERE key_id = $1 AND fence = $2 AND owner = $3 AND state + 0 = 15 AND {own}
    RETURNING at, sent";

/// Everything that the decision looked at and that can change is compared. The mark counts here, too: a
/// record that was put back from elsewhere may be older than one that stood in its place and is gone.
const TAKE_OVER: &str = "
    UPDATE {records} SET format = 1, state = 15, fence = greatest(fence + 1, {now},
            (SELECT number + 1 FROM {meta} WHERE name = 'high')), owner = $7,
        class = $8, sent = $9, at = {now} + $10, created = coalesce($11, {now}),
        fingerprint_version = $12, fingerprint = $13, seal = $14, places = $15, key = $16,
        scope = $17, route = $18, request = $19, {no_answer}
    WHERE key_id = $1 AND fence = $2 AND owner = $3 AND state = $4 AND at = $5
        AND ($6 IS NULL OR sent = $6) AND {own}
    RETURNING fence, at";

const TAKING_OVER: [Type; 19] = [
    Type::BYTEA,
    Type::INT8,
    Type::BYTEA,
    Type::INT2,
    Type::INT8,
    Type::INT2,
    Type::BYTEA,
    Type::INT2,
    Type::INT2,
    Type::INT8,
    Type::INT8,
    Type::INT2,
    Type::BYTEA,
    Type::BYTEA,
    Type::BYTEA,
    Type::BYTEA,
    Type::BYTEA,
    Type::BYTEA,
    Type::BYTEA,
];

/// Rows that somebody else holds are passed over: a statement that waits for one of them would keep all
/// the others waiting, until they lapse. What was locked here is compared once more where it is written:
/// the planner may read it anew.
const RENEW: &str = "
    WITH free AS (
        SELECT r.key_id, r.fence, r.owner
        FROM unnest($1, $2, $3) AS u(key_id, fence, owner)
        JOIN {records} AS r ON r.key_id = u.key_id
        WHERE r.fence = u.fence AND r.owner = u.owner AND r.state + 0 = 15 AND {own}
        FOR NO KEY UPDATE OF r SKIP LOCKED)
    UPDATE {records} AS r SET at = {now} + $4
    FROM free
    WHERE r.key_id = free.key_id AND r.fence = free.fence AND r.owner = free.owner
        AND r.state + 0 = 15
    RETURNING r.key_id, r.fence, r.owner, r.at";

const STANDING: &str = "
    SELECT key_id, format, state, fence, owner, sent, outcome
    FROM {records} WHERE key_id = ANY($1) AND {own}";

const SEND: &str = "
    UPDATE {records} AS r SET sent = 112
    FROM unnest($1, $2, $3) AS u(key_id, fence, owner)
    WHERE r.key_id = u.key_id AND r.fence = u.fence AND r.owner = u.owner
        AND r.format = 1 AND r.state + 0 = 15 AND r.sent = 15 AND {own}
    RETURNING r.key_id, false AS watched";

/// The times are those of `Times::of`: a fence that is ahead of the clock counts, by a day at most.
const COMPLETE: &str = "
    UPDATE {records} AS r SET state = 51, at = c.at, expires = c.at + u.retention,
        forget = c.at + u.retention + u.linger, due = c.at + u.retention, status = u.status,
        not_kept = u.not_kept, outcome = u.outcome, answer_seal = u.seal, headers = u.headers,
        body = u.body
    FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
        AS u(key_id, fence, owner, retention, linger, status, not_kept, outcome, seal, headers, body)
    CROSS JOIN LATERAL (SELECT greatest(n.now, least(u.fence, n.now + 86400000000)) AS at
        FROM (SELECT u.key_id, {now} AS now OFFSET 0) AS n OFFSET 0) AS c
    WHERE r.key_id = u.key_id AND r.fence = u.fence AND r.owner = u.owner
        AND r.format = 1 AND r.state + 0 IN {open} AND r.sent IN (15, 112) AND {own}
    RETURNING r.key_id, {watched}";

const COMPLETION: [Type; 11] = [
    Type::BYTEA_ARRAY,
    Type::INT8_ARRAY,
    Type::BYTEA_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT4_ARRAY,
    Type::INT2_ARRAY,
    Type::BYTEA_ARRAY,
    Type::BYTEA_ARRAY,
    Type::BYTEA_ARRAY,
    Type::BYTEA_ARRAY,
];

const UNKNOWN: &str = "
    UPDATE {records} AS r SET state = 85, at = {now}
    FROM unnest($1, $2, $3) AS u(key_id, fence, owner)
    WHERE r.key_id = u.key_id AND r.fence = u.fence AND r.owner = u.owner
        AND r.format = 1 AND r.state + 0 IN (15, 105) AND {own}
    RETURNING r.key_id, {watched}";

/// Removes records, and raises the mark in the same step if one of their fences is above it. It is
/// raised to the clock, so that the next deletions find it high enough: this row is written once for
/// all records that were claimed before, not once for each.
const RELEASE: &str = "
    WITH gone AS (
        DELETE FROM {records} AS r
        USING unnest($1, $2, $3) AS u(key_id, fence, owner)
        WHERE r.key_id = u.key_id AND r.fence = u.fence AND r.owner = u.owner
            AND r.format = 1 AND r.state + 0 IN {open} AND {own}
        RETURNING r.key_id, r.fence),
    raised AS (
        UPDATE {meta} SET number = greatest(number, {now}, (SELECT max(fence) FROM gone))
        WHERE name = 'high' AND number < (SELECT max(fence) FROM gone))
    SELECT key_id, {watched} FROM gone";

#[cfg(test)]
mod tests {
    use super::*;

    /// `COUNT` is how many places a connection has for prepared statements.
    #[test]
    fn every_statement_has_a_place() {
        assert_eq!(Sql::new("oncekey").restore_over.place + 1, Sql::COUNT);
    }

    /// Values that meet another statement than theirs are refused by it, also by the same statement of
    /// another schema.
    #[test]
    fn every_statement_knows_its_own_values() {
        let (one, other) = (Sql::new("oncekey"), Sql::new("oncekey2"));
        let all = |sql: &Sql| {
            let Sql { claim, found, lift, whole, again, take_over, renew, standing, .. } = sql;
            let Sql { send, complete, unknown, release, due, forget, strip, blank, .. } = sql;
            let (first, last) = (&sql.restore_new, &sql.restore_over);
            [claim, found, lift, whole, again, take_over, renew, standing, send, complete, unknown]
                .into_iter()
                .chain([release, due, forget, strip, blank, &sql.beside, first, last])
                .map(|statement| {
                    let Statement { text, types, mark, .. } = statement;
                    let mark = mark.expect("a mark");
                    let own = format!("1 / (${} = {mark})::int = 1", types.len());
                    assert_eq!(text.matches(&own).count(), 1, "{text}");
                    assert!(!text.contains(&format!("${}", types.len() + 1)), "{text}");
                    mark
                })
                .collect::<Vec<_>>()
        };
        let mut marks = all(&one);
        marks.extend(all(&other));
        marks.sort_unstable();
        marks.dedup();
        assert_eq!(marks.len(), 2 * Sql::COUNT);
    }

    /// The numbers in the text are the codes of the core.
    #[test]
    fn the_codes_are_those_of_the_core() {
        use oncekey_core::seal::RECORD_FORMAT;
        use oncekey_core::{Sent, StateKind};
        let states = StateKind::ALL.map(StateKind::code);
        assert_eq!(states, [15, 51, 85, 105]);
        assert_eq!((Sent::No.code(), Sent::Yes.code(), RECORD_FORMAT), (15, 112, 1));
    }
}
