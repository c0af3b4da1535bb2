//! What is not on the path of a request: purges, erasures, records from elsewhere.

use tokio_postgres::types::Type;

/// The clock stands in a query of its own: it is then read once, and the index is read no further than
/// that. Beside each row it would be read for every record that is done.
pub(super) const DUE: &str = "
    SELECT due, key_id, fence, owner, expires, forget, status, not_kept, outcome, answer_seal,
        {now} AS now
    FROM {records}
    WHERE state = 51 AND due <= (SELECT {now}) AND due >= $1 AND (due, key_id) > ($1, $2)
        AND {own}
    ORDER BY due, key_id LIMIT $3";

/// Like a release, of what is done and past its time at this very moment.
pub(super) const FORGET: &str = "
    WITH gone AS (
        DELETE FROM {records} AS r
        USING unnest($1, $2, $3) AS u(key_id, fence, owner)
        WHERE r.key_id = u.key_id AND r.fence = u.fence AND r.owner = u.owner
            AND r.state + 0 = 51 AND r.forget <= {now} AND {own}
        RETURNING r.key_id, r.fence),
    raised AS (
        UPDATE {meta} SET number = greatest(number, {now}, (SELECT max(fence) FROM gone))
        WHERE name = 'high' AND number < (SELECT max(fence) FROM gone))
    SELECT key_id FROM gone";

pub(super) const STRIP: &str = "
    UPDATE {records} AS r SET due = r.forget, not_kept = $5, answer_seal = u.seal,
        headers = ''::bytea, body = ''::bytea
    FROM unnest($1, $2, $3, $4, $6) AS u(key_id, fence, owner, seal, was)
    WHERE r.key_id = u.key_id AND r.fence = u.fence AND r.owner = u.owner
        AND r.state + 0 = 51 AND r.answer_seal = u.was AND r.expires <= {now} AND r.due <= {now}
        AND {own}
    RETURNING r.key_id";

pub(super) const STRIPPING: [Type; 6] = [
    Type::BYTEA_ARRAY,
    Type::INT8_ARRAY,
    Type::BYTEA_ARRAY,
    Type::BYTEA_ARRAY,
    Type::INT2,
    Type::BYTEA_ARRAY,
];

/// The seals are compared, so nothing is blanked that was not looked at.
pub(super) const BLANK: &str = "
    UPDATE {records} SET seal = $7, places = $8, key = ''::bytea, scope = ''::bytea,
        not_kept = $9, answer_seal = $10,
        headers = CASE WHEN state = 51 THEN ''::bytea END,
        body = CASE WHEN state = 51 THEN ''::bytea END
    WHERE key_id = $1 AND fence = $2 AND owner = $3 AND state = $4 AND seal = $5
        AND answer_seal IS NOT DISTINCT FROM $6 AND {own}
    RETURNING key_id";

/// A record as it comes from elsewhere.
pub(super) const RECORD: [Type; 26] = [
    Type::BYTEA,
    Type::INT2,
    Type::INT8,
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
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::INT4,
    Type::INT2,
    Type::BYTEA,
    Type::BYTEA,
    Type::BYTEA,
    Type::BYTEA,
    Type::INT2,
];

pub(super) const RESTORE_NEW: &str = "
    INSERT INTO {records} (key_id, state, fence, owner, class, sent, at, created,
        fingerprint_version, fingerprint, seal, places, key, scope, route, request,
        expires, forget, due, status, not_kept, outcome, answer_seal, headers, body, format,
        born)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
        $20, $21, $22, $23, $24, $25, $26, $3
    WHERE {own}
    ON CONFLICT (key_id) DO NOTHING RETURNING key_id";

/// Over the record that was found, if it still has this fence, state and send mark: an owner that was
/// found not to have sent may announce its send a moment later.
pub(super) const RESTORE_OVER: &str = "
    UPDATE {records} SET state = $2, fence = $3, owner = $4, class = $5, sent = $6, at = $7,
        created = $8, fingerprint_version = $9, fingerprint = $10, seal = $11, places = $12,
        key = $13, scope = $14, route = $15, request = $16, expires = $17, forget = $18,
        due = $19, status = $20, not_kept = $21, outcome = $22, answer_seal = $23, headers = $24,
        body = $25, format = $26
    WHERE key_id = $1 AND fence = $27 AND state = $28 AND sent = $29 AND {own}
    RETURNING key_id";

pub(super) const RECORD_OVER: [Type; 29] = {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z] = RECORD;
    [
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        i,
        j,
        k,
        l,
        m,
        n,
        o,
        p,
        q,
        r,
        s,
        t,
        u,
        v,
        w,
        x,
        y,
        z,
        Type::INT8,
        Type::INT2,
        Type::INT2,
    ]
};
