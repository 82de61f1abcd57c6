package eventstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// Within a partition, the order of positions is the order of commits: a reader
// that follows by position, while twelve writers hold their transactions open
// for as long as they please, sees every event, once, and each customer's in
// order.
func TestPositionsFollowCommits(t *testing.T) {
	t.Parallel()
	const writers, each, customers = 12, 25, 30
	s := storeOn(t, pgtest.Connect(t, pgtest.DSN(t), writers+2))
	var written atomic.Int64
	var writing sync.WaitGroup
	for w := range writers {
		chance := rand.New(rand.NewPCG(20261101, uint64(w)))
		writing.Go(func() {
			for range each {
				for {
					n, err := writeSlowly(t.Context(), s, chance, customers)
					if deadlocked(err) {
						continue
					}
					if err != nil {
						t.Error(err)
					}
					written.Add(n)
					break
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		writing.Wait()
		close(done)
	}()

	var seen [eventstore.Partitions]int64
	versions := map[domain.StreamID]int{}
	var read int64
	follow := func() {
		rows, err := s.Pool().Query(t.Context(), `
			SELECT e.partition, e.position, e.stream_id, e.stream_version
			FROM unnest($1::bigint[]) WITH ORDINALITY AS p(after, number)
			CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.partition = p.number - 1 AND e.position > p.after ORDER BY e.position LIMIT 20) e`, seen[:])
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var partition, position int64
			var stream domain.StreamID
			var version int
			if err := rows.Scan(&partition, &position, &stream, &version); err != nil {
				t.Fatal(err)
			}
			if want := versions[stream] + 1; version != want {
				t.Fatalf("%s: version %d came at %d-%d, want %d", stream, version, partition, position, want)
			}
			versions[stream] = version
			if position <= seen[partition] {
				t.Fatalf("position %d came after %d", position, seen[partition])
			}
			seen[partition] = position
			read++
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		follow()
	}
	for before := int64(-1); before != read; {
		before = read
		follow()
	}
	if read != written.Load() || int(read) != count(t, s.Pool(), `SELECT count(*) FROM events`) {
		t.Errorf("read %d of %d events", read, written.Load())
	}
	for stream := range versions {
		events, err := s.Load(t.Context(), s.Pool(), stream, 0)
		if err != nil {
			t.Fatal(err)
		}
		checkChain(t, events)
	}
}

// writeSlowly appends to one to three customers in one transaction, decided
// under their locks, and takes its time before it commits, or rolls back.
func writeSlowly(ctx context.Context, s *eventstore.Store, chance *rand.Rand, customers int) (written int64, err error) {
	tx, err := s.Pool().Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	var streams []domain.StreamID
	var ids []domain.CustomerID
	for _, i := range chance.Perm(customers)[:1+chance.IntN(3)] {
		id := domain.CustomerID(fmt.Sprintf("c%d", i))
		ids, streams = append(ids, id), append(streams, id.Stream())
	}
	if err := eventstore.LockPartitions(ctx, tx, streams...); err != nil {
		return 0, err
	}
	var batches []eventstore.Batch
	for i, id := range ids {
		events, err := s.Load(ctx, tx, streams[i], 0)
		if err != nil {
			return 0, err
		}
		var head eventstore.Head
		if len(events) > 0 {
			head = events[len(events)-1].Head()
		}
		b := batch(id, head, "")
		for n := range 1 + chance.IntN(2) {
			b.Events = append(b.Events, moved(id, n))
		}
		batches = append(batches, b)
	}
	results, err := s.AppendTx(ctx, tx, batches...)
	if err != nil {
		return 0, err
	}
	for _, r := range results {
		if r.Err != nil {
			return 0, r.Err
		}
		written += int64(len(r.Recorded))
	}
	if _, err := tx.Exec(ctx, `SELECT pg_sleep($1)`, chance.Float64()*0.02); err != nil {
		return 0, err
	}
	if chance.IntN(8) == 0 {
		return 0, nil // rolled back: its positions are never seen, and nobody waits for them
	}
	return written, tx.Commit(ctx)
}

func deadlocked(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "40P01"
}

// Writers that lock their partitions by one call never deadlock, whatever sets
// of customers they draw.
func TestLocksAreTakenInOneOrder(t *testing.T) {
	t.Parallel()
	const writers = 8
	s := storeOn(t, pgtest.Connect(t, pgtest.DSN(t), writers))
	var writing sync.WaitGroup
	for w := range writers {
		chance := rand.New(rand.NewPCG(7, uint64(w)))
		writing.Go(func() {
			for range 15 {
				var batches []eventstore.Batch
				for _, i := range chance.Perm(100)[:20] {
					c := domain.CustomerID(fmt.Sprintf("c%d", i))
					batches = append(batches, batch(c, eventstore.Head{}, domain.Key(fmt.Sprintf("k/%d", i)), moved(c, 1)))
				}
				tx, err := s.Pool().Begin(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := s.AppendTx(t.Context(), tx, batches...); err != nil {
					t.Error(err)
				}
				if err := tx.Commit(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	if n := count(t, s.Pool(), `SELECT count(*) FROM events`); n != 100 {
		t.Errorf("%d events, want one of each of 100 keys", n)
	}
}

// A row that brings its position, as a restore does, keeps it; one that does
// not gets the next one, whatever the writer.
func TestTriggerDrawsPositions(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	insert := func(stream string, position any) (got int64) {
		t.Helper()
		err := s.Pool().QueryRow(t.Context(), `INSERT INTO events (partition, position, stream_id, stream_version, event_type, sequence_key, payload)
			VALUES (3, $2, $1, 1, 'x.y.v1', $1, '{}') RETURNING position`, stream, position).Scan(&got)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first, second := insert("a", nil), insert("b", nil)
	if second <= first {
		t.Errorf("positions %d, then %d", first, second)
	}
	if got := insert("c", int64(1_000_000)); got != 1_000_000 {
		t.Errorf("a row that brought position 1000000 is at %d", got)
	}
	tx, err := s.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload) VALUES (3, 'd', 1, 'x.y.v1', 'd', '{}')`); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s.Pool(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = $1 AND objid = 3 AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, eventstore.LockClass); n != 1 {
		t.Errorf("an insert by hand holds %d locks of its partition", n)
	}
}
