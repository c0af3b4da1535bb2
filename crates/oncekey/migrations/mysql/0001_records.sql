-- Times are microseconds since the Unix epoch. Everything that came from outside is bytes: no column
-- has a collation, so no two keys are ever taken for one. See docs/explanation/mysql-store.md.

-- One row per key id: a claim is decided by the unique index of key ids alone. Rows are appended in the
-- order in which keys come. A key id is a digest: with it as the primary key, every claim and every
-- completion would change a random page of a table that is eight times as large as the index.
CREATE TABLE IF NOT EXISTS `{prefix}records` (
    -- The first fence of the row, or when a restored one was created. It never changes.
    `born`                BIGINT            NOT NULL,
    `key_id`              BINARY(32)        NOT NULL,
    `format`              TINYINT UNSIGNED  NOT NULL,
    `state`               TINYINT UNSIGNED  NOT NULL,
    `fence`               BIGINT            NOT NULL,
    `owner`               BINARY(16)        NOT NULL,
    `class`               TINYINT UNSIGNED  NOT NULL,
    `sent`                TINYINT UNSIGNED  NOT NULL,
    -- Running: when the lease lapses. Otherwise: since when the state stands.
    `at`                  BIGINT            NOT NULL,
    `created`             BIGINT            NOT NULL,
    `fingerprint_version` TINYINT UNSIGNED  NOT NULL,
    `fingerprint`         BINARY(32)        NOT NULL,
    `seal`                VARBINARY(64)     NOT NULL,
    `places`              MEDIUMBLOB        NOT NULL,
    `key`                 VARBINARY(2048)   NOT NULL,
    `scope`               VARBINARY(2048)   NOT NULL,
    `route`               VARBINARY(2048)   NOT NULL,
    `request`             VARBINARY(2048)   NOT NULL,
    PRIMARY KEY (`born`, `key_id`),
    UNIQUE KEY `key_id` (`key_id`),
    -- What is open is found without a look at what is done, in the order of the primary key.
    KEY `state` (`state`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- What became of an attempt. A record that is done has the answer with its fence, and no other. Fences
-- rise with time, so answers are appended too.
CREATE TABLE IF NOT EXISTS `{prefix}answers` (
    `fence`    BIGINT            NOT NULL,
    `key_id`   BINARY(32)        NOT NULL,
    -- Until when it answers, when it may be forgotten, when a purge has something to do.
    `expires`  BIGINT            NOT NULL,
    `forget`   BIGINT            NOT NULL,
    `due`      BIGINT            NOT NULL,
    `status`   SMALLINT UNSIGNED NULL,
    -- Zero for a kept answer, else why there is none.
    `not_kept` TINYINT UNSIGNED  NOT NULL,
    `outcome`  VARBINARY(64)     NOT NULL,
    `seal`     VARBINARY(64)     NOT NULL,
    `headers`  MEDIUMBLOB        NOT NULL,
    -- Small bodies are here; of a large one, this many pieces are in the table of pieces.
    `pieces`   INT UNSIGNED      NOT NULL,
    `body`     MEDIUMBLOB        NOT NULL,
    PRIMARY KEY (`fence`, `key_id`),
    KEY `due` (`due`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Pieces of large bodies. They are written before, and referred to only by, the completion; those of
-- an attempt that never completed go with its record or with the next attempt. The outcome is the
-- digest of the whole answer: two answers that are written at the same time do not mix.
CREATE TABLE IF NOT EXISTS `{prefix}pieces` (
    `key_id`  BINARY(32)    NOT NULL,
    `fence`   BIGINT        NOT NULL,
    `outcome` VARBINARY(64) NOT NULL,
    `part`    INT UNSIGNED  NOT NULL,
    `bytes`   MEDIUMBLOB    NOT NULL,
    PRIMARY KEY (`key_id`, `fence`, `outcome`, `part`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The highest fence of a record that is gone: it outlives the records, so that fences rise for ever.
-- And the name of this database's life.
CREATE TABLE IF NOT EXISTS `{prefix}clock` (
    `id`    TINYINT UNSIGNED NOT NULL,
    `fence` BIGINT           NOT NULL,
    `epoch` BINARY(16)       NOT NULL,
    PRIMARY KEY (`id`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
INSERT INTO `{prefix}clock` (`id`, `fence`, `epoch`)
    SELECT 1, 0, UNHEX(MD5(CONCAT(UUID(), RAND(), @@hostname)))
    FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM `{prefix}clock` WHERE `id` = 1);
