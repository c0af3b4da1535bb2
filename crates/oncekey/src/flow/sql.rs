//! What is said to the database about flows.
//!
//! Every write after the claim names flow, fence and owner in its condition and meets no row if
//! somebody else has taken over. PostgreSQL checks the condition again after a lock wait, MySQL reads
//! the newest row when it writes, SQLite has one writer: so each is decided on the newest row.

use std::sync::Arc;

use super::gather::What;
use super::tables::{Dialect, render};

/// The statements, made once for a layout.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) start: Arc<str>,
    pub(crate) start_as: Arc<str>,
    pub(crate) absent: Arc<str>,
    pub(crate) look: Arc<str>,
    pub(crate) look_and_hold: Arc<str>,
    pub(crate) take_over: Arc<str>,
    pub(crate) renew: Arc<str>,
    pub(crate) steps: Arc<str>,
    pub(crate) effects: Arc<str>,
    pub(crate) advance: Arc<str>,
    pub(crate) put_step: Arc<str>,
    pub(crate) hold: Arc<str>,
    pub(crate) hold_and_put: Arc<str>,
    pub(crate) hold_and_put_two: Arc<str>,
    pub(crate) hold_put_and_intend: Arc<str>,
    pub(crate) start_and_put: Arc<str>,
    pub(crate) start_put_and_intend: Arc<str>,
    pub(crate) put_late: Arc<str>,
    pub(crate) finish: Arc<str>,
    pub(crate) finish_and_put: Arc<str>,
    pub(crate) finish_and_stage: Arc<str>,
    pub(crate) finish_put_and_stage: Arc<str>,
    pub(crate) stage_plain: Arc<str>,
    pub(crate) intend: Arc<str>,
    pub(crate) intend_again: Arc<str>,
    pub(crate) intend_anew: Arc<str>,
    pub(crate) settle_effect: Arc<str>,
    pub(crate) outcome: Arc<str>,
    start_many: Arc<str>,
    absent_many: Arc<str>,
    intend_many: Arc<str>,
    outcome_many: Arc<str>,
    pub(crate) wait: Arc<str>,
    pub(crate) park: Arc<str>,
    pub(crate) event: Arc<str>,
    pub(crate) held: Arc<str>,
    pub(crate) is_open: Arc<str>,
    pub(crate) pivot: Arc<str>,
    pub(crate) turn_back: Arc<str>,
    pub(crate) undo_begins: Arc<str>,
    pub(crate) undo_ended: Arc<str>,
    pub(crate) undone: Arc<str>,
    pub(crate) resolve: Arc<str>,
    pub(crate) resume: Arc<str>,
    pub(crate) resolve_done: Arc<str>,
    pub(crate) adopt: Arc<str>,
    pub(crate) settle_any: Arc<str>,
    pub(crate) events: Arc<str>,
    pub(crate) list: Arc<str>,
    pub(crate) overdue: Arc<str>,
    pub(crate) park_lost: Arc<str>,
    pub(crate) old: Arc<str>,
    pub(crate) remove: Arc<str>,
    pub(crate) by_foreign_key: Arc<str>,
    pub(crate) keep_data: Arc<str>,
    pub(crate) keep_data_and_sleep: Arc<str>,
}

/// The columns that a claim decides by, and what a replay needs.
const LOOK: &str = "SELECT f.owner, f.fence, f.state, f.lease, {now} AS now, f.fingerprint, f.name, \
     f.version, f.attempts, {point}, f.status, f.headers, f.body, f.reason, f.input, f.due, f.pivot, \
     f.data, f.created FROM {flows} AS f WHERE f.flow_id = ?";

/// The last recovery point by name where steps do not write it into the flow's row: the newest step, unless
/// the row says more, as that of a machine or of a flow that has turned back or ended does.
const LAST_STEP: &str = "CASE WHEN f.point = 'started' THEN coalesce((SELECT s.name FROM {steps} AS s \
     WHERE s.flow_id = f.flow_id ORDER BY s.at DESC LIMIT 1), f.point) ELSE f.point END";

