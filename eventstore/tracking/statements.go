package tracking

// The statements over events compare (partition, position) as a row, although
// the partition is given. Only the primary key can serve that. Written as
// partition = p AND position > n, the planner sometimes takes the index on
// position alone, for its better correlation, and then reads the events of all
// partitions to find those of one.
//
// Arrays are hidden in sub-selects where the planner would otherwise take
// their lengths for a reason to plan the statement anew each time it is run.

// newestOf is the newest position of a partition, NULL if it is empty.
func newestOf(partition string) string {
	return `(SELECT e.position FROM events e
		WHERE (e.partition, e.position) > (` + partition + `, 0) AND (e.partition, e.position) <= (` + partition + `, 9223372036854775807)
		ORDER BY e.partition DESC, e.position DESC LIMIT 1)`
}

// claimSQL locks the tokens of those partitions that have something for the
// processor and are not locked by another worker, anywhere. It is one row, the
// message, or none. The page is read by a later statement, whose snapshot is
// younger than the locks.
var claimSQL = `
WITH claimed AS MATERIALIZED (
	SELECT t.partition, t.position, t.replay_until, t.stop_at, t.attempts, t.failed_position, coalesce(t.last_error, '') AS last_error
	FROM processor_tokens t
	WHERE t.processor = $1 AND t.partition = ANY((SELECT $2::smallint[])::smallint[]) AND NOT t.paused AND t.not_before <= clock_timestamp()
	AND (t.stop_at IS NULL OR t.position < t.stop_at)
	AND CASE WHEN t.partition = ANY((SELECT $3::smallint[])::smallint[])
		THEN t.position < ` + newestOf("t.partition") + `
		ELSE (SELECT true FROM events e
			WHERE (e.partition, e.position) > (t.partition, t.position) AND (e.partition, e.position) <= (t.partition, t.position + $4::bigint)
			AND e.event_type <> ALL((SELECT $5::text[])::text[])
			ORDER BY e.partition, e.position LIMIT 1) END
	ORDER BY t.partition
	FOR UPDATE SKIP LOCKED
)
SELECT json_agg(claimed)::text, set_config('idle_in_transaction_session_timeout', $6, true) FROM claimed HAVING count(*) > 0`

// newestSQL is the end of each claimed partition.
var newestSQL = `SELECT p, coalesce(` + newestOf("p") + `, 0) FROM unnest((SELECT $1::smallint[])) AS p`

// eventColumns are what scanEvent reads of an event e.
const eventColumns = `e.partition, e.position, e.event_id, e.stream_id, e.stream_version, e.event_type, e.schema_version, e.sequence_key,
	e.payload, e.metadata, coalesce(e.command_key, ''), e.digest, e.recorded_at`

// pageSQL is what follows each claimed token, in order.
const pageSQL = `
SELECT ` + eventColumns + `
FROM unnest((SELECT $1::smallint[]), (SELECT $2::bigint[]), (SELECT $3::bigint[]), (SELECT $4::int[])) AS t(partition, after, until, most)
CROSS JOIN LATERAL (
	SELECT * FROM events
	WHERE (partition, position) > (t.partition, t.after) AND (partition, position) <= (t.partition, t.until) AND event_type <> ALL((SELECT $5::text[])::text[])
	ORDER BY partition, position LIMIT t.most
) e`

// waitingSQL names the sequences of the claimed partitions that have letters.
const waitingSQL = `
SELECT DISTINCT sequence_key FROM dead_letters
WHERE processor = $1 AND partition = ANY($2::smallint[]) AND status IN ('parked', 'behind')`

// rateOf is the rate of a token as it is now: what was averaged fades with a
// time constant of ten seconds.
func rateOf(token string) string {
	return token + `.rate * exp(least(0, extract(epoch FROM ` + token + `.rated_at - clock_timestamp()))::float8 / 10)`
}

// ackSQL moves tokens and forgets the failures that they have passed.
var ackSQL = `
UPDATE processor_tokens t SET
	position = m.position,
	attempts = CASE WHEN t.failed_position > m.position THEN t.attempts ELSE 0 END,
	failed_position = CASE WHEN t.failed_position > m.position THEN t.failed_position END,
	not_before = '-infinity',
	last_error = m.reason,
	owner = $2,
	updated_at = clock_timestamp(),
	rate = ` + rateOf("t") + ` + m.events / 10.0,
	rated_at = clock_timestamp()
FROM unnest($3::smallint[], $4::bigint[], $5::text[], $6::int[]) AS m(partition, position, reason, events)
WHERE t.processor = $1 AND t.partition = m.partition`

