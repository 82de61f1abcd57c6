package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// instance is one billingd's API on a database of its own, or shared.
type instance struct {
	*Server
	t    *testing.T
	url  string
	pool *pgxpool.Pool
	logs *logBuffer
	auth string // the Authorization of requests that bring none
	stop func() // ends Run and waits for it
}

type option func(*Deps, *Limits)

// tokensOf sets BILLING_TOKENS.
func tokensOf(t *testing.T, list string) option {
	tokens, err := access.Parse(list)
	if err != nil {
		t.Fatal(err)
	}
	return func(d *Deps, _ *Limits) { d.Tokens = tokens }
}

func limited(l Limits) option { return func(_ *Deps, limits *Limits) { *limits = l } }

// start serves the API on the test's database.
func start(t *testing.T, options ...option) *instance {
	t.Helper()
	return startOn(t, pgtest.Pool(t), options...)
}

func startOn(t *testing.T, pool *pgxpool.Pool, options ...option) *instance {
	t.Helper()
	i := &instance{t: t, pool: pool, logs: &logBuffer{}}
	log := slog.New(slog.NewJSONHandler(i.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	store := eventstore.New(pool, eventstore.NewCodec(domain.Events()), log)
	deps := Deps{
		Dispatcher: commands.NewDispatcher(store),
		Reads:      projections.NewReads(store),
		Processors: func(ctx context.Context) ([]tracking.ProcessorStatus, error) { return tracking.Status(ctx, pool) },
		Clock:      func(context.Context) (time.Time, error) { return time.Now().UTC(), nil },
		Metrics:    prometheus.NewRegistry(),
		Log:        log,
		Version:    "test",
	}
	var limits Limits
	for _, o := range options {
		o(&deps, &limits)
	}
	var err error
	if i.Server, err = New(deps, limits); err != nil {
		t.Fatal(err)
	}
	l, err := Listen("127.0.0.1:0", "")
	if err != nil {
		t.Fatal(err)
	}
	i.url = "http://" + l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- i.Run(ctx, l, 5*time.Second) }()
	i.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() {
		i.stop()
		store.Close()
		if t.Failed() {
			t.Logf("%s logged\n%s", i.url, i.logs)
		}
	})
	return i
}

// project runs the read models until the test ends.
func (i *instance) project() {
	runtime := tracking.New(i.pool, i.store, tracking.Options{Log: i.log, Poll: 100 * time.Millisecond})
	var processors []tracking.Processor
	for _, p := range projections.All() {
		processors = append(processors, p.Processor())
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- runtime.Run(ctx, processors...) }()
	i.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			i.t.Errorf("processors: %v", err)
		}
	})
}

// client does not keep connections: a test ends without waiting for them.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{}).DialContext}, Timeout: 30 * time.Second}

// answer is a response with its body.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) json(t *testing.T, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), into); err != nil {
		t.Fatalf("the answer is not JSON: %v\n%s", err, a.body)
	}
}

// receipt reads a 2xx answer to a command.
func (a answer) receipt(t *testing.T) (r Receipt) {
	t.Helper()
	if a.status != http.StatusOK && a.status != http.StatusAccepted {
		t.Fatalf("got %d: %s", a.status, a.body)
	}
	a.json(t, &r)
	return r
}

// problem reads an error and checks that it has the one shape.
func (a answer) problem(t *testing.T) (p Problem) {
	t.Helper()
	if a.status < 400 {
		t.Fatalf("got %d, want an error: %s", a.status, a.body)
	}
	if ct := a.header.Get("Content-Type"); ct != problemType {
		t.Errorf("the error is %q, not %s: %s", ct, problemType, a.body)
	}
	decoder := json.NewDecoder(strings.NewReader(a.body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		t.Fatalf("the error is not a problem: %v\n%s", err, a.body)
	}
	if p.Status != a.status || p.Code == "" || p.Title == "" || p.Detail == "" || p.Type == "" {
		t.Errorf("status %d with the problem %s", a.status, a.body)
	}
	if p.RequestID == "" || p.RequestID != a.header.Get("X-Request-Id") {
		t.Errorf("the request id is %q in the problem and %q in the header", p.RequestID, a.header.Get("X-Request-Id"))
	}
	return p
}

func (p Problem) names(field string) bool {
	for _, f := range p.Errors {
		if f.Field == field && f.Msg != "" {
			return true
		}
	}
	return false
}

func (i *instance) do(r *http.Request) answer {
	i.t.Helper()
	res, err := client.Do(r)
	if err != nil {
		i.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		i.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(body)}
}

func (i *instance) request(method, path, body string, header ...string) *http.Request {
	i.t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r, err := http.NewRequest(method, i.url+path, reader)
	if err != nil {
		i.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for k := 0; k+1 < len(header); k += 2 {
		r.Header.Add(header[k], header[k+1])
	}
	if i.auth != "" && r.Header.Get("Authorization") == "" {
		r.Header.Set("Authorization", i.auth)
	}
	return r
}

func (i *instance) get(path string, header ...string) answer {
	i.t.Helper()
	return i.do(i.request(http.MethodGet, path, "", header...))
}

// send dispatches a command by HTTP.
func (i *instance) send(command, body string, header ...string) answer {
	i.t.Helper()
	r := i.request(http.MethodPost, "/v1/commands/"+command, body, header...)
	if body == "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return i.do(r)
}

// register makes a customer known.
func (i *instance) register(customer string) Receipt {
	i.t.Helper()
	return i.send("register-customer", fmt.Sprintf(`{"customer_id":%q,"stripe_customer_id":"cus_%s","payment_method_id":"pm_card"}`, customer, strings.ReplaceAll(customer, "-", ""))).receipt(i.t)
}

func chargeBody(customer, period string, minor int) string {
	return fmt.Sprintf(`{"customer_id":%q,"billing_period":%q,"amount_minor":%d,"currency":"usd"}`, customer, period, minor)
}

// events counts the facts in the log.
func (i *instance) events() (n int) {
	i.t.Helper()
	if err := i.pool.QueryRow(i.t.Context(), `SELECT count(*) FROM events`).Scan(&n); err != nil {
		i.t.Fatal(err)
	}
	return n
}

// logBuffer is a log that a test reads.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// lines are the log's records with a message.
func (b *logBuffer) lines(message string) (records []map[string]any) {
	for line := range strings.Lines(b.String()) {
		var r map[string]any
		if json.Unmarshal([]byte(line), &r) == nil && r["msg"] == message {
			records = append(records, r)
		}
	}
	return records
}

// serve asks the handler itself, without a connection.
func (i *instance) serve(path string) answer {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Host = "localhost"
	i.ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.String()}
}