/// Who still holds the flow, and only that.
///
/// Wherever a flow is found by its id, its state is written as a sum. With the plain column PostgreSQL may
/// read the whole index of what the completer looks for instead, which is small when it counts its rows and
/// full of what has just ended while flows run.
const HELD: &str = "flow_id = ? AND fence = ? AND owner = ? AND state + 0 = 1";

const START: &str = "INSERT INTO {flows} (flow_id, name, version, state, fence, owner, lease, due, \
     attempts, point, pivot, fingerprint, input, client_key, scope, created, reason) \
     {values}";
const START_VALUES: &str =
    "?, ?, ?, 1, {now}, ?, {now} + ?, {now} + ?, 1, 'started', '', ?, ?, ?, ?, {now}, ''";

/// The start of a flow that was seen not to be there, under the fence that it was given then, and until a
/// time: whoever sleeps for longer looks again, because what was finished meanwhile may be gone by now.
const START_AS_VALUES: &str =
    "?, ?, ?, 1, ?, ?, {now} + ?, {now} + ?, 1, 'started', '', ?, ?, ?, ?, {now}, ''";
const IN_TIME: &str = "{now} < ?";

/// Everything that the decision looked at and that can change is compared.
const TAKE_OVER: &str = "UPDATE {flows} SET state = CASE WHEN state = 2 THEN 1 ELSE state END, \
     fence = {greatest}(fence + 1, {now}), owner = ?, lease = {now} + ?, due = {now} + ?, \
     attempts = attempts + 1, version = ?, reason = '' \
     WHERE flow_id = ? AND fence = ? AND owner = ? AND lease = ? AND state + 0 IN (1, 2, 5)";

const FINISH: &str = "UPDATE {flows} SET state = 3, point = 'finished', lease = 0, due = {now}, \
     finished = {now}, status = ?, headers = ?, body = ?, reason = '' WHERE {held}";

const PUT_STEP: &str = "INSERT INTO {steps} (flow_id, name, item, kind, shape, bound, output, fence, \
     at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, {now})";

/// The fence and the step in one statement. The flow's row is locked and not written: a row that changes
/// with every step is written as a whole each time, and leaves its old self behind for the vacuum. A takeover
/// comes before or after, as if it were written. `current_setting` tells whether this is still the
/// transaction that was begun.
const HOLD_AND_PUT: &str = "INSERT INTO {steps} (flow_id, name, item, kind, shape, bound, output, \
     fence, at) SELECT f.flow_id, ?, ?, ?, ?, ?, ?, f.fence, {now} FROM {flows} AS f \
     WHERE f.flow_id = ? AND f.fence = ? AND f.owner = ? AND f.state + 0 = 1 \
     AND current_setting('oncekey.phase', true) = 'on' FOR NO KEY UPDATE";

/// The same with a late outcome, which may be there already if another step of the attempt has carried it. It
/// counts as written before the step: so the step is the last one.
const HOLD_AND_PUT_TWO: &str = "WITH held AS (SELECT f.flow_id, f.fence FROM {flows} AS f \
     WHERE f.flow_id = ? AND f.fence = ? AND f.owner = ? AND f.state + 0 = 1 \
     AND current_setting('oncekey.phase', true) = 'on' FOR NO KEY UPDATE), \
     late AS (INSERT INTO {steps} (flow_id, name, item, kind, shape, bound, output, fence, at) \
     SELECT flow_id, ?, ?, ?, ?, ?, ?, fence, {now} - 1 FROM held ON CONFLICT DO NOTHING) \
     INSERT INTO {steps} (flow_id, name, item, kind, shape, bound, output, fence, at) \
     SELECT flow_id, ?, ?, ?, ?, ?, ?, fence, {now} FROM held";

/// A step that announces a call: its intent is written in the same statement.
const HOLD_PUT_AND_INTEND: &str = "WITH held AS (SELECT f.flow_id, f.fence FROM {flows} AS f \
     WHERE f.flow_id = ? AND f.fence = ? AND f.owner = ? AND f.state + 0 = 1 \
     AND current_setting('oncekey.phase', true) = 'on' FOR NO KEY UPDATE), {intent} {step}";
