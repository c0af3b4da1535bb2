-- Times are microseconds since the Unix epoch. The shape is argued in
-- docs/explanation/postgres-store.md. `{schema}` is the schema of the store.

-- One row per key id, with its answer. One table and not two, so that a completion is one UPDATE.
CREATE TABLE {schema}.oncekey_records (
    key_id              bytea    PRIMARY KEY,
    format              smallint NOT NULL,
    state               smallint NOT NULL,
    class               smallint NOT NULL,
    sent                smallint NOT NULL,
    fence               bigint   NOT NULL,
    -- The clock when the row was made. It never changes, so lists are in its order.
    born                bigint   NOT NULL,
    -- Running: when the lease lapses. Otherwise: since when the state stands.
    at                  bigint   NOT NULL,
    created             bigint   NOT NULL,
    owner               bytea    NOT NULL,
    fingerprint_version smallint NOT NULL,
    fingerprint         bytea    NOT NULL,
    seal                bytea    NOT NULL,
    places              bytea    NOT NULL,
    key                 bytea    NOT NULL,
    scope               bytea    NOT NULL,
    route               bytea    NOT NULL,
    request             bytea    NOT NULL,
    -- What became of it, if it is done. Until when it answers, when it may be forgotten, when a
    -- purge has something to do.
    expires             bigint,
    forget              bigint,
    due                 bigint,
    status              integer,
    -- Zero for a kept answer, else why there is none.
    not_kept            smallint,
    outcome             bytea,
    answer_seal         bytea,
    headers             bytea,
    body                bytea
) WITH (
    -- Room on every page for the renewals and send marks of its rows.
    fillfactor = 80,
    -- Every record is updated once or twice and deleted once. The defaults (a fifth of the table)
    -- would let millions of dead rows gather.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02
);

-- Bodies are often compressed or encrypted already: trying again costs time at every completion.
ALTER TABLE {schema}.oncekey_records ALTER COLUMN body SET STORAGE EXTERNAL;

-- What an operator or a sweeper looks for: everything that is not done (state 0x33 = 51).
-- No index holds `at` or `sent`: so renewals and send marks touch the row alone.
CREATE INDEX oncekey_records_open ON {schema}.oncekey_records (born) WHERE state <> 51;

-- What a purge looks for.
CREATE INDEX oncekey_records_due ON {schema}.oncekey_records (due) WHERE state = 51;

-- What an operator pages through, together with the open ones. New keys go to its end, which is always
-- in memory. One index over both would be written twice for every key.
CREATE INDEX oncekey_records_born ON {schema}.oncekey_records (born) WHERE state = 51;

-- A few facts about the store as a whole.
--   high:    no fence of a record that is gone is higher; fences of new records are.
--   watched: until when somebody wants to be told of finished keys.
--   epoch:   drawn once, so that a store that was emptied is another store.
CREATE TABLE {schema}.oncekey_meta (
    name   text   PRIMARY KEY,
    number bigint NOT NULL,
    words  text   NOT NULL
);
INSERT INTO {schema}.oncekey_meta (name, number, words)
VALUES ('high', 0, ''), ('watched', 0, ''), ('epoch', 0, gen_random_uuid()::text);
