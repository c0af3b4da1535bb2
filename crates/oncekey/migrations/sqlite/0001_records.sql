-- Times are microseconds since the Unix epoch. The shape is by measurement; see
-- docs/explanation/sqlite-store.md for the figures and for what was rejected.

-- One row per key id. Rows are appended in the order in which keys come, because the key id is a
-- digest and would scatter them. What happens to every record does not change the size of its row,
-- so it splits no page.
CREATE TABLE oncekey_records (
    id                  INTEGER PRIMARY KEY,
    key_id              BLOB    NOT NULL,
    format              INTEGER NOT NULL,
    state               INTEGER NOT NULL,
    fence               INTEGER NOT NULL,
    owner               BLOB    NOT NULL,
    class               INTEGER NOT NULL,
    sent                INTEGER NOT NULL,
    -- Running: when the lease lapses. Otherwise: since when the state stands.
    at                  INTEGER NOT NULL,
    created             INTEGER NOT NULL,
    fingerprint_version INTEGER NOT NULL,
    fingerprint         BLOB    NOT NULL,
    seal                BLOB    NOT NULL,
    places              BLOB    NOT NULL,
    key                 BLOB    NOT NULL,
    scope               BLOB    NOT NULL,
    route               BLOB    NOT NULL,
    request             BLOB    NOT NULL
) STRICT;

-- What an operator or a sweeper looks for: everything that is not done (state 0x33 = 51).
CREATE INDEX oncekey_records_open ON oncekey_records (state) WHERE state <> 51;

-- What became of a record that is done.
CREATE TABLE oncekey_answers (
    record   INTEGER PRIMARY KEY,
    -- Until when it answers, when it may be forgotten, when a purge has something to do.
    expires  INTEGER NOT NULL,
    forget   INTEGER NOT NULL,
    due      INTEGER NOT NULL,
    status   INTEGER,
    -- Zero for a kept answer, else why there is none.
    not_kept INTEGER NOT NULL,
    outcome  BLOB    NOT NULL,
    seal     BLOB    NOT NULL,
    headers  BLOB    NOT NULL,
    -- Small bodies are here; of a large one, this many pieces are in oncekey_pieces.
    pieces   INTEGER NOT NULL,
    body     BLOB    NOT NULL
) STRICT;

CREATE INDEX oncekey_answers_due ON oncekey_answers (due);

-- Pieces of large bodies. They are written before, and referred to only by, the completion; those
-- of an attempt that never completed go with its record or with the next attempt. The outcome is
-- the digest of the whole answer: if an owner gives up on one answer and completes with another,
-- or does both at once, their pieces do not mix.
CREATE TABLE oncekey_pieces (
    id      INTEGER PRIMARY KEY,
    record  INTEGER NOT NULL,
    outcome BLOB    NOT NULL,
    part    INTEGER NOT NULL,
    bytes   BLOB    NOT NULL,
    UNIQUE (record, outcome, part)
) STRICT;

-- From key ids to records, by the first eight bytes of the digest; whoever looks up compares the
-- whole key id in the record. New keys go into the small map and are moved to the large one in
-- the order of their digests, some with every batch: so a claim never dirties a random page of an
-- index of gigabytes. A key is in exactly one of the two.
CREATE TABLE oncekey_fresh (
    hash   INTEGER NOT NULL,
    record INTEGER NOT NULL,
    PRIMARY KEY (hash, record)
) STRICT, WITHOUT ROWID;

CREATE TABLE oncekey_settled (
    hash   INTEGER NOT NULL,
    record INTEGER NOT NULL,
    PRIMARY KEY (hash, record)
) STRICT, WITHOUT ROWID;

-- The highest fence ever granted: it outlives the records, so that fences rise for ever. And how
-- many keys are in the small map.
CREATE TABLE oncekey_clock (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    fence INTEGER NOT NULL,
    fresh INTEGER NOT NULL
) STRICT;
INSERT INTO oncekey_clock (id, fence, fresh) VALUES (1, 0, 0);
