-- Times are microseconds since the Unix epoch, by the server's clock. Everything that is text is
-- bytes, so that no collation takes two names for one. `{prefix}` begins every table's name.

-- One row per flow: request, lease, fence, recovery point and reply. Nothing unfinished is deleted.
CREATE TABLE IF NOT EXISTS `{prefix}flows` (
    `flow_id`     BINARY(32)      PRIMARY KEY,
    `name`        VARBINARY(255)  NOT NULL,
    `version`     BIGINT          NOT NULL,
    -- 1 running, 2 waiting, 3 done, 4 parked, 5 undoing, 6 undone, 7 dead.
    `state`       BIGINT          NOT NULL,
    `fence`       BIGINT          NOT NULL,
    `owner`       BINARY(16)      NOT NULL,
    -- When the lease lapses; and from when on the completer may take the flow.
    `lease`       BIGINT          NOT NULL,
    `due`         BIGINT          NOT NULL,
    -- Counted at the claim, so that a crash counts.
    `attempts`    BIGINT          NOT NULL,
    -- The last recovery point by name, for people and for explicit machines.
    `point`       VARBINARY(255)  NOT NULL,
    -- The step after which there is only forward. Empty: none yet.
    `pivot`       VARBINARY(255)  NOT NULL,
    `fingerprint` BINARY(32)      NOT NULL,
    `input`       LONGBLOB        NOT NULL,
    `client_key`  VARBINARY(2048) NOT NULL,
    `scope`       VARBINARY(2048) NOT NULL,
    -- The data of an explicit machine's recovery point.
    `data`        LONGBLOB,
    `created`     BIGINT          NOT NULL,
    `finished`    BIGINT,
    `status`      BIGINT,
    `headers`     LONGBLOB,
    `body`        LONGBLOB,
    -- Why it is parked, waits or is dead.
    `reason`      VARBINARY(4096) NOT NULL,
    KEY `due` (`state`, `due`),
    KEY `stuck` (`state`, `created`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Recovery points with their outputs, by name and never by position.
CREATE TABLE IF NOT EXISTS `{prefix}steps` (
    `flow_id` BINARY(32)     NOT NULL,
    `name`    VARBINARY(255) NOT NULL,
    `item`    VARBINARY(255) NOT NULL,
    -- 1 phase, 2 effect, 3 pin, 4 given by a person.
    `kind`    BIGINT         NOT NULL,
    `shape`   VARBINARY(255) NOT NULL,
    -- Digest of the arguments; empty if none were given.
    `bound`   VARBINARY(32)  NOT NULL,
    `output`  LONGBLOB       NOT NULL,
    `fence`   BIGINT         NOT NULL,
    `at`      BIGINT         NOT NULL,
    PRIMARY KEY (`flow_id`, `name`, `item`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Intents: written before a foreign call, so that an unknown outcome is known to be unknown.
CREATE TABLE IF NOT EXISTS `{prefix}effects` (
    `flow_id`     BINARY(32)      NOT NULL,
    `name`        VARBINARY(255)  NOT NULL,
    `item`        VARBINARY(255)  NOT NULL,
    -- The order of first intents: compensation runs it backwards.
    `seq`         BIGINT          NOT NULL,
    -- 1 natural, 2 keyed, 3 probed, 4 once.
    `safety`      BIGINT          NOT NULL,
    `span`        BIGINT          NOT NULL,
    -- 1 intended, 2 done, 3 undone, 4 undo failed, 5 refused. What is intended and has a step is done.
    `state`       BIGINT          NOT NULL,
    `calls`       BIGINT          NOT NULL,
    `first_at`    BIGINT          NOT NULL,
    `last_at`     BIGINT          NOT NULL,
    `bound`       VARBINARY(32)   NOT NULL,
    `foreign_key` VARBINARY(255)  NOT NULL,
    -- Compensation as data. Empty name: none.
    `undo_name`   VARBINARY(255)  NOT NULL,
    `undo_data`   LONGBLOB        NOT NULL,
    `undo_calls`  BIGINT          NOT NULL,
    -- When the compensation was first called; 0 if it was not.
    `undo_first_at` BIGINT NOT NULL,
    `reason`      VARBINARY(4096) NOT NULL,
    PRIMARY KEY (`flow_id`, `name`, `item`),
    KEY `foreign` (`foreign_key`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Messages that commit with the rows that they speak of.
CREATE TABLE IF NOT EXISTS `{prefix}staged` (
    `seq`       BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
    -- The same over all deliveries.
    `id`        BINARY(16)      NOT NULL UNIQUE,
    -- The flow that caused it, if one did.
    `flow_id`   BINARY(32),
    `topic`     VARBINARY(255)  NOT NULL,
    -- Messages of one order key are delivered in the order of seq. Empty: no order.
    `order_key` VARBINARY(255)  NOT NULL,
    -- A message that nobody has taken yet is replaced by a later one of the same name. Empty: never.
    `collapse`  VARBINARY(255)  NOT NULL,
    `headers`   LONGBLOB        NOT NULL,
    `body`      LONGBLOB        NOT NULL,
    -- 1 waiting, 2 taken, 3 dead. What was delivered is deleted.
    `state`     BIGINT          NOT NULL,
    -- Counted when it is taken, so that a crash counts.
    `attempt`   BIGINT          NOT NULL,
    -- From when on it may be taken: the end of the lease if it is taken, never if it is dead.
    `due`       BIGINT          NOT NULL,
    -- Of one taking, not of one relay.
    `owner`     BINARY(16)      NOT NULL,
    `reason`    VARBINARY(4096) NOT NULL,
    `created`   BIGINT          NOT NULL,
    -- Without the state: rows are locked in the order of this index, and a sort would lock them all.
    KEY `due` (`due`, `seq`),
    KEY `order` (`order_key`, `seq`),
    KEY `collapse` (`collapse`, `state`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Whoever stages under an order key holds its row to the end of the transaction, so that messages of
-- one key become visible in the order of seq. Keys share rows: see the code for how many.
CREATE TABLE IF NOT EXISTS `{prefix}staged_slots` (
    `slot` BIGINT NOT NULL PRIMARY KEY
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- What happened to a flow besides its steps: attempts that failed, parkings, what people did.
CREATE TABLE IF NOT EXISTS `{prefix}flow_events` (
    `id`      BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
    `flow_id` BINARY(32)      NOT NULL,
    `at`      BIGINT          NOT NULL,
    `fence`   BIGINT          NOT NULL,
    `what`    VARBINARY(255)  NOT NULL,
    `detail`  VARBINARY(4096) NOT NULL,
    KEY `flow` (`flow_id`, `id`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Where the other side's books and ours differ.
CREATE TABLE IF NOT EXISTS `{prefix}findings` (
    `id`          BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    `ledger`      VARBINARY(255) NOT NULL,
    `kind`        VARBINARY(255) NOT NULL,
    `foreign_key` VARBINARY(255) NOT NULL,
    `flow_id`     BINARY(32),
    `step`        VARBINARY(255) NOT NULL,
    `detail`      LONGBLOB       NOT NULL,
    `at`          BIGINT         NOT NULL,
    `settled`     BIGINT,
    UNIQUE KEY `what` (`ledger`, `kind`, `foreign_key`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
