package eventstore_test

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// Property tests start from a fixed seed, so that a run can be repeated;
// -rapid.seed=0 draws another one each time.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.seed": "20261101", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	flag.Parse()
	os.Exit(m.Run())
}

var discard = slog.New(slog.DiscardHandler)

func newStore(t testing.TB) *eventstore.Store {
	t.Helper()
	return storeOn(t, pgtest.Pool(t))
}

// storeOn is the log as another process has it.
func storeOn(t testing.TB, pool *pgxpool.Pool) *eventstore.Store {
	t.Helper()
	s := eventstore.New(pool, eventstore.NewCodec(domain.Events()), discard)
	t.Cleanup(s.Close)
	return s
}

// batch is what a command "test" with this key adds to a customer's stream.
func batch(c domain.CustomerID, at eventstore.Head, key domain.Key, events ...domain.Event) eventstore.Batch {
	return eventstore.Batch{
		Stream: c.Stream(), Head: at, Key: key, Command: "test", Fingerprint: []byte("meant so"),
		Meta: eventstore.Meta{Actor: "tester", Correlation: "c-1"}, Events: events,
	}
}

// moved is a fact about a customer; n tells one from the other.
func moved(c domain.CustomerID, n int) domain.Event {
	return domain.PaymentMethodChanged{CustomerID: c, PaymentMethodID: fmt.Sprintf("pm_%d", n)}
}

// version is a head of which only the version is known: enough for an append
// whose digests nobody asks about.
func version(n int) eventstore.Head { return eventstore.Head{Version: n} }

// mustAppend appends a batch that nothing stands in the way of.
func mustAppend(t testing.TB, s *eventstore.Store, b eventstore.Batch) eventstore.Result {
	t.Helper()
	r, err := s.Append(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// load is a customer's stream.
func load(t testing.TB, s *eventstore.Store, c domain.CustomerID) []eventstore.Recorded {
	t.Helper()
	events, err := s.Load(t.Context(), s.Pool(), c.Stream(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// methods tells a stream as the methods its facts name, oldest first.
func methods(events []eventstore.Recorded) (told []string) {
	for _, e := range events {
		told = append(told, e.Event.(domain.PaymentMethodChanged).PaymentMethodID)
	}
	return told
}

// waitFor fails the test if a condition does not come about.
func waitFor(t testing.TB, what string, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !met(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// count is the number that a query answers.
func count(t testing.TB, pool *pgxpool.Pool, query string, args ...any) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