const ANNOUNCED: &str = "intent AS (INSERT INTO {effects} (flow_id, name, item, safety, span, bound, \
     foreign_key, seq, state, calls, first_at, last_at, undo_name, undo_data, undo_calls, undo_first_at, \
     reason) SELECT h.flow_id, ?, ?, ?, ?, ?, ?, {seq}, 1, 1, {now}, {now}, '', '', 0, 0, '' FROM held AS h)";
const STEP_OF_HELD: &str = "INSERT INTO {steps} (flow_id, name, item, kind, shape, bound, output, fence, at) \
     SELECT flow_id, ?, ?, ?, ?, ?, ?, fence, {now} FROM held";

const NEXT_SEQ: &str =
    "(SELECT coalesce(max(e.seq), 0) + 1 FROM {effects} AS e WHERE e.flow_id = h.flow_id)";

/// The first step of a flow and its start in one statement. If the flow is there by now, nothing is written.
const START_AND_PUT: &str = "WITH held AS ({start} RETURNING flow_id, fence) {step}";
const START_PUT_AND_INTEND: &str =
    "WITH held AS ({start} RETURNING flow_id, fence), {intent} {step}";

/// The end of a flow with a late outcome.
const FINISH_AND_PUT: &str = "WITH done AS ({finish} RETURNING flow_id, fence), {late} \
     SELECT count(*) FROM done";
const LATE: &str = "late AS (INSERT INTO {steps} \
     (flow_id, name, item, kind, shape, bound, output, fence, at) \
     SELECT flow_id, ?, ?, ?, ?, ?, ?, fence, {now} FROM done ON CONFLICT DO NOTHING)";

/// The end of a flow with a message.
const FINISH_AND_STAGE: &str = "WITH done AS ({finish} RETURNING flow_id, fence) \
     {stage} SELECT flow_id, {message} FROM done";
/// The end of a flow with both.
const FINISH_PUT_AND_STAGE: &str = "WITH done AS ({finish} RETURNING flow_id, fence), {late} \
     {stage} SELECT flow_id, {message} FROM done";

/// A plain message, which waits from now on.
const STAGE: &str = "INSERT INTO {staged} (flow_id, id, topic, headers, body, owner, order_key, collapse, \
     state, attempt, due, reason, created)";
const MESSAGE: &str = "?, ?, ?, ?, ?, '', '', 1, 0, {now}, '', {now}";

/// The outcome of a call: the fence and the step in one statement, which is a transaction of its own.
const OUTCOME: &str = "INSERT INTO {steps} (flow_id, name, item, kind, shape, bound, output, fence, \
     at) SELECT f.flow_id, ?, ?, ?, ?, ?, ?, f.fence, {now} FROM {flows} AS f \
     WHERE f.flow_id = ? AND f.fence = ? AND f.owner = ? AND f.state + 0 = 1 FOR NO KEY UPDATE";

/// What has become of an intent: a call is done if its outcome is there, whatever else was written about it.
/// So nobody has to write to the row of an intent that a call has followed.
const EFFECT_STATE: &str = "CASE WHEN e.state = 1 AND EXISTS (SELECT 1 FROM {steps} AS s \
     WHERE s.flow_id = e.flow_id AND s.name = e.name AND s.item = e.item) THEN 2 ELSE e.state END";

/// A start may be lost with a server that goes down in the next moment: its commit does not wait for the
/// disk. Everybody sees it at once, and nothing that is committed after it is on the disk without it: so if
/// it is lost, nothing had happened, and its owner finds no row under its fence. An outcome waits: an owner
/// that outlives the server would go on with an answer that nobody else knows.
const UNHURRIED: &str = " (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL";

const INTEND: &str = "INSERT INTO {effects} (flow_id, name, item, seq, safety, span, state, calls, \
     first_at, last_at, bound, foreign_key, undo_name, undo_data, undo_calls, undo_first_at, \
     reason) SELECT f.flow_id, ?, ?, \
     (SELECT coalesce(max(e.seq), 0) + 1 FROM {effects} AS e WHERE e.flow_id = f.flow_id), \
     ?, ?, 1, 1, {now}, {now}, ?, ?, ?, ?, 0, 0, '' \
     FROM {flows} AS f WHERE f.flow_id = ? AND f.fence = ? AND f.owner = ? AND f.state + 0 = 1";

