package verify

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/eventstore"
)

// workersUnasked is how many partitions are read at the same time.
const workersUnasked = 2

// checking is one check of a database.
type checking struct {
	*tally
	pool     *pgxpool.Pool
	store    *eventstore.Store
	snapshot string
	readers  []*reader
	models   []model
	met      met
}

// Database checks the database that pool leads to, on connections of its own.
// It writes nothing but temporary tables.
func Database(ctx context.Context, pool *pgxpool.Pool, o Options) (Report, error) {
	if o.Workers == 0 {
		o.Workers = workersUnasked
	}
	store := eventstore.New(pool, eventstore.Current(), slog.New(slog.DiscardHandler))
	defer store.Close()
	c := &checking{tally: &tally{options: o}, pool: pool, store: store, readers: readers(commands.NewDispatcher(store)), met: newMet()}
	if err := c.run(ctx); err != nil {
		return Report{}, fmt.Errorf("verify: %w", err)
	}
	for _, r := range c.readers {
		if lag := (Lag{r.name, r.behind.Load(), int64(len(r.parked))}); lag.Events > 0 || lag.Customers > 0 {
			c.report.Lags = append(c.report.Lags, lag)
		}
	}
	return c.report, nil
}

var snapshot = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}

func (c *checking) run(ctx context.Context) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if c.models, err = describe(ctx, conn); err != nil {
		return err
	}
	return pgx.BeginTxFunc(ctx, conn, snapshot, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT pg_export_snapshot(), count(*) FROM events`).Scan(&c.snapshot, &c.total); err != nil {
			return fmt.Errorf("take a snapshot: %w", err)
		}
		if err := readReach(ctx, tx, c.readers); err != nil {
			return err
		}
		working, together := errgroup.WithContext(ctx)
		var next atomic.Int32
		for range c.options.Workers {
			working.Go(func() error { return c.work(together, &next) })
		}
		working.Go(func() error { return c.keys(together, tx) })
		if err := working.Wait(); err != nil {
			return err
		}
		if err := c.closings(ctx, tx); err != nil {
			return err
		}
		return c.unmet(ctx, tx)
	})
}

// connect opens a connection of its own: temporary tables hide the real ones,
// and nobody else should meet them.
func (c *checking) connect(ctx context.Context) (*pgx.Conn, error) {
	config := c.pool.Config().ConnConfig.Copy()
	for name, value := range map[string]string{"work_mem": "64MB", "temp_buffers": "64MB", "jit": "off", "statement_timeout": "0", "idle_in_transaction_session_timeout": "0"} {
		config.RuntimeParams[name] = value
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// within runs f in a transaction that sees what all the others see.
func (c *checking) within(ctx context.Context, conn *pgx.Conn, f func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, conn, snapshot, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET TRANSACTION SNAPSHOT '`+c.snapshot+`'`); err != nil { // it was named by the server
			return fmt.Errorf("share the snapshot: %w", err)
		}
		return f(tx)
	})
}

// worker reads partitions on one connection, and folds and compares on another.
type worker struct {
	*checking
	read, fold pgx.Tx
	partitions []int16
	held       []eventstore.Recorded // until projections fold them
}

// work takes partitions until there are none left, and then compares the read
// models of those it had.
func (c *checking) work(ctx context.Context, next *atomic.Int32) error {
	reading, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer reading.Close(context.WithoutCancel(ctx))
	folding, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer folding.Close(context.WithoutCancel(ctx))
	if err := shadow(ctx, folding, c.models); err != nil {
		return err
	}
	return c.within(ctx, reading, func(read pgx.Tx) error {
		return c.within(ctx, folding, func(fold pgx.Tx) error {
			w := &worker{checking: c, read: read, fold: fold}
			for p := next.Add(1) - 1; p < eventstore.Partitions; p = next.Add(1) - 1 {
				if err := w.partition(ctx, int16(p)); err != nil {
					return fmt.Errorf("partition %d: %w", p, err)
				}
			}
			if err := w.flush(ctx); err != nil {
				return err
			}
			return w.compareModels(ctx)
		})
	})
}

// foldMost bounds the events that are held until projections fold them. The
// more they are, the fewer statements; they may be of several partitions.
const foldMost = 5_000

// flush lets projections fold what is held.
func (w *worker) flush(ctx context.Context) error {
	err := w.foldModels(ctx, w.held)
	clear(w.held)
	w.held = w.held[:0]
	return err
}

