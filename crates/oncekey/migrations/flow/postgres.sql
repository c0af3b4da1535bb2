-- Times are microseconds since the Unix epoch, by the server's clock. `{schema}` is the schema.

-- One row per flow: request, lease, fence, recovery point and reply. Nothing unfinished is deleted.
CREATE TABLE IF NOT EXISTS {schema}.oncekey_flows (
    flow_id     bytea  PRIMARY KEY,
    name        text   NOT NULL,
    version     bigint NOT NULL,
    -- 1 running, 2 waiting, 3 done, 4 parked, 5 undoing, 6 undone, 7 dead.
    state       bigint NOT NULL,
    fence       bigint NOT NULL,
    owner       bytea  NOT NULL,
    -- When the lease lapses; and from when on the completer may take the flow; when it ended, at last.
    lease       bigint NOT NULL,
    due         bigint NOT NULL,
    -- Counted at the claim, so that a crash counts.
    attempts    bigint NOT NULL,
    -- The last recovery point by name, for people and for explicit machines. While it is 'started', the
    -- newest step is the recovery point: a step does not write this row, it only locks it.
    point       text   NOT NULL,
    -- The step after which there is only forward. Empty: none yet.
    pivot       text   NOT NULL,
    fingerprint bytea  NOT NULL,
    input       bytea  NOT NULL,
    client_key  bytea  NOT NULL,
    scope       bytea  NOT NULL,
    -- The data of an explicit machine's recovery point.
    data        bytea,
    created     bigint NOT NULL,
    finished    bigint,
    status      bigint,
    headers     bytea,
    body        bytea,
    -- Why it is parked, waits or is dead.
    reason      text   NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);

-- What the completer looks for. A phase touches none of its columns.
CREATE INDEX IF NOT EXISTS oncekey_flows_due ON {schema}.oncekey_flows (due) WHERE state IN (1, 2, 5);
-- What has ended, by the time of its end.
CREATE INDEX IF NOT EXISTS oncekey_flows_old ON {schema}.oncekey_flows (due) WHERE state IN (3, 6);
-- What an operator looks for.
CREATE INDEX IF NOT EXISTS oncekey_flows_stuck ON {schema}.oncekey_flows (state, created) WHERE state IN (4, 5, 7);

-- Recovery points with their outputs, by name and never by position.
CREATE TABLE IF NOT EXISTS {schema}.oncekey_steps (
    flow_id bytea  NOT NULL,
    name    text   NOT NULL,
    item    text   NOT NULL,
    -- 1 phase, 2 effect, 3 pin, 4 given by a person.
    kind    bigint NOT NULL,
    shape   text   NOT NULL,
    -- Digest of the arguments; empty if none were given.
    bound   bytea  NOT NULL,
    output  bytea  NOT NULL,
    fence   bigint NOT NULL,
    at      bigint NOT NULL,
    PRIMARY KEY (flow_id, name, item)
);

-- Intents: written before a foreign call, so that an unknown outcome is known to be unknown.
CREATE TABLE IF NOT EXISTS {schema}.oncekey_effects (
    flow_id     bytea  NOT NULL,
    name        text   NOT NULL,
    item        text   NOT NULL,
    -- The order of first intents: compensation runs it backwards.
    seq         bigint NOT NULL,
    -- 1 natural, 2 keyed, 3 probed, 4 once.
    safety      bigint NOT NULL,
    span        bigint NOT NULL,
    -- 1 intended, 2 done, 3 undone, 4 undo failed, 5 refused. What is intended and has a step is done.
    state       bigint NOT NULL,
    calls       bigint NOT NULL,
    first_at    bigint NOT NULL,
    last_at     bigint NOT NULL,
    bound       bytea  NOT NULL,
    foreign_key text   NOT NULL,
    -- Compensation as data. Empty name: none.
    undo_name   text   NOT NULL,
    undo_data   bytea  NOT NULL,
    undo_calls  bigint NOT NULL,
    -- When the compensation was first called; 0 if it was not.
    undo_first_at bigint NOT NULL,
    reason      text   NOT NULL,
    PRIMARY KEY (flow_id, name, item)
);
CREATE INDEX IF NOT EXISTS oncekey_effects_foreign ON {schema}.oncekey_effects (foreign_key);

-- Messages that commit with the rows that they speak of.
CREATE TABLE IF NOT EXISTS {schema}.oncekey_staged (
    seq       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The same over all deliveries.
    id        bytea  NOT NULL UNIQUE,
    -- The flow that caused it, if one did.
    flow_id   bytea,
    topic     text   NOT NULL,
    -- Messages of one order key are delivered in the order of seq. Empty: no order.
    order_key text   NOT NULL,
    -- A message that nobody has taken yet is replaced by a later one of the same name. Empty: never.
    collapse  text   NOT NULL,
    headers   bytea  NOT NULL,
    body      bytea  NOT NULL,
    -- 1 waiting, 2 taken, 3 dead. What was delivered is deleted.
    state     bigint NOT NULL,
    -- Counted when it is taken, so that a crash counts.
    attempt   bigint NOT NULL,
    -- From when on it may be taken: the end of the lease if it is taken, never if it is dead.
    due       bigint NOT NULL,
    -- Of one taking, not of one relay.
    owner     bytea  NOT NULL,
    reason    text   NOT NULL,
    created   bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02);
-- Without a condition on the state: what the relay looks for is found by its time alone.
CREATE INDEX IF NOT EXISTS oncekey_staged_due ON {schema}.oncekey_staged (due, seq);
CREATE INDEX IF NOT EXISTS oncekey_staged_order ON {schema}.oncekey_staged (order_key, seq) WHERE order_key <> '';
CREATE INDEX IF NOT EXISTS oncekey_staged_collapse ON {schema}.oncekey_staged (collapse) WHERE collapse <> '' AND state = 1;

-- What happened to a flow besides its steps: attempts that failed, parkings, what people did.
CREATE TABLE IF NOT EXISTS {schema}.oncekey_flow_events (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    flow_id bytea  NOT NULL,
    at      bigint NOT NULL,
    fence   bigint NOT NULL,
    what    text   NOT NULL,
    detail  text   NOT NULL
);
CREATE INDEX IF NOT EXISTS oncekey_flow_events_flow ON {schema}.oncekey_flow_events (flow_id, id);

-- Where the other side's books and ours differ.
CREATE TABLE IF NOT EXISTS {schema}.oncekey_findings (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ledger      text   NOT NULL,
    kind        text   NOT NULL,
    foreign_key text   NOT NULL,
    flow_id     bytea,
    step        text   NOT NULL,
    detail      bytea  NOT NULL,
    at          bigint NOT NULL,
    settled     bigint,
    UNIQUE (ledger, kind, foreign_key)
);