/// The last three for several flows, whose values come as a list of lists: `e->>0` is the first value of
/// the single statement, and bytes are written in hexadecimal digits. In the order of ids, so that two
/// processes with flows in common wait for each other and never for themselves. Nobody is made to wait
/// longer for somebody else's row than this many milliseconds: what waits longer is said by itself.
/// The settings are made once, and end with the statement.
const COMPANY: &str = "(SELECT e FROM jsonb_array_elements((?::text)::jsonb) AS e \
     WHERE (SELECT set_config('lock_timeout', '20', true)) IS NOT NULL{setting} \
     ORDER BY e->>{id}) AS l";

const START_MANY: &str = "INSERT INTO {flows} (flow_id, name, version, state, fence, owner, lease, \
     due, attempts, point, pivot, fingerprint, input, client_key, scope, created, reason) \
     SELECT decode(e->>0, 'hex'), e->>1, (e->>2)::bigint, 1, {now}, decode(e->>3, 'hex'), \
     {now} + (e->>4)::bigint, {now} + (e->>5)::bigint, 1, 'started', '', decode(e->>6, 'hex'), \
     decode(e->>7, 'hex'), decode(e->>8, 'hex'), decode(e->>9, 'hex'), {now}, '' \
     FROM {company} ON CONFLICT (flow_id) DO NOTHING RETURNING flow_id, fence";

/// Each by itself and not as a join: by its key, as soon as the table has been analysed with more than a few
/// rows in it, whatever the planner thinks of the list.
const ABSENT_MANY: &str = "SELECT decode(e->>0, 'hex'), {now} \
     FROM jsonb_array_elements((?::text)::jsonb) AS e \
     WHERE (SELECT f.flow_id FROM {flows} AS f WHERE f.flow_id = decode(e->>0, 'hex')) IS NULL";

/// Of each flow its row is looked for by itself: so it is found by its key, whatever the planner thinks
/// of a list whose length it does not know.
const INTEND_MANY: &str = "INSERT INTO {effects} (flow_id, name, item, seq, safety, span, state, \
     calls, first_at, last_at, bound, foreign_key, undo_name, undo_data, undo_calls, undo_first_at, \
     reason) SELECT f.flow_id, e->>0, e->>1, \
     (SELECT coalesce(max(o.seq), 0) + 1 FROM {effects} AS o WHERE o.flow_id = f.flow_id), \
     (e->>2)::bigint, (e->>3)::bigint, 1, 1, {now}, {now}, decode(e->>4, 'hex'), e->>5, e->>6, \
     decode(e->>7, 'hex'), 0, 0, '' FROM {company}, \
     LATERAL (SELECT flow_id FROM {flows} WHERE flow_id = decode(e->>8, 'hex') \
     AND fence = (e->>9)::bigint AND owner = decode(e->>10, 'hex') AND state + 0 = 1 FOR UPDATE) AS f \
     RETURNING flow_id, seq";

const OUTCOME_MANY: &str = "INSERT INTO {steps} (flow_id, name, item, kind, shape, bound, output, \
     fence, at) SELECT f.flow_id, e->>0, e->>1, (e->>2)::bigint, e->>3, decode(e->>4, 'hex'), \
     decode(e->>5, 'hex'), (e->>7)::bigint, {now} FROM {company}, \
     LATERAL (SELECT flow_id FROM {flows} WHERE flow_id = decode(e->>6, 'hex') \
     AND fence = (e->>7)::bigint AND owner = decode(e->>8, 'hex') AND state + 0 = 1 \
     FOR NO KEY UPDATE) AS f RETURNING flow_id, fence";

impl Statements {
    /// What several flows say at once.
    pub(crate) const fn many(&self, what: What) -> &Arc<str> {
        match what {
            What::Start => &self.start_many,
            What::Look => &self.absent_many,
            What::Intend => &self.intend_many,
            What::Outcome => &self.outcome_many,
        }
    }

