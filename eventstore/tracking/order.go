package tracking

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore"
)

// orderedClaimSQL locks all tokens of an ordered processor, or none: whoever
// has the first one waits for the others, which only operators hold, and not
// for long. As claimSQL does, it gives one row if there is something to do.
var orderedClaimSQL = `
WITH gate AS MATERIALIZED (
	SELECT FROM processor_tokens t WHERE t.processor = $1 AND t.partition = 0 FOR UPDATE SKIP LOCKED
), claimed AS MATERIALIZED (
	SELECT t.partition, t.position, t.replay_until, t.stop_at, t.attempts, t.failed_position, coalesce(t.last_error, '') AS last_error,
		t.paused OR t.not_before > clock_timestamp() AS resting
	FROM processor_tokens t
	WHERE t.processor = $1 AND EXISTS (SELECT FROM gate)
	ORDER BY t.partition
	FOR UPDATE
), ends AS MATERIALIZED (
	SELECT c.*, coalesce(` + newestOf("c.partition") + `, 0) AS newest FROM claimed c
)
SELECT json_agg(ends)::text, set_config('idle_in_transaction_session_timeout', $4, true) FROM ends
HAVING count(*) = 64 AND NOT bool_or(resting) AND bool_or(CASE WHEN $2::boolean
	THEN position < least(newest, stop_at)
	ELSE (SELECT true FROM events e
		WHERE (e.partition, e.position) > (ends.partition, ends.position) AND (e.partition, e.position) <= (ends.partition, least(newest, stop_at, ends.position + ` + fmt.Sprint(window) + `))
		AND e.event_type <> ALL((SELECT $3::text[])::text[])
		ORDER BY e.partition, e.position LIMIT 1) END)`

// orderedPageSQL is pageSQL over all partitions, merged.
const orderedPageSQL = pageSQL + ` ORDER BY e.position LIMIT $6`

// drawnSQL is the highest position that any append has drawn.
const drawnSQL = `SELECT last_value FROM events_position_seq`

// underwaySQL names the transactions that have drawn positions and not ended:
// each holds the lock of the partition in which it appends.
const underwaySQL = `
SELECT coalesce(array_agg(DISTINCT l.virtualtransaction), '{}') FROM pg_locks l
WHERE l.locktype = 'advisory' AND l.classid = 7310 AND l.objsubid = 2 AND l.granted
AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// settleLook is the time between two looks at appends that are under way.
const settleLook = 2 * time.Millisecond

// settled is a position up to which the log is as it will always be: what had
// been drawn when it was called, once every append has ended that was under way
// then. Later statements of tx see all of it.
func settled(ctx context.Context, tx pgx.Tx) (position int64, err error) {
	var before, now []string
	batch := &pgx.Batch{}
	batch.Queue(drawnSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&position) })
	batch.Queue(underwaySQL).QueryRow(func(row pgx.Row) error { return row.Scan(&before) })
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return 0, fmt.Errorf("read how far the log is settled: %w", err)
	}
	for len(before) > 0 {
		if !pause(ctx, settleLook) {
			return 0, fmt.Errorf("wait for appends under way before position %d: %w", position, ctx.Err())
		}
		if err := tx.QueryRow(ctx, underwaySQL).Scan(&now); err != nil {
			return 0, fmt.Errorf("read how far the log is settled: %w", err)
		}
		before = slices.DeleteFunc(before, func(holder string) bool { return !slices.Contains(now, holder) })
	}
	return position, nil
}

// readOrdered reads what follows the tokens in the order of the whole log. The
// slices end at one position: that of the last event of a page that is full,
// else how far could be read.
func (w *worker) readOrdered(ctx context.Context, tx pgx.Tx, claims []claim) (page []*slice, waiting map[string]bool, err error) {
	until, err := settled(ctx, tx)
	if err != nil {
		return nil, nil, err
	}
	most := w.processor.PageSize
	if slices.ContainsFunc(claims, claim.suspect) {
		most = 1
	}
	for _, c := range claims {
		if c.StopAt != nil {
			until = min(until, *c.StopAt)
		}
		if c.Newest > c.Position {
			until = min(until, c.Position+window)
		}
	}
	for _, c := range claims {
		page = append(page, &slice{claim: c, until: until, most: most})
	}
	if waiting, err = w.read(ctx, tx, page); err != nil {
		return nil, nil, err
	}
	read, last := 0, int64(0)
	for _, s := range page {
		read, last = read+len(s.events), max(last, s.last)
	}
	if read == most {
		until = last
	}
	for _, s := range page {
		s.until, s.most = until, math.MaxInt // it is the page that is full, not a slice
	}
	return page, waiting, w.cutUnknown(page, waiting)
}

// cutUnknown ends all slices before the first event that this build does not
// know.
func (w *worker) cutUnknown(page []*slice, waiting map[string]bool) error {
	var first *stopped
	for _, s := range page {
		probe := *s
		w.sift(&probe, maps.Clone(waiting))
		if probe.stop != nil && (first == nil || probe.stop.at.Position < first.at.Position) {
			first = probe.stop
		}
	}
	if first == nil {
		return nil
	}
	for _, s := range page {
		s.stop, s.last = first, 0
		s.events = slices.DeleteFunc(s.events, func(e eventstore.Recorded) bool { return e.Position >= first.at.Position })
		if n := len(s.events); n > 0 {
			s.last = s.events[n-1].Position
		}
	}
	return nil
}

// inOrder puts the events of a page's partitions into the order of the log.
func inOrder(events []eventstore.Recorded) {
	slices.SortStableFunc(events, func(a, b eventstore.Recorded) int { return cmp.Compare(a.Position, b.Position) })
}
