-- Times are microseconds since the Unix epoch, by the clock of the machine.

-- One row per flow: request, lease, fence, recovery point and reply. Nothing unfinished is deleted.
CREATE TABLE IF NOT EXISTS oncekey_flows (
    flow_id     BLOB    PRIMARY KEY,
    name        TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    -- 1 running, 2 waiting, 3 done, 4 parked, 5 undoing, 6 undone, 7 dead.
    state       INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    owner       BLOB    NOT NULL,
    -- When the lease lapses; and from when on the completer may take the flow; when it ended, at last.
    lease       INTEGER NOT NULL,
    due         INTEGER NOT NULL,
    -- Counted at the claim, so that a crash counts.
    attempts    INTEGER NOT NULL,
    -- The last recovery point by name, for people and for explicit machines.
    point       TEXT    NOT NULL,
    -- The step after which there is only forward. Empty: none yet.
    pivot       TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL,
    input       BLOB    NOT NULL,
    client_key  BLOB    NOT NULL,
    scope       BLOB    NOT NULL,
    -- The data of an explicit machine's recovery point.
    data        BLOB,
    created     INTEGER NOT NULL,
    finished    INTEGER,
    status      INTEGER,
    headers     BLOB,
    body        BLOB,
    -- Why it is parked, waits or is dead.
    reason      TEXT    NOT NULL
) STRICT;

-- What the completer looks for. A phase touches none of its columns.
CREATE INDEX IF NOT EXISTS oncekey_flows_due ON oncekey_flows (due) WHERE state IN (1, 2, 5);
-- What has ended, by the time of its end.
CREATE INDEX IF NOT EXISTS oncekey_flows_old ON oncekey_flows (due) WHERE state IN (3, 6);
-- What an operator looks for.
CREATE INDEX IF NOT EXISTS oncekey_flows_stuck ON oncekey_flows (state, created) WHERE state IN (4, 5, 7);

-- Recovery points with their outputs, by name and never by position.
CREATE TABLE IF NOT EXISTS oncekey_steps (
    flow_id BLOB    NOT NULL,
    name    TEXT    NOT NULL,
    item    TEXT    NOT NULL,
    -- 1 phase, 2 effect, 3 pin, 4 given by a person.
    kind    INTEGER NOT NULL,
    shape   TEXT    NOT NULL,
    -- Digest of the arguments; empty if none were given.
    bound   BLOB    NOT NULL,
    output  BLOB    NOT NULL,
    fence   INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (flow_id, name, item)
) STRICT;

-- Intents: written before a foreign call, so that an unknown outcome is known to be unknown.
CREATE TABLE IF NOT EXISTS oncekey_effects (
    flow_id     BLOB    NOT NULL,
    name        TEXT    NOT NULL,
    item        TEXT    NOT NULL,
    -- The order of first intents: compensation runs it backwards.
    seq         INTEGER NOT NULL,
    -- 1 natural, 2 keyed, 3 probed, 4 once.
    safety      INTEGER NOT NULL,
    span        INTEGER NOT NULL,
    -- 1 intended, 2 done, 3 undone, 4 undo failed, 5 refused. What is intended and has a step is done.
    state       INTEGER NOT NULL,
    calls       INTEGER NOT NULL,
    first_at    INTEGER NOT NULL,
    last_at     INTEGER NOT NULL,
    bound       BLOB    NOT NULL,
    foreign_key TEXT    NOT NULL,
    -- Compensation as data. Empty name: none.
    undo_name   TEXT    NOT NULL,
    undo_data   BLOB    NOT NULL,
    undo_calls  INTEGER NOT NULL,
    -- When the compensation was first called; 0 if it was not.
    undo_first_at INTEGER NOT NULL,
    reason      TEXT    NOT NULL,
    PRIMARY KEY (flow_id, name, item)
) STRICT;
CREATE INDEX IF NOT EXISTS oncekey_effects_foreign ON oncekey_effects (foreign_key);

-- Messages that commit with the rows that they speak of.
CREATE TABLE IF NOT EXISTS oncekey_staged (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    -- The same over all deliveries.
    id        BLOB    NOT NULL UNIQUE,
    -- The flow that caused it, if one did.
    flow_id   BLOB,
    topic     TEXT    NOT NULL,
    -- Messages of one order key are delivered in the order of seq. Empty: no order.
    order_key TEXT    NOT NULL,
    -- A message that nobody has taken yet is replaced by a later one of the same name. Empty: never.
    collapse  TEXT    NOT NULL,
    headers   BLOB    NOT NULL,
    body      BLOB    NOT NULL,
    -- 1 waiting, 2 taken, 3 dead. What was delivered is deleted.
    state     INTEGER NOT NULL,
    -- Counted when it is taken, so that a crash counts.
    attempt   INTEGER NOT NULL,
    -- From when on it may be taken: the end of the lease if it is taken, never if it is dead.
    due       INTEGER NOT NULL,
    -- Of one taking, not of one relay.
    owner     BLOB    NOT NULL,
    reason    TEXT    NOT NULL,
    created   INTEGER NOT NULL
) STRICT;
-- Without a condition on the state: what the relay looks for is found by its time alone.
CREATE INDEX IF NOT EXISTS oncekey_staged_due ON oncekey_staged (due, seq);
CREATE INDEX IF NOT EXISTS oncekey_staged_order ON oncekey_staged (order_key, seq) WHERE order_key <> '';
CREATE INDEX IF NOT EXISTS oncekey_staged_collapse ON oncekey_staged (collapse) WHERE collapse <> '' AND state = 1;

-- What happened to a flow besides its steps: attempts that failed, parkings, what people did.
CREATE TABLE IF NOT EXISTS oncekey_flow_events (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    flow_id BLOB    NOT NULL,
    at      INTEGER NOT NULL,
    fence   INTEGER NOT NULL,
    what    TEXT    NOT NULL,
    detail  TEXT    NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS oncekey_flow_events_flow ON oncekey_flow_events (flow_id, id);

-- Where the other side's books and ours differ.
CREATE TABLE IF NOT EXISTS oncekey_findings (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    ledger      TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    foreign_key TEXT    NOT NULL,
    flow_id     BLOB,
    step        TEXT    NOT NULL,
    detail      BLOB    NOT NULL,
    at          INTEGER NOT NULL,
    settled     INTEGER,
    UNIQUE (ledger, kind, foreign_key)
) STRICT;
