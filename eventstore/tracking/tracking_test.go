package tracking_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/eventstore/tracking"
)

// house is a log with its own database and a table to project into.
type house struct {
	testing.TB
	pool  *pgxpool.Pool
	store *eventstore.Store
	dsn   string
	log   *slog.Logger
}

func newHouse(t testing.TB) *house {
	t.Helper()
	h := &house{TB: t, pool: pgtest.Pool(t), dsn: pgtest.DSN(t), log: testLog(t)}
	h.store = eventstore.New(h.pool, eventstore.NewCodec(domain.Events()), h.log)
	t.Cleanup(h.store.Close)
	h.exec(`CREATE TABLE seen (processor text, partition smallint, position bigint, customer text, version int, replay boolean, PRIMARY KEY (processor, position))`)
	return h
}

func testLog(t testing.TB) *slog.Logger {
	if testing.Verbose() && os.Getenv("TRACKING_LOG") != "" {
		return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	return slog.New(slog.DiscardHandler)
}

func (h *house) exec(sql string, args ...any) {
	h.Helper()
	if _, err := h.pool.Exec(h.Context(), sql, args...); err != nil {
		h.Fatalf("%s: %v", sql, err)
	}
}

// value reads one value.
func value[T any](h *house, sql string, args ...any) (v T) {
	h.Helper()
	rows, err := h.pool.Query(h.Context(), sql, args...)
	if err == nil {
		v, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	}
	if err != nil {
		h.Fatalf("%s: %v", sql, err)
	}
	return v
}

// append adds one event to a customer's stream by the real append path.
func (h *house) append(customer string, after eventstore.Head, e domain.Event) eventstore.Recorded {
	h.Helper()
	r, err := h.store.Append(h.Context(), eventstore.Batch{Stream: domain.CustomerID(customer).Stream(), Head: after, Command: "test", Events: []domain.Event{e}})
	if err != nil {
		h.Fatalf("append for %s: %v", customer, err)
	}
	return r.Recorded[0]
}

func registered(customer string) domain.Event {
	return domain.CustomerRegistered{CustomerID: domain.CustomerID(customer), StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"}
}

func changed(customer string, n int) domain.Event {
	return domain.PaymentMethodChanged{CustomerID: domain.CustomerID(customer), PaymentMethodID: fmt.Sprintf("pm_%d", n)}
}

// fill appends n events to each of the customers first to last, by plain SQL.
func (h *house) fill(customers, n int) {
	h.Helper()
	ids := make([]string, customers)
	partitions := make([]int16, customers)
	for i := range ids {
		ids[i] = fmt.Sprintf("c%d", i)
		partitions[i] = eventstore.PartitionOf(ids[i])
	}
	h.exec(`INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload)
		SELECT p, 'customer/' || c, v, 'customer.payment_method_changed.v1', c, json_build_object('customer_id', c, 'payment_method_id', 'pm_' || v)
		FROM unnest($1::text[], $2::smallint[]) AS u(c, p), generate_series(1, $3::int) AS v ORDER BY v, p`, ids, partitions, n)
}

// recordSeen is a handler that writes a row an event, page by page.
func recordSeen(ctx context.Context, p *tracking.Page) error {
	n := len(p.Events)
	partitions, positions, versions := make([]int16, n), make([]int64, n), make([]int32, n)
	customers, replays := make([]string, n), make([]bool, n)
	for i, e := range p.Events {
		partitions[i], positions[i], versions[i] = e.Partition, e.Position, int32(e.Version)
		customers[i], replays[i] = e.SequenceKey, p.Replay(e)
	}
	_, err := p.Tx.Exec(ctx, `INSERT INTO seen SELECT $1, * FROM unnest($2::smallint[], $3::bigint[], $4::text[], $5::int[], $6::boolean[])`,
		p.Processor, partitions, positions, customers, versions, replays)
	return err
}

func reader(name string) tracking.Processor {
	return tracking.Processor{Name: name, Handler: tracking.HandlerFunc(recordSeen)}
}

// running is a Runtime under way.
type running struct {
	*tracking.Runtime
	stop func() error // waits for Run and returns what it did
}

// quick is how tests poll: often.
const quick = 20 * time.Millisecond

func (h *house) run(o tracking.Options, processors ...tracking.Processor) *running {
	h.Helper()
	if o.Poll == 0 {
		o.Poll = quick
	}
	if o.Log == nil {
		o.Log = h.log
	}
	r := h.runOn(h.pool, h.store, o, processors...)
	h.eventually(func() string {
		for _, p := range processors {
			if len(h.status(p.Name).Partitions) == 0 {
				return p.Name + " does not start"
			}
		}
		return ""
	})
	return r
}

// victim opens connections that tests tell from all others by their name, to cut
// them.
func (h *house) victim() *pgxpool.Pool {
	h.Helper()
	config, err := pgxpool.ParseConfig(h.dsn)
	if err != nil {
		h.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["application_name"] = "victim"
	pool, err := pgxpool.NewWithConfig(h.Context(), config)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(pool.Close)
	return pool
}

// victims runs replicas, each on connections of its own that can be cut.
func (h *house) victims(replicas int, o tracking.Options, processors ...tracking.Processor) {
	h.Helper()
	for range replicas {
		h.runOn(h.victim(), h.store, o, processors...)
	}
}

// nothingAside checks that no event was put aside.
func (h *house) nothingAside() {
	h.Helper()
	if n := value[int](h, `SELECT count(*) FROM dead_letters`); n != 0 {
		h.Errorf("%d events were put aside: %s", n, value[string](h, `SELECT error FROM dead_letters LIMIT 1`))
	}
}

func (h *house) runOn(pool *pgxpool.Pool, store *eventstore.Store, o tracking.Options, processors ...tracking.Processor) *running {
	h.Helper()
	r := tracking.New(pool, store, o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, processors...) }()
	stop := sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(30 * time.Second):
			return errors.New("Run does not return")
		}
	})
	h.Cleanup(func() {
		if err := stop(); err != nil {
			h.Errorf("Run: %v", err)
		}
	})
	return &running{r, stop}
}