// failedSQL remembers a failure on its token, unless the token has moved since
// or somebody is at it right now. Attempts count the failures of exactly the
// event at failed_position; events up to there are handled one by one.
const failedSQL = `
WITH mine AS (
	SELECT t.partition, f.failed, f.counts, f.pause
	FROM unnest($3::smallint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::float8[]) AS f(partition, position, failed, counts, pause)
	JOIN processor_tokens t ON t.processor = $1 AND t.partition = f.partition AND t.position = f.position
	FOR UPDATE OF t SKIP LOCKED
)
UPDATE processor_tokens t SET
	attempts = CASE WHEN NOT mine.counts THEN t.attempts WHEN t.failed_position = mine.failed THEN t.attempts + 1 ELSE 1 END,
	failed_position = CASE WHEN mine.counts THEN mine.failed ELSE coalesce(t.failed_position, mine.failed) END,
	not_before = clock_timestamp() + make_interval(secs => mine.pause),
	last_error = $8,
	owner = $2,
	updated_at = clock_timestamp()
FROM mine
WHERE t.processor = $1 AND t.partition = mine.partition`

// scanSQL compares the tokens of the processors here with the ends of
// partitions: one index probe a partition, no locks, no transaction id.
var scanSQL = `
WITH newest AS MATERIALIZED (
	SELECT p AS partition, ` + newestOf("p") + ` AS position FROM unnest((SELECT $2::smallint[])) AS p
)
SELECT t.processor, count(*),
	coalesce(bit_or(1::bigint << t.partition) FILTER (WHERE t.position < least(n.position, t.stop_at) AND NOT t.paused AND t.not_before <= clock_timestamp()), 0),
	count(*) FILTER (WHERE t.position > coalesce(n.position, 0))
FROM processor_tokens t JOIN newest n ON n.partition = t.partition
WHERE t.processor = ANY((SELECT $1::text[])::text[])
GROUP BY t.processor`

// statusSQL counts exactly, so it costs an index entry an event of the lag. An
// append that is under way shows in the lock it holds on its partition.
var statusSQL = `
WITH appending AS MATERIALIZED (
	SELECT l.objid::int AS partition FROM pg_locks l WHERE l.locktype = 'advisory' AND l.classid = 7310 AND l.objsubid = 2 AND l.granted
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
), ends AS MATERIALIZED (
	SELECT p AS partition, coalesce(` + newestOf("p") + `, 0) AS newest, p IN (SELECT partition FROM appending) AS appending
	FROM generate_series(0, 63) AS p
), log AS MATERIALIZED (
	SELECT max(newest) AS newest FROM ends
), names AS (
	SELECT processor FROM processor_tokens UNION SELECT processor FROM processor_runs
), tokens AS MATERIALIZED (
	SELECT n.processor, e.partition, e.newest, e.appending, coalesce(t.position, 0) AS position, t.position IS NULL AS missing,
		coalesce(t.paused, false) AS paused, coalesce(t.position < t.replay_until, false) AS replaying, coalesce(t.attempts, 0) AS attempts,
		t.not_before, coalesce(t.last_error, '') AS last_error, coalesce(t.owner, '') AS owner, t.updated_at, coalesce(` + rateOf("t") + `, 0) AS rate, t.stop_at
	FROM names n CROSS JOIN ends e LEFT JOIN processor_tokens t ON t.processor = n.processor AND t.partition = e.partition
	WHERE cardinality($1::text[]) = 0 OR n.processor = ANY($1::text[])
)
SELECT t.processor, t.partition, t.position, t.missing, t.newest, t.appending,
	CASE WHEN t.newest > t.position THEN (SELECT count(*) FROM events b
		WHERE (b.partition, b.position) > (t.partition, t.position) AND (b.partition, b.position) <= (t.partition, t.newest)) ELSE 0 END,
	CASE WHEN t.newest > t.position THEN extract(epoch FROM clock_timestamp() - (SELECT b.recorded_at FROM events b
		WHERE (b.partition, b.position) > (t.partition, t.position) ORDER BY b.partition, b.position LIMIT 1))::float8 ELSE 0 END,
	t.paused, t.replaying, t.attempts, CASE WHEN t.not_before > clock_timestamp() THEN t.not_before END, t.last_error, t.owner, t.updated_at, t.rate,
	coalesce(t.stop_at, 0), t.stop_at IS NOT NULL AND (t.position >= t.stop_at OR NOT t.appending AND (SELECT newest FROM log) >= t.stop_at AND (SELECT b.position FROM events b
		WHERE (b.partition, b.position) > (t.partition, t.position) AND (b.partition, b.position) <= (t.partition, t.stop_at)
		ORDER BY b.partition, b.position LIMIT 1) IS NULL)
FROM tokens t
ORDER BY t.processor, t.partition`