    #[allow(clippy::too_many_lines, reason = "a list of statements, one after the other")]
    pub(crate) fn new(dialect: Dialect, before: &str) -> Self {
        let of = |template: &str| {
            let whole = template.replace("{held}", HELD).replace("{effect_state}", EFFECT_STATE);
            render(dialect, before, &whole)
        };
        let many = |template: &str, id: usize, setting: &str| {
            let company = COMPANY.replace("{id}", &id.to_string()).replace("{setting}", setting);
            of(&template.replace("{company}", &company))
        };
        let unhurried = format!(" AND{UNHURRIED}");
        let hold = match dialect {
            Dialect::Sqlite => "",
            Dialect::Postgres | Dialect::Mysql => " FOR UPDATE",
        };
        let open = match dialect {
            Dialect::Postgres => " AND current_setting('oncekey.phase', true) = 'on'",
            // There a savepoint tells.
            Dialect::Sqlite | Dialect::Mysql => "",
        };
        let met = " ON CONFLICT (flow_id) DO NOTHING RETURNING fence, lease";
        let start = match dialect {
            // What changes nothing: unlike IGNORE it hides no other error. Who won is told by the
            // owner in the row, because drivers count such a row in different ways.
            Dialect::Mysql => {
                format!("VALUES ({START_VALUES}) ON DUPLICATE KEY UPDATE flow_id = flow_id")
            }
            Dialect::Sqlite => format!("VALUES ({START_VALUES}){met}"),
            Dialect::Postgres => format!("SELECT {START_VALUES} WHERE{UNHURRIED}{met}"),
        };
        let start = START.replace("{values}", &start);
        let nowhere = match dialect {
            Dialect::Mysql => " FROM DUAL",
            Dialect::Sqlite | Dialect::Postgres => "",
        };
        let start_as = |open: &str| {
            let met = match dialect {
                Dialect::Mysql => "ON DUPLICATE KEY UPDATE flow_id = {flows}.flow_id",
                Dialect::Sqlite | Dialect::Postgres => "ON CONFLICT (flow_id) DO NOTHING",
            };
            let values = format!("SELECT {START_AS_VALUES}{nowhere} WHERE {IN_TIME}{open} {met}");
            START.replace("{values}", &values)
        };
        let announcing = |template: &str, seq: &str| {
            let template = template.replace("{start}", &start_as(open));
            let template = template.replace("{intent}", ANNOUNCED).replace("{step}", STEP_OF_HELD);
            template.replace("{seq}", seq)
        };
        let point = match dialect {
            Dialect::Postgres => LAST_STEP,
            Dialect::Sqlite | Dialect::Mysql => "f.point",
        };
        let finish = format!("{FINISH}{open}");
        let with_finish = |template: &str| {
            let template = template.replace("{finish}", &finish).replace("{late}", LATE);
            template.replace("{stage}", STAGE).replace("{message}", MESSAGE)
        };
        let stage_plain = match dialect {
            Dialect::Postgres => format!("{STAGE} SELECT ?, {MESSAGE} WHERE true{open}"),
            Dialect::Sqlite | Dialect::Mysql => format!("{STAGE} VALUES (?, {MESSAGE})"),
        };
        // Another step of the same attempt has carried it: what changes nothing.
        let put_late = match dialect {
            Dialect::Mysql => format!("{PUT_STEP} ON DUPLICATE KEY UPDATE flow_id = flow_id"),
            Dialect::Sqlite => format!("{PUT_STEP} ON CONFLICT DO NOTHING"),
            Dialect::Postgres => format!("{HOLD_AND_PUT} ON CONFLICT DO NOTHING"),
        };
        let look = LOOK.replace("{point}", point);
        Self {
            start: of(&start),
            start_as: of(&start_as("")),
            absent: of(&format!(
                "SELECT {{now}}{nowhere} WHERE NOT EXISTS \
                 (SELECT 1 FROM {{flows}} AS f WHERE f.flow_id = ?)"
            )),
            look: of(&look),
            look_and_hold: of(&format!("{look}{hold}")),
            take_over: of(TAKE_OVER),
            renew: of("UPDATE {flows} SET lease = {now} + ?, due = {now} + ? WHERE flow_id = ? \
                 AND fence = ? AND owner = ? AND state + 0 IN (1, 5)"),
            steps: of("SELECT name, item, kind, shape, bound, output, fence, at FROM {steps} \
                 WHERE flow_id = ? ORDER BY at, name, item"),
            effects: of(
                "SELECT e.name, e.item, e.seq, e.safety, e.span, {effect_state}, e.calls, \
                 e.first_at, e.last_at, e.bound, e.foreign_key, e.undo_name, e.undo_data, \
                 e.undo_calls, e.undo_first_at, e.reason, {now} AS now FROM {effects} AS e \
                 WHERE e.flow_id = ? ORDER BY e.seq",
            ),
            advance: of("UPDATE {flows} SET point = ? WHERE {held}"),
            put_step: of(PUT_STEP),
            hold: of("UPDATE {flows} SET point = point WHERE {held}"),
            hold_and_put: of(HOLD_AND_PUT),
            hold_and_put_two: of(HOLD_AND_PUT_TWO),
            hold_put_and_intend: of(&announcing(HOLD_PUT_AND_INTEND, NEXT_SEQ)),
            start_and_put: of(&announcing(START_AND_PUT, "1")),
            // A flow that was not there has no other intents.
            start_put_and_intend: of(&announcing(START_PUT_AND_INTEND, "1")),
            put_late: of(&put_late),
            finish: of(&finish),
            finish_and_put: of(&with_finish(FINISH_AND_PUT)),
            finish_and_stage: of(&with_finish(FINISH_AND_STAGE)),
            finish_put_and_stage: of(&with_finish(FINISH_PUT_AND_STAGE)),
            stage_plain: of(&stage_plain),
            // The flow's row is locked while the intent is written: a takeover comes before or after.
            intend: of(&format!("{INTEND}{hold}")),
            intend_again: of("UPDATE {effects} SET state = 1, calls = calls + 1, last_at = {now} \
                 WHERE flow_id = ? AND name = ? AND item = ? AND state IN (1, 5)"),
            // Nothing of the earlier call counts any more, so this one is judged by its own class.
            intend_anew: of(
                "UPDATE {effects} SET state = 1, calls = calls + 1, first_at = {now}, \
                 last_at = {now}, safety = ?, span = ?, undo_name = ?, undo_data = ? \
                 WHERE flow_id = ? AND name = ? AND item = ? AND state IN (1, 5)",
            ),
            settle_effect: of("UPDATE {effects} SET state = ?, last_at = {now} \
                 WHERE flow_id = ? AND name = ? AND item = ? AND state = 1"),
            outcome: of(OUTCOME),
            start_many: many(START_MANY, 0, &unhurried),
            absent_many: of(ABSENT_MANY),
            intend_many: many(INTEND_MANY, 8, ""),
            outcome_many: many(OUTCOME_MANY, 6, ""),
            // Whoever ends an attempt takes its name from the flow: a renewal that was under way and
            // comes late revives nothing.
            wait: of("UPDATE {flows} SET state = CASE WHEN state = 1 THEN 2 ELSE state END, \
                 owner = ?, lease = 0, due = {now} + ?, reason = ? \
                 WHERE flow_id = ? AND fence = ? AND owner = ? AND state + 0 IN (1, 5)"),
            park: of("UPDATE {flows} SET state = 4, owner = ?, lease = 0, reason = ? \
                 WHERE flow_id = ? AND fence = ? AND owner = ? AND state + 0 IN (1, 5)"),
            event: of("INSERT INTO {events} (flow_id, at, fence, what, detail) \
                 VALUES (?, {now}, ?, ?, ?)"),
            held: of("SELECT count(*) FROM {flows} WHERE {held}"),
            is_open: of(&format!("SELECT count(*) FROM (SELECT 1 AS one) AS o WHERE true{open}")),
            pivot: of("UPDATE {flows} SET pivot = ? WHERE {held}"),
            // A flow that has a reply before its end is on the way back. Attempts count anew.
            turn_back: of("UPDATE {flows} SET state = 5, point = 'undoing', attempts = 0, \
                 status = ?, headers = ?, body = ?, reason = ? WHERE {held}"),
            // Not bound to a fence of its own: the caller holds the flow's row in the same
            // transaction.
            undo_begins: of("UPDATE {effects} SET undo_calls = undo_calls + 1, last_at = {now}, \
                 undo_first_at = CASE WHEN undo_first_at = 0 THEN {now} * ? ELSE undo_first_at END \
                 WHERE flow_id = ? AND name = ? AND item = ?"),
            undo_ended: of("UPDATE {effects} SET state = ?, last_at = {now}, reason = ? \
                 WHERE flow_id = ? AND name = ? AND item = ?"),
            undone: of("UPDATE {flows} SET state = ?, point = ?, lease = 0, due = {now}, \
                 finished = {now}, reason = ? WHERE flow_id = ? AND fence = ? AND owner = ? AND state + 0 = 5"),
            // What a person decides outdates every owner.
            resolve: of("UPDATE {flows} SET state = ?, fence = {greatest}(fence + 1, {now}), \
                 owner = ?, lease = 0, due = {now}, attempts = ?, reason = ? \
                 WHERE flow_id = ? AND state IN (2, 4, 5, 7)"),
            // What was found elsewhere wakes nobody whom a person has given up, and turns round nobody
            // who is on the way back.
            resume: of("UPDATE {flows} SET state = 2, fence = {greatest}(fence + 1, {now}), \
                 owner = ?, lease = 0, due = {now}, attempts = 0, reason = '' \
                 WHERE flow_id = ? AND state IN (2, 4) AND status IS NULL"),
            resolve_done: of("UPDATE {flows} SET state = 3, point = 'finished', \
                 fence = {greatest}(fence + 1, {now}), owner = ?, lease = 0, due = {now}, \
                 finished = {now}, status = ?, headers = ?, body = ?, reason = ? \
                 WHERE flow_id = ? AND state IN (2, 4, 5)"),
            adopt: of(PUT_STEP),
            settle_any: of("UPDATE {effects} SET state = ?, last_at = {now}, reason = ? \
                 WHERE flow_id = ? AND name = ? AND item = ?"),
            events: of("SELECT at, fence, what, detail FROM {events} WHERE flow_id = ? \
                 ORDER BY id"),
            list: of(&format!(
                "SELECT f.flow_id, f.name, f.version, f.state, f.attempts, {point}, f.reason, \
                 f.created FROM {{flows}} AS f WHERE f.state = ? ORDER BY f.created LIMIT ?",
            )),
            overdue: of(&format!(
                "SELECT f.flow_id, f.name, f.version, f.state, f.attempts, {point}, f.reason, \
                 f.created FROM {{flows}} AS f WHERE f.state IN (1, 2, 5) \
                 AND f.due <= (SELECT {{now}}) - ? ORDER BY f.due LIMIT ?",
            )),
            // Without a proof: nobody could read the row to get one. Who still drives it is fenced.
            park_lost: of("UPDATE {flows} SET state = 4, fence = {greatest}(fence + 1, {now}), \
                 owner = ?, lease = 0, reason = ? \
                 WHERE flow_id = ? AND state IN (1, 2, 5) AND lease <= {now}"),
            old: of("SELECT flow_id FROM {flows} WHERE state IN (3, 6) \
                 AND due <= (SELECT {now}) - ? ORDER BY due LIMIT ?"),
            remove: of("DELETE FROM {flows} WHERE flow_id = ? AND state IN (3, 6) \
                 AND due <= (SELECT {now}) - ?"),
            by_foreign_key: of(
                "SELECT e.flow_id, e.name, e.item, {effect_state}, f.state, f.lease, \
                 {now} AS now FROM {effects} AS e JOIN {flows} AS f ON f.flow_id = e.flow_id \
                 WHERE e.foreign_key = ?",
            ),
            keep_data: of(&format!("UPDATE {{flows}} SET data = ?, point = ? WHERE {HELD}{open}")),
            // Sleeping is progress: the count of attempts begins anew. The lease keeps clients who ask
            // again from waking it early.
            keep_data_and_sleep: of(&format!(
                "UPDATE {{flows}} SET data = ?, point = ?, state = 2, lease = {{now}} + ?, attempts = 0, \
                 due = {{now}} + ? WHERE {HELD}{open}"
            )),
        }
    }
}