// eventually waits for a condition, which says what is missing.
func (h *house) eventually(missing func() string) {
	h.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		m := missing()
		if m == "" {
			return
		}
		if time.Now().After(deadline) {
			h.Fatalf("waited in vain: %s", m)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (h *house) status(processor string) tracking.ProcessorStatus {
	h.Helper()
	all, err := tracking.Status(h.Context(), h.pool, processor)
	if err != nil {
		h.Fatal(err)
	}
	if len(all) != 1 {
		return tracking.ProcessorStatus{Processor: processor}
	}
	return all[0]
}

// caughtUp waits until every event of the log is behind the processors' tokens,
// handled or set aside.
func (h *house) caughtUp(processors ...string) {
	h.Helper()
	for _, name := range processors {
		h.eventually(func() string {
			s := h.status(name)
			behind := func(p tracking.PartitionStatus) bool { return p.Missing || p.Appending || p.Token != p.Newest }
			if len(s.Partitions) == 0 || slices.ContainsFunc(s.Partitions, behind) {
				return fmt.Sprintf("%s is %d events behind; last error: %s", name, s.BehindEvents, s.LastError)
			}
			return ""
		})
	}
}

// listening waits until a runtime is listening.
func (h *house) listening() {
	h.Helper()
	h.eventually(func() string {
		if value[int](h, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%' AND wait_event = 'ClientRead'`) == 0 {
			return "nobody listens"
		}
		return ""
	})
}

// exactlyOnce checks that a processor has a row of each event, and no other.
func (h *house) exactlyOnce(processor string) {
	h.Helper()
	if missed := value[int](h, `SELECT count(*) FROM events e WHERE NOT EXISTS (SELECT FROM seen s WHERE s.processor = $1 AND s.position = e.position)`, processor); missed != 0 {
		h.Errorf("%s has not seen %d events", processor, missed)
	}
	if extra := value[int](h, `SELECT count(*) FROM seen s WHERE s.processor = $1 AND NOT EXISTS (SELECT FROM events e WHERE s.position = e.position)`, processor); extra != 0 {
		h.Errorf("%s has seen %d events that are not in the log", processor, extra)
	}
}

func TestFollowsTheLog(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill(20, 3)
	h.run(tracking.Options{}, reader("follower"))
	h.caughtUp("follower")
	for i := range 50 {
		c := fmt.Sprintf("late%d", i)
		first := h.append(c, eventstore.Head{}, registered(c))
		h.append(c, first.Head(), changed(c, 2))
	}
	h.caughtUp("follower")
	h.exactlyOnce("follower")
}

var discard = slog.New(slog.DiscardHandler)

func contains(t testing.TB, what, part string) {
	t.Helper()
	if !strings.Contains(what, part) {
		t.Errorf("%q does not say %q", what, part)
	}
}