func (w *worker) partition(ctx context.Context, partition int16) error {
	w.partitions = append(w.partitions, partition)
	a := newAuditor(w.tally)
	sagas := instances{}
	unsaid := int64(0)
	for r, err := range w.store.ReadPartition(ctx, w.read, partition, 0) {
		if err != nil {
			return err
		}
		if customer, ok := a.follow(r); ok {
			w.note(customer, r)
			if w.readers[billing].handled(r) {
				sagas.react(r)
			}
		}
		if r.Part == 0 {
			unsaid++
		}
		if unsaid == progressEvery {
			w.tally.read(unsaid)
			unsaid = 0
		}
		if w.held = append(w.held, r); len(w.held) == foldMost {
			if err := w.flush(ctx); err != nil {
				return err
			}
		}
	}
	w.tally.read(unsaid)
	w.streams(int64(a.chain.Streams()))
	for _, compare := range []func(context.Context, *auditor) error{w.billingRecords, w.refundRecords, w.schedules, w.imported} {
		if err := compare(ctx, a); err != nil {
			return err
		}
	}
	if err := w.timers(ctx, a, sagas); err != nil {
		return err
	}
	return w.sagas(ctx, a, sagas)
}

// note keeps what tells a processor that is behind from one that is wrong.
func (w *worker) note(c *account, r eventstore.Recorded) {
	for i, p := range w.readers {
		if !p.wants(r.Name()) {
			continue
		}
		if i < processors {
			c.newest[i] = r.Position
		}
		if !p.handled(r) {
			p.behind.Add(1)
		}
	}
}

func (t *tally) streams(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.Streams += n
}

// keys compares remembered commands and requests with the log, and the sequence
// with the last position.
func (c *checking) keys(ctx context.Context, tx pgx.Tx) error {
	for _, check := range []struct{ sql, remedy string }{
		{`SELECT e.stream_id || ' version ' || e.stream_version || ' at ' || e.partition || '-' || e.position,
			CASE WHEN k.key IS NULL THEN 'its command ' || e.command_key || ' is not remembered: sent again, it would be decided again'
				ELSE 'its command ' || e.command_key || ' is remembered for ' || k.stream_id || ' versions ' || k.first_version || ' to ' || k.last_version END
			FROM events e LEFT JOIN command_keys k ON k.key = e.command_key
			WHERE e.command_key IS NOT NULL AND (k.key IS NULL OR k.stream_id <> e.stream_id OR e.stream_version NOT BETWEEN k.first_version AND k.last_version)`,
			"restore the row of command_keys from a backup or an export"},
		{`SELECT 'command ' || k.key, 'it made version ' || k.last_version || ' of ' || k.stream_id || ', which ends at ' || coalesce(s.newest, 0)
			FROM command_keys k LEFT JOIN (SELECT stream_id, max(stream_version) AS newest FROM events GROUP BY stream_id) s USING (stream_id)
			WHERE k.last_version > coalesce(s.newest, 0)`,
			"the end of the stream is missing: restore it from a backup or an export"},
		{`SELECT 'request ' || r.key || ' of ' || r.actor, 'its command ' || r.command_key || ' is not remembered'
			FROM request_keys r WHERE r.command_key <> '' AND NOT EXISTS (SELECT FROM command_keys k WHERE k.key = r.command_key)`,
			"restore the row of command_keys from a backup or an export"},
	} {
		var about, detail string
		rows, err := tx.Query(ctx, check.sql)
		if err == nil {
			_, err = pgx.ForEachRow(rows, []any{&about, &detail}, func() error {
				c.found(Difference{KindKey, about, detail, check.remedy})
				return nil
			})
		}
		if err != nil {
			return fmt.Errorf("compare keys: %w", err)
		}
	}
	var last, drawn int64
	if err := tx.QueryRow(ctx, `SELECT coalesce((SELECT max(position) FROM events), 0), (SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM events_position_seq)`).Scan(&last, &drawn); err != nil {
		return fmt.Errorf("read the sequence of positions: %w", err)
	}
	if drawn < last {
		c.found(Difference{KindPosition, "sequence events_position_seq", fmt.Sprintf("the next position is %d, and the log has come to %d: appends will fail, or come before what was read", drawn+1, last),
			"stop billingd; SELECT setval('events_position_seq', (SELECT max(position) FROM events)); then restart it"})
	}
	return nil
}
