package tracking

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore"
)

// bootLock is the class of the advisory lock that a living process holds on the
// hash of its name, with its listener's connection.
const bootLock = 7313

// deadliest is how many processes have to die of an event before it is parked. A
// process that is killed from outside as soon as it starts, a few times over,
// dies at the same event each time: that alone must not set a customer aside.
const deadliest = 5

// deadOwners are the processes that neither live nor have ended in order.
const deadOwners = `SELECT b.owner FROM processor_boots b WHERE b.owner <> $1 AND NOT EXISTS (
	SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.classid = 7313 AND l.objsubid = 2 AND l.granted
	AND l.objid::bigint = hashtext(b.owner)::bigint & 4294967295 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))`

// boot says on the listener's connection that this process lives.
func (r *Runtime) boot(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1, hashtext($2))`, bootLock, r.owner); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, `INSERT INTO processor_boots (owner) VALUES ($1) ON CONFLICT DO NOTHING`, r.owner)
	return err
}

// mourn looks for processes that have died. If there are any, the first events
// after each token are marked before they are handled, and those that a mark
// shows as begun and never ended go one by one.
func (r *Runtime) mourn(ctx context.Context) error {
	var dead int
	err := r.pool.QueryRow(ctx, `SELECT count(*) FROM (`+deadOwners+`) d`, r.owner).Scan(&dead)
	if err != nil || dead == 0 {
		return err
	}
	for _, p := range r.running() {
		p.mu.Lock()
		p.marked.begin(p.PageSize)
		p.mu.Unlock()
	}
	rows, err := r.pool.Query(ctx, `
		WITH mark AS (
			UPDATE processor_marks m SET owner = NULL, deaths = m.deaths + (t.position < m.first_position)::int
			FROM processor_tokens t
			WHERE m.owner IN (`+deadOwners+`) AND t.processor = m.processor AND t.partition = m.partition
			RETURNING m.processor, m.partition, m.first_position, m.last_position, m.deaths, t.position < m.first_position AS unended
		), suspect AS (
			UPDATE processor_tokens t SET failed_position = greatest(t.failed_position, m.last_position)
			FROM mark m WHERE m.unended AND t.processor = m.processor AND t.partition = m.partition
		)
		SELECT processor, partition, first_position, deaths FROM mark WHERE unended`, r.owner)
	if err != nil {
		return err
	}
	var processor string
	var at eventstore.Place
	var deaths int
	_, err = pgx.ForEachRow(rows, []any{&processor, &at.Partition, &at.Position, &deaths}, func() error {
		r.log.Error("a process died while it handled a page; its events go one by one", "processor", processor, "place", at.String(), "deaths", deaths)
		return nil
	})
	return err
}

// rest is the end of a process in order. Those that it has outlived are
// forgotten with it.
func (r *Runtime) rest() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	batch := &pgx.Batch{}
	batch.Queue(`DELETE FROM processor_boots WHERE owner = $1 OR owner IN (`+deadOwners+`)`, r.owner)
	batch.Queue(`UPDATE processor_marks SET owner = NULL WHERE owner = $1`, r.owner)
	if err := r.pool.SendBatch(ctx, batch).Close(); err != nil {
		r.log.Debug("the end of the process could not be written", "error", err)
	}
}

// carefully is how long a process goes on marking: what killed was among the
// first events after a token.
const carefully = time.Minute

// marking is how many events of each partition are still to be marked. Mostly
// there are none. It is guarded by the processor's lock.
type marking struct {
	left  [eventstore.Partitions]int
	until time.Time // zero: nothing is marked
}

func (m *marking) begin(events int) {
	m.until = time.Now().Add(carefully)
	for i := range m.left {
		m.left[i] = events
	}
}

// marks reports which slices of a page are to be marked, and counts them down. A
// page that was not full is the last one of its partition: the event that killed
// was in the log by then.
func (p *processor) marks(page []*slice) (marked []*slice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().After(p.marked.until) {
		return nil
	}
	for _, s := range page {
		left := &p.marked.left[s.claim.Partition]
		if *left > 0 && s.handled > 0 {
			marked = append(marked, s)
		}
		*left -= max(1, s.handled)
		if s.reached() >= s.end() {
			*left = 0
		}
	}
	return marked
}

// careful reports whether pages may have to be marked. They are handled one at
// a time then, so that a death tells which one it was.
func (p *processor) careful() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(p.marked.until) && slices.ContainsFunc(p.marked.left[:], func(n int) bool { return n > 0 })
}

// mark writes down, in a transaction of its own, that a page is begun. It
// reports how many processes have died of the page's only event.
func (w *worker) mark(ctx context.Context, page []*slice, alone bool) (deaths int, err error) {
	n := len(page)
	partitions, firsts, lasts := make([]int16, n), make([]int64, n), make([]int64, n)
	for i, s := range page {
		partitions[i], firsts[i], lasts[i] = s.claim.Partition, s.events[0].Position, s.last
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // an event too many unmarked is better than a stop
	defer cancel()
	rows, err := w.runtime.pool.Query(ctx, `
		INSERT INTO processor_marks AS m (processor, partition, first_position, last_position, owner)
		SELECT $1, u.*, $2 FROM unnest($3::smallint[], $4::bigint[], $5::bigint[]) AS u ORDER BY 2
		ON CONFLICT (processor, partition) DO UPDATE SET owner = excluded.owner, first_position = excluded.first_position,
			last_position = CASE WHEN $6 AND excluded.first_position BETWEEN m.first_position AND m.last_position THEN m.last_position ELSE excluded.last_position END,
			deaths = CASE WHEN NOT $6 THEN 0
				WHEN excluded.first_position = m.first_position THEN m.deaths
				WHEN excluded.first_position BETWEEN m.first_position AND m.last_position THEN least(m.deaths, 1)
				ELSE 0 END
		RETURNING deaths`, w.processor.Name, w.runtime.owner, partitions, firsts, lasts, alone)
	if err != nil {
		return 0, fmt.Errorf("mark a page: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return 0, fmt.Errorf("mark a page: %w", err)
	}
	if !alone {
		return 0, nil
	}
	return all[0], nil
}

// unmark says that a page which failed is not under way any more: what it was
// rolled back for is on its token.
func (w *worker) unmark(ctx context.Context, marked []*slice) {
	if len(marked) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	partitions := make([]int16, len(marked))
	for i, s := range marked {
		partitions[i] = s.claim.Partition
	}
	if _, err := w.runtime.pool.Exec(ctx, `UPDATE processor_marks SET owner = NULL WHERE processor = $1 AND partition = ANY($2) AND owner = $3`,
		w.processor.Name, partitions, w.runtime.owner); err != nil {
		w.processor.log.Debug("a mark could not be taken back", "error", err)
	}
}
