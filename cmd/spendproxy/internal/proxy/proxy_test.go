package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/cmd/spendproxy/internal/proxy"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// faulty is the real ledger, which fails in one place when it is told to.
type faulty struct {
	*ledger.Ledger
	begin, finish, observe func() // nil: nothing
}

func (f *faulty) Begin(ctx context.Context, a ledger.Ask) (ledger.Decision, error) {
	if f.begin != nil {
		f.begin()
	}
	return f.Ledger.Begin(ctx, a)
}

func (f *faulty) Finish(ctx context.Context, r ledger.Result) error {
	if f.finish != nil {
		f.finish()
	}
	return f.Ledger.Finish(ctx, r)
}

func (f *faulty) Observe(ctx context.Context, seen []policy.Evidence) error {
	if f.observe != nil {
		f.observe()
	}
	return f.Ledger.Observe(ctx, seen)
}

// bench is a proxy over a real ledger, in front of a server that says that
// every charge succeeds.
type bench struct {
	*httptest.Server
	books  *faulty
	secret string
	log    *record
	posts  atomic.Int32
}

func newBench(t *testing.T, books faulty) *bench {
	t.Helper()
	dsn := pgtest.Empty(t)
	if err := ledger.Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	b := &bench{books: &books, log: new(record)}
	books.Ledger = ledger.New(pgtest.Connect(t, dsn, 4), ledger.Options{})
	stripe := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			b.posts.Add(1)
		}
		_, _ = io.WriteString(w, `{"id":"ch_1","object":"charge","status":"succeeded","paid":true,"captured":true,"amount":1000,"currency":"usd","created":1700000000}`)
	}))
	t.Cleanup(stripe.Close)
	base, err := url.Parse(stripe.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := proxy.New(b.books, proxy.Upstream{Base: base, Key: "sk_test_1", Timeout: time.Minute}, nil, slog.New(slog.NewJSONHandler(b.log, nil)), prometheus.NewRegistry())
	t.Cleanup(p.Close)
	b.Server = httptest.NewServer(p)
	t.Cleanup(b.Close)
	_, b.secret, _, err = books.Issue(t.Context(), ledger.Issue{
		Label: "x", By: "test", Caps: []ledger.CapTerms{{Currency: "usd", Minor: 10_000}},
		Grant: policy.Grant{Rules: []policy.Rule{policy.ChargesCreate, policy.ChargesRead}, Mode: policy.Enforce, Window: policy.Total},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) call(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, b.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Authorization": {"Bearer " + b.secret}, "Idempotency-Key": {"k"}, "Content-Type": {"application/x-www-form-urlencoded"}}
	res, err := b.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

func (b *bench) held(t *testing.T) (held, settled int64) {
	t.Helper()
	sums, err := b.books.Books(t.Context(), ledger.BooksFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sums {
		held, settled = held+s.Held, settled+s.Settled
	}
	return held, settled
}

const form = "amount=1000&currency=usd&source=pm_1"

// A panic is answered, and what may have been sent stays held: also when it is
// the booking itself that panics.
func TestPanics(t *testing.T) {
	t.Parallel()
	boom := func() { panic(errors.New("MARKER: what a request said")) }
	for name, x := range map[string]struct {
		books        faulty
		code         string
		posts        int32
		held, settle int64
	}{
		"before the send":       {faulty{begin: boom}, "upstream_unreachable", 0, 0, 0},
		"in the booking":        {faulty{finish: boom}, "upstream_unavailable", 1, 1000, 0},
		"a fault of the memory": {faulty{begin: func() { _ = (*bench)(nil).secret }}, "upstream_unreachable", 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, x.books)
			status, text := b.call(t, http.MethodPost, "/v1/charges", form)
			held, settled := b.held(t)
			if status != 502 || !strings.Contains(text, x.code) || b.posts.Load() != x.posts || held != x.held || settled != x.settle {
				t.Errorf("%d %s; %d sent, %d held, %d settled", status, text, b.posts.Load(), held, settled)
			}
			if log := b.log.String(); !strings.Contains(log, "panicked") || strings.Contains(log, "MARKER") || strings.Contains(log, b.secret) {
				t.Errorf("the log: %s", log)
			}
		})
	}
}

// A read that the ledger cannot see is answered all the same, once; the caller
// has it before the ledger looks.
func TestAReadIsAnsweredBeforeItIsSeen(t *testing.T) {
	t.Parallel()
	answered := make(chan struct{})
	var once sync.Once
	b := newBench(t, faulty{observe: func() {
		<-answered
		panic("the ledger has gone mad")
	}})
	status, text := b.call(t, http.MethodGet, "/v1/charges/ch_1", "")
	once.Do(func() { close(answered) })
	if status != 200 || !strings.Contains(text, `"ch_1"`) {
		t.Errorf("%d %s", status, text)
	}
}

// A POST that comes behind a read's answer is judged by what the read showed,
// however long the ledger takes to book it.
func TestAPostIsJudgedByWhatReadsShowed(t *testing.T) {
	t.Parallel()
	var order record
	release := make(chan struct{})
	b := newBench(t, faulty{
		begin: func() { _, _ = io.WriteString(&order, "begun ") },
		observe: func() {
			<-release
			_, _ = io.WriteString(&order, "seen ")
		},
	})
	for range 3 {
		if status, text := b.call(t, http.MethodGet, "/v1/charges/ch_1", ""); status != 200 {
			t.Fatalf("%d %s", status, text)
		}
	}
	time.AfterFunc(100*time.Millisecond, func() { close(release) })
	if status, text := b.call(t, http.MethodPost, "/v1/charges", form); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	if got := order.String(); got != "seen seen seen begun " {
		t.Errorf("the order was: %s", got)
	}
}

// record is a writer that several goroutines may use.
type record struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}
